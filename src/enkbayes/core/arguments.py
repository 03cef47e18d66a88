"""Numbers that users pass: checked where they come in, with one clear sentence for a value that cannot work."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any


def is_number(value: Any) -> bool:
    """Return whether a value is a real number; truth values are not.

    >>> is_number(1), is_number(0.5), is_number(True), is_number("1"), is_number(1j)
    (True, True, False, False, False)
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:  # a whole number beyond the range of floats
        return False
    return True


def is_whole(value: Any, least: int) -> bool:
    """Return whether a value is a whole number, at least `least`.

    >>> is_whole(3, 1), is_whole(0, 1), is_whole(3.0, 1), is_whole(True, 1)
    (True, False, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise a ValueError unless the value is a whole number, at least `least`."""
    if not is_whole(value, least):
        raise ValueError(f"{name} is {value!r}; expected a whole number, at least {least}")


def check_positive(name: str, value: Any) -> None:
    """Raise a ValueError unless the value is a finite positive number."""
    if not (is_number(value) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}; expected a positive number")


def check_tolerance(name: str, value: Any) -> None:
    """Raise a ValueError unless the value is a number that a residual can be compared with."""
    if not (is_number(value) and value >= 0):
        raise ValueError(f"{name} is {value!r}; expected a number, at least 0")
