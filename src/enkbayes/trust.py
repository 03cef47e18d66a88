"""How far to trust a posterior: has it settled, does it span the parameters, is the true posterior near its Gaussian?

The last question is answered by importance weights. Fresh draws theta = mean + basis z of the fitted Gaussian have

    log w = -Psi(theta) + log prior(theta) + |z|^2 / 2        (up to a constant).

Two figures judge them: their effective sample size, and the shape k-hat of their tail (Pareto-smoothed importance
sampling, by ArviZ where it is installed). Either alone misleads: the tail of weights that are all close to 1 is noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from enkbayes.arrays import like, row_slices, to_numpy
from enkbayes.posterior import Posterior
from enkbayes.problem import Problem

GOOD, USABLE, BAD = "good", "usable", "do not trust"
SETTLED = 0.1  # residual, in posterior sds
GROUP = 250  # draws whose logits are held at a time


@dataclass(frozen=True)
class Trust:
    """A verdict ("good", "usable", "do not trust"), one sentence, and the figures behind them.

    k_hat is NaN without ArviZ, and both k_hat and effective (effective sample size as a share of the draws) are NaN for
    a posterior without a Gaussian. spanned counts the directions that the particles span, out of `parameters`.
    """

    verdict: str
    sentence: str
    residual: float
    k_hat: float
    effective: float
    spanned: int
    parameters: int


def assess(problem: Problem, posterior: Posterior, *, draws: int = 4000, seed: int = 0) -> Trust:
    """Return how far to trust what `run` returned for a problem, from fresh draws of its Gaussian.

    Examples
    --------
    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((200, 2))
    >>> problem = eb.Problem.create(features, features[:, 0] + features[:, 1] ** 2 > 0.5)
    >>> assess(problem, eb.run(problem)).verdict
    'good'
    """
    k_hat = effective = math.nan
    if posterior.gaussian:
        weights = log_weights(problem, posterior, draws, seed)
        k_hat, effective = tail_shape(weights), effective_share(weights)
    info, spanned = posterior.info, posterior.ensemble.rank
    settled = info.converged and not info.residual > SETTLED
    verdict, sentence = judge(k_hat, effective, settled=settled, spanned=spanned, parameters=problem.dim)
    return Trust(verdict, sentence, info.residual, k_hat, effective, spanned, problem.dim)


def judge(k_hat: float, effective: float, *, settled: bool, spanned: int, parameters: int) -> tuple[str, str]:
    """Return the verdict and one sentence, the most serious reason first.

    >>> judge(0.9, 0.01, settled=True, spanned=3, parameters=3)[0]
    'do not trust'
    """
    figures = f"effective share {effective:.2g}" + ("" if math.isnan(k_hat) else f", k-hat {k_hat:.2f}")
    close = effective >= 0.5 or k_hat < 0.5
    near = close or k_hat < 0.7 or (math.isnan(k_hat) and effective >= 0.1)
    if not settled:
        return BAD, "the run has not settled; raise max_steps, or use the mean-field sampler"
    if not near and not math.isnan(effective):
        return BAD, f"the true posterior is far from Gaussian ({figures}); get more data or narrow the prior"
    if spanned < parameters:
        return USABLE, f"the particles span {spanned} of {parameters} parameters; use more of them, or mean-field"
    if not close:
        return USABLE, f"the true posterior is not quite Gaussian ({figures}); variances may be too small"
    return GOOD, f"the run has settled and the true posterior is close to its Gaussian ({figures})"


def log_weights(problem: Problem, posterior: Posterior, draws: int, seed: int) -> np.ndarray[Any, Any]:
    """Return the log importance weights (draws,) of fresh draws from the posterior's Gaussian, the largest being 0."""
    ensemble = posterior.ensemble
    z = np.random.default_rng((seed, 3)).standard_normal((draws, ensemble.rank))
    parts = []
    for rows in row_slices(draws, GROUP):
        theta = ensemble.mean + like(z[rows], ensemble.mean) @ ensemble.basis.mT
        target = to_numpy(problem.prior.log_density(theta) - problem.loss(theta))
        parts.append(target + np.sum(z[rows] ** 2, axis=1) / 2)
    weights = np.concatenate(parts).astype(np.float64)
    return np.asarray(weights - weights.max())


def effective_share(log_weights: np.ndarray[Any, Any]) -> float:
    """Return the effective sample size of weighted draws as a share of their number.

    >>> effective_share(np.zeros(10))
    1.0
    """
    w = np.exp(log_weights)
    return float(w.sum() ** 2 / np.sum(w**2) / len(w))


def tail_shape(log_weights: np.ndarray[Any, Any]) -> float:
    """Return k-hat by ArviZ, NaN where it is not installed."""
    if find_spec("arviz") is None:
        return math.nan
    import arviz

    psis = getattr(arviz, "psislw", None)
    return math.nan if psis is None else float(psis(log_weights.copy())[1])
