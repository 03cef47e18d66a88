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

from dataclasses import dataclass, replace

import numpy as np

from enkbayes.arrays import Array, namespace, symmetric
from enkbayes.ensemble import AffineEnsemble, affine_map
from enkbayes.expectations import Expectation
from enkbayes.moments import Diverged, Moments
from enkbayes.problem import Problem

DEPTH = 6
SUFFICIENT = 1e-4  # Armijo's constant: the part of the predicted decrease that a step must deliver
NEAR = 0.1  # residuals below this are judged by the residual itself
SMALLEST_TAU = 1e-6


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
        return Natural(root @ (self.g + self.S @ shift), root @ self.S @ root)


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A point of the iteration: ensemble, moments of the whole potential, free energy, step size, and the history of
    (dlambda, df).
    """

    ensemble: AffineEnsemble
    moments: Moments
    free_energy: float
    tau: float = 1.0
    history: tuple[tuple[Natural, Natural], ...] = ()

    @property
    def residual(self) -> float:
        """The natural-gradient norm."""
        return self.moments.residual

    @property
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
    xp = namespace(prior.S)
    w, _ = prior.spectrum
    tiny = xp.finfo(w.dtype).smallest_normal
    log_det = float(xp.sum(xp.log(xp.maximum(w, xp.full_like(w, tiny)))))
    return float(likelihood.loss + prior.loss) - (int(prior.g.shape[0]) + log_det) / 2


def accelerated_step(point: Relaxation) -> Natural | None:
    """Return Anderson's step, or None without a history or when it would leave the positive definite matrices."""
    if not point.history:
        return None
    xp = namespace(point.moments.g)
    force, tau = point.force, point.tau
    gram = np.asarray([[a.dot(b) for _, b in point.history] for _, a in point.history])
    right = np.asarray([df.dot(force) for _, df in point.history])
    gamma = np.linalg.lstsq(gram + 1e-10 * np.trace(gram) * np.eye(len(gram)), right, rcond=None)[0]
    step = force * tau
    for weight, (dlambda, df) in zip(gamma, point.history, strict=True):
        step = step - (dlambda + df * tau) * float(weight)
    smallest = float(xp.linalg.eigvalsh(_identity(step.S) + symmetric(step.S))[0])
    plain = 1 - tau + tau * float(point.moments.spectrum[0][0])
    return step if smallest > 0.1 * plain else None


def frame_map(step: Natural) -> tuple[Array, Array]:
    """Return the affine map (shift, root) to lambda+ = (0, I) + step: precision F = I + S, shift -F^{-1} g, root
    F^{-1/2}.
    """
    return affine_map(Moments(0.0, step.g, _identity(step.S) + step.S), gain=lambda w: 1 / w, scale=lambda w: w**-0.5)


def evaluate(problem: Problem, ensemble: AffineEnsemble, expectation: Expectation) -> Relaxation:
    """Return the point of the iteration at an ensemble."""
    likelihood, prior = problem.moments(ensemble, expectation), problem.prior_moments(ensemble)
    return Relaxation(ensemble, likelihood + prior, free_energy(likelihood, prior))


def try_step(
    problem: Problem, point: Relaxation, expectation: Expectation, *, descend: bool
) -> tuple[Relaxation, bool]:
    """Take one trial step; return the new point and True, or the old point with a smaller ambition and False.

    With `descend` a step must lower the free energy or, near the equilibrium, where round-off and quadrature errors
    drown differences of energy, the residual. Without it (empirical averages are not the gradient of any energy) it
    must lower the residual.
    """
    accelerated = accelerated_step(point)
    step = point.force * point.tau if accelerated is None else accelerated
    shift, root = frame_map(step)
    try:
        trial = evaluate(problem, point.ensemble.affine(shift, root), expectation)
        accepted = _better(point, trial, descend)
    except Diverged:
        accepted = False
    if not accepted:
        return replace(point, tau=point.tau / 2) if accelerated is None else replace(point, history=()), False
    dlambda, df = step.carry(shift, root), trial.force - point.force.carry(shift, root)
    history = (*((a.carry(shift, root), b.carry(shift, root)) for a, b in point.history[1 - DEPTH :]), (dlambda, df))
    return replace(trial, tau=min(1.0, 2 * point.tau) if accelerated is None else point.tau, history=history), True


def _better(old: Relaxation, new: Relaxation, descend: bool) -> bool:
    closer = new.residual < old.residual
    if not descend:
        return closer
    predicted = old.tau * old.residual**2 * old.ensemble.rank
    return new.free_energy <= old.free_energy - SUFFICIENT * predicted or (closer and new.residual < NEAR)


def _identity(S: Array) -> Array:
    return namespace(S).eye(S.shape[0], dtype=S.dtype, device=S.device)
