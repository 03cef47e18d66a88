"""Moments: the two small sums over rows through which data move an ensemble, in the coordinates of its basis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from enkbayes.engine.arrays import Array, all_finite, identity, namespace, symmetric


class Diverged(ArithmeticError):
    """The moments are no longer finite: the ensemble has left the range of floating-point numbers."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Ensemble averages of a potential V over theta = mean + basis @ x, in the r coordinates of the basis.

    loss : E[V], a number
    g (r,) : basis' E[grad V]
    S (r, r) : basis' E[Hess V] basis

    Potentials add up, over chunks, over shards, over likelihood and prior, and so do moments.
    """

    loss: Array
    g: Array
    S: Array

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.loss + other.loss, self.g + other.g, self.S + other.S)

    def __sub__(self, other: Moments) -> Moments:
        return self + other * -1.0

    def __mul__(self, factor: float) -> Moments:
        return Moments(self.loss * factor, self.g * factor, self.S * factor)

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Eigenvalues w (r,), never negative, and orthonormal eigenvectors U (r, r) of S."""
        xp = namespace(self.S)
        if not (all_finite(self.S) and all_finite(self.g)):
            raise Diverged("the moments of the ensemble are not finite")
        w, U = xp.linalg.eigh(symmetric(self.S))
        return xp.maximum(w, xp.zeros_like(w)), U

    @cached_property
    def residual(self) -> float:
        """Natural-gradient norm eps = sqrt((|g|^2 + |I - S|_F^2 / 2) / r): affine invariant, zero exactly at
        equilibrium.

        For the moments of the whole potential it measures g' P g and ||I - P^(1/2) H P^(1/2)||, whatever the step size.
        """
        xp = namespace(self.g)
        eye = identity(self.g.shape[0], self.g)
        squared = float(xp.sum(self.g**2) + xp.sum((self.S - eye) ** 2) / 2)
        if not math.isfinite(squared):
            raise Diverged("the residual of the ensemble is not finite")
        return math.sqrt(squared / self.g.shape[0])
