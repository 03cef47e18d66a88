"""Averages over Gaussian logits: a closed rule for the logistic function, and rules for any function.

The closed rule rests on one identity. The logistic function is a scale mixture of normal distribution functions with
Kolmogorov mixing (Andrews & Mallows 1974; Monahan & Stefanski 1992):

    sigma(z) = integral Phi(z / lambda) q(lambda) dlambda,    lambda = 2 K,  K ~ Kolmogorov.

Under z ~ N(a, v) each term stays in closed form, with kappa = 1 / sqrt(lambda^2 + v) and u = kappa a:

    E sigma = sum w Phi(u),   E sigma' = sum w kappa phi(u),   E softplus = sum w (a Phi(u) + phi(u) / kappa).

A 24-node trapezoid rule in log K is accurate to 1e-13 for every mean and variance (Gauss-Hermite is off by tens of per
cent once the standard deviation reaches 10, and serves only where all variances are small), and d/da E softplus = E
sigma, d/dv E softplus = E sigma' / 2 hold term by term, so an objective and its gradient agree to round-off.

Any other function of one logit is averaged by `trapezoid_nodes`, of K logits by `GaussianPoints`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtri

from enkbayes.core.moments import Diverged
from enkbayes.engine.arrays import (
    Array,
    all_finite,
    epsilon,
    identity,
    is_traced,
    like,
    namespace,
    ndtr,
    row_slices,
    symmetric,
    take_rows,
    thin_svd,
    to_numpy,
)


@lru_cache(maxsize=1)
def scale_mixture(nodes: int = 24) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return lambda^2 and weights of the rule, each (nodes,).

    >>> lambda2, weights = scale_mixture()
    >>> from scipy.special import expit, ndtr
    >>> abs(float(weights @ ndtr(1.5 / np.sqrt(lambda2))) - float(expit(1.5))) < 1e-13
    True
    """
    t = np.linspace(math.log(0.2), math.log(4.3), nodes)
    K = np.exp(t)
    weights = _kolmogorov_density(K) * K
    return (2 * K) ** 2, weights / weights.sum()


