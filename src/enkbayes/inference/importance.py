"""Importance weights: how far the true posterior is from the Gaussian that was fitted to it.

Fresh draws theta of the fitted Gaussian q have the weights

    log w = log p(data | theta) + log prior(theta) - log q(theta),

whose average is the evidence. Two figures describe them: their effective sample size, and the shape k-hat of their tail
(Pareto-smoothed importance sampling, by ArviZ if it is installed). k-hat alone misleads where all weights are close to
1, because their tail is noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from enkbayes.core.arviz import quiet_arviz
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, like, namespace, row_slices, to_numpy


def log_weights(problem: Problem, posterior: Posterior, draws: int, seed: int) -> np.ndarray[Any, Any]:
    """Return the log importance weights (draws,) of fresh draws from the fitted Gaussian.

    Their average is the evidence if the Gaussian spans all parameters. Otherwise they are known up to a factor, which
    changes neither the effective sample size nor k-hat.
    """
    fitted = posterior.fitted
    ratio = log_ratio(problem, fitted)(_standard(draws, fitted, seed))
    return np.asarray(to_numpy(ratio), dtype=np.float64)


def log_ratio(problem: Problem, ensemble: AffineEnsemble, *, draws: int = 250) -> Callable[[Array], Array]:
    """Return the function z (j, freedom) -> log p(data | theta) + log prior(theta) - log q(theta), (j,), of theta =
    ensemble.gaussian.unwhiten(z).

    q is the Gaussian N(mean, cov) of the ensemble, and z are its whitened coordinates. The logits of `draws` points are
    held at a time.
    """
    xp = namespace(ensemble.mean)
    constant = ensemble.freedom / 2 * math.log(2 * math.pi) + ensemble.gaussian.log_volume

    def ratio(z: Array) -> Array:
        parts = []
        for rows in row_slices(int(z.shape[0]), draws):
            theta = ensemble.gaussian.unwhiten(z[rows, :])
            posterior = problem.prior.log_density(theta) - problem.loss(theta)
            parts.append(posterior + xp.sum(z[rows, :] ** 2, axis=1) / 2 + constant)
        return xp.concat(parts)

    return ratio


def weighted_draws(
    problem: Problem, posterior: Posterior, draws: int, columns: Sequence[int], *, seed: int = 0
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return some columns (draws, c) of fresh draws of the fitted Gaussian, and their smoothed log weights (draws,)."""
    fitted = posterior.fitted
    z = _standard(draws, fitted, seed)
    theta = to_numpy(fitted.gaussian.unwhiten(z))[:, list(columns)]
    weights = np.asarray(to_numpy(log_ratio(problem, fitted)(z)), dtype=np.float64)
    return np.asarray(theta, dtype=np.float64), smoothed(weights)[0]


def _standard(draws: int, fitted: AffineEnsemble, seed: int) -> Array:
    """Return the whitened coordinates (draws, freedom) of fresh draws."""
    return like(np.random.default_rng((seed, 3)).standard_normal((draws, fitted.freedom)), fitted.mean)


def effective_share(log_weights: np.ndarray[Any, Any]) -> float:
    """Return the effective sample size of weighted draws as a share of their number.

    >>> effective_share(np.zeros(10))
    1.0
    """
    w = np.exp(log_weights - np.max(log_weights))
    return float(w.sum() ** 2 / np.sum(w**2) / len(w))


def smoothed(log_weights: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], float]:
    """Return the log weights with their tail replaced by that of a fitted Pareto distribution, and its shape k-hat.

    The weights keep their scale, so their average is still the evidence. ArviZ fits the tail. Without it the weights
    are returned as they are, with k-hat NaN.
    """
    psis = getattr(quiet_arviz(), "psislw", None)
    if psis is None:
        return log_weights, math.nan
    with np.errstate(over="ignore"):  # weights may differ by hundreds of orders of magnitude
        smooth, k_hat = psis(log_weights.copy())
    least = int(np.argmin(log_weights))  # smoothing changes the largest weights only, so this one keeps the scale
    return np.asarray(smooth + (log_weights[least] - smooth[least])), float(k_hat)
