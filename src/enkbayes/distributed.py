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

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np

from enkbayes.arrays import Array, like, take_rows, to_numpy
from enkbayes.gaussian import Gaussian
from enkbayes.likelihoods import Likelihood, Normal
from enkbayes.logits import Elsewhere, LinearLogits, Piece, Sum
from enkbayes.moments import Moments, Sums
from enkbayes.problem import Problem
from enkbayes.streams import stream

PATIENCE = 50.0  # seconds to wait for the others, so that a lost process ends the run within a minute
WHOLE = "this needs all rows in one process, and each process holds a part; do it on a part, or in one process"


class ProcessLost(RuntimeError):
    """Another process has ended or does not answer."""


@dataclass(frozen=True, eq=False)
class ShardedLogits(LinearLogits):
    """The logits of all shards. This process reads its own, `shard`; sums are those of all processes."""

    shard: LinearLogits
    group: Any = None

    def pieces(self, targets: Array | None, weights: Array | None) -> Iterator[Piece]:
        """Yield the data of this process; without any, one piece of no rows, which adds zeros."""
        if self.shard.size:
            return self.shard.pieces(targets, weights)
        return iter(((self.shard.features, targets, weights),))

    def total(self, parts: Iterable[Sum]) -> Sum:
        """Return the sum over the data of all processes."""
        return all_sum(super().total(parts), self.group)

    def subset(self, rows: np.ndarray[Any, Any]) -> LinearLogits:
        """Refuse: mini-batches of shards of different sizes would weigh data differently."""
        raise ValueError("mini-batches are drawn from all data, and here each process holds a part; leave batch out")


