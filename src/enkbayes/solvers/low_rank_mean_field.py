"""The mean-field equilibrium when P x P matrices are too large: full mean, covariance of low rank plus a complement.

The step is that of `Equilibrium` and `MeanField`, the exact frozen flow in natural parameters,

    P+^{-1} = (1 - tau) P^{-1} + tau H,        m+ = m - tau P+ g,

with g the gradient in all P directions, and the precision kept as "diagonal + low rank" in the frame of
`core/low_rank.py`: with D = I + diag(h) and B (P, r) orthonormal,

    P^{-1} = D^{1/2} (I + B diag(beta2) B') D^{1/2}.

The directions are found once at the most probable parameters, the leading eigenvectors of the likelihood's Hessian, and
once more at the converged mean (block power iteration). Along X = D^{-1/2} B the precision then follows the averaged
Hessian exactly, and h is what B leaves of its diagonal. So the mean is that of the mean-field equations for the logit
variances of the Gaussian, and the covariance is exact as soon as the rank covers the data or the frame diagonalises
what is left. A step reads the rows once and costs a product of size N x P x r. The iteration is accelerated by
Anderson's method in the coordinates (mean, log(1 + h), I + B M B'), as `step_control.py` does in the dense case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import informed_points
from enkbayes.core.likelihoods import Categorical
from enkbayes.core.low_rank import Complement, Frame
from enkbayes.core.moments import Diverged
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, epsilon, identity, like, namespace, oriented, symmetric, thin_svd
from enkbayes.solvers.anderson import extrapolated
from enkbayes.solvers.low_rank_sums import LowRankPrecision, RowSums, fitted_frame, in_frame, sums_over_rows
from enkbayes.solvers.map_estimate import map_estimate


@dataclass(frozen=True, eq=False)
class Move:
    """A difference of two Gaussians with the same directions: of the mean (P,), of log(1 + h) (P,), and of M (r, r)."""

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
    """A point of the iteration: the Gaussian q, the gradient there, the h (P,) and M (r, r) that its Hessian proposes,
    the residual, its negative ELBO, how often directions have been searched, and the last steps with the changes of the
    residual that they made.
    """

    frame: Frame
    q: LowRankPrecision
    variances: Array
    gradient: Array
    h: Array
    M: Array
    residual: float
    free_energy: float
    tau: float = 1.0
    searches: int = 1
    history: tuple[tuple[Move, Move], ...] = ()

    def force(self) -> Move:
        """The whole step, tau = 1."""
        xp, q = namespace(self.h), self.q
        whole, _ = _gaussian(q.mean, self.h, q.B, self.M)
        return Move(-whole.solve(self.gradient), xp.log1p(self.h) - xp.log1p(q.h), self.M - _diagonal(q.beta2))

    def dot(self, a: Move, b: Move) -> float:
        """Return the inner product of two moves, in units of q's standard deviations."""
        xp, scale = namespace(self.h), 1 / (1 + self.q.beta2)
        along = xp.sum(scale[:, None] * scale * a.M * b.M)
        return float(xp.sum(a.mean * b.mean / self.variances)) + float(xp.sum(a.log * b.log) + along) / 2


