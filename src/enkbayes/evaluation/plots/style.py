"""One style for all pictures: a method has the same colour, line and marker everywhere.

Seven colours are those of Okabe and Ito. The others were chosen so that all can be distinguished in the three simulated
forms of colour blindness, best of all those of methods with the same line style (a test measures it). Solid lines are
the samplers of this package, the reference and its Gaussian approximation; dashed lines are the paper's own versions of
the samplers; dash-dotted lines are point estimates and ensembles of them; dotted lines are other particle methods.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Vector = np.ndarray[Any, Any]

INK = "#222222"
PALE = "#666666"
INSIDE, OUTSIDE = "#0072B2", "#D55E00"
"""Colours for in-distribution and out-of-distribution rows."""


@dataclass(frozen=True)
class Look:
    """The colour, line style and marker of a method.

    >>> look("hmc")
    Look(colour='#000000', line='-', marker='s')
    """

    colour: str
    line: str | tuple[float, tuple[float, ...]]
    marker: str


LOOKS = {
    "hmc": Look("#000000", "-", "s"),
    "equilibrium": Look("#0072B2", "-", "o"),
    "mean-field": Look("#D55E00", "-", "D"),
    "homotopy": Look("#009E73", "-", "^"),
    "trotter": Look("#56B4E9", "--", "v"),
    "tamed-homotopy": Look("#97BAD2", "--", "<"),
    "stochastic": Look("#DAA572", "--", ">"),
    "mle": Look("#333333", "-.", "x"),
    "map": Look("#6A6A6A", "-.", "+"),
    "temperature": Look("#B9B9B9", "-.", "1"),
    "deep-ensemble": Look("#E69F00", "-.", "*"),
    "laplace": Look("#CC79A7", "-", "p"),
    "laplace-probit": Look("#881D65", "--", "h"),
    "aldi": Look("#1F1E66", ":", "P"),
    "eks": Look("#6247CB", ":", "X"),
    "particle-flow": Look("#574225", ":", "d"),
    "svgd": Look("#9F4906", ":", "8"),
}
METHOD_COLORS = {name: look.colour for name, look in LOOKS.items()}
_SPARE = tuple(
    Look(colour, line, marker)
    for marker, line in (("2", (0, (6, 1, 1, 1, 1, 1))), ("3", (0, (1, 3))), ("4", (0, (8, 2))))
    for colour in ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
)


def look(name: str) -> Look:
    """Return the look of a method. A name that is not in `LOOKS` gets its own look, the same in every session.

    >>> look("equilibrium").colour == METHOD_COLORS["equilibrium"], look("my method") == look("my method")
    (True, True)
    """
    return LOOKS.get(name) or _SPARE[zlib.crc32(name.encode()) % len(_SPARE)]


def colour(name: str) -> str:
    """Return the colour of a method.

    >>> colour("equilibrium")
    '#0072B2'
    """
    return look(name).colour


def require_matplotlib() -> Any:
    """Return matplotlib.figure, whose figures need no window; raise an ImportError with the remedy if it is missing.

    >>> ax = require_matplotlib().Figure().subplots()
    """
    try:
        import matplotlib.figure
    except ImportError:
        raise ImportError("plots need matplotlib; install it with: pip install 'enkbayes[plots]'") from None
    return matplotlib.figure


def tidy(ax: Axes) -> Axes:
    """Remove the upper and right border of a plot and draw a faint grid behind it."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    return ax
