"""Rows of a loader in memory: all of them, or a random choice that stands for all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from enkbayes.nets.loaders import Arguments, arguments

Labels = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """Batches of inputs, as arguments, with their labels (n,); each row counts `weight` times."""

    batches: list[Arguments]
    labels: list[Labels]
    weight: float = 1.0

    @property
    def pairs(self) -> Iterator[tuple[Arguments, Labels]]:
        """The batches with their labels."""
        return zip(self.batches, self.labels, strict=True)


def thinned(pairs: Iterable[tuple[Any, Labels]], most: int, seed: int) -> Rows:
    """Return the rows of batches (x, labels); of more than `most`, that many at random, which count for all.

    >>> batches = [(torch.arange(4.0), np.zeros(4)), (torch.arange(6.0), np.ones(6))]
    >>> part = thinned(batches, 5, seed=0)
    >>> sum(map(len, part.labels)), part.weight
    (5, 2.0)
    """
    found = list(pairs)
    sizes = [len(y) for _, y in found]
    total = sum(sizes)
    if total <= most:
        return Rows([arguments(x) for x, _ in found], [y for _, y in found])
    kept = np.sort(np.random.default_rng((seed, 7)).choice(total, most, replace=False))
    starts = np.cumsum([0, *sizes])
    parts = [kept[(kept >= a) & (kept < b)] - a for a, b in pairwise(starts)]
    chosen = [(_rows(x, part, len(y)), y[part]) for (x, y), part in zip(found, parts, strict=True) if len(part)]
    return Rows([arguments(x) for x, _ in chosen], [y for _, y in chosen], total / most)


def _rows(x: Any, keep: Labels, size: int) -> Any:
    """Return some rows of a tensor, or of each tensor of a tuple or dict that has a row for each label."""
    if isinstance(x, torch.Tensor):
        return x[torch.as_tensor(keep, device=x.device)] if x.ndim and len(x) == size else x
    if isinstance(x, Mapping):
        return {key: _rows(value, keep, size) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple(_rows(value, keep, size) for value in x)
    return x
