"""ALDI and the ensemble Kalman sampler (EKS): interacting Langevin diffusions, preconditioned by the ensemble.

    dtheta_j = -C grad V(theta_j) ds  [+ (r + 1) / J (theta_j - m) ds]  + sqrt(2) C^(1/2) dW_j

EKS: Garbuno-Inigo, Hoffmann, Li and Stuart 2020. The bracket makes it ALDI: Garbuno-Inigo, Nuesken and Reich 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.moments import Moments
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, like, namespace
from enkbayes.evaluation.baselines.potential import gradient_coordinates, stein_residual
from enkbayes.samplers.settings import Settings
from enkbayes.samplers.state import State

WIDE = 2.0  # an ensemble this many times wider than the posterior takes shorter steps
STEEP = 3.0  # and so does one with a gradient this many times larger than that of a standard normal draw
CLEAR = 2.0  # a residual above this means not converged, whatever the number of particles


@dataclass(frozen=True)
class ALDI(Settings):
    """ALDI; without the finite-size correction, EKS.

    With the correction, the posterior is invariant for every J > P + 1. EKS is much too narrow for small ensembles (a
    quarter of the correct variance for J = 8 in 5 dimensions). If the particles span only r < P directions, both sample
    the posterior restricted to those directions.

    In the coordinates x of the ensemble's basis, where C = I, the average Hessian is S = U diag(w) U'. A step of length
    h solves the linear part exactly: with y = U' x and G = basis' grad V,

        y+ = y + (1 - exp(-h w)) / w U' ((r + 1) / J x - G) + sqrt((1 - exp(-2 h w)) / w) xi,

    so a Gaussian posterior has no time-step error except from the change of C, and stiff problems are stable. h is ds
    divided by the stiffness of the ensemble; the method is affine invariant.

    Parameters
    ----------
    ds : float
        Step size in units of the relaxation time of the ensemble.
    max_steps : int
        Number of steps.
    correction : bool
        Whether to add the finite-size correction, the term in brackets.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> eb.run(problem, ALDI(), particles=50).theta.shape
    (50, 1)
    """

    ds: float = 0.1
    max_steps: int = 200
    correction: bool = True

    gaussian: ClassVar[bool] = False

    def step(self, problem: Problem, state: State) -> State:
        """Take one step. The noise depends on (seed, step) only and is the same for every array library."""
        ensemble, J = state.ensemble, state.ensemble.size
        noise = np.random.default_rng((state.seed, 6, state.steps)).standard_normal((J, J))
        G, moments = gradient_coordinates(problem, ensemble), problem.potential_moments(ensemble)
        h = self.ds / _stiffness(G, moments)
        growth = (ensemble.rank + 1) / J if self.correction else 0.0
        ensemble = _diffuse(ensemble, growth * ensemble.points - G, moments, h, like(noise, ensemble.mean))
        state = replace(state, ensemble=ensemble, steps=state.steps + 1, time=state.time + h)
        return state if state.steps < self.max_steps else _judge(problem, state)


def _stiffness(G: Array, moments: Moments) -> float:
    """Return the factor by which a step is shortened.

    It is 1 if the gradients G (J, r) resemble those of draws from a Gaussian, so that a stationary ensemble takes steps
    of equal length, and larger if the average Hessian or the largest gradient is larger than that.
    """
    xp = namespace(G)
    steepest = math.sqrt(float(xp.max(xp.sum(G * G, axis=1))) / G.shape[1])
    return max(1.0, math.sqrt(float(moments.spectrum[0][-1])) / WIDE, steepest / STEEP)


def _diffuse(ensemble: AffineEnsemble, drift: Array, moments: Moments, h: float, noise: Array) -> AffineEnsemble:
    """Return the ensemble after a step with drift (J, r); row j of noise (J, J) drives particle j."""
    xp, x = namespace(drift), ensemble.points
    w, U = moments.spectrum
    w = xp.maximum(w, xp.full_like(w, xp.finfo(w.dtype).smallest_normal ** 0.5))  # flat directions: the limit w -> 0
    decay, spread = -xp.expm1(-h * w) / w, xp.sqrt(-xp.expm1(-2 * h * w) / (w * ensemble.size))
    return ensemble.move(x + ((drift @ U) * decay + (noise @ (x @ U)) * spread) @ U.mT)


def _judge(problem: Problem, state: State) -> State:
    """Return the last state. It counts as converged if Stein's identity holds as well as for J independent draws."""
    residual, usual = stein_residual(state.ensemble, gradient_coordinates(problem, state.ensemble))
    converged = residual < min(3 * usual, CLEAR)
    message = f"residual {residual:.1e}, but {state.ensemble.size} draws have about {usual:.1e}; raise max_steps"
    message = "" if converged else message
    return replace(state, finished=True, converged=converged, residual=residual, message=message)
