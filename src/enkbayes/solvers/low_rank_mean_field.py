"""The mean-field equilibrium when P x P matrices are too large: full mean, covariance of low rank plus a complement.

The step is that of `Equilibrium` and `MeanField`, the exact frozen flow in natural parameters,

    P+^{-1} = (1 - tau) P^{-1} + tau H,        m+ = m - tau P+ g,

with g the gradient in all P directions, and the precision kept as "diagonal + low rank" in the frame of
`core/complement.py`: with D = I + diag(h) and B (P, r) orthonormal,

    P^{-1} = D^{1/2} (I + B diag(beta2) B') D^{1/2}.

The directions are found once at the most probable parameters, the leading eigenvectors of the likelihood's Hessian, and
once more at the converged mean (block power iteration). Along X = D^{-1/2} B the precision then follows the averaged
Hessian exactly, and h is what B leaves of its diagonal. So the mean is that of the mean-field equations for the logit
variances of the law, and the covariance is exact as soon as the rank covers the data or the frame diagonalises what is
left. A step reads the data once and costs a product of size N x P x r. The iteration is accelerated by Anderson's
method in the coordinates (mean, log(1 + h), I + B M B'), as `step_control.py` does in the dense case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import informed_points
from enkbayes.core.low_rank import Complement, Frame
from enkbayes.core.moments import Diverged
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, epsilon, like, namespace, oriented, symmetric
from enkbayes.solvers.anderson import extrapolated
from enkbayes.solvers.low_rank_sums import LowRankPrecision, RowSums, fitted_frame, sums_over_rows
from enkbayes.solvers.map_estimate import map_estimate

ROTATED = 4096  # features up to which the frame is made of eigenvectors; beyond, it is the features' own
LONG = 20000  # parameters from which passes over the data are dear: fewer of them find the start and the directions
NEAR = 1e-2  # mean distance of a parameter from its most probable value, in posterior sds, that is then near enough
POWER_STEPS = 4  # products with the Hessian that find its leading directions
DEAR_STEPS = (3, 2)  # the same for a long law, at the most probable parameters and again at the law
DEPTH = 5  # earlier steps that the acceleration remembers
RIDGE = 1e-3  # of the least squares of the acceleration, relative to their trace
SLACK = 2.0  # growth of the residual that an accelerated step may cause
SUFFICIENT = 0.1  # part of the predicted decrease of energy that a step must deliver unless it lowers the residual
SMALLEST_TAU = 1e-3


@dataclass(frozen=True, eq=False)
class Move:
    """A difference of two laws with the same directions: of the mean (P,), of log(1 + h) (P,), and of M (r, r)."""

    mean: Array
    log: Array
    M: Array

    def __add__(self, other: Move) -> Move:
        return Move(self.mean + other.mean, self.log + other.log, self.M + other.M)

    def __mul__(self, factor: float) -> Move:
        return Move(self.mean * factor, self.log * factor, self.M * factor)

    def __sub__(self, other: Move) -> Move:
        return self + other * -1.0

    def turned(self, R: Array) -> Move:
        """Return the same difference for the directions B R."""
        return Move(self.mean, self.log, R.mT @ self.M @ R)


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the iteration: the law, the gradient there, the h (P,) and M (r, r) that its Hessian proposes, how far
    the law is from settled, its negative ELBO, how often directions have been looked for, and the last steps with the
    changes of the residual that they made.
    """

    frame: Frame
    law: LowRankPrecision
    variances: Array
    gradient: Array
    h: Array
    M: Array
    residual: float
    free_energy: float
    tau: float = 1.0
    searches: int = 1
    history: tuple[tuple[Move, Move], ...] = ()

    @property
    def stuck(self) -> bool:
        """Whether the step size has shrunk to nothing."""
        return self.tau < SMALLEST_TAU

    def force(self) -> Move:
        """The whole step, tau = 1."""
        xp, law = namespace(self.h), self.law
        whole, _ = _law(law.mean, self.h, law.B, self.M)
        return Move(-whole.solve(self.gradient), xp.log1p(self.h) - xp.log1p(law.h), self.M - _diagonal(law.beta2))

    def dot(self, a: Move, b: Move) -> float:
        """Return the inner product of two moves, in units of the law's standard deviations."""
        xp, scale = namespace(self.h), 1 / (1 + self.law.beta2)
        along = xp.sum(scale[:, None] * scale * a.M * b.M)
        return float(xp.sum(a.mean * b.mean / self.variances)) + float(xp.sum(a.log * b.log) + along) / 2


