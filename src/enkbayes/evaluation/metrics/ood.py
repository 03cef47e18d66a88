"""Detection of out-of-distribution data.

Out-of-distribution is the positive class: a score is larger for rows that are more likely out-of-distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.engine.arrays import as_double
from enkbayes.evaluation.metrics.inputs import Vector
from enkbayes.evaluation.metrics.uncertainty import confidence


@dataclass(frozen=True)
class OodScores:
    """How well a score detects out-of-distribution rows.

    Attributes
    ----------
    rows
        Number of out-of-distribution rows.
    auroc
        Probability that a random out-of-distribution row scores higher than a random in-distribution row; ties count
        half, and chance is 0.5.
    aupr
        Average precision; chance is the share of out-of-distribution rows.
    fpr95
        Share of in-distribution rows that are flagged at the threshold that flags at least 95 % of the
        out-of-distribution rows.

    Examples
    --------
    >>> ood_score([0.9], [0.9])
    OodScores(rows=1, auroc=0.5, aupr=0.5, fpr95=1.0)
    """

    rows: int
    auroc: float
    aupr: float
    fpr95: float


def ood_score(proba_in: Any, proba_out: Any) -> OodScores:
    """Return how well low confidence detects out-of-distribution rows.

    proba_in holds predictions for in-distribution rows, proba_out those for out-of-distribution rows. The score is
    -confidence.

    Examples
    --------
    >>> ood_score([0.99, 0.98, 0.03], [0.6, 0.5, 0.55])
    OodScores(rows=3, auroc=1.0, aupr=1.0, fpr95=0.0)
    """
    return ood_separation(-confidence(proba_in), -confidence(proba_out))


def ood_separation(inside: Any, outside: Any) -> OodScores:
    """Return how well a score detects out-of-distribution rows.

    Parameters
    ----------
    inside, outside : array (n,), array (m,)
        Scores of in-distribution and of out-of-distribution rows, such as entropy or mutual information. Larger means
        more likely out-of-distribution.

    Examples
    --------
    >>> ood_separation([0.1, 0.2, 0.3], [0.25, 0.4]).auroc
    0.8333333333333334
    """
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    inside, outside = _scores(inside, "in-distribution"), _scores(outside, "out-of-distribution")
    positive = np.repeat([0, 1], [len(inside), len(outside)])
    score = np.concatenate([inside, outside])
    false_rate, true_rate, _ = roc_curve(positive, score, drop_intermediate=False)
    reached = np.argmax(true_rate >= 0.95)
    return OodScores(
        rows=len(outside),
        auroc=float(roc_auc_score(positive, score)),
        aupr=float(average_precision_score(positive, score)),
        fpr95=float(false_rate[reached]),
    )


def _scores(score: Any, what: str) -> Vector:
    x: Vector = as_double(score)
    if x.ndim != 1:
        raise ValueError(f"the {what} scores have shape {x.shape}; expected (n,), one score for each row")
    if len(x) == 0:
        raise ValueError(f"there are 0 {what} rows; expected at least one")
    if not np.all(np.isfinite(x)):
        raise ValueError(f"the {what} scores contain NaN or infinite values; drop those rows first")
    return x
