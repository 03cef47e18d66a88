"""Softmax averages over Gaussian logits of many classes, without a K x K matrix for each row.

In a frame that all rows share, the logits of a row are

    z = zbar + right @ e,        e ~ N(0, diag(s) - E diag(shrink) E'),        E (K, r),

with K large and r small. A root of the covariance costs r x r numbers per row (see `narrowed`). Each row uses a few
antithetic pairs of points of its own, chosen by its features. So the errors of different rows are independent and
average out in sums over rows, while a row has the same points in every evaluation, in every chunk, stream or process.
The expectations of the second-order terms are known; as control variates they remove the noise of these terms, and the
remaining error is of fourth order in the spread.

The curvature is Lambda = mean_q [diag(p_q) - p_q p_q'], used through its products with thin matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import scipy.sparse

from enkbayes.core.low_rank import Complement, narrowed
from enkbayes.core.moments import Diverged
from enkbayes.core.quadrature import by_level
from enkbayes.engine.arrays import Array, all_finite, like, namespace, one_hot, softmax, take_rows, to_numpy

VERY_MANY = 200  # number of classes from which predictions use this; below, K x K roots are more accurate
POOL = 4096  # points from which rows choose


@dataclass(frozen=True, eq=False)
class LogitDistribution:
    """The Gaussian logits of n rows: zbar (n, K), right (K, K) orthogonal, s (n, K), E (n, K, r) and shrink (r,), each
    below 1. E is in the frame, that is, right @ E are the logits of the directions. Without `right` the classes are the
    frame.
    """

    zbar: Array
    right: Array | None
    s: Array
    E: Array
    shrink: Array

    @cached_property
    def columns(self) -> Array:
        """The logits of the directions, right @ E (n, K, r)."""
        return self.E if self.right is None else namespace(self.E).matmul(self.right, self.E)

    @cached_property
    def diagonal(self) -> Array:
        """The variances of the logits (n, K)."""
        free = self.s if self.right is None else self.s @ (self.right**2).mT
        return free - namespace(self.E).matmul(self.columns**2, self.shrink)

    def deviations(self, xi: Array) -> Array:
        """Return draws of z - zbar (n, H, K), from standard normal xi (n, H, K + r)."""
        xp = namespace(xi)
        K = self.s.shape[1]
        none = xp.zeros_like(self.shrink)
        if bool(xp.all(self.shrink <= 0)):
            e = xi[..., :K] * xp.sqrt(self.s)[:, None, :]
        else:
            e = narrowed(self.s, self.E, xp.maximum(self.shrink, none), xi[..., :K])
        if bool(xp.any(self.shrink < 0)):
            e = e + xp.matmul(xi[..., K:] * xp.sqrt(xp.maximum(-self.shrink, none)), self.E.mT)
        return e if self.right is None else _turned(e, self.right.mT)

    def products(self, x: Array) -> Array:
        """Return cov @ x (n, K) for x (n, K)."""
        xp = namespace(x)
        inner = x if self.right is None else x @ self.right
        along = xp.matmul(inner[:, None, :], self.E) * self.shrink
        found = self.s * inner - xp.matmul(along, self.E.mT)[:, 0, :]
        return found if self.right is None else found @ self.right.mT


@dataclass(frozen=True, eq=False)
class SoftmaxAverages:
    """Averages for each of n rows: loss (n,), slope (n, K), and the probabilities p (n, Q, K) at its points."""

    loss: Array
    slope: Array
    p: Array

    @property
    def pbar(self) -> Array:
        """The plain mean of the probabilities, (n, K)."""
        return namespace(self.p).mean(self.p, axis=1)

    def curvature_products(self, E: Array) -> Array:
        """Return Lambda @ E (n, K, c) for E (n, K, c)."""
        xp = namespace(E)
        return self.pbar[:, :, None] * E - xp.matmul(self.p.mT, xp.matmul(self.p, E)) / self.p.shape[1]

    def curvature_gram(self, E: Array, weights: Array | None) -> Array:
        """Return sum_n weight_n E_n' Lambda_n E_n (c, c) for E (n, K, c)."""
        xp = namespace(E)
        c = E.shape[-1]
        if c == 0:
            return xp.zeros((0, 0), dtype=E.dtype, device=E.device)
        w = self.pbar if weights is None else weights[:, None] * self.pbar
        flat = xp.reshape(E, (-1, c))
        pulled = xp.matmul(self.p, E)
        if weights is not None:
            pulled = pulled * xp.sqrt(weights)[:, None, None]
        pulled = xp.reshape(pulled, (-1, c))
        return flat.mT @ (xp.reshape(w, (-1, 1)) * flat) - pulled.mT @ pulled / self.p.shape[1]

    def curvature_diagonal(self, right: Array) -> Array:
        """Return the diagonal (n, K) of right' Lambda right."""
        seen = _turned(self.p, right)
        return self.pbar @ right**2 - namespace(seen).mean(seen * seen, axis=1)


