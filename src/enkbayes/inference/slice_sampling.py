"""Elliptical slice sampling: moves of many chains that leave a distribution close to a Gaussian invariant.

In the whitened coordinates z of a Gaussian q a distribution has the density N(z; 0, I) exp(log_ratio(z)), where
log_ratio is its log density minus log q, up to a constant. Murray, Adams & MacKay (2010) leave any such distribution
invariant: draw nu ~ N(0, I) and a height below that of the present point, and search for a point above it on the
ellipse

    z(phi) = z cos(phi) + nu sin(phi),

shrinking the bracket of angles around phi = 0 after each miss. There is nothing to tune. If q was fitted to the
distribution this is the generalised sampler of Nishihara, Murray & Adams (2014). The chains are independent and move
together, as rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from enkbayes.engine.arrays import Array, as_double, like

Numbers = np.ndarray[Any, Any]


def numpy_ratio(log_ratio: Callable[[Array], Array], reference: Array) -> Callable[[Numbers], Numbers]:
    """Return a log ratio from numpy to numpy in double precision, computed in the library of `reference`."""
    return lambda z: as_double(log_ratio(like(z, reference)))


def slice_sweep(
    log_ratio: Callable[[Numbers], Numbers],
    z: Numbers,
    heights: Numbers,
    rng: np.random.Generator,
    *,
    most_shrinks: int = 100,
) -> tuple[Numbers, Numbers]:
    """Return the points z (J, r) of J independent chains and their heights (J,) after one move of every chain.

    Parameters
    ----------
    log_ratio : callable
        Points (j, r), any number of them -> log density minus log q, (j,), up to a constant. q is N(0, I) here.
    z, heights : arrays (J, r) and (J,)
        The present points, in the whitened coordinates of q, and log_ratio(z).
    rng : numpy Generator
        Source of all random choices.
    most_shrinks : int
        Misses after which a chain stays where it is; its bracket is far below round-off then. Only the chains that are
        still searching are evaluated again.

    Examples
    --------
    The distribution N(0, I) exp(z) is N(1, I):

    >>> rng = np.random.default_rng(0)
    >>> z = rng.standard_normal((4000, 1))
    >>> heights = z[:, 0]
    >>> for _ in range(10):
    ...     z, heights = slice_sweep(lambda z: z[:, 0], z, heights, rng)
    >>> bool(abs(z.mean() - 1) < 0.05 and abs(z.std() - 1) < 0.05)
    True
    """
    z, heights = z.copy(), heights.copy()
    start, nu = z.copy(), np.asarray(rng.standard_normal(z.shape))
    floor = heights - rng.standard_exponential(len(z))
    phi = 2 * math.pi * rng.random(len(z))
    low, high = phi - 2 * math.pi, phi.copy()
    searching = np.arange(len(z))
    for _ in range(most_shrinks):
        angle = phi[searching, None]
        trial = start[searching] * np.cos(angle) + nu[searching] * np.sin(angle)
        found = log_ratio(trial)
        hit = found > floor[searching]  # a NaN is a miss
        z[searching[hit]], heights[searching[hit]] = trial[hit], found[hit]
        searching = searching[~hit]
        if len(searching) == 0:
            break
        missed = phi[searching]
        low[searching] = np.where(missed < 0, missed, low[searching])
        high[searching] = np.where(missed < 0, high[searching], missed)
        phi[searching] = rng.uniform(low[searching], high[searching])
    return z, heights
