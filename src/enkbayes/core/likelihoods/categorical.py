"""Labels d in {0, ..., K-1} with K logits: p = softmax(z), Psi = sum_n logsumexp(z_n) - z_n[d_n]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from enkbayes.core.expectations import Averages, quasi_random_points
from enkbayes.core.moments import Diverged, Moments
from enkbayes.engine.arrays import Array, all_finite, epsilon, like, namespace, softmax, symmetric

NARROW = 1e-3  # weight of the second below which the first stands alone: its inverse roots would be round-off
WIDE = 5.0  # logits with this standard deviation get half of their curvature from each of two averages, see `closure`


@dataclass(frozen=True)
class Categorical:
    """The likelihood of softmax regression with K classes; theta is (D, K) flattened row by row.

    With Lambda = diag(p) - p p', the moments are g = sum_n V_n' (pbar_n - t_n) and S = sum_n V_n' mu[Lambda]_n V_n,
    where V_n is (K, r). The K x K matrices mu[Lambda]_n are used one row at a time and never stored.

    >>> import numpy as np
    >>> Categorical(2).probabilities(np.asarray([[0.0, 0.0]])).tolist()
    [[0.5, 0.5]]
    """

    outputs: int
    exact_closure: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.outputs < 2:
            raise ValueError(f"a softmax over {self.outputs} class(es) says nothing; expected at least 2")

    def moments(self, logits: Array, V: Array, targets: Array, weights: Array | None) -> Moments:
        """Averages over the particles' logits (n, J, K); V is (n, K, r), targets are class numbers (n,)."""
        p, log_sum = softmax(logits)
        loss, g = _loss_and_gradient(p, log_sum, namespace(logits).mean(logits, axis=1), V, targets, weights)
        return Moments(loss, g, _curvature(p, V, weights))

    def closure(self, mean_logits: Array, V: Array, targets: Array, weights: Array | None, refine: int = 0) -> Moments:
        """The same sums for logits z_n ~ N(mean_logits_n, V_n V_n'), by whitened quasi-random points.

        There are two ways to average the curvature, and each is accurate where the other is not: the mean of Lambda,
        for narrow logits; and for wide ones, where Lambda is a spike at the class boundaries that few points hit, the
        slope of the averaged loss in the covariance (Price: E[Hess] = 2 dE/dP), taken of the quadrature itself, which
        needs probabilities only. Each datum blends them by the variance of its logits.
        """
        xp = namespace(V)
        variance = xp.sum(V * V, axis=(1, 2)) / V.shape[1]
        if not all_finite(variance):
            raise Diverged("the variances of the logits are not finite")
        rule = _Quadrature.of(V, refine)
        p, log_sum = softmax(rule.logits(mean_logits))
        loss, g = _loss_and_gradient(p, log_sum, mean_logits, V, targets, weights)
        w = xp.ones_like(variance) if weights is None else weights
        wide = w * variance / (variance + WIDE**2)
        return Moments(loss, g, _curvature(p, V, w - wide) + rule.curvature(p, wide))

    def averages(self, logits: Array, targets: Array, *, energy: bool = True) -> Averages:
        """Return loss (n,), slope pbar - t (n, K) and curvature mu[Lambda] (n, K, K) from logits (n, J, K)."""
        xp = namespace(logits)
        p, log_sum = softmax(logits)
        pbar, t = xp.mean(p, axis=1), _one_hot(targets, p)
        loss = xp.mean(log_sum, axis=1) - xp.sum(xp.mean(logits, axis=1) * t, axis=-1)
        return loss, pbar - t, _mean_curvature(p, pbar)

    def gaussian_averages(self, mean_logits: Array, cov: Array, targets: Array, refine: int = 0) -> Averages:
        """Return loss (n,), slope (n, K) and curvature (n, K, K) of each datum for logits N(mean_logits, cov), with the
        curvature blended as in `closure`.
        """
        xp = namespace(cov)
        eye = xp.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
        variance = xp.sum(cov * eye, axis=(1, 2)) / cov.shape[-1]
        if not all_finite(variance):
            raise Diverged("the variances of the logits are not finite")
        rule = _Quadrature.of_cov(cov, refine)
        p, log_sum = softmax(rule.logits(mean_logits))
        pbar, t = xp.mean(p, axis=1), _one_hot(targets, p)
        loss = xp.mean(log_sum, axis=1) - xp.sum(mean_logits * t, axis=-1)
        wide = variance / (variance + WIDE**2)
        curvature = (1 - wide)[:, None, None] * _mean_curvature(p, pbar)
        if bool(xp.any(wide > NARROW)):
            curvature = curvature + xp.where(wide > NARROW, wide, xp.zeros_like(wide))[:, None, None] * rule.slope(p)
        return loss, pbar - t, symmetric(curvature)

    def loss(self, logits: Array, targets: Array, weights: Array | None) -> Array:
        """Return Psi (J,) of logits (n, J, K)."""
        terms = self.terms(logits, targets)
        return namespace(logits).sum(terms if weights is None else weights[:, None] * terms, axis=0)

    def terms(self, logits: Array, targets: Array) -> Array:
        """Return what each datum adds to Psi, (n, J) for logits (n, J, K)."""
        xp = namespace(logits)
        return softmax(logits)[1] - xp.sum(logits * _one_hot(targets, logits)[:, None, :], axis=-1)

    def slope(self, logits: Array, targets: Array, weights: Array | None) -> Array:
        """Return p - t (n, J, K) for logits (n, J, K)."""
        slope = softmax(logits)[0] - _one_hot(targets, logits)[:, None, :]
        return slope if weights is None else weights[:, None, None] * slope

    def curvature(self, logits: Array, weights: Array | None) -> Array:
        """Return Lambda = diag(p) - p p' (n, K, K) for logits (n, K)."""
        xp = namespace(logits)
        p = softmax(logits)[0]
        Lambda = p[:, :, None] * xp.eye(self.outputs, dtype=p.dtype, device=p.device) - p[:, :, None] * p[:, None, :]
        return Lambda if weights is None else weights[:, None, None] * Lambda

    def probabilities(self, logits: Array) -> Array:
        """Return (..., K) for logits (..., K)."""
        return softmax(logits)[0]

    def mean_probabilities(self, logits: Array) -> Array:
        """Return (n, K) from logits (n, J, K)."""
        return namespace(logits).mean(softmax(logits)[0], axis=1)

    def predictive(self, mean_logits: Array, V: Array) -> Array:
        """Return E of the class probabilities (n, K) for Gaussian logits."""
        return namespace(V).mean(softmax(_Quadrature.of(V).logits(mean_logits))[0], axis=1)


