"""Gaussians of low rank, and what lies outside their basis.

A `LowRankGaussian` is N(mean, basis basis'). A basis of r directions cannot carry the covariance of P parameters; the
rest is its `Complement`, which keeps the prior where the data determine nothing and has their curvature where they do.
It is diagonal in an orthogonal frame that fits the data: with the prior root A on features, the eigenvectors Qa of the
features' Gram matrix and Qb of the average curvature between classes,

    theta = m0 + A Qa W Qb',        W (D, K) the coordinates in the frame,  left = A Qa,  right = Qb.

The distribution has the precision "diagonal + low rank" in these coordinates, that is, with variance = 1 / (diagonal) =
diag(k) and orthonormal directions B (P, r),

    cov = k^{1/2} ( B diag(1 / tightening) B' + I - B B' ) k^{1/2},

whose first part is basis basis' with basis = k^{1/2} B diag(tightening^{-1/2}), and whose second is the complement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse

from enkbayes.engine.arrays import Array, epsilon, identity, like, namespace, row_slices, square, thin_svd

AT_ONCE = 2**24  # numbers of particles that are drawn together


@dataclass(frozen=True, eq=False)
class Frame:
    """Coordinates W (D, K) of parameters: left (D, D), or (D,) when it is diagonal, and right (K, K), which is (1, 1)
    for a single logit. D counts the intercept.
    """

    left: Array
    right: Array
    intercept: bool

    @property
    def shape(self) -> tuple[int, int]:
        """(D, K)."""
        return int(self.left.shape[0]), int(self.right.shape[0])

    def features(self, rows: Array) -> Array:
        """Return the features (n, D) seen from the frame, so that logits are features @ W @ right'."""
        if self.left.ndim == 2:
            D = self.left.shape[0] - self.intercept
            seen = rows @ self.left[:D, :]
            return seen + self.left[D, :] if self.intercept else seen
        ones = np.ones((rows.shape[0], 1))
        if scipy.sparse.issparse(rows):
            whole = scipy.sparse.hstack([rows, ones]) if self.intercept else rows
            return whole.multiply(np.asarray(self.left)).tocsr()
        whole = namespace(rows).concat([rows, like(ones, rows)], axis=1) if self.intercept else rows
        return whole * self.left

    def logits(self, features: Array, W: Array) -> Array:
        """Return the logits, still in the frame of `right`, of columns W (P, c): (n, K, c)."""
        D, K = self.shape
        xp = namespace(W)
        return xp.reshape(features @ xp.reshape(W, (D, -1)), (features.shape[0], K, -1))

    def logit_variances(self, features: Array, variance: Array) -> Array:
        """Return the variances (n, K) of the same logits when the coordinates are independent with variance (P,)."""
        return square(features) @ namespace(variance).reshape(variance, self.shape)

    def pull_back(self, features: Array, slopes: Array) -> Array:
        """Return the transpose of `logits`: (P, c) from slopes (n, K, c)."""
        xp = namespace(slopes)
        flat = features.T @ xp.reshape(slopes, (slopes.shape[0], -1))
        return xp.reshape(flat, (-1, slopes.shape[-1]))

    def pull_back_squares(self, features: Array, curvatures: Array) -> Array:
        """Return the transpose of `logit_variances`: (P,) from curvatures (n, K)."""
        return namespace(curvatures).reshape(square(features).T @ curvatures, (-1,))

    def parameters(self, w: Array) -> Array:
        """Return the parameters (J, P), relative to the prior's mean, of coordinates w (J, P)."""
        D, K = self.shape
        xp = namespace(w)
        W = xp.reshape(w, (-1, D, K))
        W = xp.matmul(self.left, W) if self.left.ndim == 2 else self.left[:, None] * W
        return xp.reshape(xp.matmul(W, self.right.mT), (-1, D * K))

    def coordinates(self, parameters: Array) -> Array:
        """Return the coordinates (J, P) of parameters (J, P) relative to the prior's mean."""
        D, K = self.shape
        xp = namespace(parameters)
        W = xp.matmul(xp.reshape(parameters, (-1, D, K)), self.right)
        if self.left.ndim == 1:
            return xp.reshape(W / self.left[:, None], (-1, D * K))
        across = xp.reshape(xp.permute_dims(W, (1, 0, 2)), (D, -1))
        W = xp.permute_dims(xp.reshape(xp.linalg.solve(self.left, across), (D, -1, K)), (1, 0, 2))
        return xp.reshape(W, (-1, D * K))

    @property
    def log_volume(self) -> float:
        """Log |det| of the map from coordinates to parameters."""
        xp = namespace(self.left)
        logs = xp.log(xp.abs(self.left)) if self.left.ndim == 1 else xp.linalg.slogdet(self.left)[1]
        return float(xp.sum(logs)) * self.shape[1]

    def to(self, reference: Array) -> Frame:
        """Return the same frame in the library, dtype and device of `reference`."""
        return replace(self, left=like(self.left, reference), right=like(self.right, reference))


