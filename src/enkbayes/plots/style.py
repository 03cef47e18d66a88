"""One look for all pictures: a method has the same colour, line and marker wherever it is drawn.

Colours are those of Okabe and Ito, and lighter or darker shades of them for relatives; two methods whose colours may be
confused by colour-blind readers differ in line and in marker. Solid lines are the samplers of this package and the
reference, dashed ones the paper's own versions of them, dash-dotted ones point estimates, dotted ones other particle
methods.
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
KNOWN, STRANGE = "#0072B2", "#D55E00"
"""In and out of distribution."""


@dataclass(frozen=True)
class Look:
    """How a method is drawn.

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
    "tamed-homotopy": Look("#77CFB4", "--", "<"),
    "stochastic": Look("#F0A37A", "--", ">"),
    "mle": Look("#6E6E6E", "-.", "x"),
    "map": Look("#A3A3A3", "-.", "+"),
    "temperature": Look("#9C8F00", "-.", "1"),
    "deep-ensemble": Look("#E69F00", "-.", "*"),
    "laplace": Look("#CC79A7", "-", "p"),
    "laplace-probit": Look("#882255", "--", "h"),
    "aldi": Look("#332288", ":", "P"),
    "eks": Look("#9A8FD8", ":", "X"),
    "particle-flow": Look("#7A4A1E", ":", "d"),
    "svgd": Look("#C4B400", ":", "8"),
}
METHOD_COLORS = {name: look.colour for name, look in LOOKS.items()}
_SPARE = tuple(
    Look(colour, line, marker)
    for marker, line in (("2", (0, (6, 1, 1, 1, 1, 1))), ("3", (0, (1, 3))), ("4", (0, (8, 2))))
    for colour in ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
)


def look(name: str) -> Look:
    """Return how a method is drawn; a name that is not in `LOOKS` gets a look of its own, the same in every session.

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
    """Return matplotlib.figure, whose figures belong to no window, or say how to install it.

    >>> ax = require_matplotlib().Figure().subplots()
    """
    try:
        import matplotlib.figure
    except ImportError:
        raise ImportError("pictures need matplotlib; install it with pip install 'enkbayes[plots]'") from None
    return matplotlib.figure


def tidy(ax: Axes) -> Axes:
    """Remove the box around a plot and draw a faint grid behind it."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    return ax