def _one_hot(targets: Array, reference: Array) -> Array:
    """Return (n, K) indicators of class numbers (n,), in the dtype of `reference` (..., K)."""
    xp = namespace(reference)
    classes = xp.arange(reference.shape[-1], dtype=targets.dtype, device=targets.device)
    return xp.astype(targets[:, None] == classes, reference.dtype)


def _loss_and_gradient(
    p: Array, log_sum: Array, mean_logits: Array, V: Array, targets: Array, weights: Array | None
) -> tuple[Array, Array]:
    """Return E[Psi] and g = sum_n V_n' (pbar_n - t_n) from probabilities p (n, Q, K) and log-sum-exps (n, Q)."""
    xp = namespace(V)
    t = _one_hot(targets, p)
    slope = xp.mean(p, axis=1) - t
    loss = xp.mean(log_sum, axis=1) - xp.sum(mean_logits * t, axis=-1)
    if weights is not None:
        slope, loss = weights[:, None] * slope, weights * loss
    return xp.sum(loss), xp.sum(xp.matmul(V.mT, slope[:, :, None]), axis=0)[:, 0]


def _mean_curvature(p: Array, pbar: Array) -> Array:
    """Return mu[Lambda] = diag(pbar) - mean_q p_q p_q' (n, K, K) from probabilities p (n, Q, K)."""
    xp = namespace(p)
    eye = xp.eye(p.shape[-1], dtype=p.dtype, device=p.device)
    return pbar[:, :, None] * eye - xp.matmul(p.mT, p) / p.shape[1]


def _curvature(p: Array, V: Array, weights: Array | None) -> Array:
    """Return S = sum_n V_n' mu[Lambda]_n V_n by the cheaper of two ways."""
    return (_curvature_by_points if V.shape[-1] < V.shape[1] else _curvature_by_rows)(p, V, weights)


def _curvature_by_rows(p: Array, V: Array, weights: Array | None) -> Array:
    """Return S = sum_n V_n' mu[Lambda]_n V_n, one row of the mu[Lambda]_n at a time: cheapest for few classes."""
    xp = namespace(V)
    pbar = xp.mean(p, axis=1)
    S = xp.zeros((V.shape[-1], V.shape[-1]), dtype=V.dtype, device=V.device)
    for k in range(V.shape[1]):
        row = -xp.matmul(p.mT, p[:, :, k][:, :, None])[:, :, 0] / p.shape[1]  # without the diagonal pbar_k
        pulled = xp.matmul(row[:, None, :], V)[:, 0, :] + pbar[:, k][:, None] * V[:, k, :]
        S = S + V[:, k, :].mT @ (pulled if weights is None else weights[:, None] * pulled)
    return S


