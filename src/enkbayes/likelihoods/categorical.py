"""Labels d in {0, ..., K-1} with K logits: p = softmax(z), Psi = sum_n logsumexp(z_n) - z_n[d_n]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from enkbayes.arrays import Array, all_finite, epsilon, like, namespace, softmax
from enkbayes.expectations import quasi_random_points
from enkbayes.moments import Diverged, Moments


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
        return _softmax_moments(p, log_sum, namespace(logits).mean(logits, axis=1), V, targets, weights)

    def closure(self, mean_logits: Array, V: Array, targets: Array, weights: Array | None, refine: int = 0) -> Moments:
        """The same sums for logits z_n ~ N(mean_logits_n, V_n V_n'), by whitened quasi-random points shared by all
        data.
        """
        if not all_finite(namespace(V).sum(V * V)):
            raise Diverged("the variances of the logits are not finite")
        p, log_sum = softmax(_gaussian_logits(mean_logits, V, refine))
        return _softmax_moments(p, log_sum, mean_logits, V, targets, weights)

    def loss(self, logits: Array, targets: Array, weights: Array | None) -> Array:
        """Return Psi (J,) of logits (n, J, K)."""
        xp = namespace(logits)
        log_sum = softmax(logits)[1]
        terms = log_sum - xp.sum(logits * _one_hot(targets, logits)[:, None, :], axis=-1)
        return xp.sum(terms if weights is None else weights[:, None] * terms, axis=0)

    def probabilities(self, logits: Array) -> Array:
        """Return (..., K) for logits (..., K)."""
        return softmax(logits)[0]

    def predictive(self, mean_logits: Array, V: Array) -> Array:
        """Return E of the class probabilities (n, K) for Gaussian logits."""
        return namespace(V).mean(softmax(_gaussian_logits(mean_logits, V))[0], axis=1)


def _one_hot(targets: Array, reference: Array) -> Array:
    """Return (n, K) indicators of class numbers (n,), in the dtype of `reference` (..., K)."""
    xp = namespace(reference)
    classes = xp.arange(reference.shape[-1], dtype=targets.dtype, device=targets.device)
    return xp.astype(targets[:, None] == classes, reference.dtype)


def _softmax_moments(
    p: Array, log_sum: Array, mean_logits: Array, V: Array, targets: Array, weights: Array | None
) -> Moments:
    """Return the moments from probabilities p (n, Q, K), log-sum-exps (n, Q), mean logits (n, K), V (n, K, r)."""
    xp = namespace(V)
    pbar, t = xp.mean(p, axis=1), _one_hot(targets, p)
    slope = pbar - t
    loss = xp.mean(log_sum, axis=1) - xp.sum(mean_logits * t, axis=-1)
    if weights is not None:
        slope, loss = weights[:, None] * slope, weights * loss
    g = xp.sum(xp.matmul(V.mT, slope[:, :, None]), axis=0)[:, 0]
    curvature = _curvature_by_points if V.shape[-1] < V.shape[1] else _curvature_by_rows
    return Moments(xp.sum(loss), g, curvature(p, pbar, V, weights))


def _curvature_by_rows(p: Array, pbar: Array, V: Array, weights: Array | None) -> Array:
    """Return S = sum_n V_n' mu[Lambda]_n V_n, one row of the mu[Lambda]_n at a time: cheapest for few classes."""
    xp = namespace(V)
    S = xp.zeros((V.shape[-1], V.shape[-1]), dtype=V.dtype, device=V.device)
    for k in range(V.shape[1]):
        row = -xp.matmul(p.mT, p[:, :, k][:, :, None])[:, :, 0] / p.shape[1]  # without the diagonal pbar_k
        pulled = xp.matmul(row[:, None, :], V)[:, 0, :] + pbar[:, k][:, None] * V[:, k, :]
        S = S + V[:, k, :].mT @ (pulled if weights is None else weights[:, None] * pulled)
    return S


def _curvature_by_points(p: Array, pbar: Array, V: Array, weights: Array | None) -> Array:
    """Return S = sum_nk pbar_nk V_nk V_nk' - mean_q sum_n (V_n' p_nq)(V_n' p_nq)': cheapest for more classes than r."""
    xp = namespace(V)
    w = xp.ones_like(pbar[:, 0]) if weights is None else weights
    rank = V.shape[-1]
    flat = xp.reshape(V, (-1, rank))
    pulled = xp.reshape(xp.matmul(p, V) * xp.sqrt(w / p.shape[1])[:, None, None], (-1, rank))
    return flat.mT @ (xp.reshape(w[:, None] * pbar, (-1,))[:, None] * flat) - pulled.mT @ pulled


def _gaussian_logits(mean_logits: Array, V: Array, refine: int = 0) -> Array:
    """Return quasi-random logits (n, Q, K) with the mean (n, K) and covariance V_n V_n'.

    The points live in the smaller of the two spaces: the r coordinates, or the K logits of each datum through the
    Cholesky factor of their covariance, which then is no larger than V itself.
    """
    xp = namespace(V)
    K, rank = V.shape[1:]
    if rank < K:
        return mean_logits[:, None, :] + xp.matmul(like(quasi_random_points(rank, 8 + 2 * refine), V), V.mT)
    cov = xp.matmul(V, V.mT)
    eye = xp.eye(K, dtype=V.dtype, device=V.device)
    ridge = 4 * K * epsilon(V) * xp.sum(cov * eye, axis=(1, 2)) + xp.finfo(V.dtype).smallest_normal ** 0.5
    root = xp.linalg.cholesky(cov + ridge[:, None, None] * eye)
    return mean_logits[:, None, :] + xp.matmul(like(quasi_random_points(K, 8 + 2 * refine), V), root.mT)
