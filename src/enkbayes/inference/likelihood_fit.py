"""Parameters of the likelihood itself, the cutpoints of `Ordinal` or the noise of `Normal`, chosen by evidence.

With q(theta; a) the Gaussian of `MeanField` for parameters a, the evidence lower bound

    L(a) = -E_q[Psi(theta; a)] - KL(q || prior)

is maximised over a. Since q itself maximises the bound, dL/da = -E_q[dPsi/da] at fixed q: a few sums over the rows, by
central differences of the averaged loss. These sums add up over chunks, streams and shards like all others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from enkbayes.core.expectations import closure
from enkbayes.core.numerics import in_range
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import epsilon
from enkbayes.inference.evidence import elbo
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run


@in_range("the parameters of the likelihood")
def fit_likelihood(problem: Problem, *, tol: float = 1e-4, max_steps: int = 50) -> Problem:
    """Return the problem with the parameters of its likelihood that maximise the evidence lower bound; the problem
    itself where the likelihood has none.

    Parameters
    ----------
    problem : Problem
        With linear logits.
    tol : float
        Largest slope of the bound, in nats per row, at which the search stops; rows are counted by their weights.
    max_steps : int
        Steps of the search (BFGS); each takes one or a few runs of `MeanField`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((500, 3))
    >>> targets = features @ [1.0, 2.0, 3.0] + 0.5 * rng.standard_normal(500)
    >>> import enkbayes as eb
    >>> round(fit_likelihood(eb.Problem.create(features, targets, likelihood=eb.Normal())).likelihood.variance, 2)
    0.27
    """
    likelihood = problem.likelihood
    if len(likelihood.parameters) == 0:
        return problem
    h, total = epsilon(problem.prior.mean) ** (1 / 3), _total_weight(problem)

    def negative_bound(parameters: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        here = replace(problem, likelihood=likelihood.with_parameters(parameters))
        posterior = run(here, MeanField(), particles=2)
        slope = np.zeros(len(parameters))
        for i, step in enumerate(h * np.eye(len(parameters))):
            near = (replace(here, likelihood=likelihood.with_parameters(parameters + s * step)) for s in (1, -1))
            up, down = (float(other.moments(posterior.fitted, closure).loss) for other in near)
            slope[i] = (up - down) / (2 * h)
        return -elbo(here, posterior).value / total, slope / total

    found = minimize(negative_bound, likelihood.parameters, jac=True, options={"gtol": tol, "maxiter": max_steps})
    return replace(problem, likelihood=likelihood.with_parameters(found.x))


def _total_weight(problem: Problem) -> float:
    """Return the number of rows, counted by their weights, of all chunks and shards."""
    (total,) = problem.rows.sum(lambda chunk: (np.asarray([chunk.counts.sum()]),))
    return float(total[0])
