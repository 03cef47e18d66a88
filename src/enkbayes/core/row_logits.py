"""The logits of some rows under an ensemble, so few rows at a time that they stay in the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.likelihoods.base import Averages
from enkbayes.core.linear_map import LinearMap
from enkbayes.engine.arrays import Array, like, namespace, part_of, row_slices
from enkbayes.engine.threads import product

CACHED = 2**20  # logits of particles that are averaged at a time: 4 MB in float32, so that they stay in the cache
NARROW = 128  # logits of a row at least that are counted, for the Gaussian rule has some of its own
WIDE = 96  # features from which half a product costs more than a sum and a difference


@dataclass(frozen=True, eq=False)
class RowLogits:
    """An ensemble as rows of features see it: columns (P, J) of its particles, or (P, J / 2) of what `pairs` of them
    add to the mean and take from it, mean (P,) and basis (P, r).
    """

    map: LinearMap
    columns: Array
    mean: Array
    basis: Array
    pairs: bool
    features: Any = None
    room: Any = None

    @classmethod
    def of(cls, linear: LinearMap, ensemble: AffineEnsemble, reference: Array) -> RowLogits:
        """Return it in the library, dtype and device of `reference`."""
        half = ensemble.antithetic_half if linear.features >= WIDE else None
        points = ensemble.points if half is None else half
        mean, basis, points = (like(x, reference) for x in (ensemble.mean, ensemble.basis, points))
        rows = product(points, basis.mT)
        return cls(linear, (mean + rows if half is None else rows).mT, mean, basis, half is not None)

    @property
    def width(self) -> int:
        """How many logits a row has at most, K J or K r."""
        particles = int(self.columns.shape[1]) * (2 if self.pairs else 1)
        return (self.map.outputs or 1) * max(particles, int(self.basis.shape[1]))

    def averages(
        self, expectation: Expectation, likelihood: Likelihood, features: Array, targets: Array, weights: Array | None
    ) -> Averages:
        """Return what each row adds, so few rows at a time that their logits stay in the cache.

        In numpy they all take the same memory: fresh pages may cost more than the products that fill them.
        """
        xp = namespace(self.mean)
        most = min(int(features.shape[0]), max(64, CACHED // max(self.width, NARROW)))
        room = np.empty(most * self.width, self.mean.dtype) if isinstance(features, np.ndarray) else None
        parts = [
            expectation.by_row(
                likelihood,
                replace(self, features=features[rows, :], room=room),
                part_of(targets, rows),
                part_of(weights, rows),
            )
            for rows in list(row_slices(int(features.shape[0]), max(most, 1))) or [slice(0)]
        ]
        loss, slope, curvature = (xp.concat(x) if len(x) > 1 else x[0] for x in zip(*parts, strict=True))
        return loss, slope, curvature

    @property
    def particles(self) -> Array:
        """The logits of every particle, (n, J) or (n, J, K)."""
        logits = self._mirrored() if self.pairs else self._project(self.columns)
        return logits if self.map.outputs is None else logits.mT

    @property
    def gaussian(self) -> tuple[Array, Array]:
        """Mean (n,) or (n, K) of the logits, and V (n, r) or (n, K, r), with covariance V V'."""
        return self.map.project(self.features, self.mean[:, None])[..., 0], self._project(self.basis)

    def _project(self, columns: Array) -> Array:
        return self.map.project(self.features, columns, self._shaped((self.map.outputs or 1) * columns.shape[1]))

    def _mirrored(self) -> Array:
        """Return mean + x and mean - x of the logits x of the columns, (n, J) or (n, K, J)."""
        xp, half = namespace(self.mean), self.columns.shape[1]
        mean_logits = self.map.project(self.features, self.mean[:, None])
        both = self._shaped(2 * half)
        if both is None or self.map.outputs is not None:
            x = self._project(self.columns)
            return xp.concat([mean_logits + x, mean_logits - x], axis=-1)
        x = self.map.project(self.features, self.columns, both[:, :half])
        np.subtract(mean_logits, x, out=both[:, half:])
        x += mean_logits
        return both

    def _shaped(self, columns: int) -> Any:
        """Return the room as (n, columns), if there is one."""
        n = self.features.shape[0]
        return None if self.room is None else self.room[: n * columns].reshape(n, columns)
