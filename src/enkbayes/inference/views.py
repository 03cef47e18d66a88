"""Averaging predictions over random views of an input, the augmentations that a network was trained with.

The prediction is the average over the input itself and v views, raised to a power c and normalised,

    p(x) ~ (mean_i p(x_i))^c,    x_0 = x,  x_i = augment(x).

Views disagree where a single prediction is wrong by accident, so the average is better and less confident; c is the
temperature, fitted again. Each view costs one more prediction. Held-out rows choose v: from few to many, a number is
accepted if its log loss is lower than that of the last accepted one by more than one standard error of the paired
difference. Zero, no views, comes first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from enkbayes.engine.arrays import Array, namespace
from enkbayes.inference.folds import log_losses

Vector = np.ndarray[Any, Any]
COUNTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class ViewsChoice:
    """What held-out rows chose: the number of views, the power c, the gain in log loss over no views with its standard
    error, the mean log loss of each number of views that was tried (0 first), and a sentence.
    """

    count: int
    power: float
    gain: float
    error: float
    losses: tuple[tuple[int, float], ...]
    message: str


def sharpened(proba: Array, power: Array | float) -> Array:
    """Return probabilities (n, K) raised to a power and normalised.

    >>> sharpened(np.asarray([[0.8, 0.2]]), 2.0).round(3).tolist()
    [[0.941, 0.059]]
    """
    xp = namespace(proba)
    raised = xp.maximum(proba, xp.full_like(proba, xp.finfo(proba.dtype).smallest_normal)) ** power
    return raised / xp.sum(raised, axis=-1, keepdims=True)


def choose_views(proba: Vector, labels: Vector, *, counts: Sequence[int] = COUNTS, fewest: int = 20) -> ViewsChoice:
    """Return how many views are worth their cost.

    Parameters
    ----------
    proba : array (1 + m, n, K)
        Predictions for held-out rows, and for m views of each.
    labels : array (n,)
        Class numbers.
    counts : sequence of int
        Numbers of views to try, at most m.
    fewest : int
        With fewer rows no views are chosen.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 2, 500)
    >>> z = (2 * labels - 1) + 2 * rng.standard_normal((9, 500))  # views are independent
    >>> p = 1 / (1 + np.exp(-z))
    >>> choose_views(np.stack([1 - p, p], axis=-1), labels).count
    8
    """
    if len(labels) < fewest:
        return ViewsChoice(0, 1.0, 0.0, 0.0, (), f"{len(labels)} held-out rows are too few to choose views")

    def loss(averaged: Vector, power: float) -> Vector:
        return log_losses(sharpened(averaged, power), labels)

    plain = loss(np.asarray(proba[0], dtype=np.float64), 1.0)
    best, count, power, tried = plain, 0, 1.0, [(0, float(plain.mean()))]
    for many in (c for c in sorted(counts) if c < len(proba)):
        averaged = np.asarray(np.mean(proba[: many + 1], axis=0, dtype=np.float64))
        found = minimize_scalar(lambda t, p=averaged: loss(p, math.exp(t)).mean(), bounds=(-1.5, 1.5), method="bounded")
        own = loss(averaged, math.exp(found.x))
        tried.append((many, float(own.mean())))
        gap = best - own
        if gap.mean() > gap.std() / math.sqrt(len(gap)):
            best, count, power = own, many, math.exp(found.x)
    gain = plain - best
    error = float(gain.std() / math.sqrt(len(gain)))
    message = (
        f"{count} views: log loss {gain.mean():.4f} (standard error {error:.4f}) below that without, on {len(labels)} "
        f"held-out rows, for {count + 1} times the cost of a prediction"
        if count
        else f"no views: none of {max(counts, default=0)} lower the log loss clearly on {len(labels)} held-out rows"
    )
    return ViewsChoice(count, power, float(gain.mean()), error, tuple(tried), message)
