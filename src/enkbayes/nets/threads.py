"""One thread for small work.

PyTorch spreads operations over threads and waits for the slowest of them. Where a core is busy with something else,
each of the thousand small operations of a fit waits for its turn there: milliseconds instead of microseconds. Work that
one thread does in a moment gains nothing from a second one, so it gets only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import nn

Method = TypeVar("Method", bound=Callable[..., Any])
SMALL = 2**25  # multiplications of a pass over the rows that are small work, some hundredths of a second


@contextmanager
def threads_for(multiplications: float) -> Iterator[None]:
    """Let this Python thread use one thread of PyTorch if the work is small.

    >>> before = torch.get_num_threads()
    >>> with threads_for(1e3):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    before = 1 if torch.compiler.is_compiling() else torch.get_num_threads()
    if before == 1 or multiplications > SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_pass(body: nn.Module, *inputs: Any) -> float:
    """Return about how many multiplications a network needs for a batch of inputs: every weight for every row, and for
    every place of an image or a sequence.

    >>> one_pass(nn.Linear(4, 10, bias=False), torch.zeros(7, 4))
    280.0
    """
    x = next(_tensors(inputs), None)
    if x is None or x.ndim == 0:
        return 0.0
    if x.ndim == 1 or (x.ndim == 2 and x.is_floating_point()):
        places = 1
    else:
        places = x.shape[2:].numel() if x.ndim > 3 else x.shape[1]
    return float(len(x) * places * sum(weight.numel() for weight in body.parameters()))


def in_few_threads(method: Method) -> Method:
    """Decorate a method of a module with `work(args, kwargs)`, its multiplications for these inputs."""

    @wraps(method)
    def limited(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        with threads_for(self.work(args, kwargs)):
            return method(self, *args, **kwargs)

    return limited  # type: ignore[return-value]


def _tensors(inputs: Any) -> Iterator[torch.Tensor]:
    if isinstance(inputs, torch.Tensor):
        yield inputs
    elif isinstance(inputs, Mapping):
        yield from _tensors(tuple(inputs.values()))
    elif isinstance(inputs, tuple | list):
        for each in inputs:
            yield from _tensors(each)
