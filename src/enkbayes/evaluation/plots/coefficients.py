"""The table of coefficients as a forest plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from enkbayes.evaluation.plots.style import INK, look, tidy
from enkbayes.inference.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLASSES = ("equilibrium", "mean-field", "homotopy", "laplace", "deep-ensemble", "hmc")
"""Methods whose colours the classes have, in turn."""


def coefficient_plot(ax: Axes, summary: Summary, *, intercept: bool = False) -> Axes:
    """Draw a forest plot of `clf.summary()`: the credible interval of each coefficient, with a dot at its mean.

    The first row of the table is at the top. Coefficients without an interval are dots alone. With three or more
    classes, or labels, each has a colour, and the coefficients of a feature stand side by side. `intercept` tells
    whether the intercept is drawn, whose size often has nothing to do with that of the others.

    Examples
    --------
    >>> import enkbayes as eb
    >>> from sklearn.datasets import load_iris
    >>> from enkbayes.evaluation.plots import require_matplotlib
    >>> X, y = load_iris(return_X_y=True, as_frame=True)
    >>> clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X - X.mean(), y == 1)
    >>> ax = coefficient_plot(require_matplotlib().Figure().subplots(), clf.summary())
    >>> [label.get_text() for label in ax.get_yticklabels()][:2]
    ['sepal length (cm)', 'sepal width (cm)']
    """
    rows = [row for row in summary.rows if intercept or row.name != "intercept"]
    if not rows:
        raise ValueError("summary has no rows; expected coefficients of one feature or more")
    names, outputs = (list(dict.fromkeys(column)) for column in zip(*((r.name, r.output) for r in rows), strict=True))
    for k, output in enumerate(outputs):
        own = [row for row in rows if row.output == output]
        mean = np.asarray([row.mean for row in own])
        reach = np.asarray([(row.mean - row.low, row.high - row.mean) for row in own]).T
        shift = 0.6 * ((k + 0.5) / len(outputs) - 0.5)
        colour = look(CLASSES[k % len(CLASSES)]).colour
        places = [names.index(row.name) + shift for row in own]
        ax.errorbar(
            mean,
            places,
            xerr=np.maximum(np.nan_to_num(reach), 0.0),
            fmt="o",
            markersize=4,
            color=colour,
            label=output or None,
        )
    ax.axvline(0.0, color=INK, linewidth=0.8)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel(f"coefficient, with its {summary.level:.0%} credible interval")
    if len(outputs) > 1:
        ax.legend(frameon=False)
    return tidy(ax)
