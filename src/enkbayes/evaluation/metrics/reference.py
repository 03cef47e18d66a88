"""The distance between predictions and those of a reference posterior, such as a long HMC run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.evaluation.metrics.inputs import probabilities


@dataclass(frozen=True)
class PredictiveDistance:
    """Distances between two predictions (n, K), symmetric and between 0 and 1.

    Attributes
    ----------
    mean, maximum
        Of |p - q| over all rows and classes.
    total_variation
        Mean over rows of half the sum of |p - q| over the classes, which is the largest difference in the probability
        of any event. For two classes it equals `mean`.

    Examples
    --------
    >>> predictive_distance([0.5, 0.5], [0.5, 0.75])
    PredictiveDistance(mean=0.125, maximum=0.25, total_variation=0.125)
    """

    mean: float
    maximum: float
    total_variation: float


def predictive_distance(proba: Any, reference: Any) -> PredictiveDistance:
    """Return the distance between two predictions for the same rows, (n, K) or (n,) each.

    >>> predictive_distance([[0.5, 0.5, 0.0]], [[0.5, 0.25, 0.25]]).total_variation
    0.25
    """
    p, q = probabilities(proba), probabilities(reference, "reference")
    if p.shape != q.shape or len(p) == 0:
        raise ValueError(f"proba has shape {p.shape} and reference {q.shape}; expected the same rows and classes")
    gap = np.abs(p - q)
    return PredictiveDistance(float(gap.mean()), float(gap.max()), float(np.mean(gap.sum(axis=1)) / 2))
