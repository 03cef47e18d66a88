"""Draws for ArviZ: parameters by name, the log likelihood of every row, and what was observed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, row_slices, to_numpy
from enkbayes.engine.memory import check_fits


def to_arviz(
    theta: Array,
    linear: LinearLogits | None,
    classes: np.ndarray[Any, Any] | None,
    feature_names: Sequence[str] | None,
    problem: Problem | None = None,
) -> Any:
    """Return draws theta (J, P) as one chain: an InferenceData of ArviZ 0.x, a DataTree of ArviZ 1.x.

    With the problem that was fitted there are two more groups, with the dimension `row`: `log_likelihood` and
    `observed_data`, both of the variable `y`, which has class numbers.
    """
    arviz = quiet_arviz()
    if arviz is None:
        raise ImportError("to_arviz needs ArviZ; install it with: pip install 'enkbayes[arviz]'")
    draws, coords = labelled_draws(to_numpy(theta), linear, classes, feature_names)
    groups, dims = {"posterior": {"theta": draws}}, {"theta": list(coords)}
    if problem is not None:
        groups["log_likelihood"] = {"y": log_likelihood(problem, theta)[None]}
        groups["observed_data"] = {"y": to_numpy(problem.targets)}
        coords, dims = {**coords, "row": list(range(problem.size))}, {**dims, "y": ["row"]}
    if int(arviz.__version__.split(".")[0]) < 1:
        return arviz.from_dict(**groups, coords=coords, dims=dims)
    return arviz.from_dict(groups, coords=coords, dims=dims)


def log_likelihood(problem: Problem, theta: Array, *, at_once: int = 2**24) -> np.ndarray[Any, Any]:
    """Return the log likelihood (J, N) of every row at each of the draws theta (J, P), times the weight of the row.
    At most `at_once` logits are held in addition to the result.

    >>> problem = Problem.create([[1.0], [-2.0]], [1, 0])
    >>> log_likelihood(problem, np.asarray([[0.0], [1.0]])).round(3).tolist()
    [[-0.693, -0.693], [-0.313, -0.127]]
    """
    rows, draws = problem.size, int(theta.shape[0])
    each = 8.0 * rows
    check_fits(
        3 * each * draws,  # the library copies them
        f"the log likelihoods of {rows:,} rows for {draws:,} draws",
        lambda free: f"pass draws={max(int(free / each / 3), 1):,} or fewer rows",
    )
    found = np.empty((draws, rows))
    weights = None if problem.weights is None else to_numpy(problem.weights)
    for some in row_slices(draws, max(at_once // (rows * (problem.likelihood.outputs or 1)), 1)):
        logits = problem.model.all_logits(problem.rows, theta[some, :])
        found[some] = -to_numpy(problem.likelihood.loss(logits, problem.targets)).T
    return found if weights is None else found * weights


def quiet_arviz() -> Any:
    """Return ArviZ, or None if it is not installed. Its first import of a day warns of its next version; the warning is
    suppressed, because users of this package can do nothing about it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="\\s*ArviZ is undergoing a major refactor", category=FutureWarning)
        try:
            import arviz
        except ImportError:
            return None
    return arviz


def labelled_draws(
    theta: np.ndarray[Any, Any],
    linear: LinearLogits | None,
    classes: np.ndarray[Any, Any] | None,
    feature_names: Sequence[str] | None,
) -> tuple[np.ndarray[Any, Any], dict[str, list[Any]]]:
    """Return theta as (1, J, feature[, class]) and the labels of every dimension after chain and draw, in order.

    >>> labelled_draws(np.zeros((5, 6)), LinearLogits(2, 2, intercept=True), np.asarray(["a", "b"]), None)[1]
    {'feature': ['x0', 'x1', 'intercept'], 'class': ['a', 'b']}
    """
    if linear is None:
        return theta[None], {"parameter": list(range(theta.shape[1]))}
    names = (
        [f"x{i}" for i in range(linear.features)] if feature_names is None else [str(name) for name in feature_names]
    )
    if len(names) != linear.features:
        raise ValueError(f"feature_names has {len(names)} entries; expected {linear.features}, one for each feature")
    coords: dict[str, list[Any]] = {"feature": names + ["intercept"] * linear.intercept}
    if linear.outputs is not None:
        coords["class"] = list(range(linear.outputs)) if classes is None else classes.tolist()
    return theta.reshape(1, theta.shape[0], *(len(labels) for labels in coords.values())), coords
