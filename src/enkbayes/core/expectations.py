"""Expectations over an ensemble: empirical (an average over its J points), or the Gaussian closure (its J = infinity
limit).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from enkbayes.core.likelihoods.base import Averages, Likelihood, weighted
from enkbayes.engine.arrays import Array, namespace


class EnsembleLogits(Protocol):
    """The logits of some rows under an ensemble."""

    @property
    def mean(self) -> Array:
        """At the mean of the ensemble: (n,) or (n, K)."""

    @property
    def particles(self) -> Array:
        """Of every particle: (n, J) or (n, J, K)."""

    @property
    def gaussian(self) -> tuple[Array, Array]:
        """Mean (n,) or (n, K) and V (n, r) or (n, K, r) of the Gaussian N(mean, V V')."""


@dataclass(frozen=True)
class Expectation:
    """(1 - gaussian) times the average over the J particles, as the paper takes it, plus `gaussian` times that over
    N(mean, basis basis'), the mean-field limit; the latter with 4**refine times as many quadrature points where the
    likelihood has no exact rule. Without `energy` the particles' E[Psi] is not computed, and NaN. With `at_mean` the
    values at the mean of the ensemble replace averages.
    """

    gaussian: float = 0.0
    refine: int = 0
    energy: bool = True
    at_mean: bool = False

    def columns(self, ensemble: Any, outputs: int | None) -> int:
        """Return how many logits a row has, for one output, in the averages over an ensemble or a Gaussian: those of
        the particles, of the basis, and of the quadrature points of several outputs.
        """
        if self.at_mean:
            return 1
        particles = 0 if self.gaussian == 1.0 else int(ensemble.points.shape[0])
        quadrature = 0 if outputs is None else 2 ** (8 + 2 * self.refine)
        return max(particles, max(int(ensemble.rank), quadrature) if self.gaussian else 1)

    def averages(
        self, likelihood: Likelihood, logits: EnsembleLogits, targets: Array, weights: Array | None
    ) -> Averages:
        """Return loss, slope and curvature of each row, averaged over the ensemble and times the row's weight."""
        loss, slope, curvature = (weighted(x, weights) for x in self._averages(likelihood, logits, targets))
        return loss, slope, curvature

    def _averages(self, likelihood: Likelihood, logits: EnsembleLogits, targets: Array) -> Averages:
        if self.at_mean:
            return likelihood.averages(namespace(logits.mean).expand_dims(logits.mean, axis=1), targets)
        if self.gaussian == 1.0:
            return self._limit(likelihood, logits, targets)
        own = likelihood.averages(logits.particles, targets, energy=self.energy)
        if self.gaussian == 0.0:
            return own
        limit = self._limit(likelihood, logits, targets)
        loss, slope, curvature = ((1 - self.gaussian) * a + self.gaussian * b for a, b in zip(own, limit, strict=True))
        return loss, slope, curvature

    def _limit(self, likelihood: Likelihood, logits: EnsembleLogits, targets: Array) -> Averages:
        """Return the averages over the Gaussian, those of infinitely many particles."""
        mean_logits, V = logits.gaussian
        return likelihood.gaussian_averages(mean_logits, targets, V=V, refine=self.refine)


empirical = Expectation()
"""Averages over the ensemble's own particles."""

closure = Expectation(gaussian=1.0)
"""Averages over the ensemble's Gaussian."""

at_mean = Expectation(at_mean=True)
"""Values at the ensemble's mean."""
