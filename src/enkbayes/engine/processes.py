"""The processes of one computation: sums over all of them, shared errors, and what happens when one is lost."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np

from enkbayes.engine.arrays import like, to_numpy

PATIENCE = 50.0  # seconds to wait for the others, so that a lost process ends the run within a minute


class ProcessLost(RuntimeError):
    """Another process has ended or does not answer.

    >>> try:
    ...     number, count = connect()
    ... except ProcessLost:
    ...     print("start all processes again; they continue from the checkpoint")
    """


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
    """Close the connection before the interpreter exits, which would otherwise abort while its threads run."""
    if connected():
        sys.modules["torch.distributed"].destroy_process_group()


def connected() -> bool:
    """Tell whether there are several processes and this one has joined them.

    >>> connected()
    False
    """
    processes = sys.modules.get("torch.distributed")
    return processes is not None and processes.is_available() and processes.is_initialized()


def all_sum(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the sums over all processes of some arrays, in one all-reduce."""
    if not connected():
        return arrays
    import torch
    from torch import distributed

    reference = arrays[-1]
    tensors = [x if torch.is_tensor(x) else torch.as_tensor(np.array(to_numpy(x), copy=True)) for x in arrays]
    flat = torch.cat([tensor.reshape(-1).to(tensors[-1]) for tensor in tensors])
    with together():
        distributed.all_reduce(flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    found = (part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))
    return tuple(x if torch.is_tensor(reference) else like(x.numpy(), reference) for x in found)


def gather(thing: Any) -> list[Any]:
    """Return the objects of all processes to each of them, in order.

    >>> gather("alone")
    ['alone']
    """
    if not connected():
        return [thing]
    from torch import distributed

    everything: list[Any] = [None] * distributed.get_world_size()
    with together():
        distributed.all_gather_object(everything, thing)
    return everything


def first(thing: Any) -> Any:
    """Return the thing of the first process to all of them.

    >>> first(7)
    7
    """
    return gather(thing)[0]


@contextmanager
def shared_errors() -> Iterator[None]:
    """Raise an error that the block raises on one process on all of them, so that none waits for the others.

    The block must not communicate. An error of the first process is raised as it is, one of another process with its
    number.
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
    for number, sentence in enumerate(gather(said)):
        if sentence:
            raise ValueError(sentence if number == 0 else f"process {number}: {sentence}")


def first_word(about: str = "") -> bool:
    """Tell whether this process is the first to ask, so that one process prints a message for all."""
    if not connected():
        return True
    from torch.distributed import distributed_c10d

    try:
        return bool(distributed_c10d._get_default_store().add(f"enkbayes said {about}", 1) == 1)  # noqa: SLF001
    except RuntimeError:  # the store was in the lost process; a message that comes twice is better than none
        return True


def rank() -> int:
    """Return the number of this process."""
    if not connected():
        return 0
    from torch import distributed

    return int(distributed.get_rank())


@contextmanager
def together() -> Iterator[None]:
    """Turn the errors of a lost connection into one `ProcessLost` error."""
    try:
        yield
    except RuntimeError:
        raise ProcessLost("another process has ended or does not answer; start all of them again") from None
