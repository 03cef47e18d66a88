"""Expectations over an ensemble: empirical (an average over its J points), or the Gaussian closure (its J = infinity
limit).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from enkbayes.core.likelihoods.base import Averages, Likelihood, weighted
from enkbayes.core.moments import Moments
from enkbayes.engine.arrays import Array, namespace


class EnsembleLogits(Protocol):
    """The logits of some rows under an ensemble."""

    @property
    def particles(self) -> Array:
        """Of every particle: (n, J) or (n, J, K)."""

    @property
    def gaussian(self) -> tuple[Array, Array]:
        """Mean (n,) or (n, K) and V (n, r) or (n, K, r) of the Gaussian N(mean, V V')."""


@dataclass(frozen=True, eq=False)
class BasisLogits:
    """The logits of rows from mean_logits (n,) or (n, K), V (n, r) or (n, K, r) and points (J, r)."""

    mean_logits: Array
    V: Array
    points: Array

    @property
    def particles(self) -> Array:
        """Of every particle: (n, J) or (n, J, K)."""
        return particle_logits(self.mean_logits, self.V, self.points)

    @property
    def gaussian(self) -> tuple[Array, Array]:
        """Mean logits and V."""
        return self.mean_logits, self.V


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
        self, likelihood: Likelihood, mean_logits: Array, V: Array, points: Array, targets: Array, weights: Array | None
    ) -> Moments:
        """Return the moments from mean_logits (n,) or (n, K), V (n, r) or (n, K, r) and points (J, r)."""
        observed = (V, targets, weights)
        if self.gaussian == 1.0:
            return likelihood.closure(mean_logits, *observed, self.refine)
        own = likelihood.moments(particle_logits(mean_logits, V, points), *observed)
        if self.gaussian == 0.0:
            return own
        return own * (1 - self.gaussian) + likelihood.closure(mean_logits, *observed, self.refine) * self.gaussian

    def by_row(self, likelihood: Likelihood, logits: EnsembleLogits, targets: Array, weights: Array | None) -> Averages:
        """Return loss, slope and curvature of each row, times its weight."""
        loss, slope, curvature = (weighted(x, weights) for x in self._averages(likelihood, logits, targets))
        return loss, slope, curvature

    def _averages(self, likelihood: Likelihood, logits: EnsembleLogits, targets: Array) -> Averages:
        if self.gaussian == 1.0:
            return likelihood.gaussian_averages(*logits.gaussian, targets, self.refine)
        own = likelihood.averages(logits.particles, targets, energy=self.energy)
        if self.gaussian == 0.0:
            return own
        limit = likelihood.gaussian_averages(*logits.gaussian, targets, self.refine)
        loss, slope, curvature = ((1 - self.gaussian) * a + self.gaussian * b for a, b in zip(own, limit, strict=True))
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
