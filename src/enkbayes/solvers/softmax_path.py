"""The most probable weights of a softmax with many classes, for one prior or a path of them, in the time of a point
estimate.

With features in units of the prior, x = A phi, and the eigenvectors Q of their Gram matrix around the mean, the Hessian
of the potential is nearly diagonal in the coordinates W (D, K) of weights A Q W:

    h_dk = lam_d c_k + 1,        c_k = sum_n p_nk (1 - p_nk) / N,

lam_d the eigenvalues. L-BFGS in the coordinates h^{1/2} W starts from this diagonal as its first matrix, and the norm
of its gradient is about the distance to the maximum in posterior standard deviations. An iteration reads the rows once;
the rotations cost D^2 K, which is little compared with N D K. The curvatures c_k fall by orders of magnitude on the
way from the prior, so they are taken again after a few iterations.

Another width of the prior changes lam by a factor and leaves Q as it is. So a path of widths needs one decomposition,
and each width starts from the weights of the one before.

A prior may have another shape than the problem's: N(0, A T T' A), with T the root of the inverse covariance of the rows
within their classes (`within_classes`). Directions in which rows of one class differ much then get small weights, which
is what linear discriminant analysis does. Everything above holds with A T in the place of A.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from enkbayes.core.likelihoods import Categorical
from enkbayes.core.likelihoods.base import weighted
from enkbayes.core.low_rank import Complement, Frame
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import anchor, as_double, identity, like, namespace, one_hot, softmax, to_numpy
from enkbayes.engine.rows import Chunk, Sums

Numbers = np.ndarray[Any, Any]
ROWS = 1024  # more rows at a time make products no faster


@dataclass(frozen=True, eq=False)
class Eigenbasis:
    """The eigenbasis of the features in units of the prior, centred if there is an intercept.

    roots : standard deviations (D,) of the prior that the units are taken from, without the intercept's
    values, vectors : eigenvalues (D,) and eigenvectors (D, D) of the Gram matrix; with too many features vectors is
        None, and the axes take the place of eigenvectors
    centre : mean (D,) of the features
    size : sum of the weights of the rows
    shape : T (D, D), symmetric; None for the shape of the problem's own prior
    """

    roots: Numbers
    values: Numbers
    vectors: Numbers | None
    centre: Numbers
    size: float
    shape: Numbers | None = None

    @classmethod
    def of(cls, problem: Problem, most: int = 4096) -> Eigenbasis:
        """Return the basis of a problem's features; the axes if there are more than `most` features."""
        linear, roots = problem.linear_logits("a softmax path"), _roots(problem)[0]
        D = linear.features

        def contribution(chunk: Chunk) -> Sums:
            x, w = chunk.features, chunk.weights
            ones = np.ones((1, x.shape[0])) if w is None else to_numpy(w)[None, :]
            total = np.asarray(ones).sum(keepdims=True)[0]
            if scipy.sparse.issparse(x):
                scaled = x if w is None else x.multiply(ones.T).tocsr()
                gram = np.asarray((x.T @ scaled).todense()) if most >= D else np.asarray(x.multiply(scaled).sum(axis=0))
                return gram, np.asarray(ones @ x)[0], total
            xp = namespace(x)
            y = weighted(x, w)
            return (x.mT @ y if most >= D else xp.sum(x * y, axis=0)), xp.sum(y, axis=0), like(total, x)

        rows = problem.rows.coarse or problem.rows
        gram, sums, total = map(as_double, rows.sum(contribution, cost=D, least=ROWS))
        size = float(total[0])
        mean = sums / size if linear.intercept else np.zeros(D)
        if most >= D:
            gram = roots[:, None] * (gram - size * mean[:, None] * mean) * roots
            values, vectors = np.linalg.eigh((gram + gram.T) / 2)
        else:
            values, vectors = roots**2 * (gram.reshape(-1) - size * mean**2), None
        return cls(roots, np.maximum(values, 0.0), vectors, mean, size)

    def shaped(self, shape: Numbers) -> Eigenbasis:
        """Return the basis under a prior of another shape T (D, D), with the same logit variance."""
        own = np.diag(self.values) if self.vectors is None else (self.vectors * self.values) @ self.vectors.T
        centre = shape @ (self.roots * self.centre)
        gram = shape @ own @ shape
        factor = self.logit_variance / (np.trace(gram) / self.size + np.sum(centre**2))
        values, vectors = np.linalg.eigh(factor * (gram + gram.T) / 2)
        return replace(self, values=np.maximum(values, 0.0), vectors=vectors, shape=math.sqrt(factor) * shape)

    @property
    def logit_variance(self) -> float:
        """The prior variance of the logit of a typical row, without the intercept."""
        centre = self.roots * self.centre
        centre = centre if self.shape is None else self.shape @ centre
        return float(self.values.sum() / self.size + np.sum(centre**2))

    def scaled_to(self, problem: Problem) -> Eigenbasis:
        """Return the basis for another width of the prior; where the prior differs in more, a new one."""
        roots = _roots(problem)[0]
        factor = roots[0] / self.roots[0]
        if not np.allclose(roots, factor * self.roots, rtol=1e-9, atol=0.0):
            return Eigenbasis.of(problem)
        return replace(self, roots=roots, values=self.values * factor**2)

    @cached_property
    def left(self) -> Numbers:
        """The matrix A T Q (D, D) from coordinates to weights; its diagonal (D,) if the axes are the eigenvectors."""
        if self.vectors is None:
            return self.roots
        shaped = self.vectors if self.shape is None else self.shape @ self.vectors
        return np.asarray(self.roots[:, None] * shaped)

    def weights(self, V: Numbers) -> Numbers:
        """Return the weights (D, K) with coordinates V (D, K), which are standard normal under the prior."""
        return self.left[:, None] * V if self.vectors is None else self.left @ V

    def pulled(self, slopes: Numbers) -> Numbers:
        """Return the transpose of `weights`: slopes (D, K) in the coordinates from those in the weights."""
        return self.left[:, None] * slopes if self.vectors is None else self.left.T @ slopes

    def coordinates(self, weights: Numbers) -> Numbers:
        """Return the coordinates (D, K) of weights (D, K)."""
        W = weights / self.roots[:, None]
        if self.vectors is None:
            return W
        return np.asarray(self.vectors.T @ (W if self.shape is None else np.linalg.solve(self.shape, W)))


