"""Differences of natural parameters in the moving frame of an ensemble.

In the frame where a Gaussian has mean 0 and precision I, a difference of natural parameters is (g, S), and its Fisher
norm sqrt(|g|^2 + |S|^2 / 2) is the plain one. A step of the flow moves the frame, and what earlier steps have found is
carried along.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from enkbayes.core.moments import Moments
from enkbayes.engine import product
from enkbayes.engine.arrays import Array, identity_like, namespace, symmetric


@dataclass(frozen=True, eq=False)
class Natural:
    """A difference of natural parameters in the frame of an ensemble: g (r,), with the sign of a gradient, and S (r,
    r).
    """

    g: Array
    S: Array

    def __add__(self, other: Natural) -> Natural:
        return Natural(self.g + other.g, self.S + other.S)

    def __mul__(self, factor: float) -> Natural:
        return Natural(self.g * factor, self.S * factor)

    def __sub__(self, other: Natural) -> Natural:
        return self + other * -1.0

    def dot(self, other: Natural) -> float:
        """Return the Fisher inner product at the frame's own Gaussian."""
        xp = namespace(self.g)
        return float(xp.sum(self.g * other.g) + xp.sum(self.S * other.S) / 2)

    def carry(self, shift: Array, root: Array) -> Natural:
        """Return the same difference in the frame moved by mean += basis @ shift, basis = basis @ root (root
        symmetric).
        """
        return Natural(root @ (self.g + self.S @ shift), product(product(root, self.S), root))


def arrived(shift: Array, root: Array) -> Natural:
    """Return the step (g, S) with shift = -F^{-1} g and root = F^{-1/2}, F = I + S, in the frame where it leads:
    `carry` of it is (-root shift, I - F^{-1}).
    """
    return Natural(-(root @ shift), identity_like(root) - product(root, root))


History = tuple[tuple[Natural, Natural], ...]
"""The last few differences (dlambda, df), in the frame of the current ensemble."""


def carried(history: History, shift: Array, root: Array) -> History:
    """Return the history in the frame of the moved ensemble."""
    return tuple((a.carry(shift, root), b.carry(shift, root)) for a, b in history)


def fisher_norm(error: Moments, S: Array | None = None) -> float:
    """Return the Fisher norm of a difference (g, dS) at the precision S, the identity unless it is given:

    sqrt((g' S^{-1} g + tr (S^{-1} dS)^2 / 2) / r).
    """
    xp = namespace(error.g)
    g, dS = error.g, symmetric(error.S)
    if S is not None:
        both = xp.linalg.solve(S, xp.concat([g[:, None], dS], axis=1))
        g, dS = both[:, 0], both[:, 1:]
    squared = float(xp.sum(error.g * g) + xp.sum(dS * dS.mT) / 2)
    return math.sqrt(max(squared, 0.0) / error.g.shape[0])
