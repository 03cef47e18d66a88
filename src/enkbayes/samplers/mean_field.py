"""J = infinity: the mean-field limit of Algorithm 2, which is Gaussian variational inference by natural gradients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation, closure
from enkbayes.core.gaussian import standard_points
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import like, namespace, tolerance
from enkbayes.samplers.checks import check_count, check_tolerance
from enkbayes.samplers.state import State
from enkbayes.solvers import newton, structured
from enkbayes.solvers.map_estimate import map_estimate, whitened_moments
from enkbayes.solvers.relaxation import FINE, Relaxation, evaluate, try_step, verdict, worth_single

COARSE_STEPS = 30  # a quadrature that has not settled by then has kinks that slow it down; a finer one has fewer
FINEST = 2  # softmax quadrature goes up to 4**2 times its usual number of points
LARGEST = 2000  # parameters up to which a P x P covariance is the default
SMALL = 500  # the same for a run with fewer particles than parameters, where it buys little
RANK = (
    128  # directions of a structured covariance, unless their entries would pass the next number: time more than memory
)
ENTRIES = 1.6e6
STRUCTURED_TOL = 1e-3  # residual below which the structure of the covariance, not the iteration, limits the accuracy
SEARCHES = 2  # a structured run looks for directions at the most probable parameters and again at its law
KIN = 0.05  # residual below which the steps of a few particles tell something about those of the Gaussian
ACCURATE = 1e-2  # residual under a finer rule, in posterior sds, that shows the quadrature to be fine enough


@dataclass(frozen=True, eq=False)
class Control:
    """Where a run is: its point, how fine the quadrature of its expectations is, and since which step."""

    point: Relaxation
    refine: int = 0
    since: int = 0


@dataclass(frozen=True)
class MeanField:
    """Solve the paper's equilibrium equations for (m*, P*) with Gaussian expectations; the particles are drawn from
    N(m*, P*).

        m* = m0 - P0 E*[grad Psi],    P* = (E*[Hess Psi] + P0^{-1})^{-1}

    The mean-field flow is the Fisher-Rao gradient flow of KL(N(m, P) || posterior), so every step is checked to lower
    the negative ELBO. The answer does not depend on the number of particles. Needs linear logits.

    With more than 2000 parameters, or when `rank` is given, the covariance has a structure instead of P x P entries:
    free in the `rank` directions that the data inform most, diagonal in a frame of feature and class directions outside
    them (see `core/complement.py`). The mean is solved for in all directions either way.

    Parameters
    ----------
    tol : float
        Stop when the natural-gradient residual is below.
    max_steps : int
        Largest number of evaluations, rejected trial steps included.
    rank : int, optional
        Number of directions in which a structured covariance is free.
    float32 : bool
        Take products of large problems in float32 on the way, as in `Equilibrium`.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> posterior = eb.run(problem, MeanField(), particles=10)
    >>> posterior.info.converged, posterior.theta.shape
    (True, (10, 1))
    """

    informed: ClassVar[bool] = True  # there is an `informed_init`
    tol: float = 1e-6
    max_steps: int = 200
    rank: int | None = None
    float32: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        check_tolerance(self.tol)
        check_count("max_steps", self.max_steps)
        check_count("rank", self.rank)

    @property
    def horizon(self) -> int:
        """The largest number of steps."""
        return self.max_steps

    def init(self, problem: Problem, ensemble: AffineEnsemble, seed: int) -> State:
        """Start from the ensemble's Gaussian; if it spans too little, from its mean and the prior's covariance."""
        if self._structured(problem, LARGEST):
            return self._structured_init(problem, ensemble.size, seed)
        if ensemble.rank < problem.dim:
            points = standard_points(ensemble.size, problem.dim, np.random.default_rng((seed, 0)))
            ensemble = AffineEnsemble(ensemble.mean, problem.prior.dense_root, like(points, ensemble.mean))
        single = self.float32 and worth_single(problem, ensemble)
        return self._approach(problem, State(ensemble, seed, blend=1.0), newton.begin(problem, ensemble, single=single))

    def _approach(self, problem: Problem, state: State, point: newton.Newton) -> State:
        """Go on to the most probable parameters, or from there."""
        if point.done:
            start = newton.start(problem, point)
            state = replace(state, steps=state.steps + start.evaluations)
            first = evaluate(problem, start.ensemble, closure, single=point.single)
            first = replace(first, fine=FINE, history=start.history if first.residual < KIN else ())
            return self._judge(problem, state, Control(first, since=state.steps))
        state = replace(state, ensemble=point.ensemble, residual=point.residual, control=point)
        if state.steps >= self.max_steps:
            return replace(state, finished=True, message=self._unsettled(state))
        return state

    def informed_init(self, problem: Problem, particles: int, seed: int) -> State:
        """Start from the Laplace approximation, for fewer particles than parameters: the covariance is fitted whatever
        their number, and they are drawn from it.
        """
        if self._structured(problem, SMALL):
            return self._structured_init(problem, particles, seed)
        ensemble = laplace_ensemble(problem, particles, seed)
        return self._judge(problem, State(ensemble, seed, blend=1.0), Control(evaluate(problem, ensemble, closure)))

    def _structured(self, problem: Problem, largest: int) -> bool:
        return (self.rank is not None or problem.dim > largest) and structured.fits(problem)

    def _structured_init(self, problem: Problem, particles: int, seed: int) -> State:
        rank = self.rank or max(8, min(RANK, int(ENTRIES // problem.dim)))
        point = structured.start(problem, rank, seed)
        ensemble = structured.particles_of(problem, point, particles, seed)
        return self._judge_structured(problem, State(ensemble, seed, blend=1.0), point)

    def _judge_structured(self, problem: Problem, state: State, point: structured.Point) -> State:
        state = replace(state, residual=point.residual, control=point)
        done = point.residual < max(self.tol, STRUCTURED_TOL)
        if done and point.searches < SEARCHES:
            return replace(state, control=structured.search(problem, point))
        if not (done or point.stuck or state.steps >= self.max_steps):
            return state
        ensemble = structured.particles_of(problem, point, state.ensemble.size, state.seed)
        message = "" if done else f"residual {point.residual:.1e} after {state.steps} steps; narrow the prior"
        return replace(state, ensemble=ensemble, finished=True, converged=done, message=message)

    def step(self, problem: Problem, state: State) -> State:
        """One trial step of the accelerated relaxation with ELBO backtracking."""
        if isinstance(state.control, structured.Point):
            following = structured.advance(problem, state.control)
            return self._judge_structured(problem, replace(state, steps=state.steps + 1), following)
        if isinstance(state.control, newton.Newton):
            advanced = newton.advance(problem, state.control)
            return self._approach(problem, replace(state, steps=state.steps + 1), advanced)
        control: Control = state.control
        point, _ = try_step(problem, control.point, Expectation(1.0, control.refine), descend=True)
        return self._judge(problem, replace(state, steps=state.steps + 1), replace(control, point=point))

    def _judge(self, problem: Problem, state: State, control: Control) -> State:
        """Put the point into the state and decide whether the run ends, or goes on with a finer quadrature."""
        point = verdict(problem, control.point, Expectation(1.0, control.refine), self.tol)
        control = replace(control, point=point)
        state = replace(state, ensemble=point.ensemble, residual=point.residual, control=control)
        if point.residual < tolerance(self.tol, point.ensemble.mean):
            return self._verify(problem, state, control)
        if state.steps >= self.max_steps:
            return replace(state, finished=True, message=self._unsettled(state))
        if point.stuck:
            message = (
                f"no step lowers the residual {point.residual:.1e} any more; scale the features or narrow the prior"
            )
            return replace(state, finished=True, message=message)
        if not _finest(problem, control) and state.steps - control.since >= COARSE_STEPS:
            return _refined(state, control, _finer(problem, control))
        return state

    def _unsettled(self, state: State) -> str:
        return f"residual {state.residual:.1e} after {state.steps} steps; raise max_steps or tol"

    def _verify(self, problem: Problem, state: State, control: Control) -> State:
        """Look at a converged point through a finer quadrature, where the likelihood has no exact rule."""
        if _finest(problem, control):
            return replace(state, finished=True, converged=True, message=_doubt(problem, control))
        finer = _finer(problem, control)
        if finer.residual < ACCURATE:
            return replace(state, finished=True, converged=True)
        return _refined(state, control, finer)


def laplace_ensemble(problem: Problem, particles: int, seed: int) -> AffineEnsemble:
    """Return J particles of the Laplace approximation with a basis of full rank, the directions that the data inform
    most first: in these the particles are exactly whitened.
    """
    theta = map_estimate(problem).theta
    xp = namespace(theta)
    w, U = whitened_moments(problem, theta).spectrum
    columns = xp.flip(U / xp.sqrt(w), axis=1)  # the spectrum ascends
    points = structured.informed_points(particles, problem.dim, np.random.default_rng((seed, 0)))
    return AffineEnsemble(theta, problem.prior.unwhiten(columns.mT).mT, like(points, theta))


def _finest(problem: Problem, control: Control) -> bool:
    return problem.likelihood.exact_closure or control.refine == FINEST


def _finer(problem: Problem, control: Control) -> Relaxation:
    return evaluate(problem, control.point.ensemble, Expectation(1.0, control.refine + 1))


def _doubt(problem: Problem, control: Control) -> str:
    """Return a sentence when even the finest quadrature is not accurate, as its difference from a coarser one shows."""
    if problem.likelihood.exact_closure:
        return ""
    coarser = evaluate(problem, control.point.ensemble, Expectation(1.0, control.refine - 1)).residual
    if coarser < 10 * ACCURATE:
        return ""
    return f"logits are spread so widely that expectations may be off by {coarser:.1g} posterior sds; narrow the prior"


def _refined(state: State, control: Control, finer: Relaxation) -> State:
    return replace(state, residual=finer.residual, control=Control(finer, control.refine + 1, state.steps))