def _curvature_by_points(p: Array, V: Array, weights: Array | None) -> Array:
    """Return S = sum_nk pbar_nk V_nk V_nk' - mean_q sum_n (V_n' p_nq)(V_n' p_nq)': cheapest for more classes than r."""
    xp = namespace(V)
    pbar = xp.mean(p, axis=1)
    w = xp.ones_like(pbar[:, 0]) if weights is None else weights
    rank = V.shape[-1]
    flat = xp.reshape(V, (-1, rank))
    pulled = xp.reshape(xp.matmul(p, V) * xp.sqrt(w / p.shape[1])[:, None, None], (-1, rank))
    return flat.mT @ (xp.reshape(w[:, None] * pbar, (-1,))[:, None] * flat) - pulled.mT @ pulled


@dataclass(frozen=True, eq=False)
class _Quadrature:
    """Quasi-random logits z_nq = zbar_n + root_n x_q with covariance V_n V_n'.

    The points x live in the smaller of two spaces: the r coordinates (root = V, frame None), or the K logits of a
    datum, with the Cholesky factor of their covariance as root (K x K, then no larger than V) and frame root^{-1} V.
    """

    points: Array
    root: Array
    frame: Array | None

    @classmethod
    def of(cls, V: Array, refine: int = 0) -> _Quadrature:
        """Return the rule for V (n, K, r), with 2^(8 + 2 refine) points."""
        xp = namespace(V)
        K, rank = V.shape[1:]
        points = like(quasi_random_points(min(K, rank), 8 + 2 * refine), V)
        if rank < K:
            return cls(points, V, None)
        root = _root(xp.matmul(V, V.mT))
        return cls(points, root, xp.linalg.solve(root, V))

    @classmethod
    def of_cov(cls, cov: Array, refine: int = 0) -> _Quadrature:
        """Return the rule for covariances (n, K, K); its coordinates are the logits themselves."""
        return cls(like(quasi_random_points(cov.shape[-1], 8 + 2 * refine), cov), _root(cov), None)

    def logits(self, mean_logits: Array) -> Array:
        """Return the logits (n, Q, K)."""
        return mean_logits[:, None, :] + namespace(self.root).matmul(self.points, self.root.mT)

    def slope(self, p: Array) -> Array:
        """Return (n, K, K), twice the slope of mean_q Psi_n in the covariance of the logits, for root = Cholesky."""
        xp = namespace(p)
        G = xp.matmul(self.root.mT, xp.matmul(p.mT, self.points)) / self.points.shape[0]
        inverse = xp.linalg.inv(self.root)
        return xp.matmul(inverse.mT, xp.matmul(xp.tril(G) + xp.tril(G, k=-1).mT, inverse))

    def curvature(self, p: Array, weights: Array) -> Array:
        """Return S (r, r), twice the slope of sum_n mean_q Psi_n in the covariance of the coordinates.

        With G = root' mean_q[p x'] a change dT of the basis moves the energy by tr(G dT), or, through the derivative
        of the Cholesky factor, by tr(L dT') where L is the lower triangle of G, mirrored, in the frame of the datum.
        """
        xp = namespace(p)
        G = xp.matmul(self.root.mT, xp.matmul(p.mT, self.points))
        G = (weights / self.points.shape[0])[:, None, None] * G
        if self.frame is None:
            return symmetric(xp.sum(G, axis=0))
        mirrored = xp.tril(G) + xp.tril(G, k=-1).mT
        rank = self.frame.shape[-1]
        flat = xp.reshape(self.frame, (-1, rank))
        return flat.mT @ xp.reshape(xp.matmul(mirrored, self.frame), (-1, rank))


def _root(cov: Array) -> Array:
    """Return Cholesky factors of covariances (n, K, K), with a ridge at the level of round-off."""
    xp = namespace(cov)
    K = cov.shape[-1]
    eye = xp.eye(K, dtype=cov.dtype, device=cov.device)
    ridge = 4 * K * epsilon(cov) * xp.sum(cov * eye, axis=(1, 2)) + xp.finfo(cov.dtype).smallest_normal ** 0.5
    try:
        return xp.linalg.cholesky(cov + ridge[:, None, None] * eye)
    except (np.linalg.LinAlgError, RuntimeError):  # torch's is a RuntimeError
        raise Diverged("the covariances of the logits are not positive definite") from None
