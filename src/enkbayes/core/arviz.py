"""Particles for other libraries."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from enkbayes.core.linear_logits import LinearLogits
from enkbayes.engine.arrays import Array, to_numpy


def to_arviz(
    theta: Array, linear: LinearLogits | None, classes: np.ndarray[Any, Any] | None, feature_names: Sequence[str] | None
) -> Any:
    """Return particles theta (J, P) as one chain of J draws: an InferenceData of ArviZ 0.x, a DataTree of ArviZ 1.x."""
    arviz = quiet_arviz()
    if arviz is None:
        raise ImportError("to_arviz needs ArviZ; install it with: pip install 'enkbayes[arviz]'")
    draws, coords = labelled_draws(to_numpy(theta), linear, classes, feature_names)
    posterior, dims = {"theta": draws}, {"theta": list(coords)}
    if int(arviz.__version__.split(".")[0]) < 1:
        return arviz.from_dict(posterior=posterior, coords=coords, dims=dims)
    return arviz.from_dict({"posterior": posterior}, coords=coords, dims=dims)


def quiet_arviz() -> Any:
    """Return ArviZ, or None if it is not installed. Its first import of a day warns of its next version, which is not
    for the users of this package to act on.
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
