"""One pass over the rows for a Gaussian with a low-rank precision: energy, gradient, and the averaged Hessian along a
few directions and along the axes of the frame.

The logits of a row under the Gaussian have the covariance diag(s) - E diag(shrink) E' in the frame, s from the diagonal
part alone and E the logits of the directions X = D^{-1/2} B. A few classes are averaged with a K x K covariance for
each row (`Categorical.gaussian_averages`); many classes without (`core/likelihoods/many_classes.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Categorical, Likelihood
from enkbayes.core.likelihoods.base import weighted
from enkbayes.core.likelihoods.many_classes import (
    LogitDistribution,
    SoftmaxAverages,
    gaussian_averages,
    own_numbers,
    point_averages,
)
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.low_rank import Frame
from enkbayes.core.problem import Problem
from enkbayes.core.quadrature import cholesky
from enkbayes.engine.arrays import Array, anchor, identity, like, namespace, oriented, symmetric
from enkbayes.engine.rows import ArrayRows, Chunk, Sums

ROWS = 1024  # more rows at a time make products no faster


@dataclass(frozen=True, eq=False)
class LowRankPrecision:
    """N(mean, cov) in the frame, cov^{-1} = D^{1/2} (I + B diag(beta2) B') D^{1/2}, D = I + diag(h): mean (P,), h (P,),
    B (P, r) orthonormal, beta2 (r,) above -1.
    """

    mean: Array
    h: Array
    B: Array
    beta2: Array

    @property
    def root(self) -> Array:
        """D^{-1/2} (P,)."""
        return 1 / namespace(self.h).sqrt(1 + self.h)

    @property
    def shrink(self) -> Array:
        """1 - 1 / (1 + beta2) (r,): the share of the variance that the low-rank part takes away."""
        return self.beta2 / (1 + self.beta2)

    def solve(self, g: Array) -> Array:
        """Return cov @ g (P,)."""
        inner = self.root * g
        return self.root * (inner - self.B @ (self.shrink * (self.B.mT @ inner)))

    @property
    def variances(self) -> Array:
        """The diagonal of cov, (P,)."""
        return self.root**2 * (1 - (self.B * self.B) @ self.shrink)

    def divergence(self, variances: Array) -> float:
        """Return KL(q || N(0, I)) = (|mean|^2 + tr cov - P - log det cov) / 2, given the diagonal of cov."""
        xp = namespace(self.h)
        log_det = -float(xp.sum(xp.log1p(self.h))) - float(xp.sum(xp.log1p(self.beta2)))
        return (float(xp.sum(self.mean**2)) + float(xp.sum(variances)) - log_det - int(self.mean.shape[0])) / 2


@dataclass(frozen=True, eq=False)
class RowSums:
    """One pass over the data: E[Psi], its gradient (P,), and of the averaged Hessian H its diagonal (P,), X'HX (r, r)
    and, where it was asked for, HX (P, r).
    """

    loss: float
    slopes: Array
    diagonal: Array
    XHX: Array
    X: Array
    HX: Array | None


def sums_over_rows(
    problem: Problem,
    frame: Frame,
    q: LowRankPrecision,
    *,
    along: Array | None = None,
    spread: bool = True,
    products: bool = False,
    many: int = 30,
    pairs: int = 16,
) -> RowSums:
    """Read the rows once, at q or, without `spread`, at its mean; HX costs as much again as all the rest.

    X are the directions of q, or those `along` (P, c) which the Hessian is wanted. From `many` classes on no row has a
    K x K matrix, and averages take so many `pairs` of points.
    """
    linear = problem.linear_logits("a low-rank covariance")
    xp = namespace(q.mean)
    reference, K = problem.rows.reference, frame.shape[1]
    X = q.root[:, None] * q.B if along is None else along
    own, directions = (like(x, reference) for x in (q.root[:, None] * q.B, X))
    variance, shrink = like(q.root**2, reference), like(q.shrink, reference)
    theta = like(problem.prior.mean + frame.parameters(q.mean[None, :])[0, :], reference)
    frame = frame.to(reference)
    of_many = isinstance(problem.likelihood, Categorical) and many <= K

    def contribution(chunk: Chunk) -> Sums:
        features, targets, weights = chunk.features, chunk.targets, chunk.weights
        if features.shape[1] > frame.shape[0]:  # of `in_frame`
            numbers, features = xp.astype(features[:, -1], xp.int64), features[:, :-1]
            whitened = features
        else:
            numbers, whitened = own_numbers(features, anchor(features)), frame.features(features)
        zbar = xp.reshape(linear.project(features, theta[:, None]), (-1, K))
        E = frame.logits(whitened, own)
        logits = LogitDistribution(zbar, frame.right, frame.logit_variances(whitened, variance), E, shrink)
        if not of_many:
            return _of_few(problem.likelihood, frame, logits, whitened, targets, weights, spread, products)
        averages = gaussian_averages(logits, targets, numbers, pairs) if spread else point_averages(zbar, targets)
        columns = logits.columns if along is None else xp.matmul(frame.right, frame.logits(whitened, directions))
        return _of_many(frame, averages, columns, whitened, weights, products)

    at_once = 2**23 // (K * max(16, X.shape[1], own.shape[1]))  # so that the logits of all directions fit
    rows = min(ROWS, max(1, at_once))
    loss, slopes, diagonal, XHX, *HX = (like(x, q.mean) for x in problem.rows.sum(contribution, least=rows))
    return RowSums(float(loss), slopes, diagonal, symmetric(XHX), X, _turned(frame, HX[0], of_many) if HX else None)


def _of_few(
    likelihood: Likelihood,
    frame: Frame,
    logits: LogitDistribution,
    whitened: Any,
    targets: Array,
    weights: Array | None,
    spread: bool,
    products: bool,
) -> Sums:
    """Return the sums of some rows, by covariances (n, K, K)."""
    E, s = logits.E, logits.s
    xp = namespace(E)
    eye = identity(s.shape[1], E)
    cov = s[:, :, None] * eye - xp.matmul(E * logits.shrink, E.mT) if spread else s[:, :, None] * (0 * eye)
    loss, slope, curvature = averages_of_few(likelihood, frame, logits.zbar, cov, targets, weights)
    bent = curvature * E if s.shape[1] == 1 else xp.matmul(curvature, E)
    entries = (E.shape[0] * E.shape[1], E.shape[2])
    sums = (
        loss,
        frame.pull_back(whitened, slope[:, :, None])[:, 0],
        frame.pull_back_squares(whitened, xp.sum(curvature * eye, axis=-1)),
        xp.reshape(E, entries).mT @ xp.reshape(bent, entries),
    )
    return (*sums, frame.pull_back(whitened, bent)) if products else sums


def _of_many(
    frame: Frame, averages: SoftmaxAverages, E: Array, whitened: Any, weights: Array | None, products: bool
) -> Sums:
    """Return the sums of some rows, E (n, K, r) the logits of the directions; HX is still in class coordinates."""
    xp = namespace(E)
    slope, diagonal = averages.slope @ frame.right, averages.curvature_diagonal(frame.right)
    sums = (
        xp.sum(weighted(averages.loss, weights)),
        frame.pull_back(whitened, weighted(slope, weights)[:, :, None])[:, 0],
        frame.pull_back_squares(whitened, weighted(diagonal, weights)),
        averages.curvature_gram(E, weights),
    )
    if not products:
        return sums
    return (*sums, frame.pull_back(whitened, weighted(averages.curvature_products(E), weights)))


def _turned(frame: Frame, HX: Array, of_many: bool) -> Array:
    """Return HX (P, r) in the frame."""
    if not of_many:
        return HX
    xp = namespace(HX)
    D, K = frame.shape
    return xp.reshape(xp.matmul(frame.right.mT, xp.reshape(HX, (D, K, -1))), (D * K, -1))


def averages_of_few(
    likelihood: Likelihood, frame: Frame, zbar: Array, cov: Array, targets: Array, weights: Array | None
) -> tuple[Array, Array, Array]:
    """Return the summed loss, and slopes (n, K) and curvatures (n, K, K) in the frame, for logits N(zbar, cov)."""
    xp = namespace(cov)
    if likelihood.outputs is None:
        sd = xp.sqrt(xp.maximum(cov[:, :, 0], xp.zeros_like(cov[:, :, 0])))
        loss, slope, curvature = likelihood.gaussian_averages(zbar[:, 0], targets, V=sd)
        slope, curvature = slope[:, None], curvature[:, None, None]
    else:
        cov = symmetric(xp.matmul(xp.matmul(frame.right, cov), frame.right.mT))
        loss, slope, curvature = likelihood.gaussian_averages(zbar, targets, V=cholesky(cov))
        slope, curvature = slope @ frame.right, xp.matmul(xp.matmul(frame.right.mT, curvature), frame.right)
    return xp.sum(weighted(loss, weights)), weighted(slope, weights), weighted(curvature, weights)


def in_frame(problem: Problem, frame: Frame, most: int = 2**26) -> tuple[Problem, Frame]:
    """Return the same problem with the features seen from the frame, and the frame of the same coordinates there, for
    `sums_over_rows` alone: the features end with the numbers that choose the rows' points, `own_numbers`.

    Sums over these rows need no rotation of the features. Beyond `most` entries, or for rows that are not in memory or
    are sparse, nothing changes.

    >>> problem = Problem.create([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [0, 1, 2], 4.0, intercept=1.0)
    >>> seen, own = in_frame(problem, fitted_frame(problem, problem.prior.mean, 100))
    >>> seen.features.shape, seen.prior.cov.tolist() == [1.0] * 9, own.intercept
    ((3, 4), True, False)
    """
    rows, K = problem.rows, frame.shape[1]
    if not isinstance(rows, ArrayRows) or hasattr(rows.features, "tocsr") or rows.size * frame.shape[0] > most:
        return problem, frame
    prior, classes_alone = problem.prior, replace(frame, right=identity(K, frame.right))
    xp, numbers = namespace(rows.reference), own_numbers(rows.features, rows.reference)
    seen = frame.to(rows.reference).features(rows.features)
    features = xp.concat([seen, xp.astype(numbers, seen.dtype)[:, None]], axis=1)
    mean = classes_alone.coordinates(prior.mean[None, :])[0, :]
    ones = namespace(mean).ones_like(frame.left[0, :] if frame.left.ndim == 2 else frame.left)
    linear = LinearLogits(frame.shape[0], problem.likelihood.outputs, intercept=False)
    same = replace(
        problem,
        rows=replace(rows, features=features),
        model=linear,
        prior=Gaussian(mean, namespace(mean).ones_like(mean)),
    )
    return same, Frame(ones, frame.right, intercept=False)


def fitted_frame(problem: Problem, theta: Array, rotated: int) -> Frame:
    """Return the frame of the eigenvectors of sum_n tr(Lambda_n) phi_n phi_n' and of sum_n |phi_n|^2 Lambda_n, phi the
    features in units of the prior; with more than `rotated` features, that of the features themselves.
    """
    linear, prior = problem.linear_logits("a low-rank covariance"), problem.prior
    xp, K = namespace(theta), linear.outputs or 1
    eye = identity(K, theta)
    plain = Frame(_feature_root(prior, K), eye, linear.intercept)
    if plain.shape[0] > rotated:
        return plain
    seen, point = plain.to(problem.rows.reference), like(theta, problem.rows.reference)

    def contribution(chunk: Chunk) -> Sums:
        features, targets, weights = chunk.features, chunk.targets, chunk.weights
        x = seen.features(features)
        x = x.toarray() if hasattr(x, "toarray") else x
        zbar = xp.reshape(linear.project(features, point[:, None]), (-1, K))
        traces, between = _curvatures(problem.likelihood, zbar, targets, weights, xp.sum(x * x, axis=1))
        return x.mT @ (traces[:, None] * x), between

    gram, between = (like(x, theta) for x in problem.rows.sum(contribution, least=ROWS))
    Qa = oriented(xp.linalg.eigh(symmetric(gram))[1])
    Qb = eye if K == 1 else oriented(xp.linalg.eigh(symmetric(between))[1])
    left = plain.left @ Qa if plain.left.ndim == 2 else plain.left[:, None] * Qa
    return Frame(left, Qb, linear.intercept)


def _curvatures(
    likelihood: Likelihood, zbar: Array, targets: Array, weights: Array | None, sizes: Array
) -> tuple[Array, Array]:
    """Return tr Lambda_n (n,) and sum_n sizes_n Lambda_n (K, K) at the logits zbar (n, K)."""
    xp = namespace(zbar)
    w = xp.ones_like(sizes) if weights is None else weights
    if isinstance(likelihood, Categorical):
        p = likelihood.mean(zbar)
        scaled = (w * sizes)[:, None] * p
        eye = identity(p.shape[1], p)
        return w * (1 - xp.sum(p * p, axis=1)), xp.sum(scaled, axis=0) * eye - p.mT @ scaled
    logits = zbar if likelihood.outputs is None else zbar[:, None, :]
    K = zbar.shape[1]
    curvature = xp.reshape(likelihood.curvature(logits, targets), (-1, K, K))
    eye = identity(K, zbar)
    return w * xp.sum(curvature * eye, axis=(1, 2)), xp.sum((w * sizes)[:, None, None] * curvature, axis=0)


def _feature_root(prior: Gaussian, K: int) -> Array:
    """Return the prior's root on the features alone: (D,), or (D, D) for a dense prior of a single logit."""
    return prior.root if not prior.diagonal else namespace(prior.mean).reshape(prior.root, (-1, K))[:, 0]
