"""Importance weights: how far the true posterior is from the Gaussian that was fitted to it.

Fresh draws theta of the fitted Gaussian q have the weights

    log w = log p(data | theta) + log prior(theta) - log q(theta),

whose average is the evidence. Two figures describe them: their effective sample size, and the shape k-hat of their tail
(Pareto-smoothed importance sampling, Vehtari and others 2024). k-hat alone misleads where all weights are close to 1,
because their tail is noise. Weighted moments of the draws say how far mean, variances and norm of q are from those of
the posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.low_rank import LowRankGaussian
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, as_double, like, namespace, row_slices

FEWEST_IN_TAIL = 5  # weights that a Pareto distribution can be fitted to
FEW = 100  # effective draws below which weighted averages say nothing
MIDDLE = 0.8  # share of the draws whose |theta - m0|^2 is neither small nor large


def log_weights(problem: Problem, posterior: Posterior, draws: int, seed: int) -> np.ndarray[Any, Any]:
    """Return the log importance weights (draws,) of fresh draws from the fitted Gaussian.

    Their average is the evidence if the Gaussian spans all parameters. Otherwise they are known up to a factor, which
    changes neither the effective sample size nor k-hat.
    """
    return weights_at(problem, posterior.fitted, standard_draws(draws, posterior.fitted, seed))


def weights_at(problem: Problem, fitted: AffineEnsemble, z: Array) -> np.ndarray[Any, Any]:
    """Return the log importance weights (S,) of draws of a fitted Gaussian with whitened coordinates z (S, freedom)."""
    return as_double(log_ratio(problem, fitted)(z))


def defensive_weights(
    problem: Problem, posterior: Posterior, draws: int, seed: int, *, wider: float, share: float
) -> tuple[np.ndarray[Any, Any], int]:
    """Return the log importance weights (draws,) of draws from a mixture, and how many of them, the first ones, come
    from its first part.

    The mixture is the fitted Gaussian q and, for a share of the draws, one that is up to `wider` times as wide in the
    directions that the data inform. Skewed posteriors have a longer tail than q, whose draws alone miss it: the
    average of their weights is too small, and so is its error bar. With a complement, q stands alone.
    """
    fitted = posterior.fitted
    z = as_double(standard_draws(draws, fitted, seed))
    ratio = log_ratio(problem, fitted)
    count = draws if fitted.complement is not None else draws - round(share * draws)
    if count == draws:
        return as_double(ratio(like(z, fitted.mean))), draws
    spread, U = wider_where_informed(problem, fitted, wider)
    y = z @ U
    y[count:] *= spread
    log_wide = np.sum(y**2 * (1 - spread**-2.0), axis=1) / 2 - np.sum(np.log(spread))  # log of wide / q
    mixture = np.logaddexp(math.log(count / draws), math.log(1 - count / draws) + log_wide)
    return as_double(ratio(like(y @ U.T, fitted.mean))) - mixture, count


def wider_where_informed(
    problem: Problem, fitted: AffineEnsemble, wider: float
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return factors (r,) on the spread of a fitted Gaussian along orthonormal axes (r, r) of its whitened coordinates:
    1 + (wider - 1) w along an axis where a share w of the precision comes from the data.
    """
    prior, axes = (as_double(part) for part in problem.prior_moments(fitted).spectrum)
    return 1 + (wider - 1) * (1 - np.minimum(prior, 1.0)), axes


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
    z = standard_draws(draws, fitted, seed)
    theta = as_double(fitted.gaussian.unwhiten(z))[:, list(columns)]
    return theta, smoothed(weights_at(problem, fitted, z))[0]


def standard_draws(draws: int, fitted: AffineEnsemble, seed: int) -> Array:
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
    """Return the log weights (S,) with the tail of a fitted Pareto distribution, and its shape k-hat.

    The tail are the min(S / 5, 3 sqrt(S)) largest weights. The order statistics of the fitted distribution replace
    them, none of which exceeds the largest weight. The weights keep their scale, so their average is still the
    evidence. k-hat is 0 where all weights of the tail are equal, and infinite where a few draws have all the weight or
    a weight is not finite.

    >>> rng = np.random.default_rng(0)
    >>> round(smoothed(rng.standard_exponential(100_000) / 2)[1], 1)  # weights with P(w > t) = 1 / t^2
    0.5
    """
    size = len(log_weights)
    count = math.ceil(min(size / 5, 3 * math.sqrt(size)))
    if count < FEWEST_IN_TAIL or not np.all(np.isfinite(log_weights)):
        return log_weights, math.inf
    order = np.argsort(log_weights, kind="stable")
    tail, top = order[-count:], float(log_weights[order[-1]])
    cut = math.exp(max(float(log_weights[order[-count - 1]]) - top, math.log(np.finfo(float).tiny)))
    excess = np.exp(log_weights[tail] - top) - cut
    if excess[-1] <= count * np.finfo(float).eps:
        return log_weights, 0.0
    k_hat, scale = pareto_fit(excess)
    if not math.isfinite(k_hat):
        return log_weights, math.inf
    levels = (np.arange(count) + 0.5) / count
    quantiles = -np.log1p(-levels) if abs(k_hat) < 1e-12 else np.expm1(-k_hat * np.log1p(-levels)) / k_hat
    smooth = log_weights.copy()
    smooth[tail] = np.minimum(np.log(cut + scale * quantiles), 0.0) + top
    return smooth, k_hat


