"""Stein variational gradient descent (Liu and Wang 2016), plain and affine invariant.

    x_i += eps / J sum_j [ -k(x_j, x_i) grad V(x_j) + grad_{x_j} k(x_j, x_i) ],    k = exp(-|x - x'|^2 / (2 h))

with h = median |x - x'|^2 / (2 log(J + 1)). The affine-invariant form measures distances by C^{-1} and multiplies both
terms by C: it is the same formula in the coordinates of the ensemble's basis. In P >> log J dimensions, the particles
of both forms are known to collapse: 200 particles have a quarter of the correct variance in 20 dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from enkbayes.core.moments import Diverged, Moments
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, all_finite, namespace, symmetric, tolerance
from enkbayes.evaluation.baselines.potential import potential_gradients
from enkbayes.samplers.settings import Settings
from enkbayes.samplers.start import from_draws
from enkbayes.samplers.state import State


@dataclass(frozen=True)
class SVGD(Settings):
    """SVGD with a step size that adapts to the stiffness of the problem.

    Gradients act on particle i with the total weight kappa_i = mean_j k(x_j, x_i), and repulsion acts over the distance
    sqrt(h), so eps_i = ds / (kappa_i max(largest eigenvalue of the average Hessian, 1 / h)) is stable. A step size per
    particle, in place of AdaGrad's step size per coordinate, keeps the equilibria and affine invariance, and also moves
    particles that start far from all others.

    Parameters
    ----------
    affine_invariant : bool
        Whether distances are measured by the covariance of the ensemble. The plain form slows down with the condition
        number of the posterior in the user's units.
    ds : float
        Step size in units of the relaxation time.
    tol : float
        Stop when the particles move by less than this per unit of time, in standard deviations of the ensemble.
    max_steps : int
        Largest number of steps.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> eb.run(problem, SVGD(), particles=30).info.converged
    True
    """

    affine_invariant: bool = True
    ds: float = 0.5
    tol: float = 1e-2
    max_steps: int = 1000

    gaussian: ClassVar[bool] = False

    def step(self, problem: Problem, state: State) -> State:
        """Move all particles by one step."""
        ensemble, basis = state.ensemble, state.ensemble.basis
        moments = problem.potential_moments(ensemble)
        gradients = potential_gradients(problem, ensemble.theta)[1]
        if self.affine_invariant:
            velocity, h = stein_velocity(ensemble.points, gradients @ basis)
            eps = self.ds / max(float(moments.spectrum[0][-1]), 1 / h)
            moved, whitened = ensemble.move(ensemble.points + eps * velocity), velocity
        else:
            velocity, h = stein_velocity(ensemble.theta, gradients)
            eps = self.ds / max(_largest_curvature(moments, basis), 1 / h)
            moved, whitened = from_draws(problem.prior, ensemble.theta + eps * velocity), velocity @ basis
        residual = math.sqrt(float(namespace(whitened).mean(whitened**2)))
        steps = state.steps + 1
        state = replace(state, ensemble=moved, steps=steps, time=state.time + eps, residual=residual)
        if residual < tolerance(self.tol, ensemble.mean):
            return replace(state, finished=True, converged=True)
        if steps < self.max_steps:
            return state
        message = f"particles still move by {residual:.1e} sd per unit of time after {steps} steps; raise max_steps"
        return replace(state, finished=True, message=message)


def stein_velocity(x: Array, gradients: Array) -> tuple[Array, float]:
    """Return the Stein directions (J, d), each divided by its kappa_i, and h, for particles x (J, d) with gradients
    grad V (J, d).
    """
    xp, J = namespace(x), x.shape[0]
    squares = xp.sum(x * x, axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * (x @ x.mT)
    if not all_finite(distances):
        raise Diverged("the particles are not finite")
    distances = xp.maximum(distances, xp.zeros_like(distances))
    h = float(xp.sort(xp.reshape(distances, (-1,)))[J * J // 2]) / (2 * math.log(J + 1))
    if not h > 0:
        raise Diverged("the particles have collapsed")
    k = xp.exp(-distances / (2 * h))
    total = xp.sum(k, axis=1)
    return x / h - (k @ (x / h + gradients)) / total[:, None], h


def _largest_curvature(moments: Moments, basis: Array) -> float:
    """Return the largest eigenvalue of the average Hessian on the span of the basis, in the user's units."""
    xp = namespace(basis)
    inner = xp.linalg.qr(basis)[1]  # basis = Q inner, so S = inner' (Q' H Q) inner
    half = xp.linalg.solve(inner.mT, symmetric(moments.S))
    return float(xp.linalg.eigvalsh(symmetric(xp.linalg.solve(inner.mT, half.mT)))[-1])