def within_classes(problem: Problem, basis: Eigenbasis, small: float = 0.98) -> Numbers | None:
    """Return T (D, D), the root of the inverse covariance of the rows within their classes, in units of the prior; None
    where it would not differ from a multiple of the identity, or the features are sparse or too many.

    The covariance is shrunk towards such a multiple by the rule of Ledoit and Wolf (2004), the more the fewer rows
    there are for each feature. If more than a share of `small` is shrunk, the shape says nothing.

    >>> rng = np.random.default_rng(0)
    >>> problem = Problem.create(rng.standard_normal((300, 2)) * [1.0, 4.0], np.arange(300) % 3)
    >>> T = within_classes(problem, Eigenbasis.of(problem))
    >>> bool(T[0, 0] > 3 * T[1, 1])
    True
    """
    features = problem.features
    if basis.vectors is None or scipy.sparse.issparse(features):
        return None
    x, counts = as_double(features) * basis.roots, problem.counts
    numbers = np.unique(to_numpy(problem.targets), return_inverse=True)[1].reshape(-1)
    members = scipy.sparse.csr_array((counts, (numbers, np.arange(len(numbers)))))
    residuals = x - (np.asarray(members @ x) / np.bincount(numbers, counts)[:, None])[numbers]
    freedom = float(counts.sum()) - numbers.max() - 1
    if freedom < 2:
        return None
    cov = residuals.T @ (counts[:, None] * residuals) / freedom
    D = len(cov)
    level = float(np.trace(cov)) / D
    apart = float(np.sum(cov**2)) - D * level**2
    noise = float(counts @ np.sum(residuals**2, axis=1) ** 2) / freedom**2 - float(np.sum(cov**2)) / freedom
    shrunk = min(1.0, max(noise, 0.0) / apart) if apart > 0 else 1.0
    if shrunk > small:
        return None
    values, vectors = np.linalg.eigh((1 - shrunk) * cov + shrunk * level * np.eye(D))
    return np.asarray((vectors / np.sqrt(np.maximum(values, 1e-6 * level))) @ vectors.T)


