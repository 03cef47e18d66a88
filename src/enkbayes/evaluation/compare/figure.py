"""The figure of a comparison: reliability diagrams side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enkbayes.evaluation.compare.results import Comparison
from enkbayes.evaluation.plots import reliability_diagram, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 6


def reliability_figure(found: Comparison, bins: int = 10) -> Figure:
    """Return a figure with a reliability diagram for each method, over the test rows of all splits.

    Examples
    --------
    >>> import enkbayes as eb
    >>> from enkbayes.evaluation.baselines import Ensemble
    >>> from enkbayes.evaluation.compare import compare, standardised_splits
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> method = Ensemble("mean-field", eb.MeanField())
    >>> found = compare(standardised_splits(X, y), [method], classes=3, yardstick=method)
    >>> len(reliability_figure(found).axes)
    1
    """
    names = list(found.proba)
    if not names:
        raise ValueError("no method worked on every split, so there is nothing to draw; `rows` contains the reasons")
    rows = -(-len(names) // COLUMNS)
    columns = -(-len(names) // rows)
    figure: Figure = require_matplotlib().Figure(figsize=(2.9 * columns + 0.4, 3.2 * rows + 0.4), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for i, ax in enumerate(grid.flat):
        if i >= len(names):
            ax.set_axis_off()
            continue
        lowest, leftmost = i + columns >= len(names), i % columns == 0
        reliability_diagram(ax, found.proba[names[i]], found.targets, name=names[i], bins=bins)
        ax.set_title(f"{names[i]}  (ECE {found.row(names[i]).ece.mean:.3f})", fontsize=10, pad=28)
        ax.set(xlabel="confidence" if lowest else "", ylabel="accuracy" if leftmost else "")
        ax.tick_params(labelbottom=lowest)
        for counts in ax.child_axes:
            counts.set_ylabel("rows" if leftmost else "")
    figure.get_layout_engine().set(h_pad=0.1)  # type: ignore[call-arg, union-attr]
    figure.suptitle(
        f"{len(found.targets)} test rows; calibrated predictions lie on the dashed line; bars are 95 % intervals",
        fontsize=10,
    )
    return figure
