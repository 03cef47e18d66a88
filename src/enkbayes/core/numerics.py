"""Computations that may leave the range of floating-point numbers: no warnings on the way, and one clear error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np


def plain(value: float, digits: int = 2) -> str:
    """Return a number with so many significant digits, without an exponent.

    >>> plain(100.4), plain(0.00012345), plain(17.0, 1), plain(float("nan"))
    ('100', '0.00012', '20', 'nan')
    """
    return str(np.format_float_positional(float(f"{value:.{digits}g}"), trim="-"))


def for_json(value: Any) -> Any:
    """Return a value that JSON can hold; numbers that are not finite become None.

    >>> for_json({"mean": np.float64(0.5), "worst": (np.nan, 2)})
    {'mean': 0.5, 'worst': [None, 2]}
    """
    if isinstance(value, Mapping):
        return {key: for_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(part) for part in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def failed(error: Exception) -> bool:
    """Return whether an error means that numbers became infinite, NaN or singular, in whatever library.

    >>> failed(OverflowError("math range error")), failed(np.linalg.LinAlgError("Singular matrix")), failed(KeyError())
    (True, True, False)
    """
    torchs = type(error).__name__ == "_LinAlgError" or (isinstance(error, RuntimeError) and "overflow" in str(error))
    return isinstance(error, ArithmeticError | np.linalg.LinAlgError) or torchs


class OutOfRange(ValueError):
    """Numbers have left the range of floating-point arithmetic, or a matrix is singular."""


@contextmanager
def in_range(what: str) -> Iterator[None]:
    """Run a block, or as a decorator a function, without floating-point warnings. If the numbers overflow or a matrix
    turns out singular, raise a ValueError, `OutOfRange`, that names what was computed.

    >>> with in_range("the root"):
    ...     _ = np.linalg.inv(np.zeros((1, 1)))
    Traceback (most recent call last):
        ...
    enkbayes.core.numerics.OutOfRange: the root cannot be computed in floating-point numbers (Singular matrix); scale \
features, weights and prior to moderate numbers
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        try:
            yield
        except Exception as error:
            if not failed(error):
                raise
            reason = " ".join(str(error).split()).partition(": The factorization")[0] or type(error).__name__
            raise OutOfRange(
                f"{what} cannot be computed in floating-point numbers ({reason}); scale features, weights and prior to "
                "moderate numbers"
            ) from None
