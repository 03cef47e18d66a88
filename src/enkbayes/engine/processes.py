"""What the processes of one computation say to each other: sums, first words, and that one of them is lost."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np

from enkbayes.core.moments import Moments, Sums
from enkbayes.engine.arrays import like, to_numpy

PATIENCE = 50.0  # seconds to wait for the others, so that a lost process ends the run within a minute


class ProcessLost(RuntimeError):
    """Another process has ended or does not answer."""


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
        with together():
            distributed.init_process_group(backend, timeout=timedelta(seconds=patience))
        atexit.register(_leave)
    return distributed.get_rank(), distributed.get_world_size()


def _leave() -> None:
    """End the connection before the interpreter ends, whose threads would otherwise be cut off and abort it."""
    if connected():
        sys.modules["torch.distributed"].destroy_process_group()


def connected() -> bool:
    """Tell whether there are several processes and this one has joined them.

    >>> connected()
    False
    """
    processes = sys.modules.get("torch.distributed")
    return processes is not None and processes.is_available() and processes.is_initialized()


def all_sum(value: Any, group: Any = None) -> Any:
    """Return the sum over all processes of an array, of `Moments` or of `Sums`, in one all-reduce."""
    total: Any
    if isinstance(value, Moments):
        total = Moments(*_reduced((value.loss, value.g, value.S), group))
    elif isinstance(value, Sums):
        total = Sums(_reduced(value.parts, group))
    else:
        (total,) = _reduced((value,), group)
    return total


def gather(thing: Any, group: Any = None) -> list[Any]:
    """Return the things of all processes to each of them, in their order.

    >>> gather("alone")
    ['alone']
    """
    if not connected():
        return [thing]
    from torch import distributed

    everything: list[Any] = [None] * distributed.get_world_size(group)
    with together():
        distributed.all_gather_object(everything, thing, group=group)
    return everything


def first(thing: Any, group: Any = None) -> Any:
    """Return the thing of the first process to all of them.

    >>> first(7)
    7
    """
    return gather(thing, group)[0]


@contextmanager
def told(group: Any = None) -> Iterator[None]:
    """Tell bad input that a block finds on one process to all of them, so that each raises it and none waits.

    The block does nothing together with the others. What the first finds is raised as it is, what others find with
    their number.
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
    sentences = gather(said, group)
    for number, sentence in enumerate(sentences):
        if sentence:
            raise ValueError(sentence if number == 0 else f"process {number}: {sentence}")


def first_word(about: str = "") -> bool:
    """Tell whether no process has asked this before: for what one should say, whichever of them are left."""
    if not connected():
        return True
    from torch.distributed import distributed_c10d

    try:
        return bool(distributed_c10d._get_default_store().add(f"enkbayes said {about}", 1) == 1)  # noqa: SLF001
    except RuntimeError:  # the store was that of the lost process; rather twice than never
        return True


def rank(group: Any = None) -> int:
    """Return the number of this process."""
    if not connected():
        return 0
    from torch import distributed

    return int(distributed.get_rank(group))


def _reduced(arrays: tuple[Any, ...], group: Any) -> tuple[Any, ...]:
    if not connected():
        return arrays
    import torch
    from torch import distributed

    reference = arrays[-1]
    tensors = [x if torch.is_tensor(x) else torch.as_tensor(np.array(to_numpy(x), copy=True)) for x in arrays]
    flat = torch.cat([tensor.reshape(-1).to(tensors[-1]) for tensor in tensors])
    with together():
        distributed.all_reduce(flat, group=group)
    parts = flat.split([tensor.numel() for tensor in tensors])
    found = (part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))
    return tuple(x if torch.is_tensor(reference) else like(x.numpy(), reference) for x in found)


@contextmanager
def together() -> Iterator[None]:
    """Say in one sentence that the others are gone, when they are."""
    try:
        yield
    except RuntimeError:
        raise ProcessLost("another process has ended or does not answer; start all of them again") from None
