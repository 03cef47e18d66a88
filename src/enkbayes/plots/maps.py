"""Pictures of predictions over the plane. Every function draws on the axes it is given and returns them.

Colours are safe for colour-blind readers and for print: the maps run from light (no idea) to dark (certain) in
lightness alone, classes differ in colour and in marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from enkbayes.plots.style import INK, Vector, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# blue from light to dark; orange and white of the Okabe-Ito set stand out on every shade of it
SHADES = ("#f7fbff", "#d6e6f4", "#abd0e6", "#6aaed6", "#3787c0", "#105ba4", "#08306b")
CLASS_COLOURS = ("#E69F00", "#FFFFFF")
MARKERS = ("o", "^")


def grid(centre: Vector, reach: float, points: int = 200) -> tuple[Vector, Vector]:
    """Return the points (points * points, 2) of a square grid, and its edges (x0, x1, y0, y1).

    >>> at, edges = grid(np.zeros(2), 3.0, points=5)
    >>> at.shape, edges.tolist()
    ((25, 2), [-3.0, 3.0, -3.0, 3.0])
    """
    x, y = (np.linspace(c - reach, c + reach, points) for c in centre)
    at = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    return at, np.array([x[0], x[-1], y[0], y[-1]])


def confidence_map(ax: Axes, proba: Vector, edges: Vector) -> Axes:
    """Draw confidence max(p, 1 - p) over a square grid, and the decision boundary p = 1/2 as a line.

    Parameters
    ----------
    ax : Axes
        Where to draw.
    proba : array (n * n,)
        Probability of class 1 at the points of `grid`.
    edges : array (4,)
        As `grid` returns them.

    Examples
    --------
    >>> ax = require_matplotlib().Figure().subplots()
    >>> at, edges = grid(np.zeros(2), 2.0, points=20)
    >>> confidence_map(ax, 1 / (1 + np.exp(-at[:, 0])), edges) is ax
    True
    """
    from matplotlib.colors import LinearSegmentedColormap

    n = round(len(proba) ** 0.5)
    p = np.reshape(proba, (n, n))
    x, y = np.linspace(edges[0], edges[1], n), np.linspace(edges[2], edges[3], n)
    shades = LinearSegmentedColormap.from_list("confidence", SHADES)
    ax.contourf(x, y, np.maximum(p, 1 - p), levels=np.linspace(0.5, 1, 11), cmap=shades, vmin=0.5, vmax=1)
    if p.min() < 0.5 < p.max():
        ax.contour(x, y, p, levels=[0.5], colors=[INK], linewidths=1.6)
    ax.set_xlim(edges[0], edges[1])
    ax.set_ylim(edges[2], edges[3])
    ax.set_aspect("equal")
    return ax


def classes_scatter(ax: Axes, points: Vector, labels: Vector, size: float = 26) -> Axes:
    """Draw points (n, 2) of two classes, labels 0 and 1.

    >>> ax = require_matplotlib().Figure().subplots()
    >>> len(classes_scatter(ax, np.eye(2), np.array([0, 1])).collections)
    2
    """
    for k, (colour, marker) in enumerate(zip(CLASS_COLOURS, MARKERS, strict=True)):
        x, y = points[labels == k].T
        ax.scatter(
            x,
            y,
            s=size,
            c=colour,
            marker=marker,
            edgecolors=INK,
            linewidths=min(0.7, size / 15),
            label=f"class {k}",
            zorder=3,
        )
    return ax


def frame(ax: Axes, edges: Vector) -> Axes:
    """Draw the outline of a smaller map inside a larger one.

    >>> ax = require_matplotlib().Figure().subplots()
    >>> frame(ax, np.array([-1.0, 1.0, -1.0, 1.0])) is ax
    True
    """
    x0, x1, y0, y1 = edges
    for colour, width in ((INK, 2.4), ("#FFFFFF", 1.2)):
        ax.plot([x0, x1, x1, x0, x0], [y0, y0, y1, y1, y0], color=colour, linewidth=width, zorder=4)
    return ax


def confidence_figure(
    methods: Mapping[str, Callable[[Vector], Vector]], points: Vector, labels: Vector, zoom: float
) -> Figure:
    """Return a figure with a column of maps for each method: near the data above, `zoom` times as far below.

    Parameters
    ----------
    methods : mapping
        Name to function of inputs (n, 2) that returns the probability of class 1, (n,).
    points, labels : array (n, 2), array (n,)
        The training data.
    zoom : float
        How much farther the lower maps reach.

    Examples
    --------
    >>> methods = {"undecided": lambda at: np.full(len(at), 0.5)}
    >>> len(confidence_figure(methods, np.eye(2), np.array([0, 1]), zoom=10.0).axes)  # two maps and the scale
    3
    """
    figure: Figure = require_matplotlib().Figure(figsize=(4.2 * len(methods) + 1.3, 8.6), layout="constrained")
    axes = figure.subplots(2, len(methods), squeeze=False)
    centre = (points.min(axis=0) + points.max(axis=0)) / 2
    reach = 1.15 * float(np.max(points.max(axis=0) - centre))
    near = grid(centre, reach)[1]
    for column, (name, predict) in enumerate(methods.items()):
        for row, (scale, size) in enumerate(((1.0, 30.0), (zoom, 4.0))):
            at, edges = grid(centre, reach * scale)
            ax = classes_scatter(confidence_map(axes[row, column], predict(at), edges), points, labels, size)
            ax.tick_params(length=0, labelsize=9, colors="#666666")
        axes[0, column].set_title(name, fontsize=14, fontweight="bold", pad=10)
        frame(axes[1, column], near)
    axes[0, 0].set_ylabel("near the data", fontsize=12)
    axes[1, 0].set_ylabel(f"zoomed out {zoom:g} times", fontsize=12)
    axes[0, 0].plot([], [], color=INK, linewidth=1.6, label="decision boundary")
    axes[0, 0].legend(loc="lower left", fontsize=9, framealpha=1.0)
    bar = figure.colorbar(axes[0, 0].collections[0], ax=axes, shrink=0.6, pad=0.02, ticks=np.linspace(0.5, 1, 6))
    bar.set_label("confidence", fontsize=12)
    bar.outline.set_visible(False)
    return figure