@dataclass(frozen=True, eq=False)
class Complement:
    """The distribution outside the basis: frame, variance k (P,) of its coordinates, tightening (r,) of the basis
    directions, and the seed from which the particles' parts outside the basis are drawn.
    """

    frame: Frame
    variance: Array
    tightening: Array
    seed: int

    def directions(self, basis: Array) -> Array:
        """Return the orthonormal B (P, r) of a basis (P, r)."""
        xp = namespace(basis)
        w = self.frame.coordinates(basis.mT).mT
        return w / xp.sqrt(self.variance)[:, None] * xp.sqrt(self.tightening)

    def unwhiten(self, basis: Array, xi: Array) -> Array:
        """Return k^{1/2} (I - B B') xi as parameters, and B' xi, the coordinates in the basis: (J, P) and (J, r) for xi
        (J, P).
        """
        return self._outside(self.directions(basis), xi)

    def _outside(self, B: Array, xi: Array) -> tuple[Array, Array]:
        inside = xi @ B
        return self.frame.parameters((xi - inside @ B.mT) * namespace(B).sqrt(self.variance)), inside

    def whiten(self, basis: Array, parameters: Array) -> Array:
        """Return xi (J, P) of parameters (J, P) relative to the mean, as `unwhiten` makes them, basis included:
        xi = y + B (tightening^{1/2} - 1) B' y for y = k^{-1/2} w.
        """
        xp = namespace(basis)
        B = self.directions(basis)
        y = self.frame.coordinates(parameters) / xp.sqrt(self.variance)
        return y + ((y @ B) * (xp.sqrt(self.tightening) - 1)) @ B.mT

    def draws(self, basis: Array, size: int) -> Array:
        """Return the part of `size` particles outside the basis, (size, P), always the same."""
        rng, B, P = np.random.default_rng((self.seed, 5)), self.directions(basis), int(basis.shape[0])
        groups = row_slices(size, max(1, AT_ONCE // P))
        parts = [self._outside(B, like(rng.standard_normal((g.stop - g.start, P)), basis))[0] for g in groups]
        return namespace(basis).concat(parts, axis=0)

    def log_volume(self) -> float:
        """Log det cov^{1/2} of the whole distribution, basis included."""
        xp = namespace(self.variance)
        return self.frame.log_volume + float(xp.sum(xp.log(self.variance)) - xp.sum(xp.log(self.tightening))) / 2

    def logit_columns(self, rows: Array, V: Array) -> Array:
        """Return columns (n, 1) or (n, K, K) whose products are the logits' covariance outside the basis with logits V
        (n, r) or (n, K, r).
        """
        xp = namespace(V)
        s = self.frame.logit_variances(self.frame.features(rows), self.variance)
        inside = V * xp.sqrt(self.tightening)
        if V.ndim == 2:
            rest = s[:, 0] - xp.sum(inside * inside, axis=1)
            return xp.sqrt(xp.maximum(rest, xp.zeros_like(rest)))[:, None]
        K, rank = V.shape[1:]
        if rank < K // 2:
            eye = identity(K, V)
            seen = xp.matmul(self.frame.right.mT, inside)
            return xp.matmul(narrowed(s, seen, xp.ones_like(self.tightening), eye[None, :, :]), self.frame.right.mT).mT
        rest = xp.matmul(self.frame.right * s[:, None, :], self.frame.right.mT) - xp.matmul(inside, inside.mT)
        w, Q = xp.linalg.eigh(rest)
        return Q * xp.sqrt(xp.maximum(w, xp.zeros_like(w)))[:, None, :]

    def variances(self, basis: Array) -> Array:
        """Return the diagonal of `cov`, (P,), without forming it."""
        xp = namespace(basis)
        k = xp.reshape(self.variance, self.frame.shape)
        across = self.frame.left**2 @ k if self.frame.left.ndim == 2 else self.frame.left[:, None] ** 2 * k
        return xp.reshape(across @ (self.frame.right**2).mT, (-1,)) - basis**2 @ self.tightening

    def cov(self, basis: Array) -> Array:
        """Return the covariance outside the basis, (P, P)."""
        eye = identity(basis.shape[0], basis)
        root, _ = self.unwhiten(basis, eye)
        return root.mT @ root

    def to(self, reference: Array) -> Complement:
        """Return the same complement in the library, dtype and device of `reference`."""
        variance, tightening = like(self.variance, reference), like(self.tightening, reference)
        return Complement(self.frame.to(reference), variance, tightening, self.seed)


@dataclass(frozen=True, eq=False)
class LowRankGaussian:
    """N(mean, cov), cov = basis basis' plus the complement's part: mean (P,), basis (P, r).

    >>> gaussian = LowRankGaussian(np.asarray([1.0, 2.0]), np.asarray([[2.0], [0.0]]))
    >>> gaussian.cov.tolist(), gaussian.freedom
    ([[4.0, 0.0], [0.0, 0.0]], 1)
    """

    mean: Array
    basis: Array
    complement: Complement | None = None

    @property
    def rank(self) -> int:
        """The number r of directions of the basis."""
        return int(self.basis.shape[1])

    @property
    def freedom(self) -> int:
        """The number of directions with any spread: r, or P with a complement."""
        return self.rank if self.complement is None else int(self.mean.shape[0])

    @property
    def cov(self) -> Array:
        """The covariance (P, P)."""
        inside = self.basis @ self.basis.mT
        return inside if self.complement is None else inside + self.complement.cov(self.basis)

    @property
    def variances(self) -> Array:
        """The diagonal of cov, (P,)."""
        inside = namespace(self.basis).sum(self.basis**2, axis=1)
        return inside if self.complement is None else inside + self.complement.variances(self.basis)

    def variances_of(self, rows: Array, outputs: Array) -> Array:
        """Return the variances of the linear functions kron(rows, outputs) of theta, for sparse rows (m, D) of numpy
        and outputs (c, K): m c of them, those of a row side by side.

        >>> gaussian = LowRankGaussian(np.zeros(2), np.asarray([[2.0], [1.0]]))
        >>> gaussian.variances_of(scipy.sparse.csr_array([[1.0, 0.0], [1.0, -1.0]]), np.eye(1)).tolist()
        [4.0, 1.0]
        """
        inside = square(scipy.sparse.kron(rows, outputs, format="csr") @ self.basis)
        if self.complement is None:
            return inside.sum(axis=1)
        frame, k = self.complement.frame, self.complement.variance
        seen = rows @ frame.left if frame.left.ndim == 2 else rows.multiply(frame.left)
        free = (square(seen) @ k.reshape(frame.shape)) @ square(outputs @ frame.right).T
        return free.reshape(-1) + inside @ (1 - self.complement.tightening)

    def unwhiten(self, z: Array) -> Array:
        """Return theta (n, P) for standard coordinates z (n, freedom): standard normal z give draws of N(mean, cov)."""
        if self.complement is None:
            return self.mean + z @ self.basis.mT
        outside, inside = self.complement.unwhiten(self.basis, z)
        return self.mean + inside @ self.basis.mT + outside

    def whiten(self, theta: Array) -> Array:
        """Return z (n, freedom) of theta (n, P): the inverse of `unwhiten`, within the span if there is no complement.

        >>> gaussian = LowRankGaussian(np.zeros(2), np.asarray([[2.0], [0.0]]))
        >>> gaussian.whiten(gaussian.unwhiten(np.asarray([[3.0]]))).tolist()
        [[3.0]]
        """
        if self.complement is not None:
            return self.complement.whiten(self.basis, theta - self.mean)
        u, s, vt = thin_svd(self.basis)
        return ((theta - self.mean) @ u / s) @ vt

    @property
    def log_volume(self) -> float:
        """Log |det| of `unwhiten` (of its restriction to the span, where it has one)."""
        if self.complement is not None:
            return self.complement.log_volume()
        xp = namespace(self.basis)
        return float(xp.sum(xp.log(xp.linalg.svdvals(self.basis))))

    def to(self, reference: Array) -> LowRankGaussian:
        """Return the same Gaussian in the library, dtype and device of `reference`."""
        complement = None if self.complement is None else self.complement.to(reference)
        return LowRankGaussian(like(self.mean, reference), like(self.basis, reference), complement)


def narrowed(s: Array, E: Array, shrink: Array, xi: Array) -> Array:
    """Return draws (n, H, K) of N(0, diag(s) - E diag(shrink) E') from standard normal xi (n, H, K), for shrink >= 0.

    With F = diag(s)^{-1/2} E diag(shrink)^{1/2} and A = I + chol(I - F'F) a root is diag(s)^{1/2} (I - F A^{-1} F'),
    since (A - I)(A - I)' = I - F'F. With r >= K the K x K factor is cheaper.
    """
    xp = namespace(s)
    K, rank = E.shape[1:]
    if rank == 0:
        return xi * xp.sqrt(s)[:, None, :]
    round_off = 8 * K * epsilon(E)
    if rank >= K:
        eye = identity(K, E)
        cov = ((1 + round_off) * s + xp.finfo(s.dtype).smallest_normal ** 0.5)[:, :, None] * eye
        return xp.matmul(xi, xp.linalg.cholesky(cov - xp.matmul(E * shrink, E.mT)).mT)
    root = xp.sqrt(xp.maximum(s, xp.full_like(s, xp.finfo(s.dtype).smallest_normal)))
    F = E * xp.sqrt(shrink) / root[:, :, None]
    eye = identity(rank, E)
    A = eye + xp.linalg.cholesky((1 + round_off) * eye - xp.matmul(F.mT, F))
    inner = xp.linalg.solve(A, xp.matmul(F.mT, xi.mT))
    return (xi - xp.matmul(F, inner).mT) * root[:, None, :]
