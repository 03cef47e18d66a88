"""Expectations over an ensemble: empirical (an average over its J points), or the Gaussian closure (its J = infinity
limit).

The closure rests on one identity. The logistic function is a scale mixture of normal distribution functions with
Kolmogorov mixing (Andrews & Mallows 1974; Monahan & Stefanski 1992):

    sigma(z) = integral Phi(z / lambda) q(lambda) dlambda,    lambda = 2 K,  K ~ Kolmogorov.

Under z ~ N(a, v) each term stays in closed form, with kappa = 1 / sqrt(lambda^2 + v) and u = kappa a:

    E sigma = sum w Phi(u),   E sigma' = sum w kappa phi(u),   E softplus = sum w (a Phi(u) + phi(u) / kappa).

A 24-node trapezoid rule in log K is accurate to 1e-13 for every mean and variance (Gauss-Hermite is off by tens of per
cent once the standard deviation reaches 10), and d/da E softplus = E sigma, d/dv E softplus = E sigma' / 2 hold term by
term, so an objective and its gradient agree to round-off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from enkbayes.arrays import Array, like, namespace, ndtr
from enkbayes.moments import Moments

NODES = 24


class Averages(Protocol):
    """What an expectation asks of a likelihood; see `likelihoods`."""

    def moments(self, logits: Array, V: Array, targets: Array, weights: Array | None) -> Moments:
        """Average over particles' logits."""

    def closure(self, mean_logits: Array, V: Array, targets: Array, weights: Array | None) -> Moments:
        """Average over Gaussian logits."""


Expectation = Callable[[Averages, Array, Array, Array, Array, Array | None], Moments]
"""(likelihood, mean_logits (n,) or (n, K), V (n, r) or (n, K, r), points (J, r), targets, weights (n,)) -> Moments."""


def empirical(
    likelihood: Averages, mean_logits: Array, V: Array, points: Array, targets: Array, weights: Array | None
) -> Moments:
    """Average over the J particles, as the paper does."""
    return likelihood.moments(particle_logits(mean_logits, V, points), V, targets, weights)


def closure(
    likelihood: Averages, mean_logits: Array, V: Array, points: Array, targets: Array, weights: Array | None
) -> Moments:
    """Average over the Gaussian N(mean, basis basis'), the mean-field limit."""
    return likelihood.closure(mean_logits, V, targets, weights)


def blend(beta: float) -> Expectation:
    """Return the expectation (1 - beta) empirical + beta closure."""
    if beta == 0.0:
        return empirical
    if beta == 1.0:
        return closure

    def blended(
        likelihood: Averages, mean_logits: Array, V: Array, points: Array, targets: Array, weights: Array | None
    ) -> Moments:
        arguments = (likelihood, mean_logits, V, points, targets, weights)
        return empirical(*arguments) * (1 - beta) + closure(*arguments) * beta

    return blended


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


@lru_cache(maxsize=16)
def quasi_random_points(dim: int, log2_size: int = 8) -> np.ndarray[Any, Any]:
    """Return 2**log2_size antithetic Sobol points (Q, dim) of the standard normal, zero mean, identity second moment.

    >>> x = quasi_random_points(3)
    >>> bool(np.allclose(x.T @ x / len(x), np.eye(3)) and np.allclose(x.mean(0), 0))
    True
    """
    from scipy.stats import norm, qmc  # half a second, and only softmax problems need it

    size = max(log2_size - 1, math.ceil(math.log2(dim + 1)))
    half = norm.ppf(qmc.Sobol(dim, scramble=True, rng=np.random.default_rng(0)).random_base2(size))
    x = np.concatenate([half, -half])
    u, _, vt = np.linalg.svd(x, full_matrices=False)
    return np.asarray(math.sqrt(len(x)) * (u @ vt))
