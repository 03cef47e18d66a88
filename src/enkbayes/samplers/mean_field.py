"""J = infinity: the mean-field limit of Algorithm 2, which is Gaussian variational inference by natural gradients."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import standard_points
from enkbayes.core.moments import Diverged
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import like
from enkbayes.samplers.equilibrium import controlled_step, frozen_flow, gaussian_stages, with_track
from enkbayes.samplers.settings import Settings
from enkbayes.samplers.state import State
from enkbayes.solvers.laplace import laplace_ensemble
from enkbayes.solvers.low_rank_mean_field import WITHOUT_DIRECTIONS, LowRankSolver, particles_of
from enkbayes.solvers.low_rank_mean_field import Point as LowRankPoint
from enkbayes.solvers.map_estimate import map_estimate
from enkbayes.solvers.newton import NewtonSearch
from enkbayes.solvers.step_control import StepControl


@dataclass(frozen=True)
class MeanField(Settings):
    """Solve the paper's equilibrium equations for (m*, P*) with Gaussian expectations; the particles are drawn from
    N(m*, P*).

        m* = m0 - P0 E*[grad Psi],    P* = (E*[Hess Psi] + P0^{-1})^{-1}

    A step is that of `Equilibrium`, the exact flow with frozen curvature (`frozen_flow`), with Gaussian expectations in
    its moments. The mean-field flow is the Fisher-Rao gradient flow of KL(N(m, P) || posterior), so the controller
    checks that every step lowers the negative ELBO. The answer does not depend on the number of particles. Needs linear
    logits.

    With more than 2000 parameters, or when `rank` is given, the covariance has a structure instead of P x P entries:
    free in the `rank` directions that the data inform most, diagonal in a frame of feature and class directions outside
    them (see `core/low_rank.py`). The mean is solved for in all directions either way.

    Parameters
    ----------
    tol : float
        Stop when the natural-gradient residual is below.
    max_steps : int
        Largest number of evaluations, rejected trial steps included.
    rank : int, optional
        Number of directions in which a structured covariance is free. With 0 the fit of a softmax takes little more
        time than its most probable weights, because no direction is looked for.
    float32 : bool
        Allow coarser sums on the way, as in `Equilibrium`.
    large : float
        As in `Equilibrium`.
    dense : int
        Number of parameters up to which a P x P covariance is the default.
    dense_few : int
        The same for a run with fewer particles than parameters, which would otherwise take seconds.
    low_rank_tol : float
        Residual below which the structure of a low-rank covariance, not the iteration, limits the accuracy.
    many_tol : float
        The same for many classes, whose averages are off by more.
    low_rank : LowRankSolver
        The iteration for such a covariance, if it has directions.

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
    rank: int | None = None
    float32: bool = field(default=True, repr=False)
    large: float = field(default=3e7, repr=False)
    dense: int = field(default=2000, repr=False)
    dense_few: int = field(default=1000, repr=False)
    low_rank_tol: float = field(default=1e-3, repr=False)
    many_tol: float = field(default=5e-3, repr=False)
    low_rank: LowRankSolver = field(default=LowRankSolver(), repr=False)

    def init(self, problem: Problem, ensemble: AffineEnsemble, seed: int) -> State:
        """Start from the ensemble's Gaussian; if it spans too little, from its mean and the prior's covariance."""
        if not problem.is_linear:
            raise ValueError("nonlinear logits have no Gaussian expectations; use Equilibrium() or another sampler")
        if self._is_low_rank(problem, self.dense):
            return self._low_rank_init(problem, ensemble.size, seed)
        if ensemble.rank < problem.dim:
            points = standard_points(ensemble.size, problem.dim, np.random.default_rng((seed, 0)))
            ensemble = AffineEnsemble(ensemble.mean, problem.prior.dense_root, like(points, ensemble.mean))
        control = self._control(problem, NewtonSearch())
        return with_track(State(ensemble, seed, blend=1.0), control.begin(problem, ensemble))

    def init_few(self, problem: Problem, particles: int, seed: int) -> State:
        """Start from the Laplace approximation, for fewer particles than parameters: the covariance is fitted whatever
        their number, and they are drawn from it.
        """
        if self._is_low_rank(problem, self.dense_few):
            return self._low_rank_init(problem, particles, seed)
        ensemble = laplace_ensemble(problem, map_estimate(problem).theta, particles, seed)
        return with_track(State(ensemble, seed, blend=1.0), self._control(problem, None).begin(problem, ensemble))

    def step(self, problem: Problem, state: State) -> State:
        """One step of the flow with the moments and the tau of the controller; see `controlled_step`."""
        if isinstance(state.control, LowRankPoint):
            following = self._solver.advance(self._rough(problem), state.control)
            return self._judge_low_rank(problem, replace(state, steps=state.steps + 1), following)
        return controlled_step(self._control(problem, NewtonSearch()), problem, state)

    def _control(self, problem: Problem, search: NewtonSearch | None) -> StepControl:
        stages = gaussian_stages(problem)
        remedy = "raise max_steps or tol, scale the features or narrow the prior"
        return StepControl(
            frozen_flow,
            stages,
            self.tol,
            self.max_steps,
            coarse=self.float32,
            large=self.large,
            search=search,
            remedy=remedy,
        )

    def _is_low_rank(self, problem: Problem, dense: int) -> bool:
        return (self.rank is not None or problem.dim > dense) and self._solver.fits(problem)

    @property
    def _solver(self) -> LowRankSolver:
        return WITHOUT_DIRECTIONS if self.rank == 0 else self.low_rank

    def _rough(self, problem: Problem) -> Problem:
        """Return the problem with float32 sums, whose error is far below that of the points for many classes."""
        return problem.coarse or problem if self.float32 and self._solver.has_many(problem) else problem

    def _low_rank_init(self, problem: Problem, particles: int, seed: int) -> State:
        rank = self._solver.rank(problem) if self.rank is None else self.rank
        point = self._solver.start(self._rough(problem), rank, seed)
        state = State(particles_of(problem, point, particles, seed), seed, blend=1.0, control=point)
        return self._judge_low_rank(problem, state, point)

    def _judge_low_rank(self, problem: Problem, state: State, point: LowRankPoint, searches: int = 2) -> State:
        """Continue, look for directions a second time, or end: the directions are found `searches` times in all: at the
        most probable parameters and at the converged mean.
        """
        state = _at(problem, state, point)
        least = self.many_tol if self._solver.has_many(problem) else self.low_rank_tol
        least = self._solver.middle if self.rank == 0 else least
        done = point.residual < max(self.tol, least)
        if done and point.searches < searches:
            with suppress(Diverged):  # then the directions at hand, which have converged, stay
                return _at(problem, state, self._solver.search(self._rough(problem), point))
        if not (done or self._solver.stuck(point) or state.steps >= self.max_steps):
            return state
        message = "" if done else f"residual {point.residual:.1e} after {state.steps} steps; narrow the prior"
        return replace(state, finished=True, converged=done, message=message)


def _at(problem: Problem, state: State, point: LowRankPoint) -> State:
    """Return the state at a point of the iteration, with particles of its Gaussian."""
    moved = point.q is not state.control.q
    ensemble = particles_of(problem, point, state.ensemble.size, state.seed) if moved else state.ensemble
    return replace(state, ensemble=ensemble, residual=point.residual, control=point)
