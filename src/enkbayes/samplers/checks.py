"""Checks of the samplers' settings: one clear sentence for a value that cannot work."""

from __future__ import annotations

import math
from numbers import Integral


def check_count(name: str, value: int | None) -> None:
    """Raise a ValueError unless the value is a whole number, at least 1 (None: not in use)."""
    if value is not None and not (isinstance(value, Integral) and value >= 1):
        raise ValueError(f"{name} is {value!r}; expected a whole number, at least 1")


def check_positive(name: str, value: float) -> None:
    """Raise a ValueError unless the value is a finite positive number."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}; expected a positive number")


def check_tolerance(value: float) -> None:
    """Raise a ValueError unless the value is a number that a residual can be compared with."""
    if not value >= 0:
        raise ValueError(f"tol is {value!r}; expected a number, at least 0")
