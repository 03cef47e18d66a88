"""The result of a comparison: one row for each method, with intervals if there are several splits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from enkbayes.evaluation.metrics import Scores

Vector = np.ndarray[Any, Any]

INTERVAL = (
    "mean ± half-width of the 95 % t-interval over the splits, with variance s^2 (1 / repeats + test rows / training"
    " rows) to account for the rows that splits share (Nadeau and Bengio 2003)"
)


@dataclass(frozen=True)
class Estimate:
    """A mean over splits and the half-width of its 95 % interval, which is NaN for a single split.

    >>> Estimate.of([0.5, 0.75], ratio=0.5).mean
    0.625
    """

    mean: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float], ratio: float) -> Estimate:
        """Return the estimate from values on R splits with `ratio` test rows for each training row.

        Splits of the same data share most of their rows, so their values vary less than values on fresh data. The
        corrected variance of the mean is s^2 (1 / R + ratio).

        >>> x = [1.0, 2.0, 3.0]  # t quantile of 2 degrees of freedom 4.3027, s = 1
        >>> round(Estimate.of(x, ratio=0.0).half_width, 4), round(Estimate.of(x, ratio=2 / 3).half_width, 4)
        (2.4841, 4.3027)
        """
        if len(values) == 0:
            return cls(math.nan, math.nan)
        if len(values) == 1:
            return cls(float(values[0]), math.nan)
        from scipy.special import stdtrit

        spread = float(np.std(values, ddof=1)) * math.sqrt(1 / len(values) + ratio)
        return cls(float(np.mean(values)), float(stdtrit(len(values) - 1, 0.975)) * spread)


@dataclass(frozen=True, eq=False)
class Trial:
    """The result of one method on one split.

    epistemic_share : mean epistemic divided by mean total uncertainty of the test rows
    time_ratio : time of the fit divided by that of the MAP on the same rows
    distance : mean |p - q| to the reference over test rows and classes, NaN without a reference
    remarks : warnings and messages of the method

    >>> from enkbayes.evaluation.metrics import score
    >>> proba, targets = np.asarray([[0.9, 0.1], [0.4, 0.6]]), np.asarray([0, 1])
    >>> trial = Trial(proba, score(proba, targets), 0.1, 0.02, 3.0, math.nan, ())
    >>> trial.scores.accuracy
    1.0
    """

    proba: Vector
    scores: Scores
    epistemic_share: float
    seconds: float
    time_ratio: float
    distance: float
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One line of the table: the values of `Trial`, averaged over the splits on which the method worked.

    failures : number of splits on which it failed
    failure : the first reason
    remarks : warnings and messages of the method

    >>> one = Estimate.of([0.9], 0.4)
    >>> row = Row("map", one, one, one, one, one, one, one)
    >>> row.method, row.estimates["accuracy"].mean
    ('map', 0.9)
    """

    method: str
    accuracy: Estimate
    nll: Estimate
    brier: Estimate
    ece: Estimate
    epistemic_share: Estimate
    time_ratio: Estimate
    distance: Estimate
    failures: int = 0
    failure: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The estimates by name, in the order of the table."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, Estimate)}


@dataclass(frozen=True, eq=False)
class Comparison:
    """The table, one row for each method, and the data behind it.

    Attributes
    ----------
    proba, targets
        Predictions and classes of all test rows, one split after another, for each method that worked on every split.
    reference_error
        Monte Carlo error of the reference; distances below it are not significant.
    reference_remarks
        Warnings and messages of the reference.

    >>> from sklearn.datasets import load_wine
    >>> from enkbayes.evaluation.baselines import MAP
    >>> from enkbayes.evaluation.compare import compare, standardised_splits
    >>> found = compare(standardised_splits(*load_wine(return_X_y=True)), [MAP()], classes=3, yardstick=MAP())
    >>> found.row("map").accuracy.mean > 0.9
    True
    """

    rows: tuple[Row, ...]
    classes: int
    features: int
    train_rows: int
    test_rows: int
    repeats: int
    prior_precision: float
    intercept_precision: float
    reference: str | None
    reference_error: Estimate
    reference_remarks: tuple[str, ...]
    proba: dict[str, Vector]
    targets: Vector

    def row(self, method: str) -> Row:
        """Return the row of a method."""
        return next(row for row in self.rows if row.method == method)


def row_of(method: str, trials: Sequence[Trial | str], ratio: float) -> Row:
    """Return the row of a method from its trials; a failed trial is given as the reason."""
    good = [trial for trial in trials if isinstance(trial, Trial)]
    bad = [trial for trial in trials if isinstance(trial, str)]

    def over(values: Sequence[float]) -> Estimate:
        return Estimate.of(values, ratio)

    scores = {name: over([getattr(t.scores, name) for t in good]) for name in ("accuracy", "nll", "brier", "ece")}
    others = {name: over([getattr(t, name) for t in good]) for name in ("epistemic_share", "time_ratio", "distance")}
    remarks = tuple(dict.fromkeys(remark for trial in good for remark in trial.remarks))
    return Row(method, **scores, **others, failures=len(bad), failure=bad[0] if bad else "", remarks=remarks)
