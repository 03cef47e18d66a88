"""Anderson acceleration of a fixed-point iteration.

An iteration x+ = x + tau f(x) with residual f remembers the last few differences dx_i and df_i, finds the combination
that best explains the residual, and takes it out:

    gamma = argmin | f - sum gamma_i df_i |,        x+ = x + tau f - sum gamma_i (dx_i + tau df_i).

Points may be anything that can be added and multiplied by numbers, with an inner product of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

Numbers = np.ndarray[Any, Any]
Vector = TypeVar("Vector", bound=Any)


def extrapolated(
    force: Vector,
    history: Sequence[tuple[Vector, Vector]],
    tau: float,
    dot: Callable[[Vector, Vector], float],
    ridge: float,
) -> Vector:
    """Return the residual f - sum gamma_i (dx_i / tau + df_i) that the step tau is taken with.

    history holds the pairs (dx_i, df_i); ridge regularises the least squares, relative to their trace. A history whose
    inner products overflow is of no use and leaves f as it is.

    >>> extrapolated(2.0, [(1.0, -1.0)], 1.0, lambda a, b: a * b, 0.0)   # f = 2 - x from x = 0: one step to x = 2
    2.0
    >>> extrapolated(2.0, [(1.0, np.inf)], 1.0, lambda a, b: a * b, 0.0)
    2.0
    """
    gram = np.asarray([[dot(a, b) for _, b in history] for _, a in history])
    gamma = mixing(gram, np.asarray([dot(df, force) for _, df in history]), ridge)
    if gamma is None:
        return force
    for weight, (dx, df) in zip(gamma, history, strict=True):
        force = force - (dx * (1 / tau) + df) * float(weight)
    return force


def mixing(gram: Numbers, right: Numbers, ridge: float) -> Numbers | None:
    """Return gamma (m,) from the inner products of the df_i with each other (m, m) and with f (m,); None if they are
    not finite.

    >>> mixing(np.asarray([[4.0]]), np.asarray([2.0]), 0.0).tolist()
    [0.5]
    """
    if not (np.all(np.isfinite(gram)) and np.all(np.isfinite(right))):  # LAPACK would write on standard output
        return None
    return np.asarray(np.linalg.lstsq(gram + ridge * np.trace(gram) * np.eye(len(gram)), right, rcond=None)[0])
