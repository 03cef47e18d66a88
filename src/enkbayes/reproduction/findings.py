"""The result of an experiment: claims of the paper with a verdict each, tables, figures, and the settings behind them.

Verdicts follow from measurements: a claim about a difference holds when the 95 % interval of an `Estimate` excludes 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.stats import t

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPRODUCED, IN_PART, NOT_REPRODUCED = "reproduced", "reproduced in part", "not reproduced"

Cell = str | float | int | None


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, the measurement here, the verdict, and the reason for a difference if one is known."""

    paper: str
    found: str
    verdict: str
    why: str = ""


def judged(paper: str, found: str, *, holds: bool, partly: bool = False, why: str = "") -> Claim:
    """Return the claim with the verdict that follows from the measurement. A claim that holds needs no `why`.

    >>> judged("it falls", "it falls by 3 %", holds=True, why="unused").verdict
    'reproduced'
    >>> judged("it falls", "on two of three seeds", holds=False, partly=True, why="noise").why
    'noise'
    """
    verdict = REPRODUCED if holds else IN_PART if partly else NOT_REPRODUCED
    return Claim(paper, found, verdict, "" if holds else why)


def overall(verdicts: tuple[str, ...]) -> str:
    """Return the verdict on several claims together.

    >>> overall((REPRODUCED, REPRODUCED)), overall((REPRODUCED, NOT_REPRODUCED))
    ('reproduced', 'reproduced in part')
    """
    kinds = set(verdicts)
    return kinds.pop() if len(kinds) == 1 else IN_PART


@dataclass(frozen=True)
class Setting:
    """A setting, its value, whether the paper gives it or we chose it, and the reason for our choice."""

    what: str
    value: str
    source: Literal["paper", "ours"]
    why: str = ""


@dataclass(frozen=True)
class Table:
    """Named columns and rows; the file is <name>.csv."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure, its description for screen readers, and its caption; the file is <name>.png."""

    name: str
    figure: Figure
    alt: str
    caption: str


@dataclass(frozen=True, eq=False)
class Findings:
    """The claims, tables, figures and settings of one experiment."""

    claims: tuple[Claim, ...]
    tables: tuple[Table, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    settings: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Estimate:
    """A mean over repetitions, its standard error, and Student's 95 % interval.

    >>> print(Estimate.of([1.0, 2.0, 3.0]))
    2.000 ± 0.577
    >>> Estimate.of([1.0, 2.0, 3.0]).above(0.0), Estimate.of([2.0, 2.2, 2.4]).above(0.0)
    (False, True)
    """

    mean: float
    error: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Any) -> Estimate:
        """Return the estimate from independent repetitions; a single repetition has no finite interval."""
        x = np.asarray(values, dtype=np.float64)
        mean, n = float(x.mean()), len(x)
        if n < 2:
            return cls(mean, math.nan, -math.inf, math.inf, n)
        error = float(x.std(ddof=1)) / math.sqrt(n)
        reach = float(t.ppf(0.975, n - 1)) * error
        return cls(mean, error, mean - reach, mean + reach, n)

    def above(self, bound: float) -> bool:
        """Whether the whole interval lies above the bound."""
        return self.low > bound

    def below(self, bound: float) -> bool:
        """Whether the whole interval lies below the bound."""
        return self.high < bound

    def __str__(self) -> str:
        if math.isnan(self.error) or self.error == 0:
            return f"{self.mean:.4g}"
        digits = 0 if abs(self.mean) >= 100 else 1 if abs(self.mean) >= 10 else 3
        return f"{self.mean:.{digits}f} ± {self.error:.{digits}f}"