def point_averages(zbar: Array, targets: Array) -> SoftmaxAverages:
    """Return the averages for logits without spread."""
    p, log_sum = softmax(zbar)
    t = one_hot(targets, zbar)
    return SoftmaxAverages(log_sum - namespace(zbar).sum(zbar * t, axis=-1), p - t, p[:, None, :])


def gaussian_averages(logits: LogitDistribution, targets: Array, numbers: Array, pairs: int = 16) -> SoftmaxAverages:
    """Return the averages for Gaussian logits over `pairs` antithetic pairs of points per row, which `numbers` (n,) of
    `own_numbers` choose.
    """
    xp = namespace(logits.zbar)
    if not all_finite(xp.sum(logits.s, axis=1)):
        raise Diverged("the variances of the logits are not finite")
    deviations = logits.deviations(own_points(logits.zbar, numbers, pairs, sum(logits.E.shape[1:])))
    p, log_sum = softmax(logits.zbar[:, None, :] + xp.concat([deviations, -deviations], axis=1))
    t = one_hot(targets, p)
    value, shift = _second_order(logits, deviations)
    loss = xp.mean(log_sum, axis=1) + value - xp.sum(logits.zbar * t, axis=-1)
    return SoftmaxAverages(loss, xp.mean(p, axis=1) + shift - t, p)


