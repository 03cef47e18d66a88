"""Metrics, baselines, comparisons, plots and reports."""
