"""Relaxation to the equilibrium g = 0, S = I, with a step size that chooses itself and Anderson acceleration.

In natural parameters lambda = (P^{-1} m, P^{-1}) the exact frozen flow over a time ds, tau = 1 - exp(-ds), is a
relaxation

    lambda+ = (1 - tau) lambda + tau G(lambda),        G = (H m - g, H),

so the machinery of fixed-point iterations applies. In the moving frame of the ensemble (mean 0, precision I) the
current point is (0, I), its residual is f = (g, S - I), and the Fisher norm |g|^2 + |S - I|^2 / 2 is the plain one.
Anderson's method keeps the last few differences d lambda, d f, finds the combination that best explains the residual,
and takes it out:

    gamma = argmin | f - sum gamma_i df_i |,     lambda+ = lambda + tau f - sum gamma_i (dlambda_i + tau df_i).

The accelerated step is again an affine map of the ensemble, it has the same fixed point, and it is affine invariant
because frame and norm are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble, affine_map
from enkbayes.core.expectations import Expectation
from enkbayes.core.logits import LinearLogits
from enkbayes.core.moments import Diverged, Moments, Sums
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, all_finite, namespace, symmetric
from enkbayes.engine.threads import product, threads_for_chunks

DEPTH = 6
SUFFICIENT = 1e-4  # Armijo's constant: the part of the predicted decrease that a step must deliver
NEAR = 0.01  # residuals below this are judged by the residual itself
SMALLEST_TAU = 1e-6
LARGE = 3e7  # multiplications in a step from which single precision is worth its conversions
SAMPLE = 64  # one row of so many is seen in both precisions, to know the round-off
FINE = 1e-3  # residual that float32 can still resolve; a softmax has directions that only the prior holds
SMALLEST_PRECISION = 0.1  # an accelerated step may widen the ensemble by the inverse root of this


@dataclass(frozen=True, eq=False)
class Natural:
    """A difference of natural parameters in the frame of an ensemble: g (r,), with the sign of a gradient, and S (r,
    r).
    """

    g: Array
    S: Array

    def __add__(self, other: Natural) -> Natural:
        return Natural(self.g + other.g, self.S + other.S)

    def __mul__(self, factor: float) -> Natural:
        return Natural(self.g * factor, self.S * factor)

    def __sub__(self, other: Natural) -> Natural:
        return self + other * -1.0

    def dot(self, other: Natural) -> float:
        """Return the Fisher inner product at the frame's own Gaussian."""
        xp = namespace(self.g)
        return float(xp.sum(self.g * other.g) + xp.sum(self.S * other.S) / 2)

    def carry(self, shift: Array, root: Array) -> Natural:
        """Return the same difference seen from the frame moved by mean += basis @ shift, basis = basis @ root (root
        symmetric).
        """
        return Natural(root @ (self.g + self.S @ shift), product(product(root, self.S), root))


def arrived(shift: Array, root: Array) -> Natural:
    """Return the step (g, S) with shift = -F^{-1} g and root = F^{-1/2}, F = I + S, seen from where it leads: `carry`
    of it is (-root shift, I - F^{-1}).
    """
    return Natural(-(root @ shift), _identity(root) - product(root, root))


