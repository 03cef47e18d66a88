"""Rows of several processes: each holds a shard, and sums are those of all of them.

One all-reduce of the sums turns a run on shards into the run on all rows. Every process gets the same sums and makes
the same decisions, so their ensembles stay bitwise equal to each other, and within round-off of those of one process.
Nothing above the row source knows of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from enkbayes.engine.arrays import Array, like, to_numpy
from enkbayes.engine.processes import all_sum, connected, gather, rank, shared_errors, together
from enkbayes.engine.rows import Chunk, Contribution, Elsewhere, Rows, Sums


@dataclass(frozen=True, eq=False)
class ShardedRows(Elsewhere):
    """The rows of all processes. This process reads its own, `shard`; where some process has none, `target` (1,) is the
    target of any row.
    """

    reason: ClassVar[str] = "each process holds a shard; use one process"

    shard: Rows
    size: int
    target: Any = None

    @property
    def width(self) -> int:
        """The number of features D."""
        return self.shard.width

    @property
    def reference(self) -> Array:
        """An empty array with the library, dtype and device of the features."""
        return self.shard.reference

    @property
    def chunk(self) -> int:
        """The largest number of rows that are read at a time."""
        return self.shard.chunk

    @property
    def coarse(self) -> None:
        """There are no coarse sums: in double precision it makes no difference how rows are shared out."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield the rows of this process."""
        return self.shard.chunks()

    def sum(self, contribution: Contribution, *, cost: float = 0.0, long: bool = False, least: int = 0) -> Sums:
        """Return the sums over the rows of all processes; a process without rows adds zeros."""
        if self.shard.size:
            own = self.shard.sum(contribution, cost=cost, long=long, least=least)
        else:
            own = contribution(self._weightless)
        return all_sum(own)

    @property
    def _weightless(self) -> Chunk:
        """A row of zeros with weight zero: what it contributes are zeros of the right shapes."""
        nothing = like(np.zeros((1, self.width)), self.reference)
        return Chunk(nothing, self.target, like(np.zeros(1), self.reference))

    def take(self, rows: np.ndarray[Any, Any]) -> Array:
        """Return the features of some rows of all processes, to each of them."""
        sizes = gather(self.shard.size)
        begin = sum(sizes[: rank()])
        mine = np.flatnonzero((rows >= begin) & (rows < begin + self.shard.size))
        with shared_errors():
            part = self.shard.take(rows[mine] - begin)
        dense = part.toarray() if hasattr(part, "toarray") else part
        places, parts = zip(*gather((mine, to_numpy(dense))), strict=True)
        whole = np.concatenate(parts)[np.argsort(np.concatenate(places))]
        return whole if hasattr(part, "toarray") else like(whole, part)


@contextmanager
def errors_of(rows: Rows) -> Iterator[None]:
    """Raise an error of the block on every process that shares the rows."""
    with shared_errors() if isinstance(rows, ShardedRows) else nullcontext():
        yield


def leads(rows: Rows) -> bool:
    """Tell whether this process is the first of those that share the rows, or the only one."""
    return not isinstance(rows, ShardedRows) or rank() == 0


def most_advanced(rows: Rows, step: int | None, thing: Any) -> Any:
    """Return the thing of the process with the largest step to all of them; None where no process has one."""
    if not isinstance(rows, ShardedRows) or not connected():
        return thing
    from torch import distributed

    steps = [-1 if there is None else there for there in gather(step)]
    if max(steps) < 0:
        return None
    best = steps.index(max(steps))
    box = [thing if rank() == best else None]
    with together():
        distributed.broadcast_object_list(box, src=best)
    return box[0]