def predictive(
    features: Array,
    mean_logits: Array,
    V: Array,
    complement: Complement,
    *,
    noise: Array | None = None,
    pairs: tuple[int, ...] = (256, 1024, 2048),
    wide: tuple[float, ...] = (0.5, 1.5),
    at_once: int = 2**22,
) -> Array:
    """Return the expected class probabilities (n, K) under a Gaussian with a complement; V (n, K, r) are the
    logits of its basis, and `noise` (n,) is the variance of independent noise in every logit.

    It approximates `Categorical.predictive` for the columns of V and of `complement.logit_columns`. What the basis
    leaves out is taken as independent between classes, with its own variance for each row and class: no K x K matrix
    meets the points, which would cost hundreds of times more with a thousand classes. The part that all classes of a
    row share is left out, because it is in no probability. Against the full covariance this changed the probabilities
    less than the noise of the points does: with 250 classes a total variation of .02 for logits with a standard
    deviation of 2. There are more pairs of points than in a fit, because no sum over rows averages the errors out, and
    yet more of them for rows whose logits have a standard deviation above `wide`. At most about `at_once` numbers are
    held at a time, in float32.
    """
    xp = namespace(V)
    numbers, dtype = own_numbers(features, mean_logits), mean_logits.dtype
    s, E = _independent(features, V, complement)
    s = s if noise is None else s + noise[:, None]
    zbar, s, E, shrink = (xp.astype(x, xp.float32) for x in (mean_logits, s, E, -1 / complement.tightening))

    def averages(level: int, rows: np.ndarray[Any, Any]) -> tuple[Array]:
        own = take_rows(zbar, rows)
        logits = LogitDistribution(own, None, take_rows(s, rows), take_rows(E, rows), shrink)
        nothing = xp.zeros((len(rows),), dtype=xp.int64, device=V.device)
        p = gaussian_averages(logits, nothing, take_rows(numbers, rows), pairs[level]).slope + one_hot(nothing, own)
        p = xp.astype(xp.maximum(p, xp.zeros_like(p)), dtype)  # the control variates may take a little too much
        return (p / xp.sum(p, axis=-1, keepdims=True),)

    levels = np.searchsorted(np.asarray(wide), to_numpy(xp.mean(s, axis=1)) ** 0.5)
    return by_level(averages, levels, lambda level: at_once // (pairs[level] * sum(V.shape[1:])))[0]


def _independent(features: Array, V: Array, complement: Complement) -> tuple[Array, Array]:
    """Return the variances (n, K) of logits relative to their average over the classes, without those of the basis, and
    the logits (n, K, r) of the basis' directions at the spread of the complement.
    """
    xp, frame = namespace(V), complement.frame
    own, right = frame.logit_variances(frame.features(features), complement.variance), frame.right
    share = xp.mean(right, axis=0)  # of each direction of the frame in the average over the classes
    whole = own @ (right**2).mT - 2 * (own * share) @ right.mT + (own @ share**2)[:, None]
    E = (V - xp.mean(V, axis=1, keepdims=True)) * xp.sqrt(complement.tightening)
    rest = whole - xp.sum(E * E, axis=-1)
    return xp.maximum(rest, xp.zeros_like(rest)), E


def _second_order(logits: LogitDistribution, deviations: Array) -> tuple[Array, Array]:
    """Return what to add to the averages of log-sum-exp (n,) and of p (n, K): the expectation of their second-order
    terms, less the mean over the deviations (n, H, K).

    With d_k = e_k - p'e these terms are sum_k p_k d_k^2 / 2 and p_k (d_k^2 - sum_j p_j d_j^2) / 2. They are less
    accurate for wide logits, so there they count less; any weight leaves the expectation as it is.
    """
    xp = namespace(deviations)
    p = softmax(logits.zbar)[0]
    d = deviations - xp.matmul(deviations, p[:, :, None])
    found = xp.mean(d * d, axis=1)
    across = logits.products(p)
    both = xp.sum(p * across, axis=-1, keepdims=True)
    rest = logits.diagonal - 2 * across + both - found
    value = xp.sum(p * rest, axis=-1) / 2
    spread = xp.sum(p * logits.diagonal, axis=-1) - both[:, 0]
    weight = 1 / (1 + xp.maximum(spread, xp.zeros_like(spread))) ** 2
    return weight * value, weight[:, None] * p * (rest / 2 - value[:, None])


def own_numbers(features: Any, reference: Array, columns: int = 32) -> Array:
    """Return a whole number below POOL for each row of features (n, D), a function of `columns` of its features alone.

    Sums are taken column by column, so that they do not depend on the rows that come along.
    """
    xp = namespace(reference)
    D = features.shape[1]
    weights = np.random.default_rng(7).uniform(0.5, 1.5, columns) * np.resize([1.0, -1.0], columns)
    if scipy.sparse.issparse(features):
        factors = np.resize(weights, D).astype(features.dtype)
        total, size = like(features @ factors, reference), like(abs(features) @ np.abs(factors), reference)
    else:
        total = xp.zeros((features.shape[0],), dtype=features.dtype, device=reference.device)
        size = xp.zeros_like(total)
        for factor, column in zip(weights.tolist(), range(0, D, max(1, D // columns)), strict=False):
            total = total + features[:, column] * factor
            size = size + xp.abs(features[:, column])
    share = xp.where(size > 0, total / xp.where(size > 0, size, xp.ones_like(size)), xp.zeros_like(size)) * 997.0
    return xp.astype((share - xp.floor(share)) * POOL, xp.int64) % POOL


def own_points(reference: Array, numbers: Array, pairs: int, dim: int) -> Array:
    """Return standard normal points (n, pairs, dim) for the numbers (n,) of n rows, in the library of `reference`."""
    xp = namespace(reference)
    steps = xp.arange(pairs, dtype=numbers.dtype, device=numbers.device) * (POOL // pairs)
    index = xp.reshape((numbers[:, None] + steps) % POOL, (-1,))
    return xp.reshape(xp.take(like(_pool(dim), reference), index, axis=0), (-1, pairs, dim))


@lru_cache(maxsize=4)
def _pool(dim: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(11).standard_normal((POOL, dim), dtype=np.float32)


def _turned(x: Array, right: Array) -> Array:
    """Return x @ right for x (n, H, K), in one product: n small ones are slower."""
    xp = namespace(x)
    return xp.reshape(xp.reshape(x, (-1, x.shape[-1])) @ right, x.shape)
