"""Accuracy and proper scores of predicted probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.engine.arrays import one_hot
from enkbayes.evaluation.metrics.calibration import ece
from enkbayes.evaluation.metrics.inputs import bin_count, labelled


@dataclass(frozen=True)
class Scores:
    """Accuracy, nll (nats), brier (0 to 2) and ece (0 to 1) over `rows` rows. Smaller is better except for accuracy.

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
    """The decomposition of the Brier score: brier = reliability - resolution + uncertainty + within, exactly.

    reliability : difference between forecasts and observed frequencies; smaller is better
    resolution : difference between the frequencies in the bins and the overall frequency; larger is better
    uncertainty : variance of the classes themselves, the same for all forecasts
    within : variation within the bins, of either sign; zero if all forecasts in a bin are equal

    >>> brier_decomposition([0.5, 0.5], [1, 0])
    BrierParts(reliability=0.0, resolution=0.0, uncertainty=0.5, within=0.0)
    """

    reliability: float
    resolution: float
    uncertainty: float
    within: float

    @property
    def brier(self) -> float:
        """The Brier score, from the parts."""
        return self.reliability - self.resolution + self.uncertainty + self.within


def score(proba: Any, targets: Any) -> Scores:
    """Return accuracy, NLL, Brier score and ECE.

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
    """Return the share of rows whose most probable class is the true one.

    >>> accuracy([0.9, 0.2, 0.6], [1, 0, 0])
    0.6666666666666666
    """
    from sklearn.metrics import accuracy_score

    proba, targets = labelled(proba, targets)
    return float(accuracy_score(targets, np.argmax(proba, axis=1)))


def nll(proba: Any, targets: Any) -> float:
    """Return the mean negative log-likelihood -log p(true class), in nats. Probabilities are clipped at the rounding
    error of floating-point numbers, as in scikit-learn's `log_loss`.

    >>> round(nll([0.5, 0.5], [1, 0]), 4)
    0.6931
    """
    from sklearn.metrics import log_loss

    proba, targets = labelled(proba, targets)
    proba = proba / proba.sum(axis=1, keepdims=True)  # log_loss allows less round-off than float32 has
    return float(log_loss(targets, proba, labels=np.arange(proba.shape[1])))


def brier(proba: Any, targets: Any) -> float:
    """Return the mean over rows of sum_k (p_k - [k is true])^2, between 0 and 2. For two classes this is twice the
    squared error of one probability.

    >>> brier([1.0, 0.5], [1, 0])
    0.25
    """
    proba, targets = labelled(proba, targets)
    return float(np.mean(np.sum((proba - one_hot(targets, proba)) ** 2, axis=1)))


def brier_decomposition(proba: Any, targets: Any, bins: int = 15) -> BrierParts:
    """Return the parts of the Brier score.

    For each class k, the forecasts p_k are put into bins of equal width between 0 and 1 that include their right edge.
    Let bin b have n_b rows, mean forecast f_b and a share o_b of rows of class k, and let o be the overall share. Then

        reliability = sum_b n_b / n (f_b - o_b)^2,  resolution = sum_b n_b / n (o_b - o)^2,  uncertainty = o (1 - o),

    and within = mean of (p - f_b)^2 - 2 (p - f_b) (d - o_b), the within-bin variance and covariance, with d = 1 for
    rows of class k and d = 0 for others. All are summed over the classes.

    Examples
    --------
    >>> proba, targets = [0.1, 0.3, 0.8, 0.9], [0, 1, 1, 1]
    >>> parts = brier_decomposition(proba, targets, bins=2)
    >>> parts.uncertainty, round(parts.resolution, 4), round(parts.brier - brier(proba, targets), 12)
    (0.375, 0.125, 0.0)
    """
    proba, targets = labelled(proba, targets)
    inner = np.linspace(0, 1, bin_count(bins) + 1)[1:-1]
    truth = one_hot(targets, proba)
    parts = np.zeros(4)
    for p, d in zip(proba.T, truth.T, strict=True):
        _, place, count = np.unique(np.searchsorted(inner, p, side="left"), return_inverse=True, return_counts=True)
        f, o, share = np.bincount(place, p) / count, np.bincount(place, d) / count, count / len(p)
        overall = d.mean()
        within = np.mean((p - f[place]) ** 2 - 2 * (p - f[place]) * (d - o[place]))
        parts += [share @ (f - o) ** 2, share @ (o - overall) ** 2, overall * (1 - overall), within]
    return BrierParts(*(float(part) for part in parts))
