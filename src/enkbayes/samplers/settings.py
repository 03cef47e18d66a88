"""What the settings of samplers share: each is checked by its name, with one clear sentence for a value that cannot
work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, ClassVar

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.problem import Problem
from enkbayes.samplers.state import State


def check_count(name: str, value: Any) -> None:
    """Raise a ValueError unless the value is a whole number, at least 1 (None: not in use)."""
    if value is not None and not (isinstance(value, Integral) and int(value) >= 1):
        raise ValueError(f"{name} is {value!r}; expected a whole number, at least 1")


def check_positive(name: str, value: Any) -> None:
    """Raise a ValueError unless the value is a finite positive number."""
    if not (isinstance(value, Real) and math.isfinite(value) and float(value) > 0):
        raise ValueError(f"{name} is {value!r}; expected a positive number")


def check_tolerance(name: str, value: Any) -> None:
    """Raise a ValueError unless the value is a number that a residual can be compared with."""
    if not (isinstance(value, Real) and float(value) >= 0):
        raise ValueError(f"{name} is {value!r}; expected a number, at least 0")


CHECKS: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("steps", "max_steps", "batch", "rank"), check_count),
    **dict.fromkeys(("ds", "grading"), check_positive),
    "tol": check_tolerance,
}


class Settings:
    """The base of a sampler that is a frozen dataclass: checked settings, and the defaults of the `Sampler` protocol.

    Examples
    --------
    >>> import enkbayes as eb
    >>> eb.Equilibrium(max_steps=0)
    Traceback (most recent call last):
    ValueError: max_steps is 0; expected a whole number, at least 1
    """

    gaussian: ClassVar[bool] = True
    """Whether the particles stay an affine image of Gaussian points."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            if field.name in CHECKS:
                CHECKS[field.name](field.name, getattr(self, field.name))

    @property
    def horizon(self) -> int:
        """The largest number of steps."""
        most: int = self.max_steps  # type: ignore[attr-defined]
        return most

    def init(self, problem: Problem, ensemble: AffineEnsemble, seed: int) -> State:
        """Return the first state."""
        return State(ensemble, seed, gaussian=self.gaussian)
