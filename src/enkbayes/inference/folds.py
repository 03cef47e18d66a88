"""Held-out rows: folds, the log loss of predictions for them, and a weighted mean with its standard error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]


def stratified_folds(labels: Numbers, folds: int, rng: np.random.Generator) -> Numbers:
    """Return the fold (N,) of each row, 0, 1, ...; every class has the same share in all folds, however rare it is.

    >>> labels = np.asarray([0] * 6 + [1] * 3)
    >>> fold = stratified_folds(labels, 3, np.random.default_rng(0))
    >>> [np.bincount(labels[fold == k]).tolist() for k in range(3)]
    [[2, 1], [2, 1], [2, 1]]
    """
    order = rng.permutation(len(labels))
    found = np.empty(len(labels), dtype=np.int64)
    found[order[np.argsort(labels[order], kind="stable")]] = np.arange(len(labels)) % folds
    return found


def log_losses(proba: Numbers, targets: Numbers) -> Numbers:
    """Return -log p (n,) of the classes with the numbers `targets` (n,), from probabilities (n, K).

    >>> log_losses(np.asarray([[0.5, 0.5], [0.0, 1.0]]), np.asarray([0, 1])).round(4).tolist()
    [0.6931, -0.0]
    """
    own = proba[np.arange(len(targets)), targets.astype(int)]
    return np.asarray(-np.log(np.maximum(own, np.finfo(own.dtype).tiny)))


def mean_and_error(values: Numbers, share: Numbers) -> tuple[float, float]:
    """Return the mean of values (n,) and its standard error; `share` (n,) are weights with the sum 1.

    >>> mean_and_error(np.asarray([1.0, 3.0]), np.asarray([0.5, 0.5]))
    (2.0, 0.7071067811865476)
    """
    mean = float(share @ values)
    return mean, math.sqrt(float(share**2 @ (values - mean) ** 2))
