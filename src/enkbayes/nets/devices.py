"""Double precision, which not every device has, and half precision, which `torch.autocast` would use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
DOUBLE = ("cpu", "cuda")  # kinds of devices that certainly have it
MIXED = ("cpu", "cuda", "mps")  # kinds of devices on which autocast may be switched on


def in_double(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor in double precision, on the CPU if its device may have none.

    >>> in_double(torch.ones(1)).dtype
    torch.float64
    """
    return (x if x.device.type in DOUBLE else x.cpu()).double()


def widest(device: torch.device) -> torch.dtype:
    """Return the most precise type of floating-point numbers that a device certainly has."""
    return torch.float64 if device.type in DOUBLE else torch.float32


def in_full_precision(function: Function) -> Function:
    """Decorate a function whose sums half precision would spoil, so that `torch.autocast` does not reach it.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     in_full_precision(torch.matmul)(torch.ones(1, 1), torch.ones(1, 1)).dtype
    torch.float32
    """

    @wraps(function)
    def whole(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        with ExitStack() as stack:
            for kind in filter(torch.is_autocast_enabled, MIXED):
                stack.enter_context(torch.autocast(kind, enabled=False))
            return function(*args, **kwargs)

    return whole  # type: ignore[return-value]
