"""The pull-back shared by the likelihoods with one logit for each datum."""

from __future__ import annotations

from enkbayes.core.moments import Moments
from enkbayes.engine.arrays import Array, namespace


def pull_back(V: Array, slope: Array, curvature: Array, loss: Array, weights: Array | None) -> Moments:
    """Return g = V' slope, S = V' diag(curvature) V and the summed loss, from per-datum terms (n,) and V (n, r)."""
    xp = namespace(V)
    if weights is not None:
        slope, curvature, loss = weights * slope, weights * curvature, weights * loss
    return Moments(xp.sum(loss), V.mT @ slope, V.mT @ (curvature[:, None] * V))
