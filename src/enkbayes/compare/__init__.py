"""Every method on the same features, split and prior: one table, one figure."""

from enkbayes.compare.figure import reliability_figure
from enkbayes.compare.loop import Progress, compare
from enkbayes.compare.results import INTERVAL, Comparison, Estimate, Row, Trial
from enkbayes.compare.splits import Split, standardised_splits, stratified_rows

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
