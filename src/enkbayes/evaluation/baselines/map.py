"""Point estimates: maximum a posteriori (MAP) and maximum likelihood (MLE)."""

from __future__ import annotations

import time
from dataclasses import dataclass

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import namespace
from enkbayes.evaluation.baselines.method import fitted
from enkbayes.solvers.map_estimate import map_estimate

GROWTH = 0.1  # if a training logit changes by more under a prior 100 times wider, no maximum exists


@dataclass(frozen=True)
class MAP:
    """theta = argmin Psi(theta) - log prior(theta), with the prior of the problem.

    Parameters
    ----------
    tol : float
        Stop when the norm of the gradient, in prior-whitened coordinates, is below this.
    max_steps : int
        Largest number of L-BFGS iterations.

    Examples
    --------
    >>> problem = Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> MAP().fit(problem).theta.shape
    (1, 1)
    """

    tol: float = 1e-8
    max_steps: int = 1000
    name: str = "map"

    def fit(self, problem: Problem, *, seed: int = 0, progress: bool = False) -> Posterior:
        """Return the point estimate as a posterior with one particle."""
        started = time.perf_counter()
        estimate = map_estimate(problem, tol=self.tol, max_steps=self.max_steps)
        return fitted(problem, AffineEnsemble.point(estimate.theta), self, started, **estimate.outcome)


@dataclass(frozen=True)
class MLE:
    """theta = argmin Psi(theta).

    Separable data have no such theta, and with K logits it is not unique. This method therefore computes the MAP under
    the prior of the problem with its covariance multiplied by `widening`, which selects the solution closest to the
    prior mean. A second fit, with a prior another hundred times wider, shows whether a maximum exists: if training
    logits still grow, there is none, and `info.message` says so.

    Parameters
    ----------
    widening : float
        Factor on the covariance of the prior.
    tol, max_steps
        As in `MAP`.

    Examples
    --------
    >>> problem = Problem.create([[1.0], [2.0], [-1.0], [-0.5]], [1, 1, 0, 0])
    >>> MLE().fit(problem).info.message[:24]
    'the data are separable, '
    """

    widening: float = 1e8
    tol: float = 1e-8
    max_steps: int = 1000
    name: str = "mle"

    def __post_init__(self) -> None:
        if not self.widening >= 1:
            raise ValueError(f"widening is {self.widening!r}; expected a number, at least 1")

    def fit(self, problem: Problem, *, seed: int = 0, progress: bool = False) -> Posterior:
        """Return the point estimate as a posterior with one particle."""
        started = time.perf_counter()
        estimate = map_estimate(_widened(problem, self.widening), tol=self.tol, max_steps=self.max_steps)
        wider = map_estimate(
            _widened(problem, 100 * self.widening), tol=self.tol, max_steps=self.max_steps, start=estimate.theta
        )
        xp = namespace(estimate.theta)
        pair = xp.stack([estimate.theta, wider.theta])
        logits = problem.model.all_logits(problem.rows, pair)
        growth = float(xp.max(xp.abs(logits[:, 1, ...] - logits[:, 0, ...])))
        outcome = estimate.outcome | {"steps": estimate.steps + wider.steps}
        if growth > GROWTH:
            outcome["message"] = (
                "the data are separable, so the likelihood has no maximum; this is the maximum under the prior with"
                f" its covariance times {self.widening:g}"
            )
        return fitted(problem, AffineEnsemble.point(estimate.theta), self, started, **outcome)


def _widened(problem: Problem, factor: float) -> Problem:
    return problem.with_prior(Gaussian(problem.prior.mean, problem.prior.cov * factor))
