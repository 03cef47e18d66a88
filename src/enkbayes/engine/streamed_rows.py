"""Rows larger than memory: features and labels that are read chunk by chunk, once for every sum.

A source is anything that can be iterated repeatedly and yields (features (n, D), labels (n,)) or (features,
labels, weights): a torch DataLoader, a list of arrays, `NpyRows`, `NpzRows`, `ParquetRows`, or a class of your own with
`__iter__`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from enkbayes.engine.arrays import Array, all_finite, floating, like, namespace, to_numpy
from enkbayes.engine.rows import (
    CastRows,
    Chunk,
    Contribution,
    Elsewhere,
    Sums,
    add_up,
    chunk_slices,
    in_double,
    is_double,
)

Part = tuple[Array, Any, Any]
"""Features, labels and weights (or None) of some rows, as a source yields them."""


@dataclass(frozen=True, eq=False)
class StreamedRows(Elsewhere):
    """Rows that `source` yields: N of them, with D features in the library, dtype and device of `reference`; `encode`
    turns labels into targets.
    """

    reason: ClassVar[str] = "they are read in chunks; use a part that fits into memory"

    source: Iterable[Any]
    size: int
    width: int
    reference: Array
    encode: Callable[[Any], Array]
    chunk: int

    @cached_property
    def coarse(self) -> CastRows | None:
        """The same rows in float32, cast chunk by chunk."""
        return CastRows(self) if is_double(self) else None

    def chunks(self, *, long: bool = False, least: int = 0) -> Iterator[Chunk]:
        """Yield all rows once, cut where rows in memory are cut, so that sums are the same to the last bit."""
        seen = 0
        lengths = (rows.stop - rows.start for rows in chunk_slices(self, long=long, least=least))
        for features, labels, weights in _cut(read(self.source), lengths):
            yield Chunk(features, self.encode(labels), None if weights is None else like(weights, self.reference))
            seen += len(labels)
        if seen != self.size:
            raise ValueError(
                f"the source gave {seen:,} rows and {self.size:,} the first time; expected one that can be read "
                "repeatedly, as a list or a DataLoader can and a generator cannot"
            )

    def sum(self, contribution: Contribution, *, cost: float = 0.0, long: bool = False, least: int = 0) -> Sums:
        """Return the sums over all rows."""
        return add_up(in_double(contribution(chunk)) for chunk in self.chunks(long=long, least=least))


def read(source: Iterable[Any]) -> Iterator[Part]:
    """Yield features, labels and weights (or None) of every chunk of a source that has rows."""
    for number, part in enumerate(source):
        if not isinstance(part, tuple | list) or len(part) not in (2, 3):
            raise ValueError(
                f"chunk {number} is a {type(part).__name__}; expected (features, labels) or with weights (rows in "
                "memory go to Problem.create)"
            )
        features, labels, *weights = part
        x = floating(features)
        if x.ndim != 2 or x.shape[0] != len(labels):
            shape, count = tuple(x.shape), len(labels)
            raise ValueError(f"chunk {number} has features {shape} and {count} labels; expected (n, D) and n labels")
        if len(labels):
            yield x, np.asarray(labels), None if not weights else to_numpy(weights[0])


def survey(source: Iterable[Any], check: Callable[[Any, Any, int], None]) -> tuple[int, Array]:
    """Read a source once and return the number of its rows and the features of its first chunk.

    Every row is checked for finite features of one width and dtype; check(labels, weights, row) sees the labels and
    weights of a chunk that begins with that row.
    """
    rows, first = 0, None
    for features, labels, weights in read(source):
        if first is None:
            first = features
        elif features.shape[1] != first.shape[1] or features.dtype != first.dtype:
            expected = f"{first.shape[1]} columns of {first.dtype}, as the first rows have"
            raise ValueError(
                f"rows {rows:,} and on have {features.shape[1]} columns of {features.dtype}; expected {expected}"
            )
        if not all_finite(features):
            raise ValueError(f"{_first_bad(features, rows)} NaN or infinite; impute or drop such rows first")
        check(labels, weights, rows)
        rows += len(labels)
    if first is None:
        raise ValueError("the source yields no rows; expected at least one, and a source that can be read repeatedly")
    return rows, first


def _first_bad(features: Array, row: int) -> str:
    """Return where the first number is that is not finite, for features that begin with a row."""
    if scipy.sparse.issparse(features):
        return f"rows {row:,} and on have numbers that are"
    bad, column = np.argwhere(~np.isfinite(to_numpy(features)))[0]
    return f"row {row + bad:,}, column {column} (counted from 0) is"


def _cut(parts: Iterable[Part], lengths: Iterable[int]) -> Iterator[Part]:
    """Yield the rows of all parts in chunks of these lengths; where no length is left, as they come.

    >>> rows = np.arange(10.0)[:, None]
    >>> parts = [(rows[:4], np.arange(4), None), (rows[4:], np.arange(4, 10), None)]
    >>> [labels.tolist() for _, labels, _ in _cut(parts, [3, 3])]
    [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    """
    wanted, held, have = iter(lengths), [], 0
    want: float = next(wanted, math.inf)
    for part in parts:
        begin, count = 0, len(part[1])
        while begin < count:
            end = count if math.isinf(want) else min(count, begin + int(want) - have)
            held.append(tuple(None if x is None else x[begin:end] for x in part))
            have, begin = have + end - begin, end
            if have == want or math.isinf(want):
                yield _joined(held)
                want, held, have = next(wanted, math.inf), [], 0
    if held:
        yield _joined(held)


def _joined(parts: list[Any]) -> Part:
    if len(parts) == 1:
        features, labels, weights = parts[0]
        return features, labels, weights
    features, labels, weights = zip(*parts, strict=True)
    stack = scipy.sparse.vstack if scipy.sparse.issparse(features[0]) else namespace(*features).concat
    plain = all(some is None for some in weights)
    ones = [np.ones(len(y)) if some is None else some for y, some in zip(labels, weights, strict=True)]
    return stack(features), np.concatenate(labels), None if plain else np.concatenate(ones)
