"""Stacking: the weights of an average of predictions, by how probable it makes targets that no prediction has seen."""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]


def stacking_weights(
    logs: Numbers,
    counts: Numbers,
    pseudo_rows: float,
    around: Numbers | None = None,
    *,
    steps: int = 200,
    enough: float = 1e-4,
) -> Numbers:
    """Return the weights (W,) that maximise

        sum_n counts_n log sum_k w_k p_kn + pseudo_rows sum_k around_k log w_k,

    for the log probabilities log p (W, n) that W predictions give to the targets of n rows, by expectation maximisation
    (Yao et al. 2018). The second term is a Dirichlet prior around some weights, by default equal ones. The iteration
    ends when no weight moves by `enough`.

    >>> logs = np.log([[0.9, 0.8, 0.9], [0.5, 0.4, 0.3]])
    >>> stacking_weights(logs, np.ones(3), 1.0).round(1).tolist()
    [0.8, 0.2]
    >>> stacking_weights(logs, np.ones(3), 1e6, np.asarray([0.3, 0.7])).round(3).tolist()
    [0.3, 0.7]
    """
    W = len(logs)
    around = np.full(W, 1 / W) if around is None else around
    chances, weights = np.exp(logs - logs.max(axis=0)), around
    for _ in range(steps):
        shares = chances @ (counts / (weights @ chances))
        following = (weights * shares + pseudo_rows * around) / (counts.sum() + pseudo_rows)
        moved, weights = float(np.max(np.abs(following - weights))), following
        if moved < enough:
            break
    return np.asarray(weights)
