"""J = infinity: the mean-field limit of Algorithm 2, which is Gaussian variational inference by natural gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from enkbayes.arrays import like, tolerance
from enkbayes.ensemble import AffineEnsemble
from enkbayes.expectations import closure
from enkbayes.gaussian import standard_points
from enkbayes.problem import Problem
from enkbayes.samplers.relaxation import Relaxation, evaluate, try_step
from enkbayes.samplers.state import State


@dataclass(frozen=True)
class MeanField:
    """Solve the paper's equilibrium equations for (m*, P*) with Gaussian expectations; the particles are drawn from
    N(m*, P*).

        m* = m0 - P0 E*[grad Psi],    P* = (E*[Hess Psi] + P0^{-1})^{-1}

    The mean-field flow is the Fisher-Rao gradient flow of KL(N(m, P) || posterior), so every step is checked to lower
    the negative ELBO. The answer does not depend on the number of particles. Needs linear logits and memory for a P x P
    matrix.

    Parameters
    ----------
    tol : float
        Stop when the natural-gradient residual is below.
    max_steps : int
        Largest number of evaluations, rejected trial steps included.
    """

    tol: float = 1e-6
    max_steps: int = 200

    @property
    def horizon(self) -> int:
        """The largest number of steps."""
        return self.max_steps

    def init(self, problem: Problem, ensemble: AffineEnsemble, seed: int) -> State:
        """Start from the ensemble's Gaussian; from its mean and the prior's covariance when the ensemble does not span
        the space.
        """
        if ensemble.rank < problem.dim:
            points = standard_points(ensemble.size, problem.dim, np.random.default_rng((seed, 0)))
            ensemble = AffineEnsemble(ensemble.mean, problem.prior.dense_root, like(points, ensemble.mean))
        return self._judge(State(ensemble, seed, blend=1.0), evaluate(problem, ensemble, closure))

    def step(self, problem: Problem, state: State) -> State:
        """One trial step of the accelerated relaxation with ELBO backtracking."""
        point, _ = try_step(problem, state.control, closure, descend=True)
        return self._judge(replace(state, steps=state.steps + 1), point)

    def _judge(self, state: State, point: Relaxation) -> State:
        state = replace(state, ensemble=point.ensemble, residual=point.residual, control=point)
        if point.residual < tolerance(self.tol, point.ensemble.mean):
            return replace(state, finished=True, converged=True)
        if point.stuck or state.steps >= self.max_steps:
            return replace(
                state,
                finished=True,
                message=f"residual {point.residual:.1e} after {state.steps} steps; raise max_steps or tol",
            )
        return state
