"""Expectations over an ensemble: empirical (an average over its J points), or the Gaussian closure (its J = infinity
limit).

The closure rests on one identity. The logistic function is a scale mixture of normal distribution functions with
Kolmogorov mixing (Andrews & Mallows 1974; Monahan & Stefanski 1992):

    sigma(z) = integral Phi(z / lambda) q(lambda) dlambda,    lambda = 2 K,  K ~ Kolmogorov.

Under z ~ N(a, v) each term stays in closed form, with kappa = 1 / sqrt(lambda^2 + v) and u = kappa a:

    E sigma = sum w Phi(u),   E sigma' = sum w kappa phi(u),   E softplus = sum w (a Phi(u) + phi(u) / kappa).

A 24-node trapezoid rule in log K is accurate to 1e-13 for every mean and variance (Gauss-Hermite is off by tens of per
cent once the standard deviation reaches 10, and serves only where all variances are small), and d/da E softplus = E
sigma, d/dv E softplus = E sigma' / 2 hold term by term, so an objective and its gradient agree to round-off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from scipy.special import ndtri

from enkbayes.core.moments import Moments
from enkbayes.engine.arrays import Array, is_traced, like, namespace, ndtr

NODES = 24
HERMITE = 20
NARROW = 0.5  # variance up to which that many Gauss-Hermite nodes are as good


Averages = tuple[Array, Array, Array]
"""Loss (n,), slope (n,) or (n, K), and curvature (n,) or (n, K, K) of each datum, averaged over its logits."""


class Averaged(Protocol):
    """What an expectation asks of a likelihood; see `likelihoods`."""

    def moments(self, logits: Array, V: Array, targets: Array, weights: Array | None) -> Moments:
        """Average over particles' logits, and sum over data in a basis."""

    def closure(self, mean_logits: Array, V: Array, targets: Array, weights: Array | None, refine: int = 0) -> Moments:
        """Average over Gaussian logits, and sum over data in a basis."""

    def averages(self, logits: Array, targets: Array, *, energy: bool = True) -> Averages:
        """Average over particles' logits."""

    def gaussian_averages(self, mean_logits: Array, cov: Array, targets: Array, refine: int = 0) -> Averages:
        """Average over Gaussian logits."""


class LogitLaw(Protocol):
    """The logits of some rows under an ensemble."""

    @property
    def particles(self) -> Array:
        """Of every particle: (n, J) or (n, J, K)."""

    @property
    def gaussian(self) -> tuple[Array, Array]:
        """Mean (n,) or (n, K) and variance (n,) or covariance (n, K, K) of the Gaussian N(mean, basis basis')."""


@dataclass(frozen=True, eq=False)
class OneLogit:
    """The law of one logit a row, from mean_logits (n,), V (n, r) and points (J, r)."""

    mean_logits: Array
    V: Array
    points: Array

    @property
    def particles(self) -> Array:
        """Of every particle (n, J)."""
        return particle_logits(self.mean_logits, self.V, self.points)

    @property
    def gaussian(self) -> tuple[Array, Array]:
        """Mean and variance, (n,) each."""
        return self.mean_logits, namespace(self.V).sum(self.V * self.V, axis=1)