@dataclass(frozen=True, eq=False)
class SoftmaxMode:
    """Where a search ended: theta (P,), the norm of the gradient in posterior standard deviations, passes over the
    rows, the mean curvatures c (K,), the norm that round-off allows, and whether no step helped any more.
    """

    theta: Numbers
    residual: float
    steps: int
    curvatures: Numbers
    floor: float
    stuck: bool = False


@dataclass(frozen=True)
class SoftmaxSearch:
    """L-BFGS in the eigenbasis.

    tol : norm of the gradient at which a search ends, in posterior standard deviations and divided by the root of P
    coarse : the same, at which sums of float32 numbers are no longer enough
    first, later : iterations after which curvatures are taken again, from the prior's mean and from a neighbour's mode
    memory : steps that L-BFGS remembers
    most : largest number of iterations
    """

    tol: float = 0.03
    coarse: float = 0.01
    first: tuple[int, ...] = (8, 16)
    later: tuple[int, ...] = (12,)
    memory: int = 10
    most: int = 1000

    def mode(
        self, problem: Problem, basis: Eigenbasis, start: Numbers | None = None, curvatures: Numbers | None = None
    ) -> SoftmaxMode:
        """Return the most probable weights of a problem that `fits`, from theta (P,) or the prior's mean."""
        restarts = self.first if start is None else self.later
        theta = _first_guess(problem, basis) if start is None else start
        rough = problem.coarse or problem
        exact = rough is problem
        steps = 0
        while True:
            left = self.most - steps
            goal = (self.tol if exact else max(self.tol, self.coarse)) * math.sqrt(problem.dim)
            found = _Descent(problem if exact else rough, basis, theta, curvatures).run(
                goal, min(left, restarts[0]) if restarts else left, self.memory
            )
            steps, theta, curvatures = steps + found.steps, found.theta, found.curvatures
            arrived, sufficient = found.residual <= goal, exact or self.tol >= self.coarse
            if (arrived and sufficient) or steps >= self.most or (found.stuck and exact and not restarts):
                return replace(found, steps=steps)
            exact = exact or arrived or (found.stuck and not restarts)
            restarts = restarts[1:]

    def path(self, problems: Sequence[Problem], basis: Eigenbasis | None = None) -> Iterator[SoftmaxMode]:
        """Yield the modes of problems that differ in their priors' width alone, each from the one before."""
        before: SoftmaxMode | None = None
        for problem in problems:
            basis = Eigenbasis.of(problem) if basis is None else basis.scaled_to(problem)
            start, curvatures = (None, None) if before is None else (before.theta, before.curvatures)
            before = self.mode(problem, basis, start, curvatures)
            yield before


def fits(problem: Problem) -> bool:
    """Tell whether a problem has what the search needs: a linear softmax, and a diagonal prior that treats all classes
    alike.

    >>> fits(Problem.create([[1.0], [2.0], [3.0]], [0, 1, 2])), fits(Problem.create([[1.0], [2.0]], [0, 1]))
    (True, False)
    """
    return problem.is_linear and isinstance(problem.likelihood, Categorical) and problem.alike


