"""A softmax under one Gaussian prior after another: the mean-field Gaussian and the most probable weights.

A softmax does not change if all its logits move together. So with an orthonormal basis B (K, k) of the k = K - 1
contrasts of classes, weights are W = U B' + (a part that all classes share), and the rows inform U (d, k) alone. Its
mean-field Gaussian N(m, C) (see `samplers/mean_field.py`) solves, for a prior N(m0, V) with a diagonal V,

    C^-1 = V^-1 + sum_n c_n x_n x_n' (x) A_n,        C^-1 m = V^-1 m0 + sum_n c_n x_n (x) b_n,

    A_n = B' E[diag(p_n) - p_n p_n'] B,        b_n = A_n z_n - B' (E[p_n] - t_n),

averaged over the Gaussian of the contrasts z_n = m' x_n of row n, whose covariance is k x k. A_n and b_n are the sites
of the rows. A step takes the Gaussian of the sites, and then the sites at this Gaussian. It costs two products of
N d^2 k^2 / 2, one inverse of P = d k, and averages over a few points a row. Anderson's method combines the sites of the
last steps; they are few numbers, and every combination of them is a Gaussian.

Sites make comparisons cheap: under another width of the prior a fit starts from the same sites.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.linalg import lapack

from enkbayes.core.moments import Diverged
from enkbayes.core.problem import Problem
from enkbayes.core.quadrature import cholesky, quasi_random_points
from enkbayes.engine.arrays import as_double, softmax, to_numpy
from enkbayes.engine.rows import ArrayRows
from enkbayes.solvers.anderson import mixing
from enkbayes.solvers.softmax_path import fits

Numbers = np.ndarray[Any, Any]
WIDE, NEGLIGIBLE = 5.0, 1e-3  # as in `Categorical`


def contrasts(K: int) -> Numbers:
    """Return an orthonormal basis (K, K - 1) of the vectors with the sum 0.

    >>> contrasts(3).round(3).tolist()
    [[0.707, 0.408], [-0.707, 0.408], [0.0, -0.816]]
    """
    B = np.zeros((K, K - 1))
    for j in range(1, K):
        B[:j, j - 1], B[j, j - 1] = 1.0, -j
    return np.asarray(B / np.linalg.norm(B, axis=0))


@dataclass(frozen=True, eq=False)
class ContrastPrior:
    """N(mean, variances) of the contrasts' weights: mean (d, k), and the variances (d,) of a feature's weights."""

    variances: Numbers
    mean: Numbers

    @classmethod
    def of(cls, problem: Problem) -> ContrastPrior:
        """Return the prior of a problem that `SoftmaxRows.fits`."""
        K = problem.likelihood.outputs or 1
        cov, mean = (as_double(a).reshape(-1, K) for a in (problem.prior.cov, problem.prior.mean))
        return cls(cov[:, 0], mean @ contrasts(K))

    @property
    def precision(self) -> Numbers:
        """The diagonal (P,) of the precision."""
        return np.repeat(1 / self.variances, self.mean.shape[1])


@dataclass(frozen=True, eq=False)
class SoftmaxGaussian:
    """N(mean, cov) of the contrasts' weights, mean (d, k) and cov (d k, d k); the sites A (N, k, k) and b (N, k) of the
    rows at it; the evidence lower bound; how far the next step would go, in posterior standard deviations; the number
    of steps.
    """

    mean: Numbers
    cov: Numbers
    A: Numbers
    b: Numbers
    elbo: float
    residual: float
    steps: int

    def logits(self, x: Numbers) -> tuple[Numbers, Numbers]:
        """Return means (n, k) and covariances (n, k, k) of the contrasts of the logits of rows x (n, d)."""
        return contrast_logits(x, self.mean, self.cov)

    def subset(self, rows: Numbers) -> SoftmaxGaussian:
        """Return the same Gaussian with the sites of some rows."""
        return replace(self, A=self.A[rows], b=self.b[rows])

    def worse_than(self, other: SoftmaxGaussian, slack: float) -> bool:
        """Tell whether the bound is lower by more than some nats, and the next step larger."""
        return not self.elbo > other.elbo - slack and not self.residual < other.residual


@dataclass(frozen=True, eq=False)
class _Point:
    """A point of the iteration: the Gaussian of some sites (N, k k + k), the step to the sites at this Gaussian, and
    `scaled`, which gives steps in the units in which they are compared here.
    """

    gaussian: SoftmaxGaussian
    sites: Numbers
    step: Numbers
    scaled: Callable[[Numbers], Numbers]


@dataclass(frozen=True, eq=False)
class SoftmaxRows:
    """Rows x (N, d), a column of ones for an intercept included, their classes (N,), how often each counts (N,), and
    the number K of classes.

    points : logarithm, to the base 2, of the number of points of a row's average
    memory : steps that Anderson's method combines
    slack : nats that the bound may fall in a step, because averages are not exact
    at_once : logits that are held at a time

    >>> problem = Problem.create([[1.0], [2.0], [-1.0], [0.5]], [0, 1, 2, 1], 4.0, intercept=100.0)
    >>> rows, prior = SoftmaxRows.of(problem), ContrastPrior.of(problem)
    >>> found = rows.gaussian(prior)
    >>> found.mean.shape, found.cov.shape, found.residual < 0.01
    ((2, 2), (4, 4), True)
    """

    x: Numbers
    targets: Numbers
    counts: Numbers
    classes: int
    points: int = 6
    memory: int = 5
    slack: float = 3.0
    at_once: int = field(default=2**20, repr=False)

    @staticmethod
    def fits(problem: Problem) -> bool:
        """Tell whether a problem is a linear softmax of rows in memory, with a diagonal prior that treats all classes
        alike.
        """
        return isinstance(problem.rows, ArrayRows) and fits(problem)

    @classmethod
    def of(cls, problem: Problem) -> SoftmaxRows:
        """Return the rows of such a problem."""
        linear, x = problem.linear_logits("a softmax"), as_double(problem.features)
        if linear.intercept:
            x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        counts = np.ones(len(x)) if problem.weights is None else as_double(problem.weights)
        return cls(x, to_numpy(problem.targets).astype(np.int64), counts, linear.outputs or 1)

    def subset(self, rows: Numbers) -> SoftmaxRows:
        """Return some of the rows."""
        return replace(self, x=self.x[rows], targets=self.targets[rows], counts=self.counts[rows])

    def gaussian(
        self, prior: ContrastPrior, start: SoftmaxGaussian | None = None, *, tol: float = 1e-2, most: int = 40
    ) -> SoftmaxGaussian:
        """Return the mean-field Gaussian, from one of the same rows under another prior."""
        k = self.classes - 1
        uniform = np.broadcast_to(np.eye(k) / self.classes, (len(self.x), k, k)), self._targets
        sites = _packed(*(uniform if start is None else (start.A, start.b)))
        point = best = self._at(prior, sites)
        share, history, steps = 1.0, [(point.sites, point.step)], 1
        while point.gaussian.residual > tol and steps < most:
            steps += 1
            sites = point.sites + share * point.step if share < 1 else _extrapolated(history, point.scaled)
            try:
                found = self._at(prior, sites)
            except Diverged:
                found = None
            if found is None or found.gaussian.worse_than(point.gaussian, self.slack):
                share, history = share / 4, []
                continue
            point, share = found, min(1.0, 2 * share)
            history = [*history[-self.memory :], (point.sites, point.step)]
            best = min(point, best, key=lambda each: each.gaussian.residual)
        return replace(best.gaussian, steps=steps)

    def mode(self, prior: ContrastPrior, start: Numbers, *, tol: float = 1e-3, most: int = 30) -> Numbers:
        """Return the most probable weights (d, k) by Newton's method, from weights nearby; tol is the residual, as in
        `gaussian`.
        """
        nothing = np.zeros((len(self.x), self.classes - 1, self.classes - 1))
        share = 1.0
        best, step, height = start, np.zeros_like(start), math.inf
        for _ in range(most):
            trial = best + share * step
            z, shift = self.x @ trial, trial - prior.mean
            A, b, loss, _ = self._sites(z, nothing, points=0)
            potential = loss + float(prior.precision @ shift.reshape(-1) ** 2) / 2
            if not potential <= height + 1e-9 * abs(height):
                share /= 4
                continue
            slope = self.counts[:, None] * (np.matmul(A, z[:, :, None])[:, :, 0] - b)
            gradient = (self.x.T @ slope).reshape(-1) + prior.precision * shift.reshape(-1)
            newton = -lapack.dpotrs(self._root(prior, A), gradient, lower=1)[0]
            best, step, height, share = trial, newton.reshape(trial.shape), potential, 1.0
            if math.sqrt(max(-float(newton @ gradient), 0.0) / newton.size) <= tol:
                return np.asarray(best + step)
        return best

    def _at(self, prior: ContrastPrior, sites: Numbers) -> _Point:
        """Return the point of the iteration at some sites."""
        mean, cov, log_det = self._solved(prior, *_unpacked(sites, self.classes - 1))
        z, spread = contrast_logits(self.x, mean, cov)
        A, b, loss, roots = self._sites(z, spread)
        step, scaled = _packed(A, b) - sites, partial(self._scaled, z=z, roots=roots)
        shift = (mean - prior.mean).reshape(-1)
        kl = prior.precision @ (cov.diagonal() + shift**2) - len(shift) - log_det - np.sum(np.log(prior.precision))
        residual = self._residual(step, z, cov, scaled(step))
        return _Point(SoftmaxGaussian(mean, cov, A, b, -loss - float(kl) / 2, residual, 1), sites, step, scaled)

    @cached_property
    def _targets(self) -> Numbers:
        """The contrasts (N, k) of the classes, less their average: b at uniform probabilities."""
        return contrasts(self.classes)[self.targets]

    def _solved(self, prior: ContrastPrior, A: Numbers, b: Numbers) -> tuple[Numbers, Numbers, float]:
        """Return mean (d, k), covariance (P, P) and its log determinant of the Gaussian of sites."""
        root = self._root(prior, A)
        lower = lapack.dpotri(root, lower=1)[0]  # zero above the diagonal, as the root is
        cov = lower + lower.T
        cov[np.diag_indices(len(cov))] /= 2
        h = prior.precision * prior.mean.reshape(-1) + (self.x.T @ (self.counts[:, None] * b)).reshape(-1)
        return (cov @ h).reshape(prior.mean.shape), cov, -2 * float(np.sum(np.log(np.diag(root))))

    def _root(self, prior: ContrastPrior, A: Numbers) -> Numbers:
        """Return the Cholesky factor (P, P) of the precision of sites."""
        d, k = prior.mean.shape
        precision = np.empty((d, k, d, k))
        for i in range(k):
            for j in range(i + 1):
                block = self.x.T @ ((self.counts * A[:, i, j])[:, None] * self.x)
                precision[:, i, :, j] = precision[:, j, :, i] = block
        precision = precision.reshape(d * k, d * k)
        precision[np.diag_indices(d * k)] += prior.precision
        root, failed = lapack.dpotrf(precision.T, lower=1, overwrite_a=1)
        if failed:
            raise Diverged("the precision of a softmax is not positive definite")
        return np.asarray(root)

    def _sites(self, z: Numbers, cov: Numbers, points: int | None = None) -> tuple[Numbers, Numbers, float, Numbers]:
        """Return the sites A (N, k, k) and b (N, k) where the contrasts are N(z, cov), the sum of the average losses,
        and the roots (N, k, k) of the covariances.
        """
        if not (np.all(np.isfinite(z)) and np.all(np.isfinite(cov))):
            raise Diverged("the logits of a softmax are not finite")
        rule = quasi_random_points(self.classes - 1, self.points if points is None else points)
        size = max(1, self.at_once // (self.classes * len(rule)))
        cuts = [slice(i, i + size) for i in range(0, len(z), size)]
        parts = [self._sites_of(rule, self._targets[cut], z[cut], cov[cut]) for cut in cuts]
        A, b, losses, roots = (np.concatenate(each) for each in zip(*parts, strict=True))
        return A, b, float(self.counts @ losses), roots

    def _sites_of(self, points: Numbers, target: Numbers, z: Numbers, cov: Numbers) -> tuple[Numbers, ...]:
        """Return the same for a chunk of the rows, with the loss (n,) of each."""
        B, root = contrasts(self.classes), cholesky(cov)
        p, log_sum = softmax((z @ B.T)[:, None, :] + np.matmul(points, np.matmul(root.mT, B.T)))
        loss = log_sum.mean(axis=1) - np.sum(z * target, axis=1)
        pB, Q = p @ B, len(points)
        A = np.matmul(B.T, p.mean(axis=1)[:, :, None] * B) - np.matmul(pB.mT, pB) / Q
        variance = np.einsum("naa->n", cov) / self.classes
        share = variance / (variance + WIDE**2)
        wide = np.flatnonzero(share > NEGLIGIBLE)
        if len(wide):  # few points hit the boundaries of the classes there, but Price's theorem needs p alone
            G = np.matmul(root[wide].mT, np.matmul(pB[wide].mT, points)) / Q
            inverse, inner = np.linalg.inv(root[wide]), np.tril(G) + np.tril(G, -1).mT
            values, vectors = np.linalg.eigh(np.matmul(inverse.mT, np.matmul(inner, inverse)))
            by_slope = np.matmul(vectors * np.maximum(values, 0.0)[:, None, :], vectors.mT)
            s = share[wide, None, None]
            A[wide] = (1 - s) * A[wide] + s * by_slope
        return A, np.matmul(A, z[:, :, None])[:, :, 0] - (pB.mean(axis=1) - target), loss, root

    def _scaled(self, step: Numbers, z: Numbers, roots: Numbers) -> Numbers:
        """Return a step of the sites (N, k k + k) in units of the standard deviations of the rows' logits."""
        A, b = _unpacked(step, self.classes - 1)
        slope = np.matmul(roots.mT, (b - np.matmul(A, z[:, :, None])[:, :, 0])[:, :, None])[:, :, 0]
        curvature = np.matmul(roots.mT, np.matmul(A, roots)) / math.sqrt(2)
        return _packed(curvature, slope) * np.sqrt(self.counts)[:, None]

    def _residual(self, step: Numbers, z: Numbers, cov: Numbers, scaled: Numbers) -> float:
        """Return how far the Gaussian would move in posterior standard deviations, over the root of P: that of the mean
        exactly, that of the covariance as if the rows' contributions were uncorrelated.
        """
        A, b = _unpacked(step, self.classes - 1)
        slope = b - np.matmul(A, z[:, :, None])[:, :, 0]
        g = (self.x.T @ (self.counts[:, None] * slope)).reshape(-1)
        of_cov = np.sum(scaled[:, : A[0].size] ** 2 * self.counts[:, None])
        return math.sqrt((max(float(g @ cov @ g), 0.0) + float(of_cov)) / len(g))


