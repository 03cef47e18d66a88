"""The stochastic parent of Algorithm 2: the paper's SDE, eq. (stochastic_second_order)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.moments import Diverged, Moments
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, all_finite, identity, like, namespace
from enkbayes.engine.memory import check_fits
from enkbayes.samplers.settings import Settings
from enkbayes.samplers.state import State


@dataclass(frozen=True)
class StochasticSampler(Settings):
    """Tamed Euler-Maruyama steps of

        dtheta_j = -P (H_L (theta_j - m) + 2 g_L + P0^{-1} (theta_j + m - 2 m0)) / 2 ds + P^{1/2} dW_j  [+ (P + 1) / (2
        J) (theta_j - m) ds]

    with the likelihood part tamed as in Algorithm 1, the prior part as in Algorithm 2, and P^{1/2} dW_j = J^{-1/2}
    Theta dW_j, dW_j in R^J. The particles never come to rest, so a run has a fixed length. The bracket corrects for
    finite J: without it the ensemble is much too narrow for small J (a quarter of the right variance for J = 8 in 5
    dimensions). Even with it the distribution is exact only as J grows.

    Parameters
    ----------
    ds : float
        Step size.
    max_steps : int
        Number of steps.
    correction : bool
        Whether to add the finite-size correction.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> eb.run(problem, StochasticSampler(max_steps=20), particles=50).theta.shape
    (50, 1)
    """

    ds: float = 0.05
    max_steps: int = 400
    correction: bool = True

    gaussian: ClassVar[bool] = False

    def init(self, problem: Problem, ensemble: AffineEnsemble, seed: int) -> State:
        """Return the first state."""
        check_fits(
            16.0 * ensemble.size**2,
            f"noise and weights between {ensemble.size:,} particles",
            lambda free: f"at most about {int(math.sqrt(free / 16)):,} particles fit",
        )
        return super().init(problem, ensemble, seed)

    def step(self, problem: Problem, state: State) -> State:
        """One step with the noise that belongs to (seed, step), the same on every array library."""
        noise = np.random.default_rng((state.seed, 2, state.steps)).standard_normal((state.ensemble.size,) * 2)
        ensemble = noisy_step(
            problem, state.ensemble, self.ds, like(noise, state.ensemble.mean), correction=self.correction
        )
        steps = state.steps + 1
        state = replace(state, ensemble=ensemble, steps=steps, time=steps * self.ds)
        if steps < self.max_steps:
            return state
        return replace(state, finished=True, converged=True, residual=problem.potential_moments(ensemble).residual)


def noisy_step(
    problem: Problem, ensemble: AffineEnsemble, ds: float, noise: Array, *, correction: bool
) -> AffineEnsemble:
    """Return the ensemble after one step; noise (J, J) is standard normal, row j drives particle j."""
    J, points = ensemble.size, ensemble.points
    likelihood, prior = problem.moments(ensemble), problem.prior_moments(ensemble)
    inflation = (problem.dim + 1) / (2 * J) if correction else 0.0
    coordinates = (1 + ds * inflation) * points - ds * (likelihood.g + _tamed(prior, prior.g, ds))
    coordinates = (
        coordinates
        - ds / 2 * (_tamed(likelihood, likelihood.S @ points.mT, ds) + _tamed(prior, prior.S @ points.mT, ds)).mT
    )
    if not all_finite(coordinates):
        raise Diverged("the moments of the ensemble are not finite")
    try:
        return ensemble.move(coordinates + math.sqrt(ds / J) * (noise @ points))
    except ValueError:  # so far away that the particles are equal but for round-off
        raise Diverged("the particles have lost their spread") from None


def _tamed(moments: Moments, x: Array, ds: float) -> Array:
    """Return (I + ds S)^{-1} x."""
    xp = namespace(x)
    return xp.linalg.solve(identity(moments.S.shape[0], x) + ds * moments.S, x)
