"""Metrics, baselines, comparisons, plots and reports.

    from enkbayes.evaluation import baselines, compare, metrics, plots, report

Each of them is imported on demand. None loads matplotlib, jax or torch before a function needs it.
"""
