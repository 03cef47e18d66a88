"""Calibration: accuracy in bins of confidence.

Confidence is the largest probability of a row, and a row is correct if its most probable class is the true one. Rows
are put into bins by confidence. A bin (a, b] includes its right edge, the first bin also its left edge. Bins have equal
width between 0 and 1, or they are adaptive: their edges are quantiles of the confidences, so that all bins have equally
many rows, except that rows of equal confidence stay in one bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.evaluation.metrics.inputs import Vector, bin_count, labelled


@dataclass(frozen=True, eq=False)
class Reliability:
    """Bins of confidence: edges (B + 1,), and for each bin the number of rows, their mean confidence and their accuracy
    (B,). Confidence and accuracy are NaN in empty bins.

    >>> bins = reliability([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0], bins=2)
    >>> bins.count.tolist(), bins.confidence.tolist(), bins.accuracy.tolist()
    ([0, 4], [nan, 0.9], [nan, 0.75])
    """

    edges: Vector
    count: Vector
    confidence: Vector
    accuracy: Vector

    @property
    def ece(self) -> float:
        """Sum over bins of (share of rows) * |accuracy - mean confidence|."""
        gaps = self.count * np.abs(self.accuracy - self.confidence)
        return float(np.nansum(gaps) / np.sum(self.count))

    @property
    def interval(self) -> Vector:
        """Wilson's 95 % interval for the accuracy in each bin, (2, B); it is wide in bins with few rows.

        >>> reliability([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0], bins=1).interval.round(3).ravel().tolist()
        [0.301, 0.954]
        """
        n, z2 = np.where(self.count == 0, np.nan, self.count), 1.959964**2
        middle = (self.accuracy + z2 / (2 * n)) / (1 + z2 / n)
        half = np.sqrt(z2 * (self.accuracy * (1 - self.accuracy) / n + z2 / (4 * n**2))) / (1 + z2 / n)
        return np.stack([middle - half, middle + half])


def reliability(proba: Any, targets: Any, bins: int = 15, *, adaptive: bool = False) -> Reliability:
    """Return accuracy and mean confidence in bins of equal width or, if adaptive, of equal count.

    >>> reliability([0.6, 0.7, 0.8, 0.9], [1, 0, 1, 1], bins=2, adaptive=True).accuracy.tolist()
    [0.5, 1.0]
    """
    proba, targets = labelled(proba, targets)
    top = np.max(proba, axis=1)
    correct = np.argmax(proba, axis=1) == targets
    ticks = np.linspace(0, 1, bin_count(bins) + 1)
    edges = np.quantile(top, ticks) if adaptive else ticks
    place = np.searchsorted(edges[1:-1], top, side="left")
    count, sum_top, sum_correct = (np.bincount(place, w, minlength=bins) for w in (None, top, correct))
    filled = np.where(count == 0, np.nan, count)
    return Reliability(edges, count, sum_top / filled, sum_correct / filled)


def ece(proba: Any, targets: Any, bins: int = 15, *, adaptive: bool = False) -> float:
    """Return the expected calibration error: sum over bins of (share of rows) * |accuracy - mean confidence|.

    Rows are put into `bins` bins by their confidence, the largest probability. Bins have equal width between 0 and 1
    and include their right edge or, if adaptive, have equally many rows.

    >>> round(ece([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0]), 4)
    0.15
    """
    return reliability(proba, targets, bins, adaptive=adaptive).ece
