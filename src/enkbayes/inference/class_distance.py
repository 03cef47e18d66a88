"""How far features lie from the classes of the training rows, as a score of out-of-distribution rows.

Every class has a Gaussian of its own. All share the principal axes of the covariance within classes, shrunk by the rule
of Ledoit and Wolf (2004), and differ in their means and in their variances along these axes,

    distance(x) = log min_k mean_j (w_j - m_kj)^2 / v_kj,    w = (x - centre) F,

with F F' the inverse of the shrunk covariance, so that v_kj is 1 where a class is like all others. It is small near the
training rows and grows without bound away from them: along a ray like 2 log t. The axes cost d^2 numbers, a class 2 d,
so that ten thousand classes are no problem, and covariances of their own for every class, which need d^2 numbers each,
separate little better (`benchmarks/detectors.py`).

A second distance, of the direction x / |x|, finds rows of unusual composition that are not far away (Mueller and Hein
2025). The score is the larger of the two, each standardised by its mean and standard deviation on held-out rows.

No more rows than features say little about a covariance. There the distance of directions has none, it is the angle to
the mean of the nearest class, and the distance of the features is mostly about their lengths, which are unusual in both
directions: the features of unfamiliar images are often shorter. So the score is the distance of the directions plus
half of the absolute distance of the features (`benchmarks/few_rows.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.covariance import ledoit_wolf_shrinkage

from enkbayes.engine.arrays import Array, as_double, like, namespace

Vector = np.ndarray[Any, Any]
FLOOR = 1e-3  # added to mean squares: rows at a centre have a finite distance


@dataclass(frozen=True, eq=False)
class ClassDistance:
    """Gaussians of K classes in whitened coordinates.

    centre : array (d,)
        Mean of the training rows.
    factor : array (d, d)
        F, whose columns are the principal axes within classes, divided by the standard deviations along them.
    means, precisions : arrays (K, d)
        m and 1 / v; classes without training rows are left out.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(400) % 2
    >>> X = rng.standard_normal((400, 3)) + 8 * y[:, None]
    >>> found = ClassDistance.fit(X, y)
    >>> between = np.full((1, 3), 4.0)
    >>> bool(found.distance(between)[0] > found.distance(X).max())
    True
    """

    centre: Array
    factor: Array
    means: Array
    precisions: Array

    @classmethod
    def fit(cls, X: Vector, y: Vector, *, rows: float = 5.0, least: float = 1e-6) -> ClassDistance:
        """Return the distance to the classes y (n,) of rows X (n, d).

        Parameters
        ----------
        X, y : arrays (n, d) and (n,)
            Training rows and their classes, of any kind.
        rows : float
            The variances of a class count as many of its rows plus so many for which they are those of all classes.
        least : float
            Added to the shrinkage, so that columns without variation keep the covariance positive definite.
        """
        X = np.asarray(X, dtype=np.float64)
        (n, d), (kinds, numbers) = X.shape, np.unique(y, return_inverse=True)
        centre, spread = X.mean(axis=0), X.std(axis=0)
        widest = max(float(spread.max(initial=0.0)), 1e-9)
        constant = spread <= 1e-7 * np.abs(centre)  # up to rounding; if it varies later, then like the widest
        spread = np.where(constant, widest, spread)
        Z = (X - centre) / spread
        sizes = np.bincount(numbers, minlength=len(kinds))
        means = np.zeros((len(kinds), d))
        np.add.at(means, numbers, Z)
        means /= sizes[:, None]
        within = Z - means[numbers]
        covariance = within.T @ within / max(n - len(kinds), 1)
        mean = float(np.trace(covariance)) / d
        share = min(float(ledoit_wolf_shrinkage(within, assume_centered=True)), 1.0) if n > 1 and mean > 0 else 1.0
        level = mean if mean > 0 else 1.0
        shrunk = (1 - share) * covariance + (share + least) * level * np.eye(d)
        values, axes = np.linalg.eigh(shrunk)
        factor = axes / np.sqrt(np.maximum(values, least * level))
        squares = np.zeros((len(kinds), d))
        np.add.at(squares, numbers, (within @ factor) ** 2)
        variances = (squares + rows) / (sizes[:, None] + rows)
        return cls(centre, factor / spread[:, None], means @ factor, 1 / variances)

    @classmethod
    def of_few_directions(cls, X: Vector, y: Vector) -> ClassDistance:
        """Return the distance of directions to those of the means of the classes y (n,) of rows X (n, d).

        >>> X = np.eye(4)[[0, 0, 1, 1]] + 0.1
        >>> found = ClassDistance.of_few_directions(X, np.asarray([0, 0, 1, 1]))
        >>> found.distance(direction(np.asarray([[5.5, 0.5, 0.5, 0.5], [0.0, 0.0, 1.0, 1.0]]))).round(1).tolist()
        [-6.9, 0.6]
        """
        X = np.asarray(X, dtype=np.float64)
        means = direction(np.stack([X[y == k].mean(axis=0) for k in np.unique(y)]))
        d = X.shape[1]
        return cls(np.zeros(d), np.sqrt(d) * np.eye(d), np.sqrt(d) * means, np.ones_like(means))

    def distance(self, X: Array) -> Array:
        """Return the distances (n,) of rows (n, d)."""
        xp = namespace(self.factor)
        w = (like(X, self.factor) - self.centre) @ self.factor
        # the squares are expanded, which needs no array (n, K, d)
        squares = (w * w) @ self.precisions.mT - 2 * (w @ (self.means * self.precisions).mT)
        squares = squares + xp.sum(self.means**2 * self.precisions, axis=1)
        nearest = xp.min(squares, axis=1) / self.factor.shape[1]
        return xp.log(xp.clip(nearest, 0.0) + FLOOR)


@dataclass(frozen=True, eq=False)
class ClassScore:
    """The score of rows (n,) from the features (n, d_l) of L layers: the larger of two mean standardised distances.

    plain, directions : L distances each
        Of the features, and of the features divided by their lengths.
    scale : array (2, L + 2, 2)
        Centre and width on held-out rows, for features and for directions: of the L distances, of their mean over the
        layers, and (the last, the same for both) of the score.
    few : bool
        Whether there were too few rows for covariances.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((500, 3)), np.arange(500) % 2
    >>> score = ClassScore.fit([X[:300]], y[:300]).calibrated([X[300:]])
    >>> bool(score([3 * X]).mean() > score([X]).mean() + 2)
    True
    """

    plain: tuple[ClassDistance, ...]
    directions: tuple[ClassDistance, ...]
    scale: Array
    few: bool = False

    @classmethod
    def fit(cls, layers: Sequence[Vector], y: Vector, *, few: bool = False) -> ClassScore:
        """Return the score for training rows (n, d_l) of L layers and their classes (n,), not calibrated yet."""
        plain = tuple(ClassDistance.fit(X, y) for X in layers)
        directions = tuple(
            ClassDistance.of_few_directions(X, y)
            if few
            else ClassDistance.fit(direction(np.asarray(X, dtype=np.float64)), y)
            for X in layers
        )
        scale = np.tile([0.0, 1.0], (2, len(plain) + 2, 1))
        return cls(plain, directions, scale, few)

    def calibrated(self, layers: Sequence[Vector], *, narrowest: float = 1e-2) -> ClassScore:
        """Return the score with the scale of held-out rows. Widths are at least `narrowest`, because a distance that is
        the same for all of them says nothing.
        """
        return self.scaled(self.distances(layers), narrowest=narrowest)

    def scaled(self, distances: Array, *, narrowest: float = 1e-2) -> ClassScore:
        """Return the score with the scale of held-out rows, from their distances (2, n, L)."""

        def centre_and_width(values: Vector) -> list[float]:
            return [float(values.mean()), max(float(values.std()), narrowest)]

        found = as_double(distances)
        scale = np.tile([0.0, 1.0], (2, found.shape[2] + 2, 1))
        for each, values in zip(scale, found, strict=True):
            each[:-2] = [centre_and_width(column) for column in values.T]
            each[-2] = centre_and_width(((values - each[:-2, 0]) / each[:-2, 1]).mean(axis=1))
        rough = replace(self, scale=scale)
        scale[:, -1] = centre_and_width(rough.combined(found))
        return replace(self, scale=like(scale, self.scale))

    def distances(self, layers: Sequence[Array]) -> Array:
        """Return the distances (2, n, L) of rows: of their features, and of the directions of these."""
        xp = namespace(self.scale)
        rows = [like(X, self.scale) for X in layers]
        plain = [each.distance(X) for each, X in zip(self.plain, rows, strict=True)]
        turned = [each.distance(direction(X)) for each, X in zip(self.directions, rows, strict=True)]
        return xp.stack([xp.stack(plain, axis=1), xp.stack(turned, axis=1)])

    def combined(self, distances: Array) -> Array:
        """Return the scores (n,) of distances (2, n, L)."""
        xp = namespace(distances)
        s = self.scale
        mean = xp.mean((distances - s[:, None, :-2, 0]) / s[:, None, :-2, 1], axis=2)
        plain, turned = (mean - s[:, -2:-1, 0]) / s[:, -2:-1, 1]
        score = turned + xp.abs(plain) / 2 if self.few else xp.maximum(plain, turned)
        return (score - s[0, -1, 0]) / s[0, -1, 1]

    def __call__(self, layers: Sequence[Array]) -> Array:
        """Return the scores (n,) of the features (n, d_l) of L layers."""
        return self.combined(self.distances(layers))


def with_entropy(distance: Array, unsure: Array) -> Array:
    """Return the score (n,) of standardised distances and normal scores of the predictive entropy, (n,) each. Entropies
    above the median count half, those below it a quarter: confidence may be misplaced where a row is unusual.

    >>> with_entropy(np.zeros(2), np.asarray([1.0, -1.0])).tolist()
    [0.5, -0.25]
    """
    xp = namespace(distance)
    return distance + xp.where(unsure > 0, 0.5 * unsure, 0.25 * unsure)


def direction(X: Array, least: float = 1e-12) -> Array:
    """Return rows (n, d) divided by their lengths; rows of zeros stay zero.

    >>> direction(np.asarray([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    xp = namespace(X)
    return X / xp.clip(xp.sqrt(xp.sum(X * X, axis=1)), least)[:, None]
