"""Gaussian particle flow (Galy-Fajou, Perrone and Opper 2021): an affine flow of particles to a variational Gaussian.

    dx_j = -gbar - (G - I) (x_j - m),    gbar = mean_j grad V(x_j),    G = mean_j grad V(x_j) (x_j - m)'

with equilibrium gbar = 0, G = I. It uses gradients only: by Stein's identity, G P^{-1} estimates the averaged Hessian,
with much noise if there are few particles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.moments import Diverged
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, identity, namespace, symmetric, tolerance
from enkbayes.evaluation.baselines.potential import potential_gradients
from enkbayes.samplers.settings import Settings
from enkbayes.samplers.state import State

SUFFICIENT = 1e-4  # Armijo constant: the share of the predicted decrease that a step must achieve
NEAR = 0.1  # below this residual, a step is also accepted if it lowers the residual
SMALLEST = 1e-12  # the smallest step size


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the flow: free energy, velocities of mean (P,) and basis (P, r), and the slope along them."""

    energy: float
    mean: Array
    basis: Array
    slope: float
    residual: float
    eta: float = 0.1


@dataclass(frozen=True)
class ParticleFlow(Settings):
    """Gaussian particle flow with adaptive step size.

    The ensemble theta_j = m + L points_j is an affine image of fixed points and has the free energy F(m, L) = mean_j
    V(theta_j) - log det(L' L) / 2, which the flow decreases. A step that does not decrease it is rejected and halved.

    Parameters
    ----------
    affine_invariant : bool
        Run the flow in coordinates whitened by the current ensemble: dm = -P gbar, dL = -L (A - I) with A the symmetric
        part of L' G L'^{-1}. The antisymmetric part only rotates the particles among themselves and changes neither
        mean nor covariance. The plain flow slows down with the condition number of the posterior in the user's units.
    tol : float
        Stop when the natural-gradient norm is below this.
    max_steps : int
        Largest number of trial steps.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> eb.run(problem, ParticleFlow(), particles=50).info.converged
    True
    """

    affine_invariant: bool = True
    tol: float = 1e-3
    max_steps: int = 2000

    def init(self, problem: Problem, ensemble: AffineEnsemble, seed: int) -> State:
        """Return the first state, with its velocity."""
        point = self._evaluate(problem, ensemble)
        return State(ensemble, seed, residual=point.residual, control=point)

    def step(self, problem: Problem, state: State) -> State:
        """Take one trial step. The step size doubles if it is accepted and halves if it is rejected."""
        point: Point = state.control
        moved = replace(
            state.ensemble,
            mean=state.ensemble.mean + point.eta * point.mean,
            basis=state.ensemble.basis + point.eta * point.basis,
        )
        try:
            trial = self._evaluate(problem, moved)
            lower = trial.energy <= point.energy + SUFFICIENT * point.eta * point.slope
            accepted = lower or (trial.residual < point.residual < NEAR)
        except Diverged:
            accepted = False
        state = replace(state, steps=state.steps + 1)
        if not accepted:
            return self._judge(replace(state, control=replace(point, eta=point.eta / 2)))
        trial = replace(trial, eta=2 * point.eta)
        return self._judge(replace(state, ensemble=moved, residual=trial.residual, control=trial))

    def _evaluate(self, problem: Problem, ensemble: AffineEnsemble) -> Point:
        xp, L, x = namespace(ensemble.mean), ensemble.basis, ensemble.points
        V, gradients = potential_gradients(problem, ensemble.theta)
        gbar, Gx = xp.mean(gradients, axis=0), gradients.mT @ x / ensemble.size  # (P,), (P, r)
        g, A = L.mT @ gbar, symmetric(L.mT @ Gx)
        eye = identity(ensemble.rank, L)
        gram = L.mT @ L
        if self.affine_invariant:
            mean, basis = -(L @ g), -(L @ (A - eye))
        else:
            mean, basis = -gbar, L - Gx @ gram
        sign, log_det = xp.linalg.slogdet(gram)
        if not float(sign) > 0:
            raise Diverged("the ensemble has collapsed")
        slope = gbar @ mean + xp.sum(Gx * basis) - xp.sum(eye * xp.linalg.solve(gram, L.mT @ basis))
        squared = (xp.sum(g * g) + xp.sum((A - eye) ** 2) / 2) / ensemble.rank
        energy = float(xp.mean(V)) - float(log_det) / 2
        return Point(energy, mean, basis, float(slope), float(xp.sqrt(squared)))

    def _judge(self, state: State) -> State:
        """Return the state, finished if the run ends here."""
        point: Point = state.control
        if point.residual < tolerance(self.tol, state.ensemble.mean):
            return replace(state, finished=True, converged=True)
        if state.steps >= self.max_steps:
            message = f"residual {point.residual:.1e} after {state.steps} steps; raise max_steps or tol"
            return replace(state, finished=True, message=message)
        if point.eta < SMALLEST:
            message = f"no step lowers the free energy further, residual {point.residual:.1e}; scale the features"
            return replace(state, finished=True, message=message)
        return state
