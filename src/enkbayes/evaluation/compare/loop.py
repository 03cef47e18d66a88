"""The comparison loop: every method on the same features, splits and prior."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import as_double, row_slices
from enkbayes.evaluation.baselines import Method, Predictor
from enkbayes.evaluation.compare.results import Comparison, Estimate, Trial, row_of
from enkbayes.evaluation.compare.splits import Split
from enkbayes.evaluation.metrics import predictive_distance, score
from enkbayes.inference.priors import weight_prior

Vector = np.ndarray[Any, Any]
Clock = Callable[[], float]
Progress = Callable[[str], None]
"""Called with a description of each fit before it starts: for each split the yardstick, the reference, the methods."""

FAILURES = (ValueError, ArithmeticError, RuntimeError, MemoryError, ImportError)
"""Errors of a method that are reported without stopping the comparison."""

HELD = 1 << 24  # probabilities of single members that are in memory at a time
BRIEF = 1.0  # seconds; fits that take less are repeated to time them


@dataclass(frozen=True, eq=False)
class Reference:
    """Predictions (n, K) of the reference on the test rows, their Monte Carlo error, and its remarks."""

    proba: Vector
    error: float
    remarks: tuple[str, ...]


def compare(
    splits: Iterable[Split],
    methods: Sequence[Method],
    *,
    classes: int,
    yardstick: Method,
    reference: Method | None = None,
    prior_precision: float = 1.0,
    intercept_precision: float = 0.01,
    seed: int = 0,
    progress: Progress = lambda _: None,
    clock: Clock = time.perf_counter,
) -> Comparison:
    """Fit every method on every split and return the comparison.

    Parameters
    ----------
    splits : iterable of Split
        See `standardised_splits`.
    methods : sequence of Method
        The methods; their names must differ.
    classes : int
        Number of classes K; targets are 0 ... K-1.
    yardstick : Method
        The method whose time is the unit, usually the MAP. Fits that take less than a second are repeated three times,
        and the median time is used.
    reference : Method, optional
        The method to which distances of predictions are measured; it is fitted once on each split.
    prior_precision, intercept_precision : float
        Inverse prior variances of the weights and of the intercepts, the same for every method.
    seed : int
        The methods on split r use the seed `seed + r`.
    progress : callable
        Called with the name of each method before it is fitted: for each split the yardstick, the reference, the
        methods.
    clock : callable
        Returns the time in seconds.

    Examples
    --------
    >>> import enkbayes as eb
    >>> from enkbayes.evaluation.baselines import Ensemble
    >>> from enkbayes.evaluation.compare import standardised_splits
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> methods = [Ensemble("mean-field", eb.MeanField())]
    >>> found = compare(standardised_splits(X, y), methods, classes=3, yardstick=methods[0])
    >>> found.rows[0].method, found.rows[0].accuracy.mean > 0.9
    ('mean-field', True)
    """
    trials: dict[str, list[Trial | str]] = {method.name: [] for method in methods}
    references: list[Reference] = []
    done: list[Split] = []
    for split in splits:
        problem, own_seed = _problem(split, classes, prior_precision, intercept_precision), seed + len(done)
        progress(yardstick.name)
        (_, unit, _), exact = _fit(yardstick, problem, own_seed, clock), None
        if reference is not None:
            progress(f"{reference.name}, the reference")
            references.append(_reference(reference, problem, split, own_seed, clock))
            exact = references[-1].proba
        for method in methods:
            progress(method.name)
            trials[method.name].append(_trial(method, problem, split, exact, unit, own_seed, clock))
        done.append(split)
    if not done:
        raise ValueError("there are no splits to compare on; expected at least one")
    split = done[0]
    whole = {name: [t.proba for t in each if isinstance(t, Trial)] for name, each in trials.items()}
    return Comparison(
        rows=tuple(row_of(name, each, split.ratio) for name, each in trials.items()),
        classes=classes,
        features=split.train.shape[1],
        train_rows=len(split.train_targets),
        test_rows=len(split.test_targets),
        repeats=len(done),
        prior_precision=prior_precision,
        intercept_precision=intercept_precision,
        reference=None if reference is None else reference.name,
        reference_error=Estimate.of([each.error for each in references], split.ratio),
        reference_remarks=tuple(dict.fromkeys(remark for each in references for remark in each.remarks)),
        proba={name: np.concatenate(parts) for name, parts in whole.items() if len(parts) == len(done)},
        targets=np.concatenate([each.test_targets for each in done]),
    )


def _problem(split: Split, classes: int, prior_precision: float, intercept_precision: float) -> Problem:
    if not intercept_precision > 0:
        raise ValueError(f"intercept_precision is {intercept_precision}; expected a positive number")
    prior = weight_prior(split.train.shape[1], None if classes == 2 else classes, prior_precision)
    return Problem.create(
        split.train, split.train_targets, prior, intercept=1 / intercept_precision, classes=np.arange(classes)
    )


def _reference(method: Method, problem: Problem, split: Split, seed: int, clock: Clock) -> Reference:
    """Return the predictions of the reference, fitted with a seed that no method uses."""
    predictor, _, remarks = _fit(method, problem, seed + 1_000_003, clock)
    exact = getattr(predictor, "gaussian", False)  # Gaussian predictions are integrated, not sampled
    error = 0.0 if exact else _monte_carlo_error(predictor, split.test)
    return Reference(as_double(predictor.predict_proba(split.test)), error, remarks)


def _monte_carlo_error(predictor: Predictor, features: Vector) -> float:
    """Return the mean over rows and classes of |p - q| / 2, where p and q average over the first and the second half of
    the members. They differ by about twice the error of the average over all members.
    """
    members, classes = np.shape(predictor.sample_proba(features[:1]))[::2]
    if members == 1:
        return 0.0  # a point estimate has no sampling error
    gaps = []
    for rows in row_slices(len(features), max(1, HELD // (members * classes))):
        proba = as_double(predictor.sample_proba(features[rows]))
        half = members // 2
        gaps.append(np.abs(proba[:half].mean(axis=0) - proba[half:].mean(axis=0)) / 2)
    return float(np.mean(np.concatenate(gaps)))


def _trial(
    method: Method, problem: Problem, split: Split, reference: Vector | None, unit: float, seed: int, clock: Clock
) -> Trial | str:
    """Return the result of a method on a split, or the reason if it fails."""
    try:
        predictor, seconds, remarks = _fit(method, problem, seed, clock)
        proba = as_double(predictor.predict_proba(split.test))
        if not np.all(np.isfinite(proba)):
            return "its probabilities are not finite numbers"
        uncertainty = predictor.predict_uncertainty(split.test)
    except FAILURES as error:
        return " ".join(str(error).split()) or type(error).__name__
    total = float(np.mean(as_double(uncertainty.total)))
    epistemic = float(np.mean(as_double(uncertainty.epistemic)))
    return Trial(
        proba=proba,
        scores=score(proba, split.test_targets),
        epistemic_share=epistemic / total if total > 0 else 0.0,
        seconds=seconds,
        time_ratio=seconds / unit,
        distance=math.nan if reference is None else predictive_distance(proba, reference).mean,
        remarks=remarks,
    )


def _fit(method: Method, problem: Problem, seed: int, clock: Clock) -> tuple[Predictor, float, tuple[str, ...]]:
    """Return the predictor, the seconds of a fit, and the remarks of the method.

    A short fit is repeated three times and the median time is used, because the first fit may load libraries and other
    processes may disturb a single one.
    """
    for module in getattr(method, "needs", ()):
        import_module(module)  # the time of the import does not count
    seconds: list[float] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while len(seconds) < 3 and sum(seconds) < BRIEF:
            started = clock()
            predictor = method.fit(problem, seed=seed)
            seconds.append(clock() - started)
    remarks = [" ".join(str(warning.message).split()) for warning in caught]
    message = getattr(getattr(predictor, "info", None), "message", "")
    if message and not any(message in remark for remark in remarks):
        remarks.append(message)
    return predictor, float(np.median(seconds)), tuple(dict.fromkeys(remarks))