def pareto_fit(excess: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return shape and scale of the generalised Pareto distribution of sorted numbers (n,), not negative: the estimate
    of Zhang and Stephens (2009), with the shape drawn towards 1/2 as by ten more numbers; an infinite shape where a
    quarter of the numbers vanish against the largest.

    >>> u = (np.arange(1000) + 0.5) / 1000
    >>> [round(x, 2) for x in pareto_fit(((1 - u) ** -0.3 - 1) / 0.3)]
    [0.3, 1.0]
    """
    n = len(excess)
    quarter, largest = float(excess[int(n / 4 + 0.5) - 1]), float(excess[-1])
    if not quarter > largest * np.finfo(float).tiny ** 0.5:
        return math.inf, math.nan
    grid = 30 + int(math.sqrt(n))
    b = (1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3 * quarter) + 1 / largest
    shape = np.mean(np.log1p(-b[:, None] * excess), axis=1)
    profile = n * (np.log(-b / shape) - shape - 1)
    weights = np.exp(profile - profile.max())
    best = float(b @ weights / weights.sum())
    k = float(np.mean(np.log1p(-best * excess)))
    return (k * n + 5) / (n + 10), -k / best


@dataclass(frozen=True)
class Errors:
    """How far a Gaussian is from the posterior, by weighted draws of it, beyond their own noise.

    mean : the largest error of the mean of a parameter, in posterior standard deviations
    parameter : the one that has it
    variances : geometric mean of the ratios of its variances to the posterior's
    norm : error of the mean of |theta - m0|^2, in units of the prior, in posterior standard deviations of it
    coverage : share of the posterior in the middle `MIDDLE` of the Gaussian's |theta - m0|^2

    A figure within its noise is 0, 1 for a ratio, and at least `MIDDLE` for the coverage; all are where fewer than
    `FEW` draws are effective.
    """

    mean: float
    parameter: int
    variances: float
    norm: float
    coverage: float


def weighted_errors(
    problem: Problem, gaussian: LowRankGaussian, z: Array, log_weights: np.ndarray[Any, Any], *, noise: float = 3.0
) -> Errors:
    """Return the errors of a Gaussian by its draws, whitened (S, freedom), and their log weights (S,); `noise` is the
    number of standard errors that are subtracted: 1 / sqrt(effective size) each, sqrt(2 / P) times that for the average
    of P log variances, sqrt(MIDDLE (1 - MIDDLE)) times that for the coverage.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0]], [1.0, 3.0], likelihood=eb.Normal())
    >>> off = LowRankGaussian(np.asarray([1.0]), np.asarray([[0.4]]))  # the posterior is N(7/6, 1/6)
    >>> z = np.random.default_rng(0).standard_normal((20_000, 1))
    >>> theta = off.unwhiten(z)
    >>> weights = problem.prior.log_density(theta) - problem.loss(theta) + z[:, 0] ** 2 / 2
    >>> round(weighted_errors(problem, off, z, weights).mean, 1)
    0.4
    """
    theta = as_double(gaussian.unwhiten(z))
    w = np.exp(log_weights - np.max(log_weights))
    w /= w.sum()
    if 1 / float(w @ w) < FEW:
        return Errors(mean=0.0, parameter=0, variances=1.0, norm=0.0, coverage=MIDDLE)
    error = noise * math.sqrt(float(w @ w))
    centre, variances = as_double(gaussian.mean), as_double(gaussian.variances)
    posterior = w @ theta
    spread = np.maximum(w @ (theta - posterior) ** 2, np.finfo(float).tiny)
    moved = np.abs(posterior - centre) / np.sqrt(spread)
    whitened = problem.prior.whiten((like(theta, problem.prior.mean) - problem.prior.mean).mT)
    norms = np.sum(as_double(whitened) ** 2, axis=0)
    norm, sd = float(w @ norms), math.sqrt(max(float(w @ (norms - w @ norms) ** 2), np.finfo(float).tiny))
    low, high = np.quantile(norms, [(1 - MIDDLE) / 2, (1 + MIDDLE) / 2])
    ratio = float(np.mean(np.log(np.maximum(variances, np.finfo(float).tiny) / spread)))
    off = (float(np.mean(norms)) - norm) / sd
    return Errors(
        mean=max(float(moved.max()) - error, 0.0),
        parameter=int(np.argmax(moved)),
        variances=math.exp(math.copysign(max(abs(ratio) - error * math.sqrt(2 / len(moved)), 0.0), ratio)),
        norm=math.copysign(max(abs(off) - error, 0.0), off),
        coverage=float(w @ ((norms >= low) & (norms <= high))) + error * math.sqrt(MIDDLE * (1 - MIDDLE)),
    )
