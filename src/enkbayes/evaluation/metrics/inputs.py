"""Checks of the inputs of all metrics: proba (n, K), or (n,) with the probability of class 1, and targets (n,)."""

from __future__ import annotations

from typing import Any

import numpy as np

from enkbayes.engine.arrays import as_double, to_numpy

Vector = np.ndarray[Any, Any]

TOLERANCE = 1e-3
"""How much the sum of a row may differ from one. Networks in half precision reach 1e-3; logits differ far more."""


def probabilities(proba: Any, what: str = "proba") -> Vector:
    """Return proba as float64 (n, K), clipped to [0, 1]; raise a ValueError if it does not hold probabilities.

    >>> probabilities([0.25, 1.0]).tolist()
    [[0.75, 0.25], [0.0, 1.0]]
    >>> probabilities([[2.0, -1.0]])
    Traceback (most recent call last):
    ValueError: proba has values from -1 to 2; expected probabilities between 0 and 1 (logits need a softmax first)
    """
    p = as_double(proba)
    if p.ndim == 1:
        p = np.stack([1 - p, p], axis=1)
    if p.ndim != 2 or p.shape[1] < 2:
        raise ValueError(
            f"{what} has shape {p.shape}; expected (n, K) with K >= 2, or (n,): the probability of class 1"
        )
    finite = np.all(np.isfinite(p), axis=1)
    if not np.all(finite):
        raise ValueError(f"{what} has {np.sum(~finite)} rows with NaN or infinite values; drop them first")
    if len(p) and (p.min() < -TOLERANCE or p.max() > 1 + TOLERANCE):
        raise ValueError(
            f"{what} has values from {p.min():.4g} to {p.max():.4g}; "
            "expected probabilities between 0 and 1 (logits need a softmax first)"
        )
    off = np.abs(p.sum(axis=1) - 1) > TOLERANCE
    if np.any(off):
        row = int(np.argmax(off))
        raise ValueError(
            f"{what} has {np.sum(off)} rows that do not sum to one (row {row} sums to {p[row].sum():.4g}); "
            "expected the probabilities of all classes"
        )
    return np.asarray(np.clip(p, 0, 1))


def labelled(proba: Any, targets: Any) -> tuple[Vector, Vector]:
    """Return proba (n, K) and targets (n,) as integers; raise a ValueError if they do not fit or n = 0.

    >>> labelled([0.2], [3])
    Traceback (most recent call last):
    ValueError: targets run from 3 to 3; expected 0 to 1, one for each column of proba
    """
    p, d = probabilities(proba), to_numpy(targets)
    if d.shape != p.shape[:1] or len(p) == 0:
        raise ValueError(
            f"proba has shape {p.shape} and targets {d.shape}; expected (n, K) or (n,), and (n,), with n >= 1"
        )
    if d.dtype.kind not in "biuf" or not np.all(d == np.floor(d)):
        raise ValueError(
            f"targets contain {d[0]!s} ({d.dtype}); expected whole class numbers 0 to {p.shape[1] - 1}, without NaN"
        )
    if d.min() < 0 or d.max() >= p.shape[1]:
        raise ValueError(
            f"targets run from {d.min():g} to {d.max():g}; expected 0 to {p.shape[1] - 1}, one for each column of proba"
        )
    return p, d.astype(int)


def bin_count(bins: int) -> int:
    """Return the number of bins; raise a ValueError if it is below 1."""
    if bins < 1:
        raise ValueError(f"bins is {bins}; expected at least 1")
    return int(bins)
