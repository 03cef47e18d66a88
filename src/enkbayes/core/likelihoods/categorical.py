"""Labels d in {0, ..., K-1} with K logits: p = softmax(z), loss = logsumexp(z) - z[d]."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from enkbayes.core.arguments import is_whole
from enkbayes.core.likelihoods.base import Averages, Likelihood, weighted
from enkbayes.core.moments import Diverged
from enkbayes.core.quadrature import GaussianPoints
from enkbayes.engine.arrays import Array, all_finite, identity, namespace, one_hot, softmax, symmetric


@dataclass(frozen=True)
class Categorical(Likelihood):
    """The likelihood of softmax regression with K classes; theta is (D, K) flattened row by row.

    With Lambda = diag(p) - p p', the moments are g = sum_n V_n' (pbar_n - t_n) and S = sum_n V_n' mu[Lambda]_n V_n,
    where V_n is (K, r). Where r < K the K x K matrices mu[Lambda]_n are never formed.

    There are two ways to average the curvature over Gaussian logits, and each is accurate where the other is not: the
    mean of Lambda, for narrow logits; and for wide ones, where Lambda is a spike at the class boundaries that few
    points hit, the derivative of the averaged loss in the covariance (`GaussianPoints.hessian`), which needs
    probabilities only. Each row blends them by the variance of its logits: half of each at the standard deviation
    `wide`. A weight of the second below `negligible` counts as zero, because its inverse roots would be round-off.

    >>> import numpy as np
    >>> Categorical(2).mean(np.asarray([[0.0, 0.0]])).tolist()
    [[0.5, 0.5]]
    """

    shift_invariant: ClassVar[bool] = True
    wide: ClassVar[float] = 5.0
    negligible: ClassVar[float] = 1e-3
    outputs: int = field()  # without it the dataclass would take the base's None for a default

    def __post_init__(self) -> None:
        if not is_whole(self.outputs, 2):
            raise ValueError(
                f"the number of classes of a softmax is {self.outputs!r}; expected a whole number, at least 2"
            )

    @property
    def n_classes(self) -> int:  # type: ignore[override]
        """K."""
        return self.outputs

    def loss(self, logits: Array, targets: Array) -> Array:
        """Return logsumexp(z) - z[d] (n, J) for logits (n, J, K)."""
        xp = namespace(logits)
        return softmax(logits)[1] - xp.sum(logits * one_hot(targets, logits)[:, None, :], axis=-1)

    def slope(self, logits: Array, targets: Array) -> Array:
        """Return p - t (n, J, K) for logits (n, J, K)."""
        return softmax(logits)[0] - one_hot(targets, logits)[:, None, :]

    def curvature(self, logits: Array, targets: Array) -> Array:
        """Return Lambda = diag(p) - p p' (n, J, K, K) for logits (n, J, K)."""
        p = softmax(logits)[0]
        return p[..., None] * identity(self.outputs, p) - p[..., None] * p[..., None, :]

    def mean(self, logits: Array) -> Array:
        """Return the class probabilities (..., K) for logits (..., K)."""
        return softmax(logits)[0]

    def averages(self, logits: Array, targets: Array, *, energy: bool = True) -> Averages:
        """Return loss (n,), slope pbar - t (n, K) and curvature mu[Lambda] (n, K, K) from logits (n, J, K)."""
        p, log_sum = softmax(logits)
        loss, slope = _loss_and_slope(p, log_sum, _mean(logits), targets)
        return loss, slope, _mean_curvature(p)

    def gaussian_averages(self, mean_logits: Array, targets: Array, *, V: Array, refine: int = 0) -> Averages:
        """Return loss (n,), slope (n, K) and curvature (n, K, K) of each row for logits N(mean_logits, V V')."""
        xp, wide = namespace(V), self._share_of_wide(V)
        rule = GaussianPoints.of(V, refine)
        p, log_sum = softmax(rule.logits(mean_logits))
        loss, slope = _loss_and_slope(p, log_sum, mean_logits, targets)
        curvature = _mean_curvature(p)
        if bool(xp.any(wide > 0)):
            curvature = weighted(curvature, 1 - wide) + weighted(rule.hessian(p), wide)
        return loss, slope, symmetric(curvature)

    def predictive(self, mean_logits: Array, *, V: Array) -> Array:
        """Return the expected class probabilities (n, K); their sum is 1 in single precision, too."""
        p = super().predictive(mean_logits, V=V)
        return p / namespace(p).sum(p, axis=-1, keepdims=True)

    def _share_of_wide(self, V: Array) -> Array:
        """Return the weight (n,) of the second average of the curvature."""
        xp = namespace(V)
        variance = xp.sum(V * V, axis=(1, 2)) / V.shape[1]
        if not all_finite(variance):
            raise Diverged("the variances of the logits are not finite")
        share = variance / (variance + self.wide**2)
        return xp.where(share > self.negligible, share, xp.zeros_like(share))


def _mean(x: Array) -> Array:
    """Return the mean (n, K) of x (n, Q, K) over Q, as a product: several times faster than a reduction in numpy."""
    xp = namespace(x)
    share = xp.full((1, x.shape[1]), 1 / x.shape[1], dtype=x.dtype, device=x.device)
    return xp.matmul(share, x)[:, 0, :]


def _loss_and_slope(p: Array, log_sum: Array, mean_logits: Array, targets: Array) -> tuple[Array, Array]:
    """Return loss (n,) and slope pbar - t (n, K) from probabilities p (n, Q, K) and log-sum-exps (n, Q)."""
    xp = namespace(p)
    t = one_hot(targets, p)
    return xp.mean(log_sum, axis=1) - xp.sum(mean_logits * t, axis=-1), _mean(p) - t


def _mean_curvature(p: Array) -> Array:
    """Return mu[Lambda] = diag(pbar) - mean_q p_q p_q' (n, K, K) from probabilities p (n, Q, K).

    pbar is taken as the row sums of mean_q p_q p_q', so that Lambda 1 = 0 in any precision.
    """
    xp = namespace(p)
    eye = identity(p.shape[-1], p)
    products = xp.matmul(p.mT, p) / p.shape[1]
    return xp.sum(products, axis=-1)[:, :, None] * eye - products
