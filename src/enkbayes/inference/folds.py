"""Folds: parts of the rows, each of which is predicted by a fit to the others."""

from __future__ import annotations

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
