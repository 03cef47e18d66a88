"""Algorithm 2 with the exact frozen flow: a fixed point without step-size bias. The default everywhere."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation, empirical
from enkbayes.core.logits import LinearLogits
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import tolerance
from enkbayes.samplers.checks import check_count, check_tolerance
from enkbayes.samplers.mean_field import Control as MeanFieldControl
from enkbayes.samplers.mean_field import MeanField
from enkbayes.samplers.minibatch import batch_moments
from enkbayes.samplers.state import State
from enkbayes.solvers import newton
from enkbayes.solvers.relaxation import FINE, Relaxation, evaluate, try_step, verdict, worth_single
from enkbayes.solvers.structured import Point as StructuredPoint

KIN = 0.05  # residual below which averages of another kind are so similar that steps with them count as one's own
PATIENCE = 10  # trial steps without a clearly lower residual after which a stage gives up


@dataclass(frozen=True)
class Stage:
    """A part of an adaptive run: the expectation (weight of the closure, and its fineness), whether energy judges the
    steps, and the residual or number of steps at which to move on.
    """

    blend: float
    descend: bool
    until: float = 0.0
    refine: int = 0
    limit: int | None = None

    @property
    def expectation(self) -> Expectation:
        """The averages that this part takes."""
        return Expectation(self.blend, self.refine, energy=self.descend)


WARM = Stage(1.0, descend=True, until=1e-2)
WARM_FINE = Stage(1.0, descend=True, until=1e-2, refine=2)
SETTLE = (Stage(0.0, descend=False), Stage(0.5, descend=False), Stage(1.0, descend=True, refine=2))
LINEAR = (WARM, *SETTLE)
SOFTMAX = (replace(WARM, limit=30), WARM_FINE, *SETTLE)  # coarse quadrature has kinks that can slow it down
NONLINEAR = (Stage(0.0, descend=True), Stage(0.0, descend=False))


@dataclass(frozen=True, eq=False)
class Control:
    """Where an adaptive run is: its point, its stage, the ensemble that a new stage starts from, and how long nothing
    improved.
    """

    point: Relaxation
    stage: int
    start: AffineEnsemble
    best: float
    since: int = 0
    stale: int = 0


@dataclass(frozen=True)
class Equilibrium:
    """Move the ensemble to the equilibrium of the paper's second sampler, eq. (aldiode), with averages over its own J
    particles.

    The flow with frozen curvature is solved exactly over ds, tau = 1 - exp(-ds): with S = U diag(w) U' and g of the
    whole potential,

        f = 1 - tau + tau w,    m+ = m - tau basis U (U'g / f),    basis+ = basis U diag(f^{-1/2}) U'

    whose fixed point g = 0, S = I is exact for every tau. With tau=None a run chooses its own steps: Newton's to the
    most probable parameters and the curvature there, then to the mean-field equilibrium (Gaussian expectations, which
    always settle), then with the ensemble's own averages, both by accelerated relaxation; products of large problems
    are taken in float32 until the last steps. Where a small ensemble has no stable equilibrium of its own (few
    particles, separable data, weak prior), half or all of the Gaussian expectation is blended in; `info.blend` says how
    much.

    An ensemble of J <= P particles drawn from the prior would stay in J - 1 arbitrary directions. For linear logits an
    adaptive run then takes Gaussian expectations throughout, in all directions (see `MeanField`), and draws its J
    particles from the result, so that predictions do not depend on J. Particles of your own (`theta`) are moved within
    their span, as in the paper.

    Parameters
    ----------
    tau : float in (0, 1], optional
        A fixed step, with the ensemble's own averages and no acceleration. Default: adaptive.
    tol : float
        Stop when the natural-gradient residual is below.
    max_steps : int
        Largest number of evaluations, rejected trial steps included.
    batch : int, optional
        Mini-batches of so many rows, with tau_k = (k + 5)^(-0.7), for all of max_steps.
    float32 : bool
        Take products of large problems in float32 on the way. The end is in the data's precision either way; without it
        two runs that cut their rows differently agree to round-off, with it to 1e-6 posterior standard deviations.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> eb.run(problem, Equilibrium(tol=1e-8)).info.residual < 1e-8
    True
    """

    tau: float | None = None
    tol: float = 1e-6
    max_steps: int = 200
    batch: int | None = None
    float32: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        if self.tau is not None and not 0 < self.tau <= 1:
            raise ValueError(f"tau is {self.tau}; expected a number in (0, 1], or None to let the sampler choose")
        if self.tau is not None and self.batch is not None:
            raise ValueError(
                "both tau and batch are given; mini-batches have their own decaying steps, so leave tau out"
            )
        check_tolerance(self.tol)
        check_count("max_steps", self.max_steps)
        check_count("batch", self.batch)

    @property
    def horizon(self) -> int:
        """The largest number of steps."""
        return self.max_steps

    def init(self, problem: Problem, ensemble: AffineEnsemble, seed: int) -> State:
        """Return the first state: one evaluation of the moments."""
        state = State(ensemble, seed)
        if self.batch is not None:
            return state
        if self.tau is not None:
            return self._judge(state, evaluate(problem, ensemble, empirical))
        single = self.float32 and worth_single(problem, ensemble)
        if isinstance(problem.model, LinearLogits) and ensemble.rank == problem.dim:
            return self._approach(problem, state, newton.begin(problem, ensemble, single=single))
        return self._settle(problem, state, newton.Start(ensemble), single=single)

    def _approach(self, problem: Problem, state: State, point: newton.Newton) -> State:
        """Go on to the most probable parameters, or from there."""
        if point.done:
            start = newton.start(problem, point)
            state = replace(state, steps=state.steps + start.evaluations)
            return self._settle(problem, state, start, single=point.single)
        state = replace(state, ensemble=point.ensemble, residual=point.residual, control=point)
        if state.steps >= self.max_steps:
            return replace(state, finished=True, message=self._unsettled(point.residual, state.steps))
        return state

    def _settle(self, problem: Problem, state: State, start: newton.Start, *, single: bool) -> State:
        """Begin the stages of the relaxation, with the ensemble's own averages where the equilibrium is near."""
        stages = _stages(problem)
        stage = _own(stages) if start.residual < KIN else 0
        point = evaluate(problem, start.ensemble, stages[stage].expectation, single=single)
        history = start.history if point.residual < KIN else ()
        point = replace(point, fine=FINE, history=history)
        return self._follow(problem, state, Control(point, stage, start.ensemble, point.residual))

    @property
    def informed(self) -> bool:
        """Whether there is an `informed_init`: only an adaptive run has one."""
        return self.tau is None and self.batch is None

    def informed_init(self, problem: Problem, particles: int, seed: int) -> State:
        """Return the first state of a run with fewer particles than parameters."""
        return self._mean_field.informed_init(problem, particles, seed)

    @property
    def _mean_field(self) -> MeanField:
        return MeanField(self.tol, self.max_steps, float32=self.float32)

    def step(self, problem: Problem, state: State) -> State:
        """One step: mini-batch, fixed tau, or a trial step of the adaptive run."""
        if isinstance(state.control, MeanFieldControl | StructuredPoint):
            return self._mean_field.step(problem, state)
        state = replace(state, steps=state.steps + 1)
        if isinstance(state.control, newton.Newton):
            return self._approach(problem, state, newton.advance(problem, state.control))
        if self.batch is not None:
            return self._batch_step(problem, state, self.batch)
        if self.tau is not None:
            ensemble = frozen_flow(state.ensemble, state.control, self.tau)
            return self._judge(state, evaluate(problem, ensemble, empirical))
        control: Control = state.control
        stage = _stages(problem)[control.stage]
        point, _ = try_step(problem, control.point, stage.expectation, descend=stage.descend)
        improved = point.residual < 0.9 * control.best
        best, stale = (point.residual, 0) if improved else (control.best, control.stale + 1)
        return self._follow(problem, state, replace(control, point=point, best=best, stale=stale))

    def _follow(self, problem: Problem, state: State, control: Control) -> State:
        """Move on to the next stage when this one has done its work or given up."""
        stages = _stages(problem)
        stage, last = stages[control.stage], control.stage + 1 == len(stages)
        overdue = stage.limit is not None and state.steps - control.since >= stage.limit
        given_up = control.point.stuck or overdue or (control.stale >= PATIENCE and not stage.descend)
        if not last and (given_up or control.point.residual < stage.until):
            start = control.point.ensemble if stage.descend else control.start
            point = evaluate(problem, start, stages[control.stage + 1].expectation, single=control.point.single)
            # the last steps of the stage before know the slopes of this one well enough for a better first step
            history = control.point.history if stage.descend and point.residual < KIN else ()
            point = replace(point, fine=control.point.fine, history=history)
            control = Control(point, control.stage + 1, start, point.residual, since=state.steps)
            return self._follow(problem, replace(state, steps=state.steps + 1), control)
        final = not stage.until
        if final:
            control = replace(control, point=verdict(problem, control.point, stage.expectation, self.tol))
        state = replace(state, blend=stage.blend, control=control)
        return self._judge(state, control.point, final=final, stuck=last and given_up)

    def _judge(self, state: State, point: Relaxation, *, final: bool = True, stuck: bool = False) -> State:
        """Put the point into the state and decide whether the run ends; the point is the control of a fixed-tau run."""
        control = state.control if isinstance(state.control, Control) else point
        state = replace(state, ensemble=point.ensemble, residual=point.residual, control=control)
        if final and point.residual < tolerance(self.tol, point.ensemble.mean):
            return replace(state, finished=True, converged=True, message=_blended(state.blend, point.ensemble.size))
        if stuck or state.steps >= self.max_steps:
            return replace(state, finished=True, message=self._unsettled(point.residual, state.steps))
        return state

    def _unsettled(self, residual: float, steps: int) -> str:
        if self.batch is not None:
            remedy = "mini-batches leave noise: raise max_steps or tol"
        elif self.tau is not None:
            remedy = "use tau=None or a smaller tau, or raise max_steps"
        else:
            remedy = (
                "raise max_steps or use more particles; for linear logits MeanField(), for others tau=0.3, may settle"
            )
        return f"residual {residual:.1e} after {steps} steps; {remedy}"

    def _batch_step(self, problem: Problem, state: State, batch: int) -> State:
        """One decaying step with the moments of one batch, scaled to all data; the last state carries the residual of
        all data.
        """
        ensemble = state.ensemble
        likelihood = batch_moments(problem, ensemble, batch, state.seed, state.steps - 1)
        point = Relaxation(ensemble, likelihood + problem.prior_moments(ensemble), 0.0)
        ensemble = frozen_flow(ensemble, point, (state.steps + 4) ** -0.7)
        if state.steps < self.max_steps:
            return replace(state, ensemble=ensemble, residual=point.residual)
        return self._judge(state, evaluate(problem, ensemble, empirical))


def frozen_flow(ensemble: AffineEnsemble, point: Relaxation, tau: float) -> AffineEnsemble:
    """Return the ensemble after the exact flow with frozen curvature over tau = 1 - exp(-ds)."""
    return ensemble.transform(
        point.moments, gain=lambda w: tau / (1 - tau + tau * w), scale=lambda w: (1 - tau + tau * w) ** -0.5
    )


def _stages(problem: Problem) -> tuple[Stage, ...]:
    if not isinstance(problem.model, LinearLogits):
        return NONLINEAR
    return LINEAR if problem.likelihood.exact_closure else SOFTMAX


def _own(stages: tuple[Stage, ...]) -> int:
    """Return the number of the stage with the ensemble's own averages."""
    return next(i for i, stage in enumerate(stages) if stage.blend == 0.0)


def _blended(weight: float, particles: int) -> str:
    if weight == 0.0:
        return ""
    return (
        f"the averages of {particles} particles do not settle; settled with weight {weight:g} on Gaussian expectations"
    )
