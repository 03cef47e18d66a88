"""Compare methods on the same features, splits and prior: one table and one figure."""

from enkbayes.evaluation.compare.figure import reliability_figure
from enkbayes.evaluation.compare.loop import Progress, compare
from enkbayes.evaluation.compare.results import INTERVAL, Comparison, Estimate, Row, Trial
from enkbayes.evaluation.compare.splits import Split, standardised_splits, stratified_rows

__all__ = [
    "INTERVAL",
    "Comparison",
    "Estimate",
    "Progress",
    "Row",
    "Split",
    "Trial",
    "compare",
    "reliability_figure",
    "standardised_splits",
    "stratified_rows",
]
