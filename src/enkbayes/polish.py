"""Elliptical slice sampling: move particles from the fitted Gaussian towards the exact posterior, with nothing to tune.

In the whitened coordinates z of the fitted Gaussian q the posterior is N(z; 0, I) exp(log_ratio(z)), where log_ratio is
log posterior - log q up to a constant. Murray, Adams & MacKay (2010) leave any such law invariant: draw nu ~ N(0, I)
and a height below the present one, and look for a point above it on the ellipse

    z(phi) = z cos(phi) + nu sin(phi),

shrinking the bracket of angles around phi = 0 after each miss. With a Gaussian that was fitted to the posterior this is
the generalised sampler of Nishihara, Murray & Adams (2014). The chains are independent and move together as rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from enkbayes.arrays import Array, like, to_numpy

SHRINKS = 100  # misses after which a chain stays where it is; the bracket is then far below round-off
Numbers = np.ndarray[Any, Any]


def elliptical_slice_sweeps(
    log_ratio: Callable[[Array], Array], z: Array, sweeps: int, rng: np.random.Generator
) -> tuple[Array, int]:
    """Return z (J, r) after so many sweeps over J independent chains, and how many points were evaluated.

    Parameters
    ----------
    log_ratio : callable
        Points (j, r), any number of them -> log posterior - log q (j,), up to a constant. q is N(0, I) here.
    z : array (J, r)
        Where the chains are, in the whitened coordinates of q.
    sweeps : int
        Moves of every chain.
    rng : numpy Generator
        Of all random choices.

    Examples
    --------
    The law N(0, I) exp(z) is N(1, I):

    >>> rng = np.random.default_rng(0)
    >>> z, evaluations = elliptical_slice_sweeps(lambda z: z[:, 0], rng.standard_normal((4000, 1)), 10, rng)
    >>> bool(abs(z.mean() - 1) < 0.05 and abs(z.std() - 1) < 0.05)
    True
    """
    state = np.asarray(to_numpy(z), dtype=np.float64)
    evaluate = numpy_ratio(log_ratio, z)
    heights, evaluations = evaluate(state), len(state)
    for _ in range(sweeps):
        state, heights, tried = slice_sweep(evaluate, state, heights, rng)
        evaluations += tried
    return like(state, z), evaluations


def numpy_ratio(log_ratio: Callable[[Array], Array], reference: Array) -> Callable[[Numbers], Numbers]:
    """Return a log ratio from numpy to numpy in double precision; it is asked in the library of `reference`."""

    def evaluate(z: Numbers) -> Numbers:
        return np.asarray(to_numpy(log_ratio(like(z, reference))), dtype=np.float64)

    return evaluate


def slice_sweep(
    log_ratio: Callable[[Numbers], Numbers], z: Numbers, heights: Numbers, rng: np.random.Generator
) -> tuple[Numbers, Numbers, int]:
    """Return z (J, r) and its heights log_ratio(z) (J,) after one move of every chain, and the points evaluated.

    Only the chains that still look for a point are evaluated again.
    """
    z, heights, evaluations = z.copy(), heights.copy(), 0
    start, nu = z.copy(), np.asarray(rng.standard_normal(z.shape))
    floor = heights - rng.standard_exponential(len(z))
    phi = 2 * math.pi * rng.random(len(z))
    low, high = phi - 2 * math.pi, phi.copy()
    looking = np.arange(len(z))
    for _ in range(SHRINKS):
        angle = phi[looking, None]
        trial = start[looking] * np.cos(angle) + nu[looking] * np.sin(angle)
        found = log_ratio(trial)
        evaluations += len(looking)
        hit = found > floor[looking]  # a NaN is a miss
        z[looking[hit]], heights[looking[hit]] = trial[hit], found[hit]
        looking = looking[~hit]
        if len(looking) == 0:
            break
        missed = phi[looking]
        low[looking] = np.where(missed < 0, missed, low[looking])
        high[looking] = np.where(missed < 0, high[looking], missed)
        phi[looking] = rng.uniform(low[looking], high[looking])
    return z, heights, evaluations
