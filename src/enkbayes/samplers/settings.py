"""What the settings of samplers share: each is checked by its name, with one clear sentence for a value that cannot
work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar

from enkbayes.core.arguments import check_count, check_positive, check_tolerance
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.problem import Problem
from enkbayes.samplers.state import State

CHECKS: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("steps", "max_steps", "batch"), check_count),
    "rank": partial(check_count, least=0),
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
            value = getattr(self, field.name)
            if field.name in CHECKS and not (value is None and field.default is None):
                CHECKS[field.name](field.name, value)

    @property
    def horizon(self) -> int:
        """The largest number of steps."""
        most: int = self.max_steps  # type: ignore[attr-defined]
        return most

    def init(self, problem: Problem, ensemble: AffineEnsemble, seed: int) -> State:
        """Return the first state."""
        return State(ensemble, seed, gaussian=self.gaussian)
