"""Random partitions of the rows: every pass uses every row exactly once."""

from __future__ import annotations

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.moments import Moments
from enkbayes.core.problem import Problem

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


def partition(size: int, batch: int, seed: int, epoch: int) -> list[Rows]:
    """Return the batches of one pass: a random partition of range(size) into parts of nearly equal size, <= `batch`.

    >>> parts = partition(10, 4, seed=0, epoch=0)
    >>> [len(part) for part in parts], sorted(int(i) for part in parts for i in part) == list(range(10))
    ([4, 3, 3], True)
    """
    order = np.random.default_rng((seed, 1, epoch)).permutation(size)
    return np.array_split(order, -(-size // batch))


def batch_moments(problem: Problem, ensemble: AffineEnsemble, batch: int, seed: int, step: int) -> Moments:
    """Return the likelihood's moments of the step-th batch, scaled by N / |batch| to represent all rows."""
    epoch, position = divmod(step, -(-problem.size // batch))
    rows = partition(problem.size, batch, seed, epoch)[position]
    return problem.subset(rows).moments(ensemble) * (problem.size / len(rows))
