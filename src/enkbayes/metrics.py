"""How good predicted probabilities are. proba is (n, K), or (n,): the probability of class 1; targets are class numbers
(n,).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Vector = np.ndarray[Any, Any]


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
class OodScores:
    """How well confidence tells known data from out-of-distribution data, of which there are `rows` rows.

    >>> ood_score([0.9], [0.9])
    OodScores(rows=1, auroc=0.5, fpr95=1.0)
    """

    rows: int
    auroc: float
    fpr95: float


def score(proba: Any, targets: Any) -> Scores:
    """Return all scores at once.

    Examples
    --------
    >>> scores = score([[0.75, 0.25], [0.5, 0.5]], [0, 1])
    >>> scores.rows, scores.accuracy, scores.brier, scores.ece, round(scores.nll, 4)
    (2, 0.5, 0.3125, 0.375, 0.4904)
    """
    proba, targets = _checked(proba, targets)
    return Scores(
        len(targets), accuracy(proba, targets), nll(proba, targets), brier(proba, targets), ece(proba, targets)
    )


def accuracy(proba: Any, targets: Any) -> float:
    """Return the share of rows whose most probable class is the right one.

    >>> accuracy([0.9, 0.2, 0.6], [1, 0, 0])
    0.6666666666666666
    """
    from sklearn.metrics import accuracy_score

    proba, targets = _checked(proba, targets)
    return float(accuracy_score(targets, np.argmax(proba, axis=1)))


def nll(proba: Any, targets: Any) -> float:
    """Return the mean negative log-likelihood -log p(right class), in nats; probabilities below the rounding error of
    floating-point numbers count as that (scikit-learn's `log_loss`).

    >>> round(nll([0.5, 0.5], [1, 0]), 4)
    0.6931
    """
    from sklearn.metrics import log_loss

    proba, targets = _checked(proba, targets)
    return float(log_loss(targets, proba, labels=np.arange(proba.shape[1])))


def brier(proba: Any, targets: Any) -> float:
    """Return the mean over rows of sum_k (p_k - [k is right])^2, between 0 and 2; for two classes this is twice the
    square of one probability's error.

    >>> brier([1.0, 0.5], [1, 0])
    0.25
    """
    proba, targets = _checked(proba, targets)
    return float(np.mean(np.sum((proba - np.eye(proba.shape[1])[targets]) ** 2, axis=1)))


def ece(proba: Any, targets: Any, bins: int = 15) -> float:
    """Return the expected calibration error: sum over bins of (share of rows) * |accuracy - mean confidence|.

    Rows are put into `bins` bins of equal width between 0 and 1 by their confidence, the largest probability; a bin
    includes its right edge.

    >>> round(ece([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0]), 4)
    0.15
    """
    proba, targets = _checked(proba, targets)
    top = confidence(proba)
    right = np.argmax(proba, axis=1) == targets
    place = np.clip(np.ceil(top * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(place, weights=right - top, minlength=bins)
    return float(np.sum(np.abs(gaps)) / len(targets))


def confidence(proba: Any) -> Vector:
    """Return the largest probability of each row (n,).

    >>> confidence([0.25, 0.5, 1.0])
    array([0.75, 0.5 , 1.  ])
    """
    return np.asarray(np.max(_columns(proba), axis=1))


def ood_score(proba_in: Any, proba_out: Any) -> OodScores:
    """Return AUROC and FPR95 of telling out-of-distribution rows (proba_out) from known ones (proba_in).

    Out-of-distribution is the positive class and the score is 1 - confidence: AUROC is the probability that a random
    out-of-distribution row is less confident than a random known one (ties count half), FPR95 the share of known rows
    that are flagged at the threshold which flags at least 95 % of the out-of-distribution rows.

    Examples
    --------
    >>> ood_score([0.99, 0.98, 0.03], [0.6, 0.5, 0.55])
    OodScores(rows=3, auroc=1.0, fpr95=0.0)
    """
    from sklearn.metrics import roc_auc_score, roc_curve

    known, strange = confidence(proba_in), confidence(proba_out)
    if len(known) == 0 or len(strange) == 0:
        raise ValueError(
            f"there are {len(known)} known and {len(strange)} out-of-distribution rows; expected some of each"
        )
    positive = np.repeat([0, 1], [len(known), len(strange)])
    doubt = 1 - np.concatenate([known, strange])
    false_rate, true_rate, _ = roc_curve(positive, doubt, drop_intermediate=False)
    # a share such as 0.95 may be rounded just below itself
    reached = np.argmax(true_rate >= 0.95 - 1e-12)
    return OodScores(len(strange), float(roc_auc_score(positive, doubt)), float(false_rate[reached]))


def _columns(proba: Any) -> Vector:
    proba = np.asarray(proba, dtype=np.float64)
    return np.stack([1 - proba, proba], axis=1) if proba.ndim == 1 else proba


def _checked(proba: Any, targets: Any) -> tuple[Vector, Vector]:
    proba, targets = _columns(proba), np.asarray(targets)
    if proba.ndim != 2 or len(proba) == 0 or targets.shape != proba.shape[:1]:
        raise ValueError(
            f"proba has shape {proba.shape} and targets {targets.shape}; expected (n, K) or (n,), and (n,), with n >= 1"
        )
    if not np.all((targets >= 0) & (targets < proba.shape[1])):
        raise ValueError(f"targets run from {targets.min()} to {targets.max()}; expected 0 to {proba.shape[1] - 1}")
    return proba, targets.astype(int)
