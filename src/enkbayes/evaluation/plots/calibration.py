"""Calibration, and confidence on out-of-distribution data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from enkbayes.engine.arrays import to_numpy
from enkbayes.evaluation.metrics import confidence, ood_score, reliability
from enkbayes.evaluation.plots.style import INSIDE, OUTSIDE, PALE, look, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COUNTS = "rows"
"""Label of the axes with the counts above a reliability diagram."""


def reliability_diagram(
    ax: Axes,
    proba: Any,
    targets: Any,
    *,
    name: str = "equilibrium",
    label: str | None = None,
    bins: int = 15,
    adaptive: bool = False,
) -> Axes:
    """Draw accuracy against confidence in bins, with 95 % intervals, and the number of rows in each bin above.

    Calibrated predictions lie on the dashed diagonal, overconfident ones below it.

    Parameters
    ----------
    ax : Axes
        Axes to draw on; several methods may share them.
    proba : array (n, K) or (n,)
        Predictions.
    targets : array (n,)
        Class numbers.
    name, label : str
        The method, which determines colour and marker, and its label in the legend (default: its name).
    bins, adaptive
        As in `metrics.reliability`.

    Examples
    --------
    >>> from enkbayes.evaluation.plots import require_matplotlib
    >>> ax = require_matplotlib().Figure().subplots()
    >>> ax = reliability_diagram(ax, [0.9, 0.9, 0.9, 0.9, 0.6], [1, 1, 1, 0, 1])
    >>> ax.lines[-1].get_ydata().tolist(), ax.get_legend_handles_labels()[1]
    ([1.0, 0.75], ['calibrated', 'equilibrium (ECE 0.200)'])
    """
    groups, how = reliability(proba, targets, bins, adaptive=adaptive), look(name)
    full = groups.count > 0
    if "calibrated" not in ax.get_legend_handles_labels()[1]:
        ax.plot([0, 1], [0, 1], color=PALE, linestyle="--", linewidth=1, label="calibrated", zorder=1)
        ax.set(xlim=(lowest_confidence(proba) - 0.02, 1.02), ylim=(-0.02, 1.05), xlabel="confidence", ylabel="accuracy")
        tidy(ax)
    ax.plot(
        groups.confidence[full],
        groups.accuracy[full],
        color=how.colour,
        linestyle=how.line,
        marker=how.marker,
        label=f"{label or name} (ECE {groups.ece:.3f})",
        zorder=3,
    )
    ax.vlines(groups.confidence[full], *groups.interval[:, full], color=how.colour, alpha=0.5, linewidth=1)
    counts = _count_axes(ax)
    counts.stairs(groups.count, groups.edges, color=how.colour, fill=True, alpha=0.25)
    counts.stairs(groups.count, groups.edges, color=how.colour, linestyle=how.line)
    counts.set_ylim(0.7, max(counts.get_ylim()[1], 2.0 * groups.count.max()))
    return ax


def score_histogram(
    ax: Axes,
    inside: Any,
    outside: Any,
    *,
    edges: Any,
    labels: tuple[str, str] = ("in distribution", "out of distribution"),
) -> Axes:
    """Draw histograms of scores of in-distribution rows (n,) and out-of-distribution rows (m,), with edges (B + 1,).

    Bars show the share of rows in each bin.

    Examples
    --------
    >>> from enkbayes.evaluation.plots import require_matplotlib
    >>> ax = require_matplotlib().Figure().subplots()
    >>> ax = score_histogram(ax, [0.1, 0.2, 0.9], [0.8, 0.7], edges=[0.0, 0.5, 1.0])
    >>> ax.patches[0].get_data().values.round(2).tolist()
    [0.67, 0.33]
    """
    edges = np.asarray(edges, dtype=np.float64)
    for score, colour, line, label in zip((inside, outside), (INSIDE, OUTSIDE), ("-", "--"), labels, strict=True):
        share = np.histogram(to_numpy(score), edges)[0] / len(score)
        ax.stairs(share, edges, color=colour, fill=True, alpha=0.3)
        ax.stairs(share, edges, color=colour, linestyle=line, linewidth=1.5, label=label)
    ax.set_ylim(0, None, auto=True)
    ax.set(ylabel="share of rows", xlim=(edges[0], edges[-1]))
    return tidy(ax)


def ood_histogram(ax: Axes, proba_in: Any, proba_out: Any, *, bins: int = 20) -> Axes:
    """Draw histograms of confidence for in-distribution rows (proba_in) and out-of-distribution rows (proba_out).

    The legend shows the AUROC of detecting the latter by low confidence. Bins have equal width between 1 / K, the
    lowest possible confidence, and 1.

    Examples
    --------
    >>> from enkbayes.evaluation.plots import require_matplotlib
    >>> ax = require_matplotlib().Figure().subplots()
    >>> ood_histogram(ax, [0.99, 0.98, 0.03], [0.6, 0.5, 0.55]).get_legend_handles_labels()[1]
    ['in distribution', 'out of distribution (AUROC 1.000)']
    """
    edges = np.linspace(lowest_confidence(proba_in), 1, bins + 1)
    auroc = ood_score(proba_in, proba_out).auroc
    labels = ("in distribution", f"out of distribution (AUROC {auroc:.3f})")
    ax = score_histogram(ax, confidence(proba_in), confidence(proba_out), edges=edges, labels=labels)
    ax.set_xlabel("confidence")
    return ax


def lowest_confidence(proba: Any) -> float:
    """Return 1 / K for proba (n, K), 1 / 2 for (n,)."""
    shape = to_numpy(proba).shape
    return 1 / shape[1] if len(shape) == 2 else 0.5


def _count_axes(ax: Axes) -> Axes:
    """Return the axes with the counts above a reliability diagram; the first call creates them."""
    for child in ax.child_axes:
        if child.get_label() == COUNTS:
            return cast("Axes", child)
    counts = ax.inset_axes((0, 1.03, 1, 0.2), sharex=ax, label=COUNTS)
    counts.set_yscale("log")
    counts.set_ylim(0.7, 2)
    counts.set_ylabel("rows")
    counts.tick_params(labelbottom=False, bottom=False)
    return tidy(counts)
