"""Scores of predicted probabilities against what happened: accuracy and the proper scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.engine.arrays import one_hot
from enkbayes.evaluation.metrics.calibration import ece
from enkbayes.evaluation.metrics.inputs import bin_count, labelled


@dataclass(frozen=True)
class Scores:
    """accuracy and, the smaller the better, nll (nats), brier (0 to 2) and ece (0 to 1), over `rows` rows.

    >>> score([0.5], [1]).accuracy  # of two equal probabilities the first counts
    0.0
    """

    rows: int
    accuracy: float
    nll: float
    brier: float
    ece: float


@dataclass(frozen=True)
class BrierParts:
    """The Brier score taken apart: brier = reliability - resolution + uncertainty + within, exactly.

    reliability: how far forecasts are from frequencies, smaller is better. resolution: how far frequencies in the bins
    are from the overall one, larger is better. uncertainty: of the classes themselves, the same for all forecasts.
    within: what the bins hide, of either sign; zero when all forecasts of a bin are equal.

    >>> brier_decomposition([0.5, 0.5], [1, 0])
    BrierParts(reliability=0.0, resolution=0.0, uncertainty=0.5, within=0.0)
    """

    reliability: float
    resolution: float
    uncertainty: float
    within: float

    @property
    def brier(self) -> float:
        """The sum of the parts, which is the Brier score."""
        return self.reliability - self.resolution + self.uncertainty + self.within


def score(proba: Any, targets: Any) -> Scores:
    """Return all scores at once.

    Examples
    --------
    >>> scores = score([[0.75, 0.25], [0.5, 0.5]], [0, 1])
    >>> scores.rows, scores.accuracy, scores.brier, scores.ece, round(scores.nll, 4)
    (2, 0.5, 0.3125, 0.375, 0.4904)
    """
    proba, targets = labelled(proba, targets)
    return Scores(
        len(targets), accuracy(proba, targets), nll(proba, targets), brier(proba, targets), ece(proba, targets)
    )


def accuracy(proba: Any, targets: Any) -> float:
    """Return the share of rows whose most probable class is the right one.

    >>> accuracy([0.9, 0.2, 0.6], [1, 0, 0])
    0.6666666666666666
    """
    from sklearn.metrics import accuracy_score

    proba, targets = labelled(proba, targets)
    return float(accuracy_score(targets, np.argmax(proba, axis=1)))


def nll(proba: Any, targets: Any) -> float:
    """Return the mean negative log-likelihood -log p(right class), in nats; probabilities below the rounding error of
    floating-point numbers count as that (scikit-learn's `log_loss`).

    >>> round(nll([0.5, 0.5], [1, 0]), 4)
    0.6931
    """
    from sklearn.metrics import log_loss

    proba, targets = labelled(proba, targets)
    proba = proba / proba.sum(axis=1, keepdims=True)  # single precision sums to one less closely than log_loss asks
    return float(log_loss(targets, proba, labels=np.arange(proba.shape[1])))


def brier(proba: Any, targets: Any) -> float:
    """Return the mean over rows of sum_k (p_k - [k is right])^2, between 0 and 2; for two classes this is twice the
    square of one probability's error.

    >>> brier([1.0, 0.5], [1, 0])
    0.25
    """
    proba, targets = labelled(proba, targets)
    return float(np.mean(np.sum((proba - one_hot(targets, proba)) ** 2, axis=1)))


def brier_decomposition(proba: Any, targets: Any, bins: int = 15) -> BrierParts:
    """Return the parts of the Brier score.

    For each class k the forecasts p_k are put into bins of equal width between 0 and 1, which include their right
    edge. With n_b rows in bin b, their mean forecast f_b, the share o_b of them that are of class k, and the overall
    share o,

        reliability = sum_b n_b / n (f_b - o_b)^2,  resolution = sum_b n_b / n (o_b - o)^2,  uncertainty = o (1 - o),

    and within = mean of (p - f_b)^2 - 2 (p - f_b) (d - o_b), the within-bin variance and covariance, d being 1 for rows
    of class k and 0 for others. All are summed over the classes.

    Examples
    --------
    >>> proba, targets = [0.1, 0.3, 0.8, 0.9], [0, 1, 1, 1]
    >>> parts = brier_decomposition(proba, targets, bins=2)
    >>> parts.uncertainty, round(parts.resolution, 4), round(parts.brier - brier(proba, targets), 12)
    (0.375, 0.125, 0.0)
    """
    proba, targets = labelled(proba, targets)
    inner = np.linspace(0, 1, bin_count(bins) + 1)[1:-1]
    happened = one_hot(targets, proba)
    parts = np.zeros(4)
    for p, d in zip(proba.T, happened.T, strict=True):
        _, place, count = np.unique(np.searchsorted(inner, p, side="left"), return_inverse=True, return_counts=True)
        f, o, share = np.bincount(place, p) / count, np.bincount(place, d) / count, count / len(p)
        overall = d.mean()
        within = np.mean((p - f[place]) ** 2 - 2 * (p - f[place]) * (d - o[place]))
        parts += [share @ (f - o) ** 2, share @ (o - overall) ** 2, overall * (1 - overall), within]
    return BrierParts(*(float(part) for part in parts))
