"""Maps of predictions over two input dimensions.

They are readable with colour blindness and in print: maps use lightness only, from light (uncertain) to dark
(certain), and classes differ in both colour and marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.engine.arrays import as_double, to_numpy
from enkbayes.evaluation.metrics.inputs import probabilities
from enkbayes.evaluation.plots.style import INK, PALE, Vector, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Predict = Callable[[Vector], Any]
"""A function from inputs (n, 2) to probabilities (n, K), or to those of class 1, (n,)."""

# blue from light to dark; the other colours of the Okabe-Ito set contrast with every shade of it
SHADES = ("#f7fbff", "#d6e6f4", "#abd0e6", "#6aaed6", "#3787c0", "#105ba4", "#08306b")
CLASS_COLOURS = ("#E69F00", "#FFFFFF", "#D55E00", "#F0E442", "#CC79A7", "#009E73", "#000000")
MARKERS = ("o", "^", "s", "D", "v", "P", "X")


def grid(centre: Vector, reach: float, points: int = 200) -> tuple[Vector, Vector]:
    """Return the points (points * points, 2) of a square grid, and its edges (x0, x1, y0, y1).

    >>> at, edges = grid(np.zeros(2), 3.0, points=5)
    >>> at.shape, edges.tolist()
    ((25, 2), [-3.0, 3.0, -3.0, 3.0])
    """
    x, y = (np.linspace(c - reach, c + reach, points) for c in centre)
    at = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    return at, np.array([x[0], x[-1], y[0], y[-1]])


def data_grid(points: Any, *, zoom: float = 1.0, resolution: int = 200) -> tuple[Vector, Vector]:
    """Return the points (resolution^2, 2) of a square grid around data (n, 2), and its edges (x0, x1, y0, y1).

    At zoom 1 the data fill the square but for a small margin; at zoom z the square is z times as wide.

    >>> at, edges = data_grid([[0.0, 0.0], [2.0, 0.0]], zoom=10.0, resolution=3)
    >>> at.shape, edges.tolist()
    ((9, 2), [-10.5, 12.5, -11.5, 11.5])
    """
    x = as_double(points)
    if x.ndim != 2 or x.shape[1] != 2 or len(x) == 0:
        raise ValueError(f"points have shape {x.shape}; expected (n, 2), because maps show two dimensions")
    centre = (x.min(axis=0) + x.max(axis=0)) / 2
    reach = 1.15 * (float(np.max(x.max(axis=0) - centre)) or 1.0)
    return grid(centre, zoom * reach, resolution)


def confidence_map(ax: Axes, proba: Any, edges: Vector) -> Axes:
    """Draw confidence, the largest probability, over a square grid, and the decision boundary as a line.

    Parameters
    ----------
    ax : Axes
        Axes to draw on. `ax.figure.colorbar(ax.collections[0], ax=ax)` adds the scale.
    proba : array (n * n, K) or (n * n,)
        Probabilities, or those of class 1, at the points of `grid`.
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
    from matplotlib.patheffects import withStroke

    p = probabilities(proba)
    n, lowest = round(len(p) ** 0.5), 1 / p.shape[1]
    if n * n != len(p):
        raise ValueError(f"proba has {len(p)} rows; expected a square number, the points of a square grid")
    x, y = np.linspace(edges[0], edges[1], n), np.linspace(edges[2], edges[3], n)
    shades = LinearSegmentedColormap.from_list("confidence", SHADES)
    top = np.clip(np.max(p, axis=1), lowest, 1).reshape(n, n)  # rows may sum to slightly less than one
    ax.contourf(x, y, top, levels=np.linspace(lowest, 1, 11), cmap=shades, vmin=lowest, vmax=1)
    for k in range(1 if p.shape[1] == 2 else 0, p.shape[1]):
        lead = (p[:, k] - np.max(np.delete(p, k, axis=1), axis=1)).reshape(n, n)
        if lead.min() < 0 < lead.max():
            line = ax.contour(x, y, lead, levels=[0.0], colors=[INK], linewidths=1.6)
            line.set_path_effects([withStroke(linewidth=2.6, foreground=SHADES[0])])  # visible on dark areas
    ax.set_xlim(edges[0], edges[1])
    ax.set_ylim(edges[2], edges[3])
    ax.set_aspect("equal")
    return ax


