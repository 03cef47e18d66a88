"""The mean-field equilibrium when P x P matrices are too large: full mean, covariance of low rank plus a complement.

The step is that of `Equilibrium` and `MeanField`, the exact frozen flow in natural parameters,

    P+^{-1} = (1 - tau) P^{-1} + tau H,        m+ = m - tau P+ g,

with g the gradient in all P directions, and the precision kept as "diagonal + low rank" in the frame of
`complement.py`: with D = I + diag(h) and B (P, r) orthonormal,

    P^{-1} = D^{1/2} (I + B diag(beta2) B') D^{1/2}.

The directions are found once at the most probable parameters, the leading eigenvectors of the likelihood's Hessian, and
once more at the law (block power iteration). Along X = D^{-1/2} B the precision then follows the averaged Hessian
exactly, and h is what B leaves of its diagonal. So the mean is that of the mean-field equations for the logit variances
of the law, and the covariance is exact as soon as the rank covers the data or the frame diagonalises what is left. A
step reads the data once and costs a few products of size N x P x r.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from enkbayes.arrays import Array, epsilon, like, namespace, symmetric
from enkbayes.complement import Complement, Frame
from enkbayes.ensemble import AffineEnsemble
from enkbayes.gaussian import Gaussian, standard_points
from enkbayes.likelihoods import Likelihood
from enkbayes.logits import LinearLogits, Piece
from enkbayes.map_estimate import map_estimate
from enkbayes.moments import Diverged, Sums
from enkbayes.problem import Problem

ROTATED = 4096  # features up to which the frame is made of eigenvectors; beyond, it is the features' own
POWER_STEPS = 4  # products with the Hessian that find its leading directions
SUFFICIENT = 0.1  # part of the predicted decrease of energy that a step must deliver unless it lowers the residual
SMALLEST_TAU = 1e-3


@dataclass(frozen=True, eq=False)
class Law:
    """N(mean, cov) in the frame, cov^{-1} = D^{1/2} (I + B diag(beta2) B') D^{1/2}, D = I + diag(h): mean (P,), h (P,),
    B (P, r) orthonormal, beta2 (r,) above -1.
    """

    mean: Array
    h: Array
    B: Array
    beta2: Array

    @classmethod
    def create(cls, mean: Array, h: Array, B: Array, M: Array) -> Law:
        """Return the law with the precision D^{1/2} (I + B M B') D^{1/2}, for a symmetric M (r, r)."""
        w, R = namespace(M).linalg.eigh(symmetric(M))
        return cls(mean, h, B @ R, w)

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

    @property
    def divergence(self) -> float:
        """KL(law || N(0, I)) = (|mean|^2 + tr cov - P - log det cov) / 2."""
        xp = namespace(self.h)
        log_det = -xp.sum(xp.log1p(self.h)) - xp.sum(xp.log1p(self.beta2))
        return float(xp.sum(self.mean**2) + xp.sum(self.variances) - log_det - self.mean.shape[0]) / 2


@dataclass(frozen=True, eq=False)
class Hessian:
    """What one pass over the data tells of the averaged Hessian: its products HX with X (P, r), its diagonal (P,)."""

    X: Array
    HX: Array
    diagonal: Array


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the iteration: the law, the gradient there, the h (P,) and M (r, r) that its Hessian proposes, how far
    the law is from settled, its negative ELBO, and how often directions have been looked for.
    """

    frame: Frame
    law: Law
    gradient: Array
    h: Array
    M: Array
    residual: float
    free_energy: float
    tau: float = 1.0
    searches: int = 1

    @property
    def stuck(self) -> bool:
        """Whether the step size has shrunk to nothing."""
        return self.tau < SMALLEST_TAU


def fits(problem: Problem) -> bool:
    """Tell whether the frame exists: linear logits, and a prior that treats all classes alike."""
    if not isinstance(problem.model, LinearLogits):
        return False
    prior, K = problem.prior, problem.likelihood.outputs or 1
    if not prior.diagonal:
        return K == 1 and prior.dim <= ROTATED
    xp = namespace(prior.mean)
    roots = xp.reshape(prior.root, (-1, K))
    return bool(xp.all(roots == roots[:, :1]))


def start(problem: Problem, rank: int, seed: int) -> Point:
    """Return the point at the Laplace approximation: the most probable parameters and the curvature there."""
    theta = map_estimate(problem, tol=1e-4).theta
    frame = _frame(problem, theta)
    xp = namespace(theta)
    mean = frame.coordinates((theta - problem.prior.mean)[None, :])[0, :]
    block = np.random.default_rng((seed, 6)).standard_normal((min(rank, problem.dim), problem.dim))
    X, _ = _factor(frame.coordinates(problem.prior.scale(like(block, theta))).mT)
    law = Law(mean, xp.zeros_like(mean), X, xp.zeros_like(X[0, :]))
    for _ in range(POWER_STEPS):
        law = _leading(mean, _pass(problem, frame, law, spread=False)[2])
    return evaluate(problem, frame, law)


def search(problem: Problem, point: Point) -> Point:
    """Return the point with the leading directions of the Hessian at its law."""
    law = point.law
    for _ in range(POWER_STEPS):
        law = _leading(law.mean, _pass(problem, point.frame, law)[2])
    return replace(evaluate(problem, point.frame, law), tau=point.tau, searches=point.searches + 1)


def evaluate(problem: Problem, frame: Frame, law: Law) -> Point:
    """Return the point of the iteration at a law."""
    xp = namespace(law.mean)
    loss, slope, hessian = _pass(problem, frame, law)
    gradient = slope + law.mean
    eye = xp.eye(law.beta2.shape[0], dtype=law.h.dtype, device=law.h.device)
    M = symmetric(hessian.X.mT @ (hessian.X + hessian.HX)) - eye
    inside = xp.sum((law.B @ M) * law.B, axis=1) / law.root**2  # the diagonal of D^{1/2} B M B' D^{1/2}
    h = xp.maximum(hessian.diagonal - inside, xp.zeros_like(law.h))
    proposed = Law.create(law.mean, h, law.B, M).variances
    squares = float(xp.sum(gradient * law.solve(gradient)) + xp.sum(xp.log(proposed / law.variances) ** 2) / 2)
    residual = (squares / law.mean.shape[0]) ** 0.5
    return Point(frame, law, gradient, h, M, residual, loss + law.divergence)


def advance(problem: Problem, point: Point) -> Point:
    """Take one trial step: return the new point, or the old one with half the step when nothing has improved."""
    old, tau = point.law, point.tau
    M = tau * point.M + (1 - tau) * _diagonal(old.beta2)
    law = Law.create(old.mean, tau * point.h + (1 - tau) * old.h, old.B, M)
    law = replace(law, mean=law.mean - tau * law.solve(point.gradient))
    try:
        trial = evaluate(problem, point.frame, law)
    except Diverged:
        return replace(point, tau=tau / 2)
    predicted = tau * point.residual**2 * problem.dim
    if trial.residual < point.residual or trial.free_energy < point.free_energy - SUFFICIENT * predicted:
        return replace(trial, tau=min(1.0, 1.2 * tau), searches=point.searches)
    return replace(point, tau=tau / 2)


def particles_of(problem: Problem, point: Point, particles: int, seed: int) -> AffineEnsemble:
    """Return J particles of the law: exactly whitened in the leading directions, drawn in the others."""
    law, frame = point.law, point.frame
    mean = problem.prior.mean + frame.parameters(law.mean[None, :])[0, :]
    xp = namespace(mean)
    order = xp.argsort(law.beta2, descending=True)  # the directions that the data inform most come first
    B, tightening = xp.take(law.B, order, axis=1), xp.take(1 + law.beta2, order)
    columns = law.root[:, None] * B / xp.sqrt(tightening)
    points = informed_points(particles, int(law.beta2.shape[0]), np.random.default_rng((seed, 0)))
    complement = Complement(frame, law.root**2, tightening, seed)
    return AffineEnsemble(mean, frame.parameters(columns.mT).mT, like(points, mean), complement)


def informed_points(size: int, rank: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return points (size, rank): whitened in as many leading coordinates as possible, centred draws in the others.

    >>> points = informed_points(5, 8, np.random.default_rng(0))
    >>> bool(np.allclose(points[:, :4].T @ points[:, :4] / 5, np.eye(4))), points.shape
    (True, (5, 8))
    """
    exact = min(size - 1, rank)
    leading = standard_points(size, exact, rng)
    return leading if exact == rank else np.concatenate([leading, standard_points(size, rank - exact, rng)], axis=1)


def _pass(problem: Problem, frame: Frame, law: Law, *, spread: bool = True) -> tuple[float, Array, Hessian]:
    """Read the data once: E[Psi], its gradient (P,), and the Hessian's products with X = K^{1/2} B.

    The logits have the covariance diag(s) - E diag(shrink) E', with s from K alone and E the logits of X; without
    `spread`, none.
    """
    model: Any = problem.model
    xp, K = namespace(law.mean), frame.shape[1]
    X = law.root[:, None] * law.B
    theta = problem.prior.mean + frame.parameters(law.mean[None, :])[0, :]
    eye = xp.eye(K, dtype=X.dtype, device=X.device)

    def part(piece: Piece) -> Sums:
        features, *observed = piece
        whitened = frame.features(features)
        E = frame.logits(whitened, X)
        s = frame.logit_variances(whitened, law.root**2)
        cov = s[:, :, None] * eye - xp.matmul(E * law.shrink, E.mT) if spread else s[:, :, None] * (0 * eye)
        zbar = xp.reshape(model.map.project(features, theta[:, None]), (-1, K))
        psi, slope, curvature = _averages(problem.likelihood, frame, zbar, cov, *observed)
        slopes = frame.pull_back(whitened, slope[:, :, None])[:, 0]
        products = frame.pull_back(whitened, curvature * E if K == 1 else xp.matmul(curvature, E))
        return Sums((psi, slopes, products, frame.pull_back_squares(whitened, xp.sum(curvature * eye, axis=-1))))

    total: Sums = model.total(map(part, model.pieces(problem.targets, problem.weights)))
    loss, slopes, products, diagonal = total.parts
    return float(loss), slopes, Hessian(X, products, diagonal)


def _averages(
    likelihood: Likelihood, frame: Frame, zbar: Array, cov: Array, targets: Array, weights: Array | None
) -> tuple[Array, Array, Array]:
    """Return the summed loss, and slopes (n, K) and curvatures (n, K, K) in the frame, for logits N(zbar, cov)."""
    xp = namespace(cov)
    if likelihood.outputs is None:
        variance = xp.maximum(cov[:, 0, 0], xp.zeros_like(cov[:, 0, 0]))
        loss, slope, curvature = likelihood.gaussian_averages(zbar[:, 0], variance, targets)
        slope, curvature = slope[:, None], curvature[:, None, None]
    else:
        cov = symmetric(xp.matmul(xp.matmul(frame.right, cov), frame.right.mT))
        loss, slope, curvature = likelihood.gaussian_averages(zbar, cov, targets)
        slope, curvature = slope @ frame.right, xp.matmul(xp.matmul(frame.right.mT, curvature), frame.right)
    if weights is not None:
        loss, slope, curvature = weights * loss, weights[:, None] * slope, weights[:, None, None] * curvature
    return xp.sum(loss), slope, curvature


def _leading(mean: Array, hessian: Hessian) -> Law:
    """Return the law of the leading part of the Hessian and what it leaves of its diagonal, after one power step.

    Nystrom: H ~ HX (X'HX)^{-1} (HX)' = U diag(lam) U'.
    """
    xp = namespace(mean)
    Q, R = xp.linalg.qr(hessian.X)
    Y = xp.linalg.solve(R.mT, hessian.HX.mT).mT
    w, V = xp.linalg.eigh(symmetric(Q.mT @ Y))
    floor = xp.max(xp.abs(w)) * epsilon(w) * w.shape[0]
    U, lam = _factor((Y @ V) / xp.sqrt(xp.where(w > floor, w, xp.full_like(w, xp.inf))))
    rest = hessian.diagonal - (U * U) @ lam
    h = xp.maximum(rest, xp.zeros_like(rest))
    B, beta2 = _factor((U * xp.sqrt(lam + 1e-3 * xp.max(lam))) / xp.sqrt(1 + h)[:, None])
    return Law(mean, h, B, beta2)


def _diagonal(x: Array) -> Array:
    return x * namespace(x).eye(x.shape[0], dtype=x.dtype, device=x.device)


def _factor(X: Array) -> tuple[Array, Array]:
    """Return orthonormal U (P, c) and lam (c,), descending, with X X' = U diag(lam) U'."""
    xp = namespace(X)
    Q, R = xp.linalg.qr(X)
    u, s, _ = xp.linalg.svd(R, full_matrices=False)
    return Q @ u, s * s


def _frame(problem: Problem, theta: Array) -> Frame:
    """Return the frame of the eigenvectors of sum_n tr(Lambda_n) phi_n phi_n' and of sum_n |phi_n|^2 Lambda_n, phi the
    features in units of the prior.
    """
    model: Any = problem.model
    linear, prior = model.map, problem.prior
    xp, K = namespace(theta), linear.outputs or 1
    eye = xp.eye(K, dtype=theta.dtype, device=theta.device)
    plain = Frame(_feature_root(prior, K), eye, linear.intercept)
    if plain.shape[0] > ROTATED:
        return plain

    def part(piece: Piece) -> Sums:
        features, *observed = piece
        x = plain.features(features)
        x = x.toarray() if hasattr(x, "toarray") else x
        zbar = xp.reshape(linear.project(features, theta[:, None]), (-1, K))
        cov = xp.zeros((zbar.shape[0], K, K), dtype=theta.dtype, device=theta.device)
        _, _, curvature = _averages(problem.likelihood, plain, zbar, cov, *observed)
        of_features = x.mT @ (xp.sum(curvature * eye, axis=(1, 2))[:, None] * x)
        return Sums((of_features, xp.sum(xp.sum(x * x, axis=1)[:, None, None] * curvature, axis=0)))

    total: Sums = model.total(map(part, model.pieces(problem.targets, problem.weights)))
    gram, between = total.parts
    Qa, Qb = xp.linalg.eigh(symmetric(gram))[1], xp.linalg.eigh(symmetric(between))[1]
    left = plain.left @ Qa if plain.left.ndim == 2 else plain.left[:, None] * Qa
    return Frame(left, Qb, linear.intercept)


def _feature_root(prior: Gaussian, K: int) -> Array:
    """Return the prior's root on the features alone: (D,), or (D, D) for a dense prior of a single logit."""
    return prior.root if not prior.diagonal else namespace(prior.mean).reshape(prior.root, (-1, K))[:, 0]