def diagonal_covariance(problem: Problem, basis: Eigenbasis, theta: Numbers, seed: int = 0) -> Complement:
    """Return the inverse of the Hessian's diagonal at theta (P,) as a covariance, in the frame of eigenvectors and
    classes and without directions of its own: h_dk = sum_n x_nd^2 p_nk (1 - p_nk) + 1, x the features in the frame.
    """
    linear = problem.linear_logits("a softmax path")
    roots, constant = _roots(problem)
    left = np.diag(basis.left) if basis.vectors is None else basis.left
    if linear.intercept:
        # the last coordinate is the intercept at the mean of the features, which the others do not move
        left = np.block(
            [[left, np.zeros((len(roots), 1))], [-(basis.centre @ left)[None, :], np.full((1, 1), constant)]]
        )
    K = problem.likelihood.outputs or 1
    mean = problem.prior.mean
    frame = Frame(like(left, mean), identity(K, mean), linear.intercept)
    seen, rows = frame, problem.rows.coarse or problem.rows
    seen, point = frame.to(rows.reference), like(theta, rows.reference)

    def contribution(chunk: Chunk) -> Sums:
        p = _probabilities(linear, chunk.features, point)[0]
        return (seen.pull_back_squares(seen.features(chunk.features), weighted(p * (1 - p), chunk.weights)),)

    (diagonal,) = rows.sum(contribution, cost=problem.dim, least=ROWS)
    nothing = namespace(mean).zeros((0,), dtype=mean.dtype, device=mean.device)
    return Complement(frame, 1 / (1 + like(diagonal, mean)), nothing, seed)


def _probabilities(linear: Any, features: Any, theta: Any) -> tuple[Any, Any, Any]:
    """Return p (n, K), log-sum-exps (n,) and logits (n, K) at theta (P,)."""
    z = linear.project(features, theta[:, None])[:, :, 0]
    p, log_sum = softmax(z)
    return p, log_sum, z


def _roots(problem: Problem) -> tuple[Numbers, float]:
    """Return the prior's standard deviations of the weights of each feature (D,), and of the intercept."""
    linear = problem.linear_logits("a softmax path")
    roots = as_double(problem.prior.root).reshape(-1, linear.outputs or 1)[:, 0]
    return (roots[:-1], float(roots[-1])) if linear.intercept else (roots, 1.0)


def _first_guess(problem: Problem, basis: Eigenbasis) -> Numbers:
    """Return the prior's mean; where that is zero, with intercepts from the frequencies of the classes."""
    theta = as_double(problem.prior.mean)
    linear = problem.linear_logits("a softmax path")
    if not linear.intercept or np.any(theta != 0.0):
        return theta
    K = problem.likelihood.outputs or 1

    def contribution(chunk: Chunk) -> Sums:
        counted = one_hot(chunk.targets, like(np.empty((0, K)), anchor(chunk.features)))
        return (namespace(counted).sum(weighted(counted, chunk.weights), axis=0),)

    counts = to_numpy(problem.rows.sum(contribution, least=ROWS)[0])
    logs = np.log(np.maximum(counts, 0.5))
    theta = theta.copy()
    theta[-K:] = logs - logs.mean()
    return theta