def connect(patience: float = PATIENCE) -> tuple[int, int]:
    """Join the processes that torchrun has started and return this one's number and their count; (0, 1) without
    torchrun.

    Collectives run over gloo, and over nccl too where there are GPUs.

    >>> connect()
    (0, 1)
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 0, 1
    from torch import distributed
    from torch.cuda import is_available

    if not distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if is_available() else "gloo"
        with _together():
            distributed.init_process_group(backend, timeout=timedelta(seconds=patience))
    return distributed.get_rank(), distributed.get_world_size()


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
    known = None if isinstance(likelihood, Normal) else classes_of(labels, classes, group)
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
        if source is not None and classes is None and not isinstance(likelihood, Normal):
            labels = np.unique(np.concatenate([np.unique(to_numpy(piece[1])) for piece in source]))
    known = None if isinstance(likelihood, Normal) else classes_of(labels, classes, group)
    with told(group):
        mine = None if source is None else stream(source, prior, likelihood=likelihood, classes=known, **settings)
    shapes = _gather(None if mine is None else (mine.model.map.features, str(mine.prior.mean.dtype)), group)  # type: ignore[union-attr]
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
    told_sizes = _gather((model.size, about), group)
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
    everybody = _gather(mine, group) if connected() else [mine]
    return np.unique(np.asarray([label for part in everybody for label in part]))


def leads(problem: Problem) -> bool:
    """Tell whether this process is the first of those that share the problem, or the only one."""
    if not isinstance(problem.model, ShardedLogits):
        return True
    from torch import distributed

    return bool(distributed.get_rank(problem.model.group) == 0)


def furthest(problem: Problem, step: int | None, thing: Any) -> Any:
    """Return the thing of the process with the largest step, to all of them; None where nobody has any."""
    if not isinstance(problem.model, ShardedLogits):
        return thing
    from torch import distributed

    group = problem.model.group
    steps = [-1 if there is None else there for there in _gather(step, group)]
    if max(steps) < 0:
        return None
    best = steps.index(max(steps))
    box = [thing if distributed.get_rank(group) == best else None]
    with _together():
        distributed.broadcast_object_list(box, src=best if group is None else distributed.get_global_rank(group, best))
    return box[0]


def some_rows(model: LinearLogits, rows: np.ndarray[Any, Any]) -> Array:
    """Return features (n, D) by the numbers of their rows, also of rows that lie on other processes."""
    if not isinstance(model, ShardedLogits):
        return take_rows(model.features, rows)
    from torch import distributed

    sizes = _gather(model.shard.size, model.group)
    begin = sum(sizes[: distributed.get_rank(model.group)])
    mine = np.flatnonzero((rows >= begin) & (rows < begin + model.shard.size))
    with told(model.group):
        part = take_rows(model.shard.features, rows[mine] - begin)
    dense = part.toarray() if hasattr(part, "toarray") else part
    places, parts = zip(*_gather((mine, to_numpy(dense)), model.group), strict=True)
    whole = np.concatenate(parts)[np.argsort(np.concatenate(places))]
    return whole if hasattr(part, "toarray") else like(whole, part)


def first(thing: Any, group: Any = None) -> Any:
    """Return the thing of the first process to all of them.

    >>> first(7)
    7
    """
    return _gather(thing, group)[0] if connected() else thing


@contextmanager
def told(group: Any = None) -> Iterator[None]:
    """Tell bad input that a block finds on one process to all of them, so that each raises it and none waits.

    The block does nothing together with the others. What all find alike is raised as it is.
    """
    if not connected():
        yield
        return
    said = ""
    try:
        yield
    except OSError as error:
        said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except (ValueError, ImportError) as error:
        said = str(error)
    sentences = _gather(said, group)
    for number, sentence in enumerate(sentences):
        if sentence:
            everywhere = all(other == sentence for other in sentences)
            raise ValueError(sentence if everywhere else f"process {number}: {sentence}")


def connected() -> bool:
    """Tell whether there are several processes and this one has joined them.

    >>> connected()
    False
    """
    processes = sys.modules.get("torch.distributed")
    return processes is not None and processes.is_available() and processes.is_initialized()


def first_word() -> bool:
    """Tell whether no other process has asked this before, for what one of them should say when some are lost."""
    if not connected():
        return True
    from torch.distributed import distributed_c10d

    try:
        return bool(distributed_c10d._get_default_store().add("enkbayes said", 1) == 1)  # noqa: SLF001
    except RuntimeError:  # the store was that of the lost process; rather twice than never
        return True


def all_sum(value: Sum, group: Any = None) -> Sum:
    """Return the sum over all processes of an array, of `Moments` or of `Sums`, in one all-reduce."""
    total: Any
    if isinstance(value, Moments):
        total = Moments(*_reduced((value.loss, value.g, value.S), group))
    elif isinstance(value, Sums):
        total = Sums(_reduced(value.parts, group))
    else:
        (total,) = _reduced((value,), group)
    return total  # type: ignore[no-any-return]


def _reduced(arrays: tuple[Any, ...], group: Any) -> tuple[Any, ...]:
    import torch
    from torch import distributed

    reference = arrays[-1]
    tensors = [x if torch.is_tensor(x) else torch.as_tensor(np.array(to_numpy(x), copy=True)) for x in arrays]
    flat = torch.cat([tensor.reshape(-1).to(tensors[-1]) for tensor in tensors])
    with _together():
        distributed.all_reduce(flat, group=group)
    parts = flat.split([tensor.numel() for tensor in tensors])
    found = (part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))
    return tuple(x if torch.is_tensor(reference) else like(x.numpy(), reference) for x in found)


def _gather(thing: Any, group: Any) -> list[Any]:
    from torch import distributed

    everything: list[Any] = [None] * distributed.get_world_size(group)
    with _together():
        distributed.all_gather_object(everything, thing, group=group)
    return everything


@contextmanager
def _together() -> Iterator[None]:
    """Say in one sentence that the others are gone, when they are."""
    try:
        yield
    except RuntimeError:
        raise ProcessLost("another process has ended or does not answer; start all of them again") from None


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
