"""Several processes, one posterior: each holds a shard of the data, and sums over data are added over all of them.

Data reach an ensemble through sums alone, `Moments` and the few that the most probable parameters need. So one
all-reduce of r + r^2 numbers a step turns a run on shards into the run on all data. Every process gets the same sums
and makes the same decisions; the ensembles stay bitwise equal to each other, and within round-off of those of one
process. Nothing else in the package knows of this: a sharded problem is a problem.

    torchrun --nproc-per-node 2 program.py

    distributed.connect()
    problem = distributed.create(my_features, my_labels, prior)
    posterior = eb.run(problem)                                         # the same on every process
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.logits import Elsewhere, LinearLogits, Piece, Sum
from enkbayes.core.problem import Problem
from enkbayes.core.streams import stream
from enkbayes.engine.arrays import Array, like, take_rows, to_numpy
from enkbayes.engine.processes import ProcessLost, all_sum, connect, connected, gather, rank, together, told

__all__ = [
    "ProcessLost",
    "ShardedLogits",
    "all_sum",
    "classes_of",
    "connect",
    "create",
    "create_stream",
    "furthest",
    "leads",
    "shard",
    "some_rows",
]
WHOLE = "this needs all rows in one process, and each process holds a part; do it on a part, or in one process"


@dataclass(frozen=True, eq=False)
class ShardedLogits(LinearLogits):
    """The logits of all shards. This process reads its own, `shard`; sums are those of all processes."""

    single: ClassVar[bool] = False  # in double precision it does not show how the rows are shared out
    shard: LinearLogits
    group: Any = None

    def pieces(self, targets: Array | None, weights: Array | None) -> Iterator[Piece]:
        """Yield the data of this process; without any, one piece of no rows, which adds zeros."""
        if self.shard.size:
            return self.shard.pieces(targets, weights)
        return iter(((self.shard.features, targets, weights),))

    def total(self, parts: Iterable[Sum]) -> Sum:
        """Return the sum over the data of all processes."""
        return all_sum(super().total(parts), self.group)  # type: ignore[no-any-return]

    def subset(self, rows: np.ndarray[Any, Any]) -> LinearLogits:
        """Refuse: mini-batches of shards of different sizes would weigh data differently."""
        raise ValueError("mini-batches are drawn from all data, and here each process holds a part; leave batch out")


def create(
    features: Array,
    labels: Any,
    prior: Gaussian | float = 1.0,
    *,
    group: Any = None,
    likelihood: Likelihood | None = None,
    classes: Any = None,
    **settings: Any,
) -> Problem:
    """Return the problem of all processes' data from this one's, which may have no rows: features (0, D).

    Parameters are those of `Problem.create`. Bad data on one process are told to all of them, so that none waits.
    """
    known = classes_of(labels, classes, group) if _has_classes(likelihood) else None
    with told(group):
        problem = _local(features, labels, prior, likelihood=likelihood, classes=known, **settings)
    return shard(problem, group)


def create_stream(
    source: Iterable[Any] | None,
    prior: Gaussian | float = 1.0,
    *,
    group: Any = None,
    likelihood: Likelihood | None = None,
    classes: Any = None,
    **settings: Any,
) -> Problem:
    """Return the problem of all processes' rows, each of which reads its own source piece by piece; None for a process
    without one.

    Parameters are those of `streams.stream`. The sources are read once more than there when `classes` is not given.
    """
    labels: Any = []
    with told(group):
        if source is not None and classes is None and _has_classes(likelihood):
            labels = np.unique(np.concatenate([np.unique(to_numpy(piece[1])) for piece in source]))
    known = classes_of(labels, classes, group) if _has_classes(likelihood) else None
    with told(group):
        mine = None if source is None else stream(source, prior, likelihood=likelihood, classes=known, **settings)
    shapes = gather(None if mine is None else (mine.model.map.features, str(mine.prior.mean.dtype)), group)  # type: ignore[union-attr]
    found = [shape for shape in shapes if shape is not None]
    with told(group):
        if not found:
            raise ValueError("no process has a source; expected at least one")
        if mine is None:
            empty = np.zeros((0, found[0][0]), dtype=found[0][1].rpartition(".")[2])
            mine = _local(empty, [], prior, likelihood=likelihood, classes=known, **settings)
    return shard(mine, group)


def shard(problem: Problem, group: Any = None) -> Problem:
    """Return the problem of all processes' data from the problem of this one's, in memory or read in pieces; their
    parameters, classes and dtypes must agree.
    """
    model = problem.model
    if not isinstance(model, LinearLogits):
        raise ValueError("shards need linear logits; nonlinear ones are evaluated for all data at once")
    known = None if problem.classes is None else tuple(np.asarray(problem.classes).tolist())
    about = (problem.dim, str(problem.prior.mean.dtype).rpartition(".")[2], repr(problem.likelihood), known)
    told_sizes = gather((model.size, about), group)
    if len({kind for _, kind in told_sizes}) > 1:
        kinds = [kind for _, kind in told_sizes]
        raise ValueError(f"processes differ in parameters, dtype, likelihood or classes: {kinds}; expected the same")
    rows = sum(size for size, _ in told_sizes)
    everywhere = Elsewhere((rows, model.map.features), WHOLE)
    return replace(problem, model=ShardedLogits(everywhere, model.map, model.chunk, model, group))


def classes_of(labels: Any, classes: Any = None, group: Any = None) -> np.ndarray[Any, Any]:
    """Return `classes`, or without them all that the labels (n,) of all processes show, n = 0 included."""
    if classes is not None:
        return np.asarray(classes)
    mine = np.unique(to_numpy(labels)).tolist() if len(labels) else []
    return np.unique(np.asarray([label for part in gather(mine, group) for label in part]))


def _has_classes(likelihood: Likelihood | None) -> bool:
    return likelihood is None or likelihood.n_classes is not None


def leads(problem: Problem) -> bool:
    """Tell whether this process is the first of those that share the problem, or the only one."""
    return not isinstance(problem.model, ShardedLogits) or rank(problem.model.group) == 0


def furthest(problem: Problem, step: int | None, thing: Any) -> Any:
    """Return the thing of the process with the largest step, to all of them; None where nobody has any."""
    if not isinstance(problem.model, ShardedLogits) or not connected():
        return thing
    from torch import distributed

    group = problem.model.group
    steps = [-1 if there is None else there for there in gather(step, group)]
    if max(steps) < 0:
        return None
    best = steps.index(max(steps))
    box = [thing if rank(group) == best else None]
    with together():
        source = best if group is None else distributed.get_global_rank(group, best)
        distributed.broadcast_object_list(box, src=source, group=group)
    return box[0]


def some_rows(model: LinearLogits, rows: np.ndarray[Any, Any]) -> Array:
    """Return features (n, D) by the numbers of their rows, also of rows that lie on other processes."""
    if not isinstance(model, ShardedLogits):
        return take_rows(model.features, rows)
    sizes = gather(model.shard.size, model.group)
    begin = sum(sizes[: rank(model.group)])
    mine = np.flatnonzero((rows >= begin) & (rows < begin + model.shard.size))
    with told(model.group):
        part = take_rows(model.shard.features, rows[mine] - begin)
    dense = part.toarray() if hasattr(part, "toarray") else part
    places, parts = zip(*gather((mine, to_numpy(dense)), model.group), strict=True)
    whole = np.concatenate(parts)[np.argsort(np.concatenate(places))]
    return whole if hasattr(part, "toarray") else like(whole, part)


def _local(features: Array, labels: Any, prior: Any, *, classes: Any, **settings: Any) -> Problem:
    """Return this process's problem; without rows, that of one row which is then taken away."""
    if len(labels):
        return Problem.create(features, labels, prior, classes=classes, **settings)
    row = np.zeros((1, features.shape[1]), dtype=to_numpy(features).dtype)
    label = [0.0] if classes is None else [classes[0]]
    if settings.get("weights") is not None:
        settings["weights"] = [1.0]
    one = Problem.create(like(row, features), label, prior, classes=classes, **settings)
    return one.subset(np.zeros(0, dtype=np.int64))