def default_rank(dim: int, most: int = 128, entries: float = 1.6e6) -> int:
    """Return the number of directions of a low-rank covariance: `most`, or fewer if they would have more than `entries`
    entries, which limits time more than memory.

    >>> default_rank(1000), default_rank(100_000)
    (128, 16)
    """
    return max(8, min(most, int(entries // dim)))


@dataclass(frozen=True)
class LowRankSolver:
    """The iteration to the mean-field equilibrium, and the constants of its decisions.

    rotated : features up to which the frame is made of eigenvectors; beyond, it is the features' own
    long : parameters from which passes over the rows are expensive, so that fewer of them find start and directions
    near : mean distance of a parameter from its most probable value, in posterior sds, that is then near enough
    power_steps : products with the Hessian that find its leading directions
    long_steps : the same for many parameters, at the most probable ones and again at the converged mean
    depth : earlier steps that the acceleration remembers; ridge : of its least squares, relative to their trace
    slack : growth of the residual that an accelerated step may cause
    sufficient : part of the predicted decrease of energy that a step must deliver unless it lowers the residual
    smallest_tau : step size at which the iteration gives up
    many : classes from which averages take no K x K matrix for each row, and the iteration begins without directions
    pairs : of points in the averages of so many classes; early_pairs : the same far from the end
    early, middle : residuals at which there are more points, and at which directions are searched
    most_early : steps without directions, at most
    first : step size of an iteration without directions when it begins, at the curvature of the most probable
    parameters, which is far from its averages
    remembered : numbers of the earlier steps that are kept; with more parameters fewer steps, but 5
    few : the arguments of `default_rank` for many classes
    """

    rotated: int = 4096
    long: int = 20000
    near: float = 1e-2
    power_steps: int = 4
    long_steps: tuple[int, int] = (3, 2)
    depth: int = 5
    ridge: float = 1e-3
    slack: float = 2.0
    sufficient: float = 0.1
    smallest_tau: float = 1e-3
    many: int = 30
    pairs: int = 16
    early_pairs: int = 2
    early: float = 0.1
    middle: float = 0.05
    most_early: int = 40
    first: float = 0.1
    remembered: float = 5e6
    few: tuple[int, float] = (16, 5e5)

    def rank(self, problem: Problem) -> int:
        """Return the default number of directions: for many classes, whose frame holds nearly all of the covariance,
        few.
        """
        return default_rank(problem.dim, *self.few) if self.has_many(problem) else default_rank(problem.dim)

    def fits(self, problem: Problem) -> bool:
        """Tell whether the frame exists: linear logits, and a prior that treats all classes alike."""
        rotated = problem.likelihood.outputs in (None, 1) and problem.dim <= self.rotated
        return problem.is_linear and (problem.alike or (not problem.prior.diagonal and rotated))

    def start(self, problem: Problem, rank: int, seed: int) -> Point:
        """Return the point at the Laplace approximation: the most probable parameters and the curvature there.

        The iteration solves for the mean afterwards, so a mean with many parameters need only be near.
        """
        many = self.has_many(problem)
        near = problem.dim >= self.long or many
        theta = map_estimate(problem, tol=self.near * problem.dim**0.5 if near else 1e-4).theta
        frame = fitted_frame(problem, theta, self.rotated)
        xp = namespace(theta)
        mean = frame.coordinates((theta - problem.prior.mean)[None, :])[0, :]
        if rank == 0:
            seen, own = in_frame(problem, frame)
            return replace(self._without_directions(seen, own, mean), frame=frame, searches=2)
        block = np.random.default_rng((seed, 6)).standard_normal(
            (min(rank, problem.dim), problem.dim), dtype=np.float32
        )
        X, _ = orthonormal_factor(frame.coordinates(problem.prior.unwhiten(like(block, theta))).mT, self.long)
        if many:
            return self._start_of_many(problem, frame, mean, X)
        q = LowRankPrecision(mean, xp.zeros_like(mean), X, xp.zeros_like(X[0, :]))
        for _ in range(self.long_steps[0] if problem.dim >= self.long else self.power_steps):
            q = _leading(
                mean, sums_over_rows(problem, frame, q, spread=False, products=True, many=self.many), self.long
            )
        return self.evaluate(problem, frame, q)

    def has_many(self, problem: Problem) -> bool:
        """Tell whether a problem has so many classes that averages take points of their own for each row."""
        return isinstance(problem.likelihood, Categorical) and problem.likelihood.outputs >= self.many

    def _start_of_many(self, problem: Problem, frame: Frame, mean: Array, X: Array) -> Point:
        """Return the point after an iteration without directions, which costs little, with few points for each row as
        long as the end is far; the directions X (P, r) of the Hessian are found there.
        """
        point = self._without_directions(problem, frame, mean)
        q = point.q
        steps, pairs = (self.long_steps[0], 4) if problem.dim >= self.long else (self.power_steps, self.pairs)
        for _ in range(steps):
            sums = sums_over_rows(problem, frame, point.q, along=X, products=True, many=self.many, pairs=pairs)
            q = _leading(mean, sums, self.long)
            X = q.root[:, None] * q.B
        q = replace(q, mean=point.q.mean)
        return replace(self.evaluate(problem, frame, q), searches=2)

    def _without_directions(self, problem: Problem, frame: Frame, mean: Array) -> Point:
        """Return the point after an iteration from a mean (P,), first with few pairs of points for each row."""
        there = _alone(mean, namespace(mean).zeros_like(mean))
        q = _alone(mean, sums_over_rows(problem, frame, there, spread=False, many=self.many).diagonal)
        point = replace(self.evaluate(problem, frame, q, pairs=self.early_pairs), tau=self.first)
        for pairs, until in ((self.early_pairs, self.early), (self.pairs, self.middle)):
            if pairs != self.early_pairs:
                finer = self.evaluate(problem, frame, point.q, pairs=pairs)
                point = replace(finer, tau=point.tau, history=point.history)
            for _ in range(self.most_early):
                if point.residual < until or self.stuck(point):
                    break
                point = self.advance(problem, point, pairs=pairs)
        return point

    def search(self, problem: Problem, point: Point) -> Point:
        """Return the point with the leading directions of the Hessian at its Gaussian."""
        q = point.q
        for _ in range(self.long_steps[1] if problem.dim >= self.long else self.power_steps):
            q = _leading(q.mean, sums_over_rows(problem, point.frame, q, products=True, many=self.many), self.long)
        return replace(self.evaluate(problem, point.frame, q), tau=point.tau, searches=point.searches + 1)

    def evaluate(self, problem: Problem, frame: Frame, q: LowRankPrecision, *, pairs: int | None = None) -> Point:
        """Return the point of the iteration at a Gaussian."""
        xp = namespace(q.mean)
        sums = sums_over_rows(problem, frame, q, many=self.many, pairs=pairs or self.pairs)
        gradient = sums.slopes + q.mean
        M = symmetric(sums.X.mT @ sums.X) + sums.XHX - _diagonal(xp.ones_like(q.beta2))
        inside = xp.sum((q.B @ M) * q.B, axis=1) / q.root**2  # the diagonal of D^{1/2} B M B' D^{1/2}
        h = xp.maximum(sums.diagonal - inside, xp.zeros_like(q.h))
        variances, proposed = q.variances, _gaussian(q.mean, h, q.B, M)[0].variances
        squares = float(xp.sum(gradient * q.solve(gradient)) + xp.sum(xp.log(proposed / variances) ** 2) / 2)
        if not np.isfinite(squares):
            raise Diverged("the gradient or the curvature is not finite")
        residual = (squares / q.mean.shape[0]) ** 0.5
        return Point(frame, q, variances, gradient, h, M, residual, sums.loss + q.divergence(variances))

    def advance(self, problem: Problem, point: Point, *, pairs: int | None = None) -> Point:
        """Take one trial step: return the new point, or, if nothing improved, the old one with a smaller step size."""
        accelerated = self._accelerated(point)
        q, turn = _plain(point) if accelerated is None else accelerated
        try:
            trial = self.evaluate(problem, point.frame, q, pairs=pairs)
        except Diverged:
            trial = None
        if trial is None or not (self._closer if accelerated else self._better)(point, trial):
            return replace(point, tau=point.tau / 2) if accelerated is None else replace(point, history=())
        xp, old = namespace(q.mean), point.q
        moved = Move(q.mean - old.mean, xp.log1p(q.h) - xp.log1p(old.h), _diagonal(q.beta2))
        moved = replace(moved, M=moved.M - turn.mT @ _diagonal(old.beta2) @ turn)
        depth = min(self.depth, max(5, int(self.remembered // old.h.shape[0])))
        changed = trial.force() - point.force().turned(turn)
        history = (*((a.turned(turn), b.turned(turn)) for a, b in point.history[1 - depth :]), (moved, changed))
        tau = min(1.0, 1.2 * point.tau) if accelerated is None else point.tau
        return replace(trial, tau=tau, searches=point.searches, history=history)

    def _better(self, old: Point, new: Point) -> bool:
        """Tell whether a plain step is taken: it must lower the residual or the energy."""
        predicted = old.tau * old.residual**2 * int(old.h.shape[0])
        return new.residual < old.residual or new.free_energy < old.free_energy - self.sufficient * predicted

    def _closer(self, old: Point, new: Point) -> bool:
        """Tell whether an accelerated step is taken. The equilibrium of a low-rank Gaussian is not a minimum of the
        energy, which could lead it away; the residual, on the other hand, may rise for a step or two.
        """
        return new.residual < self.slack * old.residual

    def _accelerated(self, point: Point) -> tuple[LowRankPrecision, Array] | None:
        """Return Anderson's step, or None without a history or when it would leave the positive definite matrices."""
        if not point.history:
            return None
        xp, old, tau = namespace(point.h), point.q, point.tau
        move = extrapolated(point.force(), point.history, tau, point.dot, self.ridge) * tau
        h = xp.exp(xp.log1p(old.h) + xp.clip(move.log, -1.0, 1.0)) - 1
        q, turn = _gaussian(old.mean + move.mean, xp.maximum(h, xp.zeros_like(h)), old.B, _diagonal(old.beta2) + move.M)
        return (q, turn) if q.beta2.shape[0] == 0 or float(xp.min(q.beta2)) > -0.9 else None

    def stuck(self, point: Point) -> bool:
        """Tell whether the step size has shrunk to nothing."""
        return point.tau < self.smallest_tau


WITHOUT_DIRECTIONS = LowRankSolver(many=2, early_pairs=4, pairs=4, early=0.02, middle=0.02, depth=10, ridge=1e-5)
"""The iteration for a covariance that is diagonal in the frame. It takes few pairs of points for each row, however few
the classes, and ends at a residual far below what the diagonal leaves out."""


def _plain(point: Point) -> tuple[LowRankPrecision, Array]:
    """Return the Gaussian after the exact frozen flow over tau, and how its directions have turned."""
    old, tau = point.q, point.tau
    M = tau * point.M + (1 - tau) * _diagonal(old.beta2)
    q, turn = _gaussian(old.mean, tau * point.h + (1 - tau) * old.h, old.B, M)
    return replace(q, mean=q.mean - tau * q.solve(point.gradient)), turn


def particles_of(problem: Problem, point: Point, particles: int, seed: int) -> AffineEnsemble:
    """Return J particles of q: exactly whitened in the leading directions, drawn in the others."""
    q, frame = point.q, point.frame
    mean = problem.prior.mean + frame.parameters(q.mean[None, :])[0, :]
    xp = namespace(mean)
    order = xp.argsort(q.beta2, descending=True)  # the directions that the data determine best come first
    B, tightening = xp.take(q.B, order, axis=1), xp.take(1 + q.beta2, order)
    columns = q.root[:, None] * oriented(B) / xp.sqrt(tightening)
    points = informed_points(particles, int(q.beta2.shape[0]), np.random.default_rng((seed, 0)))
    complement = Complement(frame, q.root**2, tightening, seed)
    return AffineEnsemble(mean, frame.parameters(columns.mT).mT, like(points, mean), complement)


def _gaussian(mean: Array, h: Array, B: Array, M: Array) -> tuple[LowRankPrecision, Array]:
    """Return the Gaussian with the precision D^{1/2} (I + B M B') D^{1/2}, for a symmetric M (r, r), and the R (r, r)
    that turns B into its directions.
    """
    if M.shape[0] == 0:
        return _alone(mean, h), M
    w, R = namespace(M).linalg.eigh(symmetric(M))
    return LowRankPrecision(mean, h, B @ R, w), R


def _alone(mean: Array, h: Array) -> LowRankPrecision:
    """Return the Gaussian without directions."""
    nothing = namespace(mean).zeros((mean.shape[0], 0), dtype=mean.dtype, device=mean.device)
    return LowRankPrecision(mean, h, nothing, nothing[0, :])


def _leading(mean: Array, sums: RowSums, long: int) -> LowRankPrecision:
    """Return the Gaussian of the leading part of the Hessian and what it leaves of its diagonal, after one power step.

    Nystrom: H ~ HX (X'HX)^{-1} (HX)' = U diag(lam) U'.
    """
    xp = namespace(mean)
    w, V = xp.linalg.eigh(sums.XHX)
    floor = xp.max(xp.abs(w)) * epsilon(w) * w.shape[0]
    U, lam = orthonormal_factor(sums.HX @ (V / xp.sqrt(xp.where(w > floor, w, xp.full_like(w, xp.inf)))), long)
    rest = sums.diagonal - (U * U) @ lam
    h = xp.maximum(rest, xp.zeros_like(rest))
    B, beta2 = orthonormal_factor((U * xp.sqrt(lam + 1e-3 * xp.max(lam))) / xp.sqrt(1 + h)[:, None], long)
    return LowRankPrecision(mean, h, B, beta2)


def _diagonal(x: Array) -> Array:
    return x * identity(x.shape[0], x)


def orthonormal_factor(X: Array, long: int) -> tuple[Array, Array]:
    """Return orthonormal U (P, c) and lam (c,), descending, with X X' = U diag(lam) U'; an X of `long` rows
    or more loses the columns that are combinations of others.

    It is factored through X'X, twice since once leaves U orthogonal to the square root of round-off only.
    """
    xp = namespace(X)
    if X.shape[0] < long:
        Q, R = xp.linalg.qr(X)
        u, s, _ = thin_svd(R)
        return Q @ u, s * s
    lam, V = xp.linalg.eigh(symmetric(X.mT @ X))
    keep = int(xp.sum(xp.astype(lam > xp.max(lam) * (100 * epsilon(lam)), xp.int64)))
    lam, V = xp.flip(lam)[:keep], xp.flip(V, axis=1)[:, :keep]
    U = X @ (V / xp.sqrt(lam))
    w, R = xp.linalg.eigh(symmetric(U.mT @ U))
    return U @ ((R / xp.sqrt(w)) @ R.mT), lam