def contrast_logits(x: Numbers, mean: Numbers, cov: Numbers) -> tuple[Numbers, Numbers]:
    """Return means (n, k) and covariances (n, k, k) of the contrasts of the logits of rows x (n, d) for weights with
    mean (d, k) and covariance (d k, d k).
    """
    d, k = mean.shape
    found, blocks = np.empty((len(x), k, k)), cov.reshape(d, k, d, k)
    for i in range(k):
        for j in range(i + 1):
            found[:, i, j] = found[:, j, i] = np.einsum("nd,nd->n", x @ blocks[:, i, :, j], x)
    return x @ mean, found


def predicted(mean: Numbers, cov: Numbers, points: int = 7) -> Numbers:
    """Return the averages (n, K) of class probabilities over contrasts N(mean, cov) of the logits."""
    k = mean.shape[1]
    B, x = contrasts(k + 1), quasi_random_points(k, points)
    p = softmax((mean @ B.T)[:, None, :] + np.matmul(x, np.matmul(cholesky(cov).mT, B.T)))[0].mean(axis=1)
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def _packed(A: Numbers, b: Numbers) -> Numbers:
    return np.concatenate([A.reshape(len(b), -1), b], axis=1)


def _unpacked(sites: Numbers, k: int) -> tuple[Numbers, Numbers]:
    return sites[:, : k * k].reshape(-1, k, k), sites[:, k * k :]


def _extrapolated(history: list[tuple[Numbers, Numbers]], scaled: Callable[[Numbers], Numbers]) -> Numbers:
    """Return the next sites by Anderson's method, from sites and the steps from them; `scaled` gives a step in the
    units in which steps are compared.
    """
    point, step = history[-1]
    if len(history) == 1:
        return point + step
    last = scaled(step)
    changes = np.stack([(last - scaled(other)).reshape(-1) for _, other in history[:-1]])
    gamma = mixing(changes @ changes.T, changes @ last.reshape(-1), 1e-10)
    if gamma is None:
        return np.asarray(point + step)
    pairs = zip(gamma, history[:-1], strict=True)
    return np.asarray(point + step - sum(share * (point - other + step - its) for share, (other, its) in pairs))
