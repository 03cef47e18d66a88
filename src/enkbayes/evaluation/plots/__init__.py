"""Plots. Every function draws on the given axes and returns them, except that `*_figure` functions return a figure.

They open no window and change no global setting. Figures may come from `require_matplotlib().Figure()` or from
anywhere else. matplotlib is imported when something is drawn.
"""

from enkbayes.evaluation.plots.calibration import ood_histogram, reliability_diagram, score_histogram
from enkbayes.evaluation.plots.coefficients import coefficient_plot
from enkbayes.evaluation.plots.curves import confidence_distance, size_sweep
from enkbayes.evaluation.plots.maps import (
    classes_scatter,
    confidence_figure,
    confidence_map,
    data_grid,
    data_map,
    frame,
    grid,
)
from enkbayes.evaluation.plots.marginals import marginal_draws, marginal_posterior
from enkbayes.evaluation.plots.style import LOOKS, METHOD_COLORS, Look, colour, look, require_matplotlib
from enkbayes.evaluation.plots.traces import Trace, convergence_trace, residual_trace, spread_trace

__all__ = [
    "LOOKS",
    "METHOD_COLORS",
    "Look",
    "Trace",
    "classes_scatter",
    "coefficient_plot",
    "colour",
    "confidence_distance",
    "confidence_figure",
    "confidence_map",
    "convergence_trace",
    "data_grid",
    "data_map",
    "frame",
    "grid",
    "look",
    "marginal_draws",
    "marginal_posterior",
    "ood_histogram",
    "reliability_diagram",
    "require_matplotlib",
    "residual_trace",
    "score_histogram",
    "size_sweep",
    "spread_trace",
]