@dataclass(frozen=True)
class Expectation:
    """(1 - gaussian) times the average over the J particles, as the paper takes it, plus `gaussian` times that over
    N(mean, basis basis'), the mean-field limit; the latter with 4**refine times as many quadrature points where the
    likelihood has no exact rule. Without `energy` the particles' E[Psi] is not computed, and NaN.
    """

    gaussian: float = 0.0
    refine: int = 0
    energy: bool = True

    def in_basis(
        self, likelihood: Averaged, mean_logits: Array, V: Array, points: Array, targets: Array, weights: Array | None
    ) -> Moments:
        """Return the moments from mean_logits (n,) or (n, K), V (n, r) or (n, K, r) and points (J, r)."""
        observed = (V, targets, weights)
        if self.gaussian == 1.0:
            return likelihood.closure(mean_logits, *observed, self.refine)
        own = likelihood.moments(particle_logits(mean_logits, V, points), *observed)
        if self.gaussian == 0.0:
            return own
        return own * (1 - self.gaussian) + likelihood.closure(mean_logits, *observed, self.refine) * self.gaussian

    def by_datum(self, likelihood: Averaged, law: LogitLaw, targets: Array, weights: Array | None) -> Averages:
        """Return what each datum adds."""
        found = self._averages(likelihood, law, targets)
        return found if weights is None else _times(found, weights)

    def _averages(self, likelihood: Averaged, law: LogitLaw, targets: Array) -> Averages:
        if self.gaussian == 1.0:
            return likelihood.gaussian_averages(*law.gaussian, targets, self.refine)
        own = likelihood.averages(law.particles, targets, energy=self.energy)
        if self.gaussian == 0.0:
            return own
        limit = likelihood.gaussian_averages(*law.gaussian, targets, self.refine)
        loss, slope, curvature = ((1 - self.gaussian) * a + self.gaussian * b for a, b in zip(own, limit, strict=True))
        return loss, slope, curvature


def _times(averages: Averages, weights: Array) -> Averages:
    loss, slope, curvature = (x * namespace(x).reshape(weights, (-1, *(1 for _ in x.shape[1:]))) for x in averages)
    return loss, slope, curvature


empirical = Expectation()
"""Averages over the ensemble's own particles."""

closure = Expectation(gaussian=1.0)
"""Averages over the ensemble's Gaussian."""


def particle_logits(mean_logits: Array, V: Array, points: Array) -> Array:
    """Return the logits of every particle: (n, J), or (n, J, K) when mean_logits is (n, K) and V is (n, K, r)."""
    if mean_logits.ndim == 1:
        return mean_logits[:, None] + V @ points.mT
    xp = namespace(V)
    return mean_logits[:, None, :] + xp.matmul(points, V.mT)


@lru_cache(maxsize=1)
def scale_mixture() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return lambda^2 and weights of the 24-node rule, each (24,).

    >>> lambda2, weights = scale_mixture()
    >>> from scipy.special import expit, ndtr
    >>> abs(float(weights @ ndtr(1.5 / np.sqrt(lambda2))) - float(expit(1.5))) < 1e-13
    True
    """
    t = np.linspace(math.log(0.2), math.log(4.3), NODES)
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


def averaged_logit(a: Array, v: Array) -> tuple[Array, Array, Array]:
    """Return the same by the cheaper rule that is accurate for these variances.

    >>> a, v = np.asarray([-2.0, 3.0]), np.asarray([0.1, 0.4])
    >>> bool(max(np.abs(x - y).max() for x, y in zip(averaged_logit(a, v), gauss_logit(a, v))) < 1e-12)
    True
    """
    narrow = v.shape[0] > 0 and not is_traced(v) and float(namespace(v).max(v)) <= NARROW
    return _narrow_logit(a, v) if narrow else gauss_logit(a, v)


def _narrow_logit(a: Array, v: Array) -> tuple[Array, Array, Array]:
    """Return the same by a Gauss-Hermite rule, for variances up to NARROW: cheaper, and off by 1e-12."""
    xp = namespace(a)
    x, weights = (like(part, a) for part in _hermite())
    z = a[:, None] + xp.sqrt(v)[:, None] * x
    e = xp.exp(-xp.abs(z))
    s = 1 / (1 + e)
    sigma = xp.where(z >= 0, s, e * s)
    return sigma @ weights, (e * s * s) @ weights, (xp.maximum(z, xp.zeros_like(z)) + xp.log1p(e)) @ weights


@lru_cache(maxsize=1)
def _hermite() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x, weights = np.polynomial.hermite_e.hermegauss(HERMITE)
    return x, weights / weights.sum()


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
    u, _, vt = np.linalg.svd(x, full_matrices=False)
    return np.asarray(math.sqrt(len(x)) * (u @ vt))
