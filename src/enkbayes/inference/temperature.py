"""Temperature scaling (Guo et al. 2017): one number T that divides the logits of trained weights."""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar

from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array


def temperature_scale(problem: Problem, theta: Array, *, sharpening: float = 0.2, hottest: float = 100.0) -> float:
    """Return 1 / T, the factor on the weights theta (P,) that minimises the cross-entropy of a problem's rows.

    Parameters
    ----------
    problem : Problem
        The rows; its prior is not used.
    theta : array (P,)
        The trained weights.
    sharpening : float
        Standard deviation of a normal prior of log T below 0; there is none above 0. Trained networks are rarely less
        confident than they should be, and a few rows, perhaps all classified correctly, must not send T to zero.
        `math.inf` turns the prior off.
    hottest : float
        T lies between 1 / hottest and hottest.

    Examples
    --------
    >>> import numpy as np
    >>> all_correct = Problem.create([[1.0], [2.0], [-1.0]], [1, 1, 0])
    >>> 1 < temperature_scale(all_correct, np.asarray([1.0])) < 2
    True
    """

    def potential(log_scale: float) -> float:
        loss = float(problem.loss(theta[None, :] * math.exp(log_scale))[0])
        return loss + (max(log_scale, 0.0) / sharpening) ** 2 / 2

    width = math.log(hottest)
    return math.exp(minimize_scalar(potential, bounds=(-width, width), options={"xatol": 1e-6}).x)