History = tuple[tuple[Natural, Natural], ...]
"""The last few differences (dlambda, df), in the frame of the current ensemble."""


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A point of the iteration: ensemble, moments of the whole potential, free energy, step size, and the history of
    (dlambda, df).

    `single` tells that the moments are sums of products in float32. They are good enough far from the equilibrium;
    below the residual `fine`, and where a step fails, products are taken in full precision.
    """

    ensemble: AffineEnsemble
    moments: Moments
    free_energy: float
    tau: float = 1.0
    history: History = ()
    single: bool = False
    fine: float = 0.0

    @property
    def residual(self) -> float:
        """The natural-gradient norm."""
        return self.moments.residual

    @cached_property
    def force(self) -> Natural:
        """F = G(lambda) - lambda = (g, S - I), up to the sign of g."""
        S = symmetric(self.moments.S)
        return Natural(self.moments.g, S - _identity(S))

    @property
    def stuck(self) -> bool:
        """Whether the step size has shrunk to nothing."""
        return self.tau < SMALLEST_TAU


def free_energy(likelihood: Moments, prior: Moments) -> float:
    """Return F = E[Psi] + KL(N(m, P) || prior), the negative ELBO; within the ensemble's affine subspace when r < P.

    KL = (tr S0 + (m - m0)' P0^{-1} (m - m0) - r - log det S0) / 2 with S0 = basis' P0^{-1} basis.
    """
    return float(likelihood.loss + prior.loss) - (int(prior.g.shape[0]) + _log_det(prior)) / 2


def _log_det(prior: Moments) -> float:
    """Return log det S0; of a numerically singular one that of its clipped spectrum."""
    xp = namespace(prior.S)
    sign, value = xp.linalg.slogdet(prior.S)
    if float(sign) > 0 and math.isfinite(float(value)):
        return float(value)
    w, _ = prior.spectrum
    tiny = xp.finfo(w.dtype).smallest_normal
    return float(xp.sum(xp.log(xp.maximum(w, xp.full_like(w, tiny)))))


def accelerated_step(point: Relaxation) -> Natural | None:
    """Return Anderson's step, or None without a history."""
    if not point.history:
        return None
    force, tau = point.force, point.tau
    gram = np.asarray([[a.dot(b) for _, b in point.history] for _, a in point.history])
    right = np.asarray([df.dot(force) for _, df in point.history])
    gamma = np.linalg.lstsq(gram + 1e-10 * np.trace(gram) * np.eye(len(gram)), right, rcond=None)[0]
    step = force * tau
    for weight, (dlambda, df) in zip(gamma, point.history, strict=True):
        step = step - (dlambda + df * tau) * float(weight)
    return step


def precision(step: Natural) -> Moments:
    """Return lambda+ = (0, I) + step as moments: their spectrum is that of the new precision I + S."""
    return Moments(0.0, step.g, _identity(step.S) + step.S)


def frame_map(new: Moments) -> tuple[Array, Array]:
    """Return the affine map (shift, root) to the precision F of `new`: shift -F^{-1} g, root F^{-1/2}."""
    root = new.near_root
    if root is None:
        return affine_map(new, gain=lambda w: 1 / w, scale=lambda w: w**-0.5)
    return -(root @ (root @ new.g)), root


def worth_single(problem: Problem, ensemble: AffineEnsemble) -> bool:
    """Tell whether products in float32 save anything worth mentioning, and are good enough for these data: whether
    their round-off, at the mean of the ensemble, is small in units of the posterior.
    """
    mean, model = ensemble.mean, problem.model
    work = problem.size * ensemble.rank * max(ensemble.rank, ensemble.size)
    if not (model.single and mean.dtype == namespace(mean).float64 and work > LARGE and ensemble.rank == problem.dim):
        return False
    middle = replace(ensemble, points=0 * ensemble.points[:1, :])
    off, likelihood = _round_off(problem, middle, Expectation())
    S = symmetric((Moments.seen(likelihood, ensemble.basis) + problem.prior_moments(middle)).S)
    return _size(Moments.seen(off, ensemble.basis), S) < FINE


def _round_off(problem: Problem, ensemble: AffineEnsemble, expectation: Expectation) -> tuple[Sums, Sums]:
    """Return what float32 adds to the likelihood's sums and the sums themselves, judged by one row of SAMPLE."""
    model: Any = problem.model
    rows = slice(max(-(-model.size // SAMPLE), 64))
    features, *observed = next(iter(model.pieces(problem.targets, problem.weights)))
    some = [None if x is None else x[rows] for x in observed]
    part = LinearLogits(features[rows, :], model.map, model.chunk)
    single, double = (part.sums(ensemble, problem.likelihood, expectation, *some, single=s) for s in (True, False))
    times = model.size / part.size
    return (single - double) * times, double * times


def _size(off: Moments, S: Array | None = None) -> float:
    """Return the Fisher norm of a difference (g, dS) at the precision S, the identity unless it is given:

    sqrt((g' S^{-1} g + tr (S^{-1} dS)^2 / 2) / r).
    """
    xp = namespace(off.g)
    g, dS = off.g, symmetric(off.S)
    if S is not None:
        both = xp.linalg.solve(S, xp.concat([g[:, None], dS], axis=1))
        g, dS = both[:, 0], both[:, 1:]
    squared = float(xp.sum(off.g * g) + xp.sum(dS * dS.mT) / 2)
    return math.sqrt(max(squared, 0.0) / off.g.shape[0])


def evaluate(
    problem: Problem, ensemble: AffineEnsemble, expectation: Expectation, *, single: bool = False
) -> Relaxation:
    """Return the point of the iteration at an ensemble."""
    likelihood, prior = problem.moments(ensemble, expectation, single=single), problem.prior_moments(ensemble)
    energy = free_energy(likelihood, prior) if expectation.energy else math.nan
    return Relaxation(ensemble, likelihood + prior, energy, single=single)


def verdict(problem: Problem, point: Relaxation, expectation: Expectation, tol: float) -> Relaxation:
    """Return the point ready to be judged: as it is, or in full precision where the round-off of float32 might decide.

    Some of the rows, in both precisions, tell how large that round-off is for these data.
    """
    if not point.single or point.residual >= tol:
        return point
    off, _ = _round_off(problem, point.ensemble, expectation)
    size = _size(Moments.seen(off, point.ensemble.basis))  # here the precision is nearly the identity
    return point if size < tol / 10 else precise(problem, point, expectation)


def precise(problem: Problem, point: Relaxation, expectation: Expectation) -> Relaxation:
    """Return the same point with moments in full precision; from here on nothing else will do."""
    return replace(evaluate(problem, point.ensemble, expectation), tau=point.tau, fine=math.inf)


def try_step(
    problem: Problem, point: Relaxation, expectation: Expectation, *, descend: bool
) -> tuple[Relaxation, bool]:
    """Take one trial step; return the new point and True, or the old point with a smaller ambition and False.

    With `descend` a step must lower the free energy or, near the equilibrium, where round-off and quadrature errors
    drown differences of energy, the residual. Without it (empirical averages are not the gradient of any energy) it
    must lower the residual.
    """
    with threads_for_chunks(problem.dim):
        return _trial(problem, point, expectation, descend)


def _trial(problem: Problem, point: Relaxation, expectation: Expectation, descend: bool) -> tuple[Relaxation, bool]:
    new, accelerated = _next(point)
    shift, root = frame_map(new)
    single = point.single and point.residual > point.fine
    try:
        trial = evaluate(problem, point.ensemble.affine(shift, root), expectation, single=single)
        accepted = _better(point, trial, descend)
    except Diverged:
        accepted = False
    if not accepted:
        if point.single:  # perhaps it was only round-off
            return precise(problem, point, expectation), False
        return replace(point, history=()) if accelerated else replace(point, tau=point.tau / 2), False
    dlambda = arrived(shift, root)
    before = point.force.carry(shift, root) if accelerated else dlambda * (1 / point.tau)
    df = trial.force - before
    history = (*_carried(point.history[1 - DEPTH :], shift, root), (dlambda, df))
    tau = point.tau if accelerated else min(1.0, 2 * point.tau)
    return replace(trial, tau=tau, history=history, fine=point.fine), True


def onward(point: Relaxation) -> tuple[AffineEnsemble, History]:
    """Return the ensemble after the next step, whose moments nobody has seen, and the history as seen from there."""
    new, _ = _next(point)
    shift, root = frame_map(new)
    return point.ensemble.affine(shift, root), _carried(point.history, shift, root)


def _carried(history: History, shift: Array, root: Array) -> History:
    return tuple((a.carry(shift, root), b.carry(shift, root)) for a, b in history)


def _next(point: Relaxation) -> tuple[Moments, bool]:
    """Return the precision that the next step leads to, and whether it is Anderson's, not a plain tau times the force:
    not when that would be nearly singular.
    """
    step = accelerated_step(point)
    if step is not None:
        new = precision(step)
        if all_finite(new.S) and (new.near_root is not None or float(new.spectrum[0][0]) > SMALLEST_PRECISION):
            return new, True
    return precision(point.force * point.tau), False


def _better(old: Relaxation, new: Relaxation, descend: bool) -> bool:
    closer = new.residual < old.residual
    if not descend:
        return closer
    predicted = old.tau * old.residual**2 * old.ensemble.rank
    return new.free_energy <= old.free_energy - SUFFICIENT * predicted or (closer and new.residual < NEAR)


def _identity(S: Array) -> Array:
    return namespace(S).eye(S.shape[0], dtype=S.dtype, device=S.device)
