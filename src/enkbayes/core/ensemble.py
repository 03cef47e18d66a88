"""An ensemble that moves by one affine map.

Every particle of the deterministic systems moves by the *same* affine map, so the state of a run is not J vectors but

    theta_j = mean + basis @ points_j        points (J, r): zero mean, identity second moment, fixed during the run
    P = basis @ basis.T                      r = min(P, J - 1)

and one update, `transform`, moves everything. An algorithm is a pair of functions of the eigenvalues w of S (see
`core/moments.py`):

    ================================  ======================  =====================================
    algorithm                         gain(w)                 scale(w)
    ================================  ======================  =====================================
    homotopy, exact frozen flow       ds / (1 + ds w)         (1 + ds w)^(-1/2)
    equilibrium, exact frozen flow    tau / (1 - tau + tau w) (1 - tau + tau w)^(-1/2)
    Algorithm 1, tamed                ds                      (1 + 1 / (1 + ds w)) / 2
    ================================  ======================  =====================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from enkbayes.core.low_rank import Complement, LowRankGaussian
from enkbayes.core.moments import Moments
from enkbayes.engine import product
from enkbayes.engine.arrays import Array, alike, epsilon, like, namespace, thin_svd


def affine_map(
    moments: Moments, gain: Callable[[Array], Array], scale: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Return shift (r,) and root (r, r) of the affine map: with S = U diag(w) U',

    shift = -U (gain(w) * (U' g)),    root = U diag(scale(w)) U'.
    """
    w, U = moments.spectrum
    return -(U @ (gain(w) * (U.mT @ moments.g))), product(U * scale(w), U.mT)


