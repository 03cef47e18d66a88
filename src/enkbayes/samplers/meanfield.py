"""J = infinity: the mean-field limit of Algorithm 2, which is Gaussian variational inference by natural gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from enkbayes.arrays import like, tolerance
from enkbayes.ensemble import AffineEnsemble
from enkbayes.expectations import closure, refined_closure
from enkbayes.gaussian import standard_points
from enkbayes.problem import Problem
from enkbayes.samplers.checks import check_count, check_tolerance
from enkbayes.samplers.relaxation import NEAR, Relaxation, evaluate, try_step
from enkbayes.samplers.state import State

PATIENCE = 10  # trial steps near the equilibrium without a clearly lower residual
FINEST = 2  # softmax quadrature goes up to 4**2 times its usual number of points
QUADRATURE = 1e-2  # residual under a finer rule, in posterior sds, that is taken as a sign of accurate expectations


@dataclass(frozen=True, eq=False)
class Control:
    """Where a run is: its point, how fine the quadrature is and may become, and how long nothing improved.

    `descend` is given up, for steps that lower the residual, when the finest quadrature gets stuck.
    """

    point: Relaxation
    finest: int
    refine: int = 0
    best: float = math.inf
    stale: int = 0
    descend: bool = True

    @property
    def stalled(self) -> bool:
        """Whether errors of the quadrature, rather than the step, seem to keep the residual from falling."""
        stale = self.stale >= PATIENCE and self.point.residual < NEAR
        return self.finest > 0 and self.descend and (self.point.stuck or stale)


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

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> posterior = eb.run(problem, MeanField(), particles=10)
    >>> posterior.info.converged, posterior.theta.shape
    (True, (10, 1))
    """

    tol: float = 1e-6
    max_steps: int = 200

    def __post_init__(self) -> None:
        check_tolerance(self.tol)
        check_count("max_steps", self.max_steps)

    @property
    def horizon(self) -> int:
        """The largest number of steps."""
        return self.max_steps

    def init(self, problem: Problem, ensemble: AffineEnsemble, seed: int) -> State:
        """Start from the ensemble's Gaussian; if it spans too little, from its mean and the prior's covariance."""
        if ensemble.rank < problem.dim:
            points = standard_points(ensemble.size, problem.dim, np.random.default_rng((seed, 0)))
            ensemble = AffineEnsemble(ensemble.mean, problem.prior.dense_root, like(points, ensemble.mean))
        finest = 0 if problem.likelihood.exact_closure else FINEST
        return self._judge(
            problem, State(ensemble, seed, blend=1.0), Control(evaluate(problem, ensemble, closure), finest)
        )

    def step(self, problem: Problem, state: State) -> State:
        """One trial step of the accelerated relaxation with ELBO backtracking; finer quadrature when it stalls."""
        state, control = replace(state, steps=state.steps + 1), state.control
        if control.stalled:
            return self._judge(problem, state, _finer(problem, control))
        expectation = refined_closure(control.refine)
        point, _ = try_step(problem, control.point, expectation, descend=control.descend)
        improved = point.residual < 0.9 * control.best
        best, stale = (point.residual, 0) if improved else (control.best, control.stale + 1)
        return self._judge(problem, state, replace(control, point=point, best=best, stale=stale))

    def _judge(self, problem: Problem, state: State, control: Control) -> State:
        """Put the point into the state, decide whether the run ends, and check the quadrature when it does."""
        point = control.point
        state = replace(state, ensemble=point.ensemble, residual=point.residual, control=control)
        if point.residual < tolerance(self.tol, point.ensemble.mean):
            if control.refine >= control.finest:
                return replace(state, finished=True, converged=True)
            finer = _finer(problem, control)
            if finer.point.residual < QUADRATURE:
                return replace(state, finished=True, converged=True)
            return replace(state, residual=finer.point.residual, control=finer)
        if state.steps >= self.max_steps:
            message = f"residual {point.residual:.1e} after {state.steps} steps; raise max_steps or tol"
            return replace(state, finished=True, message=message)
        if point.stuck and not control.stalled:
            message = (
                f"no step lowers the residual {point.residual:.1e} any more; scale the features or narrow the prior"
            )
            return replace(state, finished=True, message=message)
        return state


def _finer(problem: Problem, control: Control) -> Control:
    """Return the same point under a finer quadrature; under the finest, with steps that need not lower the energy."""
    refine = min(control.refine + 1, control.finest)
    point = evaluate(problem, control.point.ensemble, refined_closure(refine))
    return Control(point, control.finest, refine, point.residual, descend=refine > control.refine)