def fits(problem: Problem) -> bool:
    """Tell whether the frame exists: linear logits, and a prior that treats all classes alike."""
    if not problem.is_linear:
        return False
    prior, K = problem.prior, problem.likelihood.outputs or 1
    if not prior.diagonal:
        return K == 1 and prior.dim <= ROTATED
    xp = namespace(prior.mean)
    roots = xp.reshape(prior.root, (-1, K))
    return bool(xp.all(roots == roots[:, :1]))


def default_rank(dim: int, most: int = 128, entries: float = 1.6e6) -> int:
    """Return the number of directions of a low-rank covariance: `most`, or fewer where their entries would pass
    `entries`, for the sake of time more than memory.

    >>> default_rank(1000), default_rank(100_000)
    (128, 16)
    """
    return max(8, min(most, int(entries // dim)))


def start(problem: Problem, rank: int, seed: int) -> Point:
    """Return the point at the Laplace approximation: the most probable parameters and the curvature there.

    The mean is solved for afterwards, so a long one need only be near.
    """
    theta = map_estimate(problem, tol=NEAR * problem.dim**0.5 if problem.dim >= LONG else 1e-4).theta
    frame = fitted_frame(problem, theta, ROTATED)
    xp = namespace(theta)
    mean = frame.coordinates((theta - problem.prior.mean)[None, :])[0, :]
    block = np.random.default_rng((seed, 6)).standard_normal((min(rank, problem.dim), problem.dim), dtype=np.float32)
    X, _ = _factor(frame.coordinates(problem.prior.unwhiten(like(block, theta))).mT)
    law = LowRankPrecision(mean, xp.zeros_like(mean), X, xp.zeros_like(X[0, :]))
    for _ in range(DEAR_STEPS[0] if problem.dim >= LONG else POWER_STEPS):
        law = _leading(mean, sums_over_rows(problem, frame, law, spread=False, products=True))
    return evaluate(problem, frame, law)


def search(problem: Problem, point: Point) -> Point:
    """Return the point with the leading directions of the Hessian at its law."""
    law = point.law
    for _ in range(DEAR_STEPS[1] if problem.dim >= LONG else POWER_STEPS):
        law = _leading(law.mean, sums_over_rows(problem, point.frame, law, products=True))
    return replace(evaluate(problem, point.frame, law), tau=point.tau, searches=point.searches + 1)


def evaluate(problem: Problem, frame: Frame, law: LowRankPrecision) -> Point:
    """Return the point of the iteration at a law."""
    xp = namespace(law.mean)
    reading = sums_over_rows(problem, frame, law)
    gradient = reading.slopes + law.mean
    M = symmetric(reading.X.mT @ reading.X) + reading.XHX - _diagonal(xp.ones_like(law.beta2))
    inside = xp.sum((law.B @ M) * law.B, axis=1) / law.root**2  # the diagonal of D^{1/2} B M B' D^{1/2}
    h = xp.maximum(reading.diagonal - inside, xp.zeros_like(law.h))
    variances, proposed = law.variances, _law(law.mean, h, law.B, M)[0].variances
    squares = float(xp.sum(gradient * law.solve(gradient)) + xp.sum(xp.log(proposed / variances) ** 2) / 2)
    if not np.isfinite(squares):
        raise Diverged("the gradient or the curvature at the law is not finite")
    residual = (squares / law.mean.shape[0]) ** 0.5
    return Point(frame, law, variances, gradient, h, M, residual, reading.loss + law.divergence(variances))


def advance(problem: Problem, point: Point) -> Point:
    """Take one trial step: return the new point, or the old one with less ambition when nothing has improved."""
    accelerated = _accelerated(point)
    law, turn = _plain(point) if accelerated is None else accelerated
    try:
        trial = evaluate(problem, point.frame, law)
    except Diverged:
        trial = None
    if trial is None or not (_closer if accelerated else _better)(point, trial):
        return replace(point, tau=point.tau / 2) if accelerated is None else replace(point, history=())
    xp, old = namespace(law.mean), point.law
    moved = Move(law.mean - old.mean, xp.log1p(law.h) - xp.log1p(old.h), _diagonal(law.beta2))
    moved = replace(moved, M=moved.M - turn.mT @ _diagonal(old.beta2) @ turn)
    changed = trial.force() - point.force().turned(turn)
    history = (*((a.turned(turn), b.turned(turn)) for a, b in point.history[1 - DEPTH :]), (moved, changed))
    tau = min(1.0, 1.2 * point.tau) if accelerated is None else point.tau
    return replace(trial, tau=tau, searches=point.searches, history=history)


def _better(old: Point, new: Point) -> bool:
    """Tell whether a plain step is taken: it must lower the residual or the energy."""
    predicted = old.tau * old.residual**2 * int(old.h.shape[0])
    return new.residual < old.residual or new.free_energy < old.free_energy - SUFFICIENT * predicted


def _closer(old: Point, new: Point) -> bool:
    """Tell whether an accelerated step is taken. The equilibrium of a structured law is no minimum of the energy, which
    could lead it away; the residual, on the other hand, may rise for a step or two.
    """
    return new.residual < SLACK * old.residual


def _plain(point: Point) -> tuple[LowRankPrecision, Array]:
    """Return the law after the exact frozen flow over tau, and how its directions have turned."""
    old, tau = point.law, point.tau
    M = tau * point.M + (1 - tau) * _diagonal(old.beta2)
    law, turn = _law(old.mean, tau * point.h + (1 - tau) * old.h, old.B, M)
    return replace(law, mean=law.mean - tau * law.solve(point.gradient)), turn


def _accelerated(point: Point) -> tuple[LowRankPrecision, Array] | None:
    """Return Anderson's step, or None without a history or when it would leave the positive definite matrices."""
    if not point.history:
        return None
    xp, old, tau = namespace(point.h), point.law, point.tau
    move = extrapolated(point.force(), point.history, tau, point.dot, RIDGE) * tau
    h = xp.exp(xp.log1p(old.h) + xp.clip(move.log, -1.0, 1.0)) - 1
    law, turn = _law(old.mean + move.mean, xp.maximum(h, xp.zeros_like(h)), old.B, _diagonal(old.beta2) + move.M)
    return (law, turn) if float(xp.min(law.beta2)) > -0.9 else None


def particles_of(problem: Problem, point: Point, particles: int, seed: int) -> AffineEnsemble:
    """Return J particles of the law: exactly whitened in the leading directions, drawn in the others."""
    law, frame = point.law, point.frame
    mean = problem.prior.mean + frame.parameters(law.mean[None, :])[0, :]
    xp = namespace(mean)
    order = xp.argsort(law.beta2, descending=True)  # the directions that the data inform most come first
    B, tightening = xp.take(law.B, order, axis=1), xp.take(1 + law.beta2, order)
    columns = law.root[:, None] * oriented(B) / xp.sqrt(tightening)
    points = informed_points(particles, int(law.beta2.shape[0]), np.random.default_rng((seed, 0)))
    complement = Complement(frame, law.root**2, tightening, seed)
    return AffineEnsemble(mean, frame.parameters(columns.mT).mT, like(points, mean), complement)


def _law(mean: Array, h: Array, B: Array, M: Array) -> tuple[LowRankPrecision, Array]:
    """Return the law with the precision D^{1/2} (I + B M B') D^{1/2}, for a symmetric M (r, r), and the R (r, r) that
    turns B into its directions.
    """
    w, R = namespace(M).linalg.eigh(symmetric(M))
    return LowRankPrecision(mean, h, B @ R, w), R


def _leading(mean: Array, reading: RowSums) -> LowRankPrecision:
    """Return the law of the leading part of the Hessian and what it leaves of its diagonal, after one power step.

    Nystrom: H ~ HX (X'HX)^{-1} (HX)' = U diag(lam) U'.
    """
    xp = namespace(mean)
    w, V = xp.linalg.eigh(reading.XHX)
    floor = xp.max(xp.abs(w)) * epsilon(w) * w.shape[0]
    U, lam = _factor(reading.HX @ (V / xp.sqrt(xp.where(w > floor, w, xp.full_like(w, xp.inf)))))
    rest = reading.diagonal - (U * U) @ lam
    h = xp.maximum(rest, xp.zeros_like(rest))
    B, beta2 = _factor((U * xp.sqrt(lam + 1e-3 * xp.max(lam))) / xp.sqrt(1 + h)[:, None])
    return LowRankPrecision(mean, h, B, beta2)


def _diagonal(x: Array) -> Array:
    return x * namespace(x).eye(x.shape[0], dtype=x.dtype, device=x.device)


def _factor(X: Array) -> tuple[Array, Array]:
    """Return orthonormal U (P, c) and lam (c,), descending, with X X' = U diag(lam) U'; a long X loses the columns that
    are combinations of others.

    A long X is factored through X'X, twice since once leaves U orthogonal to the square root of round-off only.
    """
    xp = namespace(X)
    if X.shape[0] < LONG:
        Q, R = xp.linalg.qr(X)
        u, s, _ = xp.linalg.svd(R, full_matrices=False)
        return Q @ u, s * s
    lam, V = xp.linalg.eigh(symmetric(X.mT @ X))
    keep = int(xp.sum(xp.astype(lam > xp.max(lam) * (100 * epsilon(lam)), xp.int64)))
    lam, V = xp.flip(lam)[:keep], xp.flip(V, axis=1)[:, :keep]
    U = X @ (V / xp.sqrt(lam))
    w, R = xp.linalg.eigh(symmetric(U.mT @ U))
    return U @ ((R / xp.sqrt(w)) @ R.mT), lam