def _kolmogorov_density(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the density of the Kolmogorov distribution: one series converges fast above .9, its Jacobi transform
    below.
    """
    k = np.arange(1, 40)[:, None]
    c = ((2 * k - 1) * math.pi) ** 2 / 8
    large = 8 * x * np.sum((-1.0) ** (k + 1) * k**2 * np.exp(-2 * k**2 * x**2), axis=0)
    small = math.sqrt(2 * math.pi) * np.sum(np.exp(-c / x**2) * (2 * c / x**4 - 1 / x**2), axis=0)
    return np.asarray(np.where(x > 0.9, large, small))


def gauss_logit(a: Array, v: Array) -> tuple[Array, Array, Array]:
    """Return E sigma(z), E sigma'(z), E softplus(z) for z ~ N(a, v), elementwise over a (n,) and v (n,).

    >>> y, r, s = gauss_logit(np.asarray([0.0, 3.0]), np.asarray([1.0, 0.0]))
    >>> y.round(12).tolist()
    [0.5, 0.952574126822]
    """
    xp = namespace(a, v)
    lambda2, weights = (like(x, a) for x in scale_mixture())
    kappa = 1 / xp.sqrt(lambda2 + v[:, None])
    u = kappa * a[:, None]
    Phi, phi = ndtr(u), xp.exp(-(u**2) / 2) / math.sqrt(2 * math.pi)
    return Phi @ weights, (kappa * phi) @ weights, (a[:, None] * Phi + phi / kappa) @ weights


def averaged_logit(a: Array, v: Array, narrow: float = 0.5) -> tuple[Array, Array, Array]:
    """Return the same by the cheaper rule that is accurate for these variances: Gauss-Hermite up to `narrow`, where it
    is off by 1e-12.

    >>> a, v = np.asarray([-2.0, 3.0]), np.asarray([0.1, 0.4])
    >>> bool(max(np.abs(x - y).max() for x, y in zip(averaged_logit(a, v), gauss_logit(a, v))) < 1e-12)
    True
    """
    small = v.shape[0] > 0 and not is_traced(v) and float(namespace(v).max(v)) <= narrow
    return _narrow_logit(a, v) if small else gauss_logit(a, v)


def _narrow_logit(a: Array, v: Array) -> tuple[Array, Array, Array]:
    xp = namespace(a)
    x, weights = (like(part, a) for part in _hermite())
    z = a[:, None] + xp.sqrt(v)[:, None] * x
    e = xp.exp(-xp.abs(z))
    s = 1 / (1 + e)
    sigma = xp.where(z >= 0, s, e * s)
    return sigma @ weights, (e * s * s) @ weights, (xp.maximum(z, xp.zeros_like(z)) + xp.log1p(e)) @ weights


@lru_cache(maxsize=1)
def _hermite(nodes: int = 20) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return x, weights / weights.sum()


@lru_cache(maxsize=16)
def trapezoid_nodes(level: int, width: float = 12.0, spacing: float = 0.5) -> tuple[Any, Any]:
    """Return nodes and weights of a rule for E f(x), x ~ N(0, 1): equally spaced nodes up to +-width, `spacing` apart
    at level 0 and half as far at each level after it.

    The trapezoid rule converges geometrically: with spacing h its error is about exp(-2 pi a / h) for a function that
    is analytic within a distance a of the real line. Functions of exp(z), such as softplus, have a = pi
    in the logit z, and a = pi / sd in x. So a step of 2/3 in the logit gives 12 digits (see `trapezoid_level`). The
    nodes reach to 12 standard deviations, so that E exp(z) has 12 digits up to a standard deviation of 5.

    >>> x, weights = trapezoid_nodes(0)
    >>> bool(abs(weights @ np.cosh(2 * x) / np.exp(2) - 1) < 1e-14)
    True
    """
    half = round(width / spacing) * 2**level
    x = np.linspace(-width, width, 2 * half + 1)
    weights = np.exp(-(x**2) / 2)
    return x, weights / weights.sum()


def averaged_over_nodes(
    function: Callable[[Array, Any], tuple[Array, ...]], mean_logits: Array, V: Array, at_once: int = 2**20
) -> tuple[Array, ...]:
    """Return averages (n, ...) of what function(logits (m, Q), rows (m,)) returns for some rows, each (m, Q, ...), over
    one Gaussian logit a row with mean (n,) and variance |V_n|^2, V (n, r).

    The number of nodes Q follows from the standard deviation of a row alone, so a row has the same average in every
    chunk. At most `at_once` logits are held at a time.

    >>> z = averaged_over_nodes(lambda z, rows: (z, z**2), np.asarray([1.0, 2.0]), np.asarray([[0.0], [3.0]]))
    >>> [x.round(9).tolist() for x in z]
    [[1.0, 2.0], [1.0, 13.0]]
    """
    xp = namespace(V)
    sd = xp.sqrt(xp.vecdot(V, V))
    if not all_finite(sd):
        raise Diverged("the variances of the logits are not finite")

    def averages(level: int, rows: np.ndarray[Any, Any]) -> tuple[Array, ...]:
        x, weights = (like(part, V) for part in trapezoid_nodes(level))
        z = take_rows(mean_logits, rows)[:, None] + take_rows(sd, rows)[:, None] * x
        return tuple(f @ weights if f.ndim == 2 else xp.matmul(weights, f) for f in function(z, rows))

    levels = trapezoid_level(to_numpy(sd))
    return by_level(averages, levels, lambda level: at_once // len(trapezoid_nodes(level)[0]))


def by_level(
    function: Callable[[int, np.ndarray[Any, Any]], tuple[Array, ...]],
    levels: np.ndarray[Any, Any],
    at_once: Callable[[int], int],
) -> tuple[Array, ...]:
    """Return arrays (n, ...) of what function(level, rows (m,)) returns for rows of the same level, (m, ...) each, for
    rows with levels (n,); at_once(level) of them are taken at a time.

    >>> by_level(lambda level, rows: (10 * level + rows,), np.asarray([1, 0, 1]), lambda level: 1)[0].tolist()
    [10, 1, 12]
    """
    groups, parts = [np.flatnonzero(levels == level) for level in np.unique(levels)] or [np.arange(0)], []
    for group in groups:
        level = int(levels[group[0]]) if len(group) else 0
        chunks = list(row_slices(len(group), max(1, at_once(level)))) or [slice(0)]
        parts += [function(level, group[some]) for some in chunks]
    back = np.argsort(np.concatenate(groups))
    return tuple(take_rows(namespace(found[0]).concat(found, axis=0), back) for found in zip(*parts, strict=True))


def trapezoid_level(sd: np.ndarray[Any, Any], step: float = 2 / 3, spacing: float = 0.5, finest: int = 8) -> Any:
    """Return the level of `trapezoid_nodes` whose nodes are at most `step` apart in logits with standard deviation sd.

    `finest` bounds the number of nodes at 12289, which resolves standard deviations up to 340.

    >>> trapezoid_level(np.asarray([0.1, 1.0, 2.0, 10.0, 1e9])).tolist()
    [0, 0, 1, 3, 8]
    """
    levels = np.ceil(np.log2(np.maximum(sd * (spacing / step), 1.0)))
    return np.minimum(levels, finest).astype(int)


@lru_cache(maxsize=16)
def quasi_random_points(dim: int, log2_size: int = 8) -> np.ndarray[Any, Any]:
    """Return 2**log2_size antithetic Sobol points (Q, dim) of the standard normal, zero mean, identity second moment.

    >>> x = quasi_random_points(3)
    >>> bool(np.allclose(x.T @ x / len(x), np.eye(3)) and np.allclose(x.mean(0), 0))
    True
    """
    from scipy.stats import qmc  # takes longer to import than the rest of the package

    size = max(log2_size - 1, math.ceil(math.log2(dim + 1)))
    half = ndtri(qmc.Sobol(dim, scramble=True, rng=np.random.default_rng(0)).random_base2(size))
    x = np.concatenate([half, -half])
    u, _, vt = thin_svd(x)
    return np.asarray(math.sqrt(len(x)) * (u @ vt))


@dataclass(frozen=True, eq=False)
class GaussianPoints:
    """Quasi-random logits z_nq = mean_n + root_n x_q of Gaussians with covariances V_n V_n'.

    The points x (Q, m) are in the smaller of two spaces: the K logits of a row, with the Cholesky factor of V V' as
    root, or the r < K coordinates of V, with V as root.
    """

    points: Array
    root: Array

    @classmethod
    def of(cls, V: Array, refine: int = 0) -> GaussianPoints:
        """Return the rule for V (n, K, r), with 2^(8 + 2 refine) points."""
        K, rank = V.shape[1:]
        points = like(quasi_random_points(min(K, rank), 8 + 2 * refine), V)
        return cls(points, V if rank < K else cholesky(namespace(V).matmul(V, V.mT)))

    def logits(self, mean_logits: Array) -> Array:
        """Return the logits (n, Q, K) around mean_logits (n, K)."""
        return mean_logits[:, None, :] + namespace(self.root).matmul(self.points, self.root.mT)

    def hessian(self, slope: Array) -> Array:
        """Return the average Hessian (n, K, K) of a loss with slopes (n, Q, K) at the points, by Price's theorem.

        It is twice the derivative of mean_q loss in the covariance: E[Hess] = 2 dE/dP. With G = root' mean_q[slope x'],
        a change dT of the root moves the mean by tr(G dT): through the derivative of the Cholesky factor, or, for fewer
        coordinates than logits, in the span of V alone.
        """
        xp = namespace(slope)
        G = xp.matmul(self.root.mT, xp.matmul(slope.mT, self.points)) / self.points.shape[0]
        if self.root.shape[-1] < self.root.shape[-2]:
            inverse, inner = xp.linalg.pinv(self.root), symmetric(G)
        else:
            inverse, inner = xp.linalg.inv(self.root), xp.tril(G) + xp.tril(G, k=-1).mT
        return xp.matmul(inverse.mT, xp.matmul(inner, inverse))


def averaged_over_points(
    function: Callable[[Array], Array],
    mean_logits: Array,
    V: Array,
    *,
    wide: tuple[float, ...] = (0.5, 1.5),
    at_once: int = 2**22,
) -> Array:
    """Return the averages (n, C) of what function(logits (m, Q, K)) returns, (m, Q, C), over K Gaussian logits per row
    with means (n, K) and covariances V V', V (n, K, r).

    A row has 256 quasi-random points, and four times as many for every width in `wide` that the largest standard
    deviation of its logits, up to a common shift, exceeds: 256 points are off by .001 at a standard deviation of 1 and
    by .02 at 3. The number follows from the row alone, so it has the same average in every chunk. At most `at_once`
    logits are held at a time. A program that is being recorded takes every number of points and selects for each row.

    >>> x = averaged_over_points(lambda z: z * z, np.zeros((2, 2)), np.asarray([[[1.0], [0.0]], [[4.0], [0.0]]]))
    >>> x.round(9).tolist()
    [[1.0, 0.0], [16.0, 0.0]]
    """
    xp = namespace(V)
    centred = V - xp.mean(V, axis=1, keepdims=True)
    variance = xp.max(xp.sum(centred * centred, axis=-1), axis=1)
    if is_traced(V):
        average = xp.mean(function(GaussianPoints.of(V).logits(mean_logits)), axis=1)
        for level, width in enumerate(wide, start=1):
            finer = xp.mean(function(GaussianPoints.of(V, level).logits(mean_logits)), axis=1)
            average = xp.where((variance > width**2)[:, None], finer, average)
        return average

    def averages(level: int, rows: np.ndarray[Any, Any]) -> tuple[Array, ...]:
        points = GaussianPoints.of(take_rows(V, rows), level)
        return (xp.mean(function(points.logits(take_rows(mean_logits, rows))), axis=1),)

    levels = np.searchsorted(np.asarray(wide), to_numpy(variance) ** 0.5)
    return by_level(averages, levels, lambda level: at_once // (V.shape[1] * 2 ** (8 + 2 * level)))[0]


def cholesky(cov: Array) -> Array:
    """Return Cholesky factors of covariances (n, K, K), with a ridge at the level of round-off."""
    xp = namespace(cov)
    K = cov.shape[-1]
    eye = identity(K, cov)
    ridge = 4 * K * epsilon(cov) * xp.sum(cov * eye, axis=(1, 2)) + xp.finfo(cov.dtype).smallest_normal ** 0.5
    try:
        return xp.linalg.cholesky(cov + ridge[:, None, None] * eye)
    except (np.linalg.LinAlgError, RuntimeError):  # torch's is a RuntimeError
        raise Diverged("the covariances of the logits are not positive definite") from None