class _Descent:
    """L-BFGS from theta, with one diagonal as its first matrix."""

    def __init__(self, problem: Problem, basis: Eigenbasis, theta: Numbers, curvatures: Numbers | None) -> None:
        self.problem, self.basis = problem, basis
        self.linear = problem.linear_logits("a softmax path")
        self.K = problem.likelihood.outputs or 1
        self.constant = _roots(problem)[1]
        self.mean = as_double(problem.prior.mean).reshape(-1, self.K)
        self.start, self.evaluations = theta, 0
        if curvatures is None:
            curvatures = self._sums(theta)[2]
        size = basis.size
        self.weights = (basis.values[:, None] * curvatures + 1) ** -0.5
        self.intercepts = (size * curvatures * self.constant**2 + 1) ** -0.5

    def run(self, goal: float, most: int, memory: int) -> SoftmaxMode:
        """Return where it ends: at a gradient with the norm `goal`, after `most` iterations, or where no step helps."""
        from scipy.optimize import minimize

        reached = False

        def watch(intermediate_result: Any) -> None:
            nonlocal reached
            if self.norm <= goal:
                reached = True
                raise StopIteration

        options = {"maxiter": most, "maxfun": 2 * most + 20, "maxcor": memory, "maxls": 30, "ftol": 0.0, "gtol": 0.0}
        u = self._coordinates(self.start)
        result = minimize(self._value, u, jac=True, method="L-BFGS-B", options=options, callback=watch)
        norm = float(np.linalg.norm(result.jac))
        noise = float(np.finfo(to_numpy(self.problem.rows.reference).dtype).eps)
        floor = 10 * math.sqrt(noise * max(1.0, abs(float(result.fun))))
        stuck = not reached and int(result.nit) < most
        return SoftmaxMode(self._theta(result.x), norm, self.evaluations, self.found, floor, stuck)

    def _coordinates(self, theta: Numbers) -> Numbers:
        shift = theta.reshape(-1, self.K) - self.mean
        D = len(self.basis.roots)
        parts = [(self.basis.coordinates(shift[:D]) / self.weights).reshape(-1)]
        if self.linear.intercept:
            parts.append((shift[D] + self.basis.centre @ shift[:D]) / (self.constant * self.intercepts))
        return np.concatenate(parts)

    def _shift(self, u: Numbers) -> Numbers:
        """Return theta relative to the prior's mean, (D', K)."""
        D, K = len(self.basis.roots), self.K
        W = self.basis.weights(self.weights * u[: D * K].reshape(D, K))
        if not self.linear.intercept:
            return W
        b = self.constant * self.intercepts * u[D * K :] - self.basis.centre @ W
        return np.concatenate([W, b[None, :]], axis=0)

    def _theta(self, u: Numbers) -> Numbers:
        return (self.mean + self._shift(u)).reshape(-1)

    def _value(self, u: Numbers) -> tuple[float, Numbers]:
        """Return the potential and its gradient at u."""
        D, K = len(self.basis.roots), self.K
        shift, V = self._shift(u), self.weights * u[: D * K].reshape(D, K)
        loss, gradient, self.found = self._sums((self.mean + shift).reshape(-1))
        g = gradient.reshape(-1, K)
        value, slope = loss + float(np.sum(V**2)) / 2, g[:D]
        parts = []
        if self.linear.intercept:
            value += float(np.sum(shift[D] ** 2)) / (2 * self.constant**2)
            across = g[D] + shift[D] / self.constant**2
            slope = slope - self.basis.centre[:, None] * across
            parts = [self.constant * self.intercepts * across]
        pulled = np.concatenate([(self.weights * (self.basis.pulled(slope) + V)).reshape(-1), *parts])
        self.norm = float(np.linalg.norm(pulled))
        return value, pulled

    def _sums(self, theta: Numbers) -> tuple[float, Numbers, Numbers]:
        """Return the loss, its gradient (P,), and the mean of p (1 - p) (K,), in one pass over the rows."""
        self.evaluations += 1
        rows, linear = self.problem.rows, self.linear
        point = like(theta, rows.reference)

        def contribution(chunk: Chunk) -> Sums:
            p, log_sum, z = _probabilities(linear, chunk.features, point)
            xp, t, w = namespace(p), one_hot(chunk.targets, p), chunk.weights
            spread = p - p * p
            loss = log_sum - xp.sum(z * t, axis=-1)
            slope = p - t
            gradient = linear.pull_back(chunk.features, weighted(slope, w)[:, None, :])[0, :]
            return xp.sum(weighted(loss, w)), gradient, xp.sum(weighted(spread, w), axis=0)

        loss, gradient, spread = rows.sum(contribution, cost=self.problem.dim, least=ROWS)
        return float(loss), to_numpy(gradient), to_numpy(spread) / self.basis.size
