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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np

from enkbayes.arrays import Array, like, to_numpy
from enkbayes.gaussian import Gaussian
from enkbayes.likelihoods import Likelihood, Normal
from enkbayes.logits import Elsewhere, LinearLogits, Piece, Sum
from enkbayes.moments import Moments, Sums
from enkbayes.problem import Problem

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
    known = _classes(labels, likelihood, classes, group)
    problem: Problem | None = None
    said = ""
    try:
        problem = _local(features, labels, prior, likelihood=likelihood, classes=known, **settings)
    except ValueError as error:
        said = str(error)
    told = _gather((said, None if problem is None else (problem.dim, str(problem.prior.mean.dtype))), group)
    for number, (sentence, _) in enumerate(told):
        if sentence:
            raise ValueError(f"process {number}: {sentence}")
    shapes = [shape for _, shape in told]
    if problem is None or len(set(shapes)) > 1:
        raise ValueError(f"processes differ in parameters and dtype: {shapes}; expected the same features everywhere")
    return shard(problem, group)


def shard(problem: Problem, group: Any = None) -> Problem:
    """Return the problem of all processes' data from the problem of this one's; their priors and classes must agree."""
    model = problem.model
    if not isinstance(model, LinearLogits):
        raise ValueError("shards need linear logits; nonlinear ones are evaluated for all data at once")
    rows = sum(_gather(model.size, group))
    everywhere = Elsewhere((rows, model.map.features), WHOLE)
    return replace(problem, model=ShardedLogits(everywhere, model.map, model.chunk, model, group))


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


def _classes(labels: Any, likelihood: Likelihood | None, classes: Any, group: Any) -> Any:
    """Return all classes of all processes."""
    if classes is not None or isinstance(likelihood, Normal):
        return classes
    mine = np.unique(to_numpy(labels)).tolist()
    return np.unique(np.asarray([label for part in _gather(mine, group) for label in part]))


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
