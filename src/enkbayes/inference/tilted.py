"""Tilted distributions: the likelihood of each row times a Gaussian of its logits, their integral, mean and covariance.

They are what expectation propagation matches. A rule whose nodes do not follow the tilted distribution misses it: the
likelihood of a row that is far from what the other rows predict moves it by many standard deviations, and that of a row
of large weight makes it many times narrower. Two rules follow it.

One logit. The logarithm of the tilted density is at least as concave as that of the cavity, so around its mode it falls
off at least as fast as the cavity does. Newton's method finds the mode, and a trapezoid rule covers as much of the
cavity's width around it as matters, with nodes close enough for the density at the mode and for the likelihood.

Several logits. The nodes are quasi-random points of the posterior's own marginal. At the fixed point of expectation
propagation that is the Gaussian with mean and covariance of the tilted distribution, so that no other one fits better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.likelihoods.base import weighted
from enkbayes.core.moments import Diverged
from enkbayes.core.quadrature import by_level, quasi_random_points

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class RowLikelihoods:
    """The likelihoods of n rows, each to the power of its weight, as functions of k contrasts u of the logits.

    contrasts : array (K, k)
        The logits are contrasts @ u.
    """

    likelihood: Likelihood
    contrasts: Numbers
    targets: Numbers
    weights: Numbers | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: Any) -> RowLikelihoods:
        """Return those of some rows."""
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, targets=self.targets[rows], weights=weights)

    def loss(self, u: Numbers) -> Numbers:
        """Return -log likelihood (n, Q) at contrasts u (n, Q, k)."""
        return self._weighted(self.likelihood.loss(self._logits(u), self.targets))

    def slope(self, u: Numbers) -> Numbers:
        """Return the derivative (n, Q, k) of the loss."""
        slope = self.likelihood.slope(self._logits(u), self.targets)
        return self._weighted(slope[:, :, None] if self.likelihood.outputs is None else slope @ self.contrasts)

    def curvature(self, u: Numbers) -> Numbers:
        """Return the second derivative (n, Q, k, k) of the loss."""
        curvature = self.likelihood.curvature(self._logits(u), self.targets)
        if self.likelihood.outputs is None:
            return self._weighted(curvature[:, :, None, None])
        return self._weighted(self.contrasts.T @ curvature @ self.contrasts)

    def _logits(self, u: Numbers) -> Numbers:
        return u[:, :, 0] if self.likelihood.outputs is None else u @ self.contrasts.T

    def _weighted(self, x: Numbers) -> Numbers:
        return np.asarray(weighted(x, self.weights))


@dataclass(frozen=True, eq=False)
class DenseRule:
    """The rule for one logit. `reach` is in standard deviations of the cavity, beyond which the density is below
    exp(-reach^2 / 2) of its mode; `fall` is that exponent where it is reached earlier. Nodes are at most `logit` apart,
    and at most `sharpness` standard deviations of the peak. `finest` bounds their number at 2^finest, and `at_once` how
    many are held at a time.
    """

    reach: float = 8.0
    fall: float = 32.0
    logit: float = 1.0
    sharpness: float = 0.7
    coarsest: int = 4
    finest: int = 13
    newton_steps: int = 100
    at_once: int = 2**20

    def moments(
        self, rows: RowLikelihoods, centre: Numbers, variance: Numbers, start: Numbers
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Return log int (n,), mean (n,) and variance (n,) of likelihood times N(centre, variance).

        The search for the mode begins at `start` (n,), or at `centre` where that is better.

        >>> from enkbayes.core.likelihoods import Normal
        >>> rows = RowLikelihoods(Normal(1e-4), np.eye(1), np.asarray([30.0]))  # narrow, and 30 sd away
        >>> found = DenseRule().moments(rows, np.zeros(1), np.ones(1), np.zeros(1))
        >>> bool(np.allclose(found[1:], [[30 / 1.0001], [1e-4 / 1.0001]]))
        True
        >>> bool(np.allclose(found[0], -(900 / 1.0001 + math.log(2 * math.pi * 1.0001)) / 2))
        True
        """
        mode, curvature = self._mode(rows, centre, variance, start)
        top = self._energy(rows, mode[:, None], centre, variance)[:, 0]
        sd, peak = np.sqrt(variance), 1 / np.sqrt(np.maximum(curvature, 1 / variance))
        low, high = (self._end(rows, mode, side, sd, peak, top, centre, variance) for side in (-1.0, 1.0))
        if not np.all(np.isfinite(high - low)):
            raise Diverged("the tilted distributions of some rows are not finite")
        step = np.minimum(self.sharpness * peak, np.minimum(self.logit, self.sharpness * sd))
        levels = np.clip(np.ceil(np.log2((high - low) / step)), self.coarsest, self.finest).astype(int)

        def integrals(level: int, some: Numbers) -> tuple[Numbers, Numbers, Numbers]:
            z = low[some, None] + (high - low)[some, None] * np.linspace(0.0, 1.0, 2**level + 1)
            density = np.exp(top[some, None] - self._energy(rows.take(some), z, centre[some], variance[some]))
            total = density.sum(axis=1)
            mean = np.sum(density * z, axis=1) / total
            width, scale = (high - low)[some] / 2**level, np.log(2 * math.pi * variance[some]) / 2
            spread = np.sum(density * (z - mean[:, None]) ** 2, axis=1) / total
            return np.log(total * width) - top[some] - scale, mean, spread

        log_integral, mean, spread = by_level(integrals, levels, lambda level: self.at_once // (2**level + 1))
        return log_integral, mean, spread

    @staticmethod
    def _energy(rows: RowLikelihoods, z: Numbers, centre: Numbers, variance: Numbers) -> Numbers:
        """Return -log tilted density (n, Q) at logits z (n, Q), up to the cavity's constant."""
        return np.asarray(rows.loss(z[:, :, None]) + (z - centre[:, None]) ** 2 / (2 * variance[:, None]))

    def _mode(
        self, rows: RowLikelihoods, centre: Numbers, variance: Numbers, start: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Return the mode (n,) and the second derivative (n,) of the energy there.

        Newton's step is taken where it stays in the bracket of the root of the derivative and the bracket is bisected
        elsewhere. The derivative is increasing with a slope of at least 1 / variance, so that every value of it bounds
        the distance to its root.
        """
        z = np.where(
            self._energy(rows, start[:, None], centre, variance)
            < self._energy(rows, centre[:, None], centre, variance),
            start[:, None],
            centre[:, None],
        )[:, 0]
        low, high, sd = np.full(len(z), -np.inf), np.full(len(z), np.inf), np.sqrt(variance)
        for _ in range(self.newton_steps):
            slope = rows.slope(z[:, None, None])[:, 0, 0] + (z - centre) / variance
            curvature = np.maximum(rows.curvature(z[:, None, None])[:, 0, 0, 0], 0.0) + 1 / variance
            if np.all(np.abs(slope) < 1e-4 * np.sqrt(curvature)):
                break
            away = z - slope * variance
            low = np.maximum(low, np.where(slope > 0, away, z))
            high = np.minimum(high, np.where(slope > 0, z, away))
            newton = z - slope / curvature
            inside = (newton > low) & (newton < high) & (np.abs(newton - z) < np.maximum(sd, 0.5 * (high - low)))
            z = np.where(slope == 0, z, np.where(inside, newton, (low + high) / 2))
        return z, curvature

    def _end(
        self,
        rows: RowLikelihoods,
        mode: Numbers,
        side: float,
        sd: Numbers,
        peak: Numbers,
        top: Numbers,
        centre: Numbers,
        variance: Numbers,
    ) -> Numbers:
        """Return where, to one side of the mode (n,), the density has fallen by exp(-fall), at most `reach` away."""
        most = self.reach * sd
        distance = np.minimum(self.reach * peak, most)
        while True:
            energy = self._energy(rows, (mode + side * distance)[:, None], centre, variance)[:, 0]
            short = (energy - top < self.fall) & (distance < most)
            if not np.any(short):
                return np.asarray(mode + side * distance)
            distance = np.where(short, np.minimum(1.5 * distance, most), distance)


@dataclass(frozen=True)
class PointRule:
    """The rule for several logits: 2^log2_points quasi-random points of a Gaussian close to the tilted distribution.

    The more rows, the fewer points: their number times that of all logits is about `work`, between 2^fewest and 2^most.
    """

    work: float = 4e6
    fewest: int = 8
    most: int = 10

    def moments(
        self, rows: RowLikelihoods, mean: Numbers, cov: Numbers, precision: Numbers, shift: Numbers, logits: int
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Return log int (n,), mean (n, k) and covariance (n, k, k) of N(mean, cov) times the likelihood over the
        site exp(-u' precision u / 2 + shift' u); `logits` is the number of them in all rows.
        """
        log2_points = int(np.clip(math.floor(math.log2(max(self.work / logits, 1.0))), self.fewest, self.most))
        points = quasi_random_points(mean.shape[1], log2_points)
        u = mean[:, None, :] + points @ np.linalg.cholesky(cov).mT
        log_ratio = np.sum(u * (u @ precision / 2 - shift[:, None, :]), axis=2) - rows.loss(u)
        top = log_ratio.max(axis=1, keepdims=True)
        share = np.exp(log_ratio - top)
        total = share.sum(axis=1)
        share = share / total[:, None]
        tilted_mean = (u.mT @ share[:, :, None])[:, :, 0]
        apart = u - tilted_mean[:, None, :]
        return np.log(total / len(points)) + top[:, 0], tilted_mean, (apart * share[:, :, None]).mT @ apart
