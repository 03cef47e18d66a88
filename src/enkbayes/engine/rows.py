"""Row sources: how the rows of a problem are visited, and how what they contribute is added up.

The data reach an ensemble through sums over rows alone. A row source knows where rows are, how many are read at a time,
and how to add up what a function of a chunk returns; it knows nothing of what the sums mean. Rows in memory are
`ArrayRows`; `streamed_rows.py` reads rows that do not fit into memory, and `sharded_rows.py` adds up over several
processes.

What makes a sum fast stays here as well: chunks are spread over threads, their numbers may be float32 (`coarse`), and
the products of a block of rows share memory that stays in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
import scipy.sparse

from enkbayes.engine.arrays import (
    Array,
    anchor,
    as_double,
    even_slices,
    like,
    namespace,
    part_of,
    row_slices,
    sum_dtype,
    take_rows,
)
from enkbayes.engine.threads import in_threads

CHUNK = 4096  # rows that are read at a time unless the user says otherwise

Sums = tuple[Array, ...]
"""Arrays that chunks contribute to."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows: features (n, D), targets (n,), and weights (n,) or None."""

    features: Any
    targets: Any
    weights: Any
    memory: Any = None

    @property
    def size(self) -> int:
        """The number of rows n."""
        return int(self.features.shape[0])

    @property
    def counts(self) -> np.ndarray[Any, Any]:
        """How often each row counts (n,), in numpy's double precision: the weights, or ones."""
        return np.ones(self.size) if self.weights is None else as_double(self.weights)

    def product(self, matrix: Array, offset: Array | None = None) -> Array:
        """Return features @ matrix + offset (n, c). The next product of the same block may use its memory."""
        out = self._shared(matrix.shape[1])
        logits = self.features @ matrix if out is None else np.matmul(self.features, matrix, out=out)
        if offset is not None:
            logits += offset
        return logits

    @property
    def mirrors(self) -> bool:
        """Whether half of a product costs more than a sum and a difference: from 96 features on, as measured."""
        return int(self.features.shape[1]) >= 96

    def mirrored_product(self, centre: Array, matrix: Array, offset: Array | None = None) -> Array:
        """Return centre + x and centre - x side by side (n, 2 c), where x = features @ matrix + offset (n, c)."""
        half, out = matrix.shape[1], self._shared(2 * matrix.shape[1])
        if out is None:
            x = self.product(matrix, offset)
            return namespace(x).concat([centre + x, centre - x], axis=1)
        x = np.matmul(self.features, matrix, out=out[:, :half])
        if offset is not None:
            x += offset
        np.subtract(centre, x, out=out[:, half:])
        x += centre
        return out

    def by_blocks(self, function: Callable[[Chunk], Sums], width: int, cached: int = 2**20) -> Sums:
        """Apply a function to the rows block by block; it returns arrays with one entry per row.

        A block has so few rows that `width` numbers per row, `cached` in all, stay in the cache. In numpy all blocks
        share their memory: fresh pages may cost more than the products that fill them.
        """
        most = min(self.size, max(64, cached // max(width, 128)))
        memory = np.empty(most * width, self.features.dtype) if isinstance(self.features, np.ndarray) else None
        parts = [function(replace(block, memory=memory)) for block in self.blocks(most)]
        if len(parts) == 1:
            return parts[0]
        return tuple(namespace(x[0]).concat(x) for x in zip(*parts, strict=True))

    def blocks(self, rows: int) -> Iterator[Chunk]:
        """Yield all rows, so many at a time; a chunk without rows is one block."""
        slices = list(row_slices(self.size, max(rows, 1))) or [slice(0)]
        return (self._rows(some) for some in slices)

    def head(self, size: int) -> Chunk:
        """Return the first rows."""
        return self._rows(slice(size))

    def astype(self, dtype: Any) -> Chunk:
        """Return the rows with floating numbers of another dtype; class numbers stay whole."""
        return Chunk(*(_cast(x, dtype) for x in (self.features, self.targets, self.weights)))

    def _rows(self, rows: slice) -> Chunk:
        return Chunk(self.features[rows, :], part_of(self.targets, rows), part_of(self.weights, rows))

    def _shared(self, columns: int) -> Any:
        """Return the shared memory as (n, columns), if there is any."""
        return None if self.memory is None else self.memory[: self.size * columns].reshape(self.size, columns)


Contribution = Callable[[Chunk], Sums]
"""What the rows of a chunk add to the sums."""


class Rows(Protocol):
    """Where the rows of a problem are. A new source is one file with a class that has these members."""

    @property
    def size(self) -> int:
        """The number of rows N, of all processes."""

    @property
    def width(self) -> int:
        """The number of features D."""

    @property
    def reference(self) -> Array:
        """An empty array with the library, dtype and device of the features."""

    @property
    def chunk(self) -> int:
        """The largest number of rows that are read at a time."""

    @property
    def features(self) -> Any:
        """All features (N, D); a ValueError where they are never in memory at once."""

    @property
    def targets(self) -> Any:
        """All targets (N,); a ValueError where they are never in memory at once."""

    @property
    def weights(self) -> Any:
        """All weights (N,), or None."""

    @property
    def coarse(self) -> Rows | None:
        """The same rows with float32 numbers, or None where that saves nothing or may not be."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield the rows of this process once, in order."""

    def sum(self, contribution: Contribution, *, cost: float = 0.0, long: bool = False, least: int = 0) -> Sums:
        """Return the sums over all rows, in double precision where there is one.

        cost is the number of multiplications per row, by which threads are chosen. long says that a contribution holds
        few numbers compared with the features, so that long chunks are as good for memory and better for speed. least
        is the number of rows below which products are slow.
        """

    def subset(self, rows: np.ndarray[Any, Any]) -> Rows:
        """Return some of the rows (integers)."""

    def take(self, rows: np.ndarray[Any, Any]) -> Array:
        """Return the features of some rows (integers), wherever they are."""


class Elsewhere:
    """The base of row sources that never have all rows in the memory of one process."""

    reason: ClassVar[str]
    """Why not, and what to do."""

    @property
    def features(self) -> Any:
        """Refuse: there are no features (N, D)."""
        raise ValueError(f"this needs all rows at once, and {self.reason}")

    targets = weights = features

    def subset(self, rows: np.ndarray[Any, Any]) -> NoReturn:
        """Refuse: rows cannot be picked."""
        raise ValueError(f"mini-batches need all rows at once, and {self.reason}, or leave batch out")

    def take(self, rows: np.ndarray[Any, Any]) -> Any:
        """Refuse: rows cannot be picked."""
        return self.features


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Rows in memory, or in a mapped file: features (N, D) of any array library or sparse, targets and weights (N,).

    Features are read `chunk` rows at a time, so that sums need memory for one chunk only. Rows whose logits are no
    function of features have features of width 0.
    """

    features: Any
    targets: Any
    weights: Any = None
    chunk: int = CHUNK
    held: int = 2**24  # entries up to which a float32 copy is kept, instead of cast in every sum
    threaded: float = 3e7  # multiplications of a sum from which several threads pay

    @property
    def size(self) -> int:
        """The number of rows N."""
        return int(self.features.shape[0])

    @property
    def width(self) -> int:
        """The number of features D."""
        return int(self.features.shape[1])

    @property
    def reference(self) -> Array:
        """An empty array with the library, dtype and device of the features."""
        return anchor(self.features)

    @cached_property
    def coarse(self) -> Rows | None:
        """The same rows in float32: a copy where that is small enough to keep, otherwise cast chunk by chunk."""
        x = self.features
        if not is_double(self):
            return None
        if type(x) is not np.ndarray or x.size > self.held:
            return CastRows(self)
        copy = np.empty(x.shape, np.float32)
        slices = list(chunk_slices(self, long=True))
        list(in_threads(lambda rows: np.copyto(copy[rows], x[rows], casting="same_kind"), slices))
        rough = Chunk(copy, self.targets, self.weights).astype(copy.dtype)
        return replace(self, features=rough.features, targets=rough.targets, weights=rough.weights)

    def chunks(self, *, long: bool = False, least: int = 0) -> Iterator[Chunk]:
        """Yield all rows once."""
        for rows in chunk_slices(self, long=long, least=least):
            yield Chunk(self.features[rows, :], part_of(self.targets, rows), part_of(self.weights, rows))

    def sum(self, contribution: Contribution, *, cost: float = 0.0, long: bool = False, least: int = 0) -> Sums:
        """Return the sums over all rows, on several threads where that is worth it."""
        chunks = self.chunks(long=long, least=least)
        if isinstance(self.features, np.ndarray) and self.size * cost > self.threaded:
            return add_up(in_threads(lambda chunk: in_double(contribution(chunk)), list(chunks)))
        return add_up(in_double(contribution(chunk)) for chunk in chunks)

    def subset(self, rows: np.ndarray[Any, Any]) -> ArrayRows:
        """Return some of the rows."""
        weights = None if self.weights is None else take_rows(self.weights, rows)
        return replace(self, features=self.take(rows), targets=take_rows(self.targets, rows), weights=weights)

    def take(self, rows: np.ndarray[Any, Any]) -> Array:
        """Return the features of some rows."""
        return take_rows(self.features, rows)


@dataclass(frozen=True, eq=False)
class CastRows(Elsewhere):
    """Rows of another source with float32 numbers, cast chunk by chunk."""

    reason: ClassVar[str] = "they are cast to float32 chunk by chunk; use the rows themselves"

    source: Any

    @property
    def size(self) -> int:
        """The number of rows N."""
        return int(self.source.size)

    @property
    def width(self) -> int:
        """The number of features D."""
        return int(self.source.width)

    @property
    def chunk(self) -> int:
        """The largest number of rows that are read at a time."""
        return int(self.source.chunk)

    @property
    def reference(self) -> Array:
        """An empty float32 array."""
        reference = self.source.reference
        return _cast(reference, namespace(reference).float32)

    @property
    def coarse(self) -> None:
        """There is nothing coarser."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows once."""
        return (chunk.astype(self.reference.dtype) for chunk in self.source.chunks())

    def sum(self, contribution: Contribution, *, cost: float = 0.0, long: bool = False, least: int = 0) -> Sums:
        """Return the sums over all rows."""
        dtype = self.reference.dtype
        rough: Sums = self.source.sum(
            lambda chunk: contribution(chunk.astype(dtype)), cost=cost, long=long, least=least
        )
        return rough


def add_up(contributions: Iterable[Sums]) -> Sums:
    """Return the sums of what chunks contribute.

    >>> add_up([(1.0, 2.0), (3.0, 4.0)])
    (4.0, 6.0)
    """
    return reduce(lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)), contributions)


