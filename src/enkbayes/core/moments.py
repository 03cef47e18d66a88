"""What the data tell an ensemble: two small sums over data points, in the coordinates of the ensemble's basis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from enkbayes.engine.arrays import Array, all_finite, namespace, symmetric
from enkbayes.engine.threads import product
from enkbayes.solvers.roots import inverse_root


class Diverged(ArithmeticError):
    """The moments are no longer finite: the ensemble has left the range of floating-point numbers."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Several sums over the same data, which add up together.

    >>> (Sums((1.0, 2.0)) + Sums((3.0, 4.0))).parts
    (4.0, 6.0)
    """

    parts: tuple[Array, ...]

    def __add__(self, other: Sums) -> Sums:
        return Sums(tuple(a + b for a, b in zip(self.parts, other.parts, strict=True)))

    def __sub__(self, other: Sums) -> Sums:
        return self + other * -1.0

    def __mul__(self, factor: float) -> Sums:
        return Sums(tuple(factor * a for a in self.parts))


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

    @classmethod
    def seen(cls, sums: Sums, basis: Array) -> Moments:
        """Return the moments of sums (loss, gradient (P,), Hessian (P, P)) in the parameters."""
        loss, gradient, hessian = sums.parts
        return cls(loss, basis.mT @ gradient, _congruent(basis, hessian))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.loss + other.loss, self.g + other.g, self.S + other.S)

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
    def near_root(self) -> Array | None:
        """S^{-1/2} where S is near a multiple of the identity, None elsewhere: see `solvers/roots.py`."""
        return inverse_root(self.S)

    @cached_property
    def residual(self) -> float:
        """Natural-gradient norm eps = sqrt((|g|^2 + |I - S|_F^2 / 2) / r): affine invariant, zero exactly at
        equilibrium.

        For the moments of the whole potential this is METHOD's step-free stopping quantity: g'Pg and ||I - P^(1/2) H
        P^(1/2)||.
        """
        xp = namespace(self.g)
        eye = xp.eye(self.g.shape[0], dtype=self.g.dtype, device=self.g.device)
        squared = float(xp.sum(self.g**2) + xp.sum((self.S - eye) ** 2) / 2)
        if not math.isfinite(squared):
            raise Diverged("the residual of the ensemble is not finite")
        return math.sqrt(squared / self.g.shape[0])


def _congruent(basis: Array, H: Array) -> Array:
    """Return basis' H basis (r, r); without products for a diagonal basis, as whitened draws of many a prior have."""
    if type(basis) is np.ndarray and basis.shape[0] == basis.shape[1]:
        scale = np.diagonal(basis)
        if np.count_nonzero(basis) == np.count_nonzero(scale):
            return scale[:, None] * H * scale
    return product(basis.mT, product(H, basis))
