"""Double precision, on devices that may not have it."""

from __future__ import annotations

import torch

DOUBLE = ("cpu", "cuda")  # kinds of devices that have it for certain


def in_double(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor in double precision, on the CPU if its device may have none.

    >>> in_double(torch.ones(1)).dtype
    torch.float64
    """
    return (x if x.device.type in DOUBLE else x.cpu()).double()


def widest(device: torch.device) -> torch.dtype:
    """Return the most precise type of floating-point numbers that a device certainly has."""
    return torch.float64 if device.type in DOUBLE else torch.float32
