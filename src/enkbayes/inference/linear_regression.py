"""The noise variance and the prior variance of a Bayesian linear regression, by evidence, in closed form.

    y = X theta + constant + noise,    theta ~ N(0, v I),    noise ~ N(0, s2),    rho = v / s2

Centred features with Gram matrix X'X = Q diag(lambda) Q' and b = lambda^{-1/2} Q' X'y turn the evidence of n centred
rows into sums over the eigenvalues:

    -2 log p(y) = n log(2 pi s2) + sum log(1 + rho lambda) + (sum b^2 / (1 + rho lambda) + rest) / s2

with rest = y'y - sum b^2. For each rho the best s2 is known, so one number is left to search. Centring stands for a
constant with a wide prior and costs one row. The sums over the rows add up over chunks and streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Normal
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import as_double
from enkbayes.engine.rows import Chunk, Sums

Numbers = np.ndarray[Any, Any]
NOISE_FLOOR = 1e-6  # smallest noise variance, as a share of the variance of the targets
WIDE = 100.0  # prior variance of an intercept around the mean target, in variances of the targets


@dataclass(frozen=True)
class Scales:
    """The two variances, and the mean and the variance of the targets.

    noise : s2; prior : v of every weight
    """

    noise: float
    prior: float
    target_mean: float
    target_variance: float


def regression_scales(
    problem: Problem,
    *,
    noise: float | None = None,
    prior: float | None = None,
    signal: tuple[float, float] = (1e-6, 1e8),
) -> Scales:
    """Return the noise variance and the prior variance of the weights that maximise the evidence.

    Parameters
    ----------
    problem : Problem
        With linear logits and real targets; its prior and the variance of its likelihood do not matter. Weights count
        how often each row occurs.
    noise, prior : float, optional
        Fix one of the two, or both.
    signal : (float, float)
        Range of rho times the mean squared length of a centred row, the ratio of signal to noise of a typical row.

    Examples
    --------
    >>> import enkbayes as eb
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((500, 20))
    >>> y = X @ rng.normal(0, 2, 20) + 5 + 0.5 * rng.standard_normal(500)
    >>> found = regression_scales(eb.Problem.create(X, y, likelihood=eb.Normal(), intercept=1.0))
    >>> round(found.noise**0.5, 1), round(found.prior**0.5)
    (0.5, 2)
    """
    count, mean, gram, cross, square = _centred_sums(problem)
    degrees = max(count - 1.0, 1.0) if problem.linear_logits("a linear regression").intercept else count
    variance = max(square / max(count, 1.0), (1e-8 * abs(mean)) ** 2, 1e-100)
    w, Q = np.linalg.eigh(gram)
    kept = w > max(len(w), 1) * np.finfo(np.float64).eps * max(float(w[-1]), 0.0)
    eigenvalues, b2 = w[kept], (Q.T @ cross)[kept] ** 2 / w[kept]
    rest = max(square - float(np.sum(b2)), 0.0)
    floor = NOISE_FLOOR * variance

    def best_noise(rho: float) -> float:
        return max((float(np.sum(b2 / (1 + rho * eigenvalues))) + rest) / degrees, floor)

    def cost(rho: float, s2: float) -> float:
        """-2 log p(y), up to a constant."""
        explained = float(np.sum(np.log1p(rho * eigenvalues)))
        return degrees * math.log(s2) + explained + (float(np.sum(b2 / (1 + rho * eigenvalues))) + rest) / s2

    if noise is not None and prior is not None:
        return Scales(noise, prior, mean, variance)
    if prior is not None:  # search over the noise
        log_s2 = _lowest(lambda t: cost(prior / math.exp(t), math.exp(t)), math.log(floor), math.log(10 * variance))
        return Scales(math.exp(log_s2), prior, mean, variance)
    length = float(np.sum(eigenvalues)) / max(count, 1.0)
    if not length > 0:  # constant features explain nothing
        s2 = best_noise(0.0) if noise is None else noise
        return Scales(s2, s2, mean, variance)
    low, high = (math.log(x / length) for x in signal)
    log_rho = _lowest(lambda t: cost(math.exp(t), best_noise(math.exp(t)) if noise is None else noise), low, high)
    s2 = best_noise(math.exp(log_rho)) if noise is None else noise
    return Scales(s2, math.exp(log_rho) * s2, mean, variance)


def regression_problem(
    X: Numbers,
    y: Any,
    *,
    intercept: bool = True,
    noise: float | None = None,
    precision: float | None = None,
    intercept_precision: float | None = None,
    centre: Numbers | None = None,
) -> Problem:
    """Return the problem of a linear regression, with the noise and the prior that are not given chosen by evidence.

    Parameters
    ----------
    X, y : arrays (N, D) and (N,)
        Features and real targets.
    intercept : bool
        Whether there is a constant term, the last parameter.
    noise : float, optional
        Variance of a target around its prediction.
    precision, intercept_precision : float, optional
        Inverse prior variance of the weights and of the constant term. The latter's prior is wide by default.
    centre : array (P,), optional
        Mean of the prior. Default: 0, and the mean target for a constant term whose precision is not given.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 2))
    >>> y = X @ [1.0, 2.0] + 0.1 * rng.standard_normal(200)
    >>> problem = regression_problem(X, y, centre=np.asarray([1.0, 2.0, 0.0]))
    >>> problem.prior.mean.round(1).tolist(), bool(0.008 < problem.likelihood.variance < 0.012)
    ([1.0, 2.0, 0.0], True)
    """
    rows = Problem.create(X, y, likelihood=Normal(), intercept=1.0 if intercept else None)
    D = rows.linear_logits("a linear regression").features
    mean = np.zeros(D + intercept) if centre is None else np.asarray(centre, dtype=np.float64)
    rest = rows.targets - rows.features @ mean[:D] - (mean[D] if intercept else 0.0)
    scales = regression_scales(
        rows.with_arrays(targets=rest), noise=noise, prior=None if precision is None else 1 / precision
    )
    prior = Gaussian(mean[:D], scales.prior)
    if intercept:
        constant = mean[D:] + (scales.target_mean if intercept_precision is None and centre is None else 0.0)
        width = WIDE * (scales.target_variance + scales.target_mean**2)
        prior = prior.stack(Gaussian(constant, width if intercept_precision is None else 1 / intercept_precision))
    return replace(rows.with_prior(prior), likelihood=Normal(scales.noise))


def _lowest(cost: Callable[[float], float], low: float, high: float, points: int = 80) -> float:
    """Return the minimiser of a function of one number, which may have several local minima."""
    grid = np.linspace(low, high, points)
    best = int(np.argmin([cost(t) for t in grid]))
    if best in (0, points - 1):
        return float(grid[best])
    found = minimize_scalar(cost, bounds=(grid[best - 1], grid[best + 1]), method="bounded", options={"xatol": 1e-10})
    return float(found.x)


def _centred_sums(problem: Problem) -> tuple[float, float, Numbers, Numbers, float]:
    """Return the number of rows, the mean target, and X'X, X'y and y'y of centred features and targets (uncentred
    without an intercept).
    """
    count, total, target = problem.rows.sum(lambda chunk: _moments(chunk, None, 0.0)[:3])
    n = float(count[0])
    mean = float(target[0]) / n
    if not problem.linear_logits("a linear regression").intercept:
        centre, mean = np.zeros(len(total)), 0.0
    else:
        centre = np.asarray(total) / n
    gram, cross, square = problem.rows.sum(lambda chunk: _moments(chunk, centre, mean)[3:])
    return n, mean, np.asarray(gram), np.asarray(cross), float(square[0])


def _moments(chunk: Chunk, centre: Numbers | None, mean: float) -> Sums:
    """Return count, sum of features and of targets; then, around a centre, X'X, X'y and y'y."""
    x, y, w = as_double(chunk.features), as_double(chunk.targets), chunk.counts
    first = np.asarray([w.sum()]), w @ x, np.asarray([w @ y])
    if centre is None:
        return first
    x, y = x - centre, y - mean
    return *first, (x * w[:, None]).T @ x, x.T @ (w * y), np.asarray([w @ y**2])
