"""What an experiment finds: claims of the paper with a verdict each, tables, figures, and the settings behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPRODUCED, IN_PART, NOT_REPRODUCED = "reproduced", "reproduced in part", "not reproduced"

Cell = str | float | int | None


@dataclass(frozen=True)
class Claim:
    """What the paper says, what came out here, the verdict, and why they differ, as far as is known."""

    paper: str
    found: str
    verdict: str
    why: str = ""


def judged(paper: str, found: str, *, holds: bool, partly: bool = False, why: str = "") -> Claim:
    """Return the claim with the verdict that the measurement decides; `why` is kept unless it holds.

    >>> judged("it falls", "it falls by 3 %", holds=True, why="unused").verdict
    'reproduced'
    >>> judged("it falls", "on two of three seeds", holds=False, partly=True, why="noise").why
    'noise'
    """
    verdict = REPRODUCED if holds else IN_PART if partly else NOT_REPRODUCED
    return Claim(paper, found, verdict, "" if holds else why)


def overall(verdicts: tuple[str, ...]) -> str:
    """Return the verdict of several together.

    >>> overall((REPRODUCED, REPRODUCED)), overall((REPRODUCED, NOT_REPRODUCED))
    ('reproduced', 'reproduced in part')
    """
    kinds = set(verdicts)
    return kinds.pop() if len(kinds) == 1 else IN_PART


@dataclass(frozen=True)
class Setting:
    """A choice, who made it, and our reason where the paper leaves it open."""

    what: str
    value: str
    source: Literal["paper", "ours"]
    why: str = ""


@dataclass(frozen=True)
class Table:
    """Named columns and rows; it is written as <name>.csv."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure that is written as <name>.png, what it shows in words, and its caption."""

    name: str
    figure: Figure
    alt: str
    caption: str


@dataclass(frozen=True, eq=False)
class Findings:
    """All that one experiment found."""

    claims: tuple[Claim, ...]
    tables: tuple[Table, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    settings: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()
