"""Laplace approximation of the output layer: N(theta_MAP, H^{-1}), where H is the Hessian of the potential at the MAP.

With theta = m0 + L0 u and the Hessian S = L0' H L0 in prior-whitened coordinates, the covariance is L0 S^{-1} L0'. The
Hessian is exact and full, for one logit and for K; the prior is that of the problem. There are two predictive rules:

    Laplace         E sigma(z), z ~ N(m, v), by the same exact rules as for the ensembles of this package
    LaplaceProbit   sigma(m / sqrt(1 + pi v / 8)), MacKay's approximation, as in the paper; for K logits
                    softmax_k(m_k / sqrt(1 + pi v_k / 8)) with the variance v_k of each logit, correlations ignored
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from enkbayes.core.likelihoods import Bernoulli, Categorical, Likelihood
from enkbayes.core.likelihoods.probit import ProbitBernoulli, ProbitCategorical
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.evaluation.baselines.method import fitted
from enkbayes.samplers.start import count
from enkbayes.solvers.laplace import laplace_ensemble
from enkbayes.solvers.map_estimate import map_estimate


@dataclass(frozen=True)
class Laplace:
    """N(theta_MAP, H^{-1}) with the exact Gaussian predictive.

    Parameters
    ----------
    particles : int
        Number of draws from the Gaussian in the posterior; predictions do not depend on it.
    tol, max_steps
        As in `MAP`.

    Examples
    --------
    >>> problem = Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> Laplace().fit(problem).predict_proba([[0.0]]).tolist()
    [[0.5, 0.5]]
    """

    particles: int = 200
    tol: float = 1e-8
    max_steps: int = 1000
    name: str = "laplace"

    def fit(self, problem: Problem, *, seed: int = 0, progress: bool = False) -> Posterior:
        """Return the Gaussian and draws from it."""
        started = time.perf_counter()
        count(self.particles)
        estimate = map_estimate(problem, tol=self.tol, max_steps=self.max_steps)
        ensemble = laplace_ensemble(problem, estimate.theta, self.particles, seed)
        return fitted(problem, ensemble, self, started, gaussian=True, **estimate.outcome)


@dataclass(frozen=True)
class LaplaceProbit(Laplace):
    """N(theta_MAP, H^{-1}) with the probit predictive of the paper; settings as in `Laplace`.

    Examples
    --------
    >>> problem = Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> LaplaceProbit().fit(problem).predict_proba([[0.0]]).tolist()
    [[0.5, 0.5]]
    """

    name: str = "laplace-probit"

    def fit(self, problem: Problem, *, seed: int = 0, progress: bool = False) -> Posterior:
        """Return the Gaussian of `Laplace` with the other predictive rule."""
        exact = super().fit(problem, seed=seed, progress=progress)
        return replace(exact, likelihood=with_probit(problem.likelihood))


def with_probit(likelihood: Likelihood) -> Likelihood:
    """Return the likelihood with the probit predictive. A likelihood without classes is returned unchanged.

    >>> import numpy as np
    >>> with_probit(Bernoulli()).predictive(np.asarray([1.0]), V=np.asarray([[0.0]])).round(4).tolist()
    [[0.2689, 0.7311]]
    """
    if isinstance(likelihood, Bernoulli):
        return ProbitBernoulli()
    if isinstance(likelihood, Categorical):
        return ProbitCategorical(likelihood.outputs)
    return likelihood