def classes_scatter(ax: Axes, points: Any, labels: Any, size: float = 26) -> Axes:
    """Draw points (n, 2) with class numbers `labels` (n,); each class has its own colour and marker.

    >>> ax = require_matplotlib().Figure().subplots()
    >>> len(classes_scatter(ax, np.eye(2), np.array([0, 1])).collections)
    2
    """
    points, labels = to_numpy(points), to_numpy(labels)
    for k in range(int(labels.max()) + 1):
        ax.scatter(
            points[labels == k, 0],
            points[labels == k, 1],
            s=size,
            c=CLASS_COLOURS[k % len(CLASS_COLOURS)],
            marker=MARKERS[(k + k // len(MARKERS)) % len(MARKERS)],
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


def data_map(ax: Axes, predict: Predict, points: Any, labels: Any, *, zoom: float = 1.0, resolution: int = 200) -> Axes:
    """Draw a confidence map around the data, the decision boundary and the data. If zoom > 1, a frame marks the area of
    the map at zoom 1.

    Parameters
    ----------
    ax : Axes
        Axes to draw on.
    predict : callable
        Function from inputs (n, 2) to probabilities (n, K), or to those of class 1, (n,).
    points, labels : array (n, 2), array (n,)
        The training data; labels are class numbers.
    zoom : float
        Size of the map relative to the extent of the data.
    resolution : int
        Grid points along each side.

    Examples
    --------
    >>> ax = require_matplotlib().Figure().subplots()
    >>> ax = data_map(ax, lambda at: 1 / (1 + np.exp(-at[:, 0])), np.eye(2), np.array([0, 1]), zoom=10.0)
    >>> [round(float(end), 2) for end in ax.get_xlim()]
    [-5.25, 6.25]
    """
    at, edges = data_grid(points, zoom=zoom, resolution=resolution)
    classes_scatter(confidence_map(ax, predict(at), edges), points, labels, size=max(30 / zoom, 4))
    ax.tick_params(length=0, labelsize=9, colors=PALE)
    return ax if zoom <= 1 else frame(ax, data_grid(points, resolution=2)[1])


def confidence_figure(methods: Mapping[str, Predict], points: Any, labels: Any, zoom: float) -> Figure:
    """Return a figure with a column of maps for each method: near the data above, zoomed out `zoom` times below.

    Parameters
    ----------
    methods : mapping
        Names to functions from inputs (n, 2) to probabilities (n, K), or to those of class 1, (n,).
    points, labels : array (n, 2), array (n,)
        The training data.
    zoom : float
        How many times larger the area of the lower maps is in each direction.

    Examples
    --------
    >>> methods = {"undecided": lambda at: np.full(len(at), 0.5)}
    >>> len(confidence_figure(methods, np.eye(2), np.array([0, 1]), zoom=10.0).axes)  # two maps and the scale
    3
    """
    figure: Figure = require_matplotlib().Figure(figsize=(4.2 * len(methods) + 1.3, 8.6), layout="constrained")
    axes = figure.subplots(2, len(methods), squeeze=False)
    for column, (name, predict) in enumerate(methods.items()):
        data_map(axes[0, column], predict, points, labels)
        data_map(axes[1, column], predict, points, labels, zoom=zoom)
        axes[0, column].set_title(name, fontsize=14, fontweight="bold", pad=10)
    axes[0, 0].set_ylabel("near the data", fontsize=12)
    axes[1, 0].set_ylabel(f"zoomed out {zoom:g} times", fontsize=12)
    axes[0, 0].plot([], [], color=INK, linewidth=1.6, label="decision boundary")
    axes[0, 0].legend(loc="lower left", fontsize=9, framealpha=1.0)
    ticks = axes[0, 0].collections[0].levels[::2]
    bar = figure.colorbar(axes[0, 0].collections[0], ax=axes, shrink=0.6, pad=0.02, ticks=ticks)
    bar.set_label("confidence", fontsize=12)
    bar.outline.set_visible(False)
    return figure