@dataclass(frozen=True, eq=False)
class AffineEnsemble:
    """J particles theta_j = mean + basis @ points_j, with mean (P,), basis (P, r) and points (J, r).

    A small ensemble of a large model may have a `complement`, the distribution outside the basis; every particle then
    has a part of it as well.

    >>> import numpy as np
    >>> ensemble = AffineEnsemble(np.asarray([1.0]), np.asarray([[2.0]]), np.asarray([[-1.0], [1.0]]))
    >>> ensemble.theta.tolist(), ensemble.cov.tolist()
    ([[-1.0], [3.0]], [[4.0]])
    """

    mean: Array
    basis: Array
    points: Array
    complement: Complement | None = None

    @classmethod
    def factor(cls, theta: Array) -> AffineEnsemble:
        """Return the ensemble with the particles theta (J, P); r is the rank of their deviations, at most min(P, J -
        1).

        >>> import numpy as np
        >>> theta = np.random.default_rng(0).standard_normal((5, 8))
        >>> ensemble = AffineEnsemble.factor(theta)
        >>> ensemble.rank, bool(np.allclose(ensemble.theta, theta))
        (4, True)
        """
        xp = namespace(theta)
        mean = xp.mean(theta, axis=0)
        u, s, vt = thin_svd(theta - mean)
        floor = epsilon(theta) * max(theta.shape) * max(float(s[0]), float(xp.max(xp.abs(theta))))
        rank = min(int(xp.sum(xp.astype(s > floor, xp.int64))), theta.shape[1], theta.shape[0] - 1)
        if rank == 0:
            raise ValueError("all particles are equal; expected an ensemble with some spread")
        root = math.sqrt(theta.shape[0])
        return cls(mean, vt[:rank, :].mT * (s[:rank] / root), u[:, :rank] * root)

    @classmethod
    def point(cls, mean: Array, size: int = 1) -> AffineEnsemble:
        """Return the ensemble of `size` equal particles, which spans nothing: a point estimate (P,)."""
        xp = namespace(mean)
        nothing = xp.zeros((mean.shape[0], 0), dtype=mean.dtype, device=mean.device)
        return cls(mean, nothing, xp.zeros((size, 0), dtype=mean.dtype, device=mean.device))

    def scaled(self, scale: float, spread: float = 1.0) -> AffineEnsemble:
        """Return the ensemble of N(c m, c^2 s P) for a scale c and a spread s of N(m, P); a spread of 0 leaves the
        point c m.

        >>> import numpy as np
        >>> ensemble = AffineEnsemble(np.asarray([1.0]), np.asarray([[2.0]]), np.asarray([[-1.0], [1.0]]))
        >>> ensemble.scaled(2.0, 0.25).theta.tolist(), ensemble.scaled(2.0, 0.0).theta.tolist()
        ([[0.0], [4.0]], [[2.0], [2.0]])
        """
        if spread == 0:
            return AffineEnsemble.point(scale * self.mean, self.size)
        root, complement = scale * math.sqrt(spread), self.complement
        wider = None if complement is None else replace(complement, variance=complement.variance * root**2)
        return AffineEnsemble(self.mean * scale, self.basis * root, self.points, wider)

    @property
    def rank(self) -> int:
        """The dimension r of the affine space in which the particles live."""
        return int(self.basis.shape[1])

    @property
    def size(self) -> int:
        """The number of particles J."""
        return int(self.points.shape[0])

    @cached_property
    def theta(self) -> Array:
        """The particles (J, P)."""
        inside = self.mean + product(self.points, self.basis.mT)
        return inside if self.complement is None else inside + self.complement.draws(self.basis, self.size)

    @cached_property
    def antithetic_half(self) -> Array | None:
        """The first half of the points (J / 2, r) if the others are their mirror images -x, otherwise None.

        >>> import numpy as np
        >>> AffineEnsemble(np.zeros(1), np.eye(1), np.asarray([[1.0], [2.0], [-1.0], [-2.0]])).antithetic_half.tolist()
        [[1.0], [2.0]]
        """
        n = self.size // 2
        first, second = self.points[:n, :], self.points[n:, :]
        mirrored = 2 * n == self.size and self.complement is None and bool(namespace(first).all(second == -first))
        return first if mirrored else None

    @cached_property
    def deviations(self) -> Array:
        """The deviations x (J / 2, P) of an ensemble whose particles are mean + x and mean - x."""
        return product(self.antithetic_half, self.basis.mT)

    @cached_property
    def gaussian(self) -> LowRankGaussian:
        """N(mean, P): the Gaussian whose points the particles are."""
        return LowRankGaussian(self.mean, self.basis, self.complement)

    @property
    def cov(self) -> Array:
        """P = basis basis' (P, P), and the complement's part."""
        return self.gaussian.cov

    @property
    def variances(self) -> Array:
        """The diagonal of cov, (P,)."""
        return self.gaussian.variances

    @property
    def freedom(self) -> int:
        """The number of directions in which N(mean, cov) has any spread: r, or P with a complement."""
        return self.gaussian.freedom

    def to(self, reference: Array) -> AffineEnsemble:
        """Return the same ensemble in the library, dtype and device of `reference`: itself, if it is there already."""
        if alike(self.mean, reference):
            return self
        complement = None if self.complement is None else self.complement.to(reference)
        mean, basis, points = (like(x, reference) for x in (self.mean, self.basis, self.points))
        return AffineEnsemble(mean, basis, points, complement)

    def transform(
        self, moments: Moments, gain: Callable[[Array], Array], scale: Callable[[Array], Array]
    ) -> AffineEnsemble:
        """The one update of every deterministic algorithm: the affine map made of gain and scale, applied to all
        particles.
        """
        return self.affine(*affine_map(moments, gain, scale))

    def affine(self, shift: Array, root: Array) -> AffineEnsemble:
        """Return the ensemble with mean + basis @ shift and basis @ root, for shift (r,) and root (r, r)."""
        return replace(self, mean=self.mean + self.basis @ shift, basis=product(self.basis, root))

    def move(self, coordinates: Array) -> AffineEnsemble:
        """Return the ensemble theta_j = mean + basis @ coordinates_j for coordinates (J, r) of any kind (they may be
        noisy).
        """
        inner = AffineEnsemble.factor(coordinates)
        return AffineEnsemble(self.mean + self.basis @ inner.mean, self.basis @ inner.basis, inner.points)