def in_double(contribution: Sums) -> Sums:
    """Return a contribution in the dtype in which sums over many chunks are kept."""
    return tuple(like(x, x, dtype=sum_dtype(x)) for x in contribution)


def is_double(rows: Rows) -> bool:
    """Tell whether the numbers of the rows are float64."""
    reference = rows.reference
    return bool(reference.dtype == namespace(reference).float64)


def chunk_slices(
    rows: Any,
    *,
    long: bool = False,
    least: int = 0,
    entries: int = 2**20,
    shared: int = 2**18,
    parts: int = 4,
) -> Iterator[slice]:
    """Yield the rows of each chunk of a source with `size`, `width`, `chunk` and `reference`.

    Long chunks of numpy's have at least `entries` entries of features, because with fewer threads wait for each other;
    a user who asked for short chunks gets them. Features of more than `shared` entries are cut evenly into a multiple
    of `parts` chunks, for several threads or one alike.
    """
    length = rows.chunk
    if long and isinstance(rows.reference, np.ndarray) and length >= CHUNK:
        length = max(length, entries // max(rows.width, 1))
    length = max(least, length)
    if rows.size * rows.width > shared:
        return even_slices(rows.size, length, parts)
    return row_slices(rows.size, length)


def _cast(x: Any, dtype: Any) -> Any:
    """Return floating numbers in another dtype; None, class numbers, and what has the dtype already as they are."""
    if x is None or x.dtype == dtype:
        return x
    if scipy.sparse.issparse(x):
        return x.astype(dtype)
    xp = namespace(x)
    return xp.astype(x, dtype) if xp.isdtype(x.dtype, "real floating") else x
