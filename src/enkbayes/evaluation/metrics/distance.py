"""Confidence as a function of the distance to the nearest training point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.engine.arrays import as_double, to_numpy
from enkbayes.evaluation.metrics.inputs import Vector, bin_count, probabilities


@dataclass(frozen=True, eq=False)
class DistanceCurve:
    """Bins of distance: edges (B + 1,), and for each bin the number of rows and the mean and standard deviation of
    confidence (B,), which are NaN in empty bins. ideal is 1 / K, the confidence of the uniform prediction.

    >>> curve = confidence_by_distance([0.9, 0.7, 0.5], distance=[0.1, 0.2, 2.0], bins=2)
    >>> curve.count.tolist(), curve.mean.round(4).tolist(), curve.sd.round(4).tolist(), curve.ideal
    ([2, 1], [0.8, 0.5], [0.1, 0.0], 0.5)
    """

    edges: Vector
    count: Vector
    mean: Vector
    sd: Vector
    ideal: float

    @property
    def distance(self) -> Vector:
        """The centres of the bins (B,)."""
        return np.asarray((self.edges[1:] + self.edges[:-1]) / 2)


def nearest_distance(points: Any, train: Any) -> Vector:
    """Return the Euclidean distance (n,) from each point (n, D) to the nearest training point (N, D).

    >>> nearest_distance([[3.0, 4.0], [1.0, 0.0]], train=[[0.0, 0.0], [1.0, 0.0]])
    array([4.47213595, 0.        ])
    """
    from sklearn.neighbors import NearestNeighbors

    near = NearestNeighbors(n_neighbors=1).fit(to_numpy(train))
    return np.asarray(near.kneighbors(to_numpy(points))[0][:, 0])


def confidence_by_distance(proba: Any, distance: Any, bins: int | Any = 20) -> DistanceCurve:
    """Return mean and standard deviation of confidence in bins of distance.

    Parameters
    ----------
    proba : array (n, K) or (n,)
        Predictions.
    distance : array (n,)
        Distances of the same rows, as `nearest_distance` returns them.
    bins : int or array (B + 1,)
        Number of bins of equal width between 0 and the largest distance, or their edges; rows outside are ignored. A
        bin includes its right edge, the first bin also its left edge.

    Examples
    --------
    >>> confidence_by_distance([0.9, 0.7, 0.5], [0.1, 0.2, 2.0], bins=[0.0, 0.15, 1.0]).mean
    array([0.9, 0.7])
    """
    proba, distance = probabilities(proba), as_double(distance)
    if distance.shape != proba.shape[:1] or len(proba) == 0 or not np.all(distance >= 0):
        raise ValueError(
            f"distance has shape {distance.shape} and proba {proba.shape}; "
            "expected one distance for each row, neither negative nor NaN"
        )
    edges = _edges(bins, float(distance.max()))
    inside = (distance >= edges[0]) & (distance <= edges[-1])
    top = np.max(proba, axis=1)[inside]
    place = np.searchsorted(edges[1:-1], distance[inside], side="left")
    count = np.bincount(place, minlength=len(edges) - 1)
    filled = np.where(count == 0, np.nan, count)
    mean = np.bincount(place, top, minlength=len(count)) / filled
    variance = np.bincount(place, (top - mean[place]) ** 2, minlength=len(count)) / filled
    return DistanceCurve(edges, count, mean, np.sqrt(variance), 1 / proba.shape[1])


def _edges(bins: int | Any, largest: float) -> Vector:
    if np.ndim(bins) == 0:
        return np.linspace(0, largest or 1.0, bin_count(bins) + 1)
    edges = np.asarray(bins, dtype=np.float64)
    if edges.ndim != 1 or len(edges) < 2 or not np.all(np.diff(edges) > 0):
        raise ValueError(f"bins are {bins!r}; expected a number of bins, or at least two increasing edges")
    return edges
