"""Data larger than memory: features and labels that are read in pieces, once for every step.

A source is anything that can be iterated again and again and yields (features (n, D), labels (n,)) or (features,
labels, weights): a torch DataLoader, a list of arrays, `NpyRows`, `NpzRows`, `ParquetRows`, or a class of your own with
`__iter__`; the path of an .npz or .parquet file stands for its rows. `stream` reads a source once to learn its size and
classes and to check it; a run then reads it once a step and holds one piece at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.labels import observation_weights
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.logits import Elsewhere, LinearLogits, Piece
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, all_finite, anchor, floating, like, namespace, to_numpy
from enkbayes.engine.row_files import NpyRows, NpzRows, ParquetRows, open_rows

__all__ = ["NpyRows", "NpzRows", "ParquetRows", "StreamedLogits", "open_rows", "stream"]

WHOLE = "this needs all rows at once, and they are read in pieces; do it on a part of them that fits into memory"


@dataclass(frozen=True, eq=False)
class StreamedLogits(LinearLogits):
    """The logits of rows that `source` yields, with labels for `likelihood`, those of `classes` if it has any."""

    source: Iterable[Any]
    likelihood: Likelihood
    classes: Any
    reference: Array

    @property
    def in_numpy(self) -> bool:
        """Whether pieces are numpy arrays."""
        return isinstance(self.reference, np.ndarray)

    def pieces(self, targets: Array | None, weights: Array | None) -> Iterator[Piece]:
        """Yield all data once, cut where rows in memory are cut, so that sums are the same to the last bit; targets and
        weights come with the features.
        """
        seen = 0
        for features, labels, counts in _cut(_parts(self.source), (rows.stop - rows.start for rows in self.slices)):
            encoded, _ = self.likelihood.encode(labels, len(labels), self.classes)
            targets = self.likelihood.targets(encoded, self.reference)
            yield features, targets, None if counts is None else like(counts, self.reference)
            seen += len(labels)
        if seen != self.size:
            raise ValueError(
                f"the source gave {seen:,} rows and {self.size:,} the first time; expected one that can be read again "
                "and again, as a list or a DataLoader can and a generator cannot"
            )

    def subset(self, rows: np.ndarray[Any, Any]) -> LinearLogits:
        """Refuse: rows of a stream cannot be picked."""
        raise ValueError("mini-batches need rows in memory, and these are read in pieces; leave batch out")


def stream(
    source: Iterable[Any] | str | Path,
    prior: Gaussian | float = 1.0,
    *,
    likelihood: Likelihood | None = None,
    intercept: Gaussian | float | None = None,
    classes: Any = None,
    chunk: int | None = None,
    target: str | None = None,
) -> Problem:
    """Return the problem of all rows of a source; arguments are those of `Problem.create`.

    A path is that of an .npz file, whose arrays are X and `target` (default y), or of a .parquet file with a column
    `target`. Reads the source once. The pieces' array library, dtype and device are those of the computation.

    >>> rng = np.random.default_rng(0)
    >>> pieces = [(x, x[:, 0] > 0) for x in rng.standard_normal((5, 20, 3))]
    >>> problem = stream(pieces)
    >>> problem.size, problem.dim
    (100, 3)
    """
    if isinstance(source, str | Path):
        source = open_rows(source, target)
    elif target is not None:
        raise ValueError(f"target={target!r} names the labels in a file; this source yields its own")
    if not isinstance(source, Iterable):
        raise ValueError(
            f"the source is a {type(source).__name__}; expected what can be iterated again and again, such as a list "
            "of (features, labels), a DataLoader, NpyRows, or the path of a file"
        )
    rows, known, first, label = _look(source, likelihood, classes)
    labels = [label, label] if known is None else [known[0], known[-1]]
    pair = namespace(first).concat([first[:1, :], first[:1, :]], axis=0)
    small = Problem.create(pair, labels, prior, likelihood=likelihood, intercept=intercept, classes=known, chunk=chunk)
    model: Any = small.model
    where = Elsewhere((rows, model.map.features), WHOLE)
    streamed = StreamedLogits(where, model.map, model.chunk, source, small.likelihood, known, anchor(first))
    return replace(small, model=streamed, targets=None, weights=None)


Part = tuple[Array, Any, Any]
"""Features, labels and weights (or None) of some rows."""


def _cut(parts: Iterable[Part], lengths: Iterable[int]) -> Iterator[Part]:
    """Yield the rows of all parts in pieces of these lengths; where no length is left, as they come.

    >>> rows = np.arange(10.0)[:, None]
    >>> parts = [(rows[:4], np.arange(4), None), (rows[4:], np.arange(4, 10), None)]
    >>> [labels.tolist() for _, labels, _ in _cut(parts, [3, 3])]
    [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    """
    wanted, held, have = iter(lengths), [], 0
    want = next(wanted, None)
    for part in parts:
        begin, count = 0, len(part[1])
        while begin < count:
            end = count if want is None else min(count, begin + want - have)
            held.append(_some(part, begin, end))
            have, begin = have + end - begin, end
            if want is None or have == want:
                yield _joined(held)
                want, held, have = next(wanted, None), [], 0
    if held:
        yield _joined(held)


def _some(part: Part, begin: int, end: int) -> Part:
    features, labels, counts = part
    return features[begin:end, :], labels[begin:end], None if counts is None else counts[begin:end]


def _joined(parts: list[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    features, labels, counts = zip(*parts, strict=True)
    stack = scipy.sparse.vstack if scipy.sparse.issparse(features[0]) else namespace(*features).concat
    plain = all(some is None for some in counts)
    ones = [np.ones(len(y)) if some is None else some for y, some in zip(labels, counts, strict=True)]
    return stack(features), np.concatenate(labels), None if plain else np.concatenate(ones)


def _parts(source: Iterable[Any]) -> Iterator[Part]:
    """Yield features, labels and weights (or None) of every piece that has rows."""
    for number, piece in enumerate(source):
        if not isinstance(piece, tuple | list) or len(piece) not in (2, 3):
            raise ValueError(
                f"piece {number} is a {type(piece).__name__}; expected (features, labels) or with weights (rows in "
                "memory go to Problem.create)"
            )
        features, labels, *counts = piece
        x = floating(features)
        if x.ndim != 2 or x.shape[0] != len(labels):
            shape, count = tuple(x.shape), len(labels)
            raise ValueError(f"piece {number} has features {shape} and {count} labels; expected (n, D) and n labels")
        if len(labels):
            yield x, np.asarray(labels), None if not counts else observation_weights(counts[0], len(labels))


def _look(source: Iterable[Any], likelihood: Likelihood | None, classes: Any) -> tuple[int, Any, Array, Any]:
    """Return the number of rows, the classes, the first chunk's features and the first label; every row is checked."""
    rows, found, first, label = 0, set(), None, None
    has_classes = likelihood is None or likelihood.n_classes is not None
    for features, labels, _ in _parts(source):
        if first is None:
            first, label = features, labels[0]
        elif features.shape[1] != first.shape[1] or features.dtype != first.dtype:
            expected = f"{first.shape[1]} columns of {first.dtype}, as the first rows have"
            raise ValueError(
                f"rows {rows:,} and on have {features.shape[1]} columns of {features.dtype}; expected {expected}"
            )
        if not all_finite(features):
            raise ValueError(f"{_bad(features, rows)} NaN or infinite; impute or drop such rows first")
        if likelihood is not None and not has_classes:
            likelihood.encode(labels, len(labels))  # raises an error where a label is not one
        elif classes is None:
            found |= _kinds(labels, rows)
        rows += len(labels)
    if first is None:
        raise ValueError("the source yields no rows; expected at least one, and one that can be read again and again")
    if not has_classes:
        return rows, None, first, label
    known = np.unique(np.asarray(_sorted(found) if classes is None else classes))
    if len(known) < 2:
        raise ValueError(f"labels contain a single class, {known[0]}; expected two or more, or classes=[...] with all")
    return rows, known, first, label


def _bad(features: Array, rows: int) -> str:
    """Return where the first number is that is none, for features that begin with row `rows`."""
    if scipy.sparse.issparse(features):
        return f"rows {rows:,} and on have numbers that are"
    row, column = np.argwhere(~np.isfinite(to_numpy(features)))[0]
    return f"row {rows + row:,} (counted from 0) has in column {column} a number that is"


def _kinds(labels: Any, rows: int) -> set[Any]:
    """Return the classes among labels that begin with row `rows`."""
    try:
        found = set(np.unique(labels).tolist())
    except TypeError:  # of several kinds
        found = set(labels.tolist())
    if any(label is None or (isinstance(label, float) and math.isnan(label)) for label in found):
        raise ValueError(f"labels of rows {rows:,} and on have missing ones; drop those rows first")
    return found


def _sorted(found: set[Any]) -> list[Any]:
    try:
        return sorted(found)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in found})
        raise ValueError(f"labels are of several kinds, {', '.join(kinds)}; expected all text or all numbers") from None
