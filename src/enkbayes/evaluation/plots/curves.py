"""Curves with bands: confidence against the distance to the data, and values against the number of particles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.engine.arrays import as_double, to_numpy
from enkbayes.evaluation.metrics import DistanceCurve
from enkbayes.evaluation.plots.style import PALE, look, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def confidence_distance(ax: Axes, curve: DistanceCurve, *, name: str = "equilibrium", label: str | None = None) -> Axes:
    """Draw mean confidence against the distance to the nearest training point, with a band of one standard deviation.

    A dashed line shows 1 / K, the ideal confidence far from all data.

    Parameters
    ----------
    ax : Axes
        Axes to draw on; several methods may share them.
    curve : DistanceCurve
        As `metrics.confidence_by_distance` returns it. The band is clipped to the range of confidence, 1 / K to 1.
    name, label : str
        The method, which determines colour and line, and its label in the legend (default: its name).

    Examples
    --------
    >>> from enkbayes.evaluation import metrics
    >>> from enkbayes.evaluation.plots import require_matplotlib
    >>> curve = metrics.confidence_by_distance([0.9, 0.7, 0.5], [0.1, 0.2, 2.0], bins=2)
    >>> ax = confidence_distance(require_matplotlib().Figure().subplots(), curve)
    >>> ax.lines[-1].get_xdata().tolist(), ax.lines[-1].get_ydata().round(2).tolist()
    ([0.5, 1.5], [0.8, 0.5])
    """
    how, full = look(name), curve.count > 0
    x, mean, sd = curve.distance[full], curve.mean[full], curve.sd[full]
    ideal = f"ideal far away ({curve.ideal:.2g})"
    if ideal not in ax.get_legend_handles_labels()[1]:
        ax.axhline(curve.ideal, color="#000000", linestyle="--", linewidth=1, label=ideal)
    band = np.clip([mean - sd, mean + sd], curve.ideal, 1)
    ax.fill_between(x, *band, color=how.colour, alpha=0.2, linewidth=0)
    ax.plot(x, mean, color=how.colour, linestyle=how.line, linewidth=2, label=label or name)
    margin = 0.05 * (1 - curve.ideal)
    ax.set(xlabel="distance to the nearest training point", ylabel="confidence")
    ax.set(xlim=(0, max(curve.edges[-1], *ax.get_xlim())), ylim=(curve.ideal - margin, 1 + margin))
    return tidy(ax)


def size_sweep(
    ax: Axes,
    sizes: Any,
    values: Any,
    *,
    name: str = "equilibrium",
    label: str | None = None,
    ylabel: str = "error",
    rate: bool = False,
) -> Axes:
    """Draw values against the number of particles on logarithmic axes: the median over repeats, with a band from the
    10 % to the 90 % quantile.

    Parameters
    ----------
    ax : Axes
        Axes to draw on; several methods may share them.
    sizes : array (S,)
        Numbers of particles J.
    values : array (S, R) or (S,)
        Positive values from R repeats with each number of particles.
    name, label : str
        The method, which determines colour, line and marker, and its label in the legend (default: its name).
    ylabel : str
        Label of the vertical axis.
    rate : bool
        Whether to add a dashed line J^(-1/2) through the first median, the rate of the mean-field limit.

    Examples
    --------
    >>> from enkbayes.evaluation.plots import require_matplotlib
    >>> ax = size_sweep(require_matplotlib().Figure().subplots(), [10, 40], [[0.2, 0.4], [0.1, 0.2]], rate=True)
    >>> [line.get_ydata().round(2).tolist() for line in ax.lines]
    [[0.3, 0.15], [0.3, 0.15]]
    """
    x, y = to_numpy(sizes), as_double(values)
    if y.ndim not in (1, 2) or x.shape != y.shape[:1] or len(x) == 0 or not (np.all(y > 0) and np.all(x > 0)):
        raise ValueError(
            f"sizes have shape {x.shape} and values {y.shape}; expected (S,), and (S, R) or (S,), all positive"
        )
    how = look(name)
    y = y.reshape(len(x), -1)
    low, middle, high = np.quantile(y, [0.1, 0.5, 0.9], axis=1)
    ax.fill_between(x, low, high, color=how.colour, alpha=0.2, linewidth=0)
    ax.plot(x, middle, color=how.colour, linestyle=how.line, marker=how.marker, label=label or name)
    if rate:
        ax.plot(x, middle[0] * (x / x[0]) ** -0.5, color=PALE, linestyle="--", linewidth=1, label="$J^{-1/2}$")
    ax.set(xlabel="particles J", ylabel=ylabel, xscale="log", yscale="log")
    ticks = sorted({int(size) for line in ax.lines for size in np.asarray(line.get_xdata())})
    ax.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    ax.set_xticks([], minor=True)
    return tidy(ax)
