"""Algorithm 2 with the exact frozen flow: a fixed point without step-size bias. The default everywhere."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from enkbayes.core.arguments import is_number
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import empirical
from enkbayes.core.moments import Moments
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, identity_like, tolerance
from enkbayes.samplers.minibatch import batch_moments
from enkbayes.samplers.settings import Settings
from enkbayes.samplers.state import State
from enkbayes.solvers.newton import NewtonSearch
from enkbayes.solvers.roots import inverse_root
from enkbayes.solvers.step_control import Stage, StepControl, Track


def frozen_flow(moments: Moments, tau: float, share: float = 0.0) -> tuple[Array, Array]:
    """Solve eq. (aldiode) exactly over tau = 1 - exp(-ds) with the moments g and S of the whole potential frozen.

        F = (1 - tau) I + tau S,    mean+ = mean - tau basis F^{-1} g,    basis+ = basis F^{-1/2}

    Return the affine map of all particles: shift (r,) and root (r, r) with mean+ = mean + basis shift, basis+ = basis
    root. Its fixed point g = 0, S = I is exact for every tau. share is the error of the root, relative to the distance
    from that fixed point, which a controller that judges the result does not mind.
    """
    F = (1 - tau) * identity_like(moments.S) + tau * moments.S
    root = inverse_root(F, share)
    return -tau * (root @ (root @ moments.g)), root


def controlled_step(control: StepControl, problem: Problem, state: State) -> State:
    """Take one step: the flow with the moments and the tau that the controller proposes, judged by the controller."""
    track: Track = state.control
    if track.searching:
        return with_track(state, control.advance_search(problem, track))
    moments, tau = control.propose(track)
    shift, root = frozen_flow(moments, tau, control.share)
    return with_track(state, control.judge(problem, track, moments, shift, root))


def with_track(state: State, track: Track) -> State:
    """Return the state of a controlled run."""
    return replace(
        state,
        ensemble=track.point.ensemble,
        steps=track.steps,
        residual=track.point.residual,
        blend=track.blend,
        finished=track.finished,
        converged=track.converged,
        message=track.message,
        control=track,
    )


@dataclass(frozen=True)
class Equilibrium(Settings):
    """Move the ensemble to the equilibrium of the paper's second sampler (equation 14), with averages over its own J
    particles.

    A step solves the flow with frozen curvature exactly, see `frozen_flow`. With tau=None a controller chooses the
    steps (`solvers/step_control.py`): Newton's to the most probable parameters and the curvature there, then to the
    mean-field equilibrium (Gaussian expectations, which always converge), then with the ensemble's own averages, both
    accelerated. Where an ensemble has no stable equilibrium of its own (separable data, weak prior), half or all of
    the Gaussian expectation is blended in; `info.blend` says how much.

    The averages of few particles are noisy, and predictions would follow the noise. So for linear logits an adaptive
    run of fewer than `enough` particles per parameter takes Gaussian expectations throughout (see `MeanField`), and its
    predictions do not depend on J. J <= P particles are drawn from the result; from the prior they would stay in
    J - 1 arbitrary directions. J <= P particles of your own (`theta`) are moved within their span, as in the paper.

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
        Allow coarser sums over the rows of large problems on the way, computed in float32. The end is in the data's
        precision either way; without it two runs that cut their rows differently agree to round-off, with it to 1e-6
        posterior standard deviations.
    large : float
        Multiplications in a step from which coarser sums are worth it.
    enough : float
        Particles per parameter from which a run ends with their own averages.

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
    large: float = field(default=3e7, repr=False)
    enough: float = field(default=3.0, repr=False)

    def __post_init__(self) -> None:
        if self.tau is not None and not (is_number(self.tau) and 0 < self.tau <= 1):
            raise ValueError(f"tau is {self.tau!r}; expected a number in (0, 1], or None to let the sampler choose")
        if self.tau is not None and self.batch is not None:
            raise ValueError(
                "both tau and batch are given; mini-batches have their own decaying steps, so leave tau out"
            )
        super().__post_init__()

    @property
    def adaptive(self) -> bool:
        """Whether a controller chooses the steps."""
        return self.tau is None and self.batch is None

    def init(self, problem: Problem, ensemble: AffineEnsemble, seed: int) -> State:
        """Return the first state: one evaluation of the moments."""
        state = State(ensemble, seed)
        if self.adaptive:
            control = self._control(problem, ensemble)
            return self._explained(problem, with_track(state, control.begin(problem, ensemble)))
        return state if self.batch is not None else self._judged(problem, state)

    def step(self, problem: Problem, state: State) -> State:
        """One step of the flow: with the moments and the tau of the controller, a fixed tau, or a mini-batch."""
        if self.adaptive:
            return self._explained(problem, controlled_step(self._control(problem, state.ensemble), problem, state))
        state = replace(state, steps=state.steps + 1)
        moments, tau = self._batch(problem, state) if self.tau is None else (state.control, self.tau)
        ensemble = state.ensemble.affine(*frozen_flow(moments, tau))
        state = replace(state, ensemble=ensemble, residual=moments.residual)
        return state if self.batch is not None and state.steps < self.max_steps else self._judged(problem, state)

    def _control(self, problem: Problem, ensemble: AffineEnsemble) -> StepControl:
        whole = problem.is_linear and ensemble.rank == problem.dim
        few = whole and ensemble.size < self.enough * problem.dim
        remedy = (
            "raise max_steps or use more particles; for linear logits MeanField(), for others tau=0.3, may converge"
        )
        return StepControl(
            frozen_flow,
            gaussian_stages(problem) if few else _stages(problem),
            self.tol,
            self.max_steps,
            coarse=self.float32,
            large=self.large,
            search=NewtonSearch() if whole else None,
            remedy=remedy,
        )

    def _explained(self, problem: Problem, state: State) -> State:
        """Say so when a run converged only with Gaussian expectations blended in."""
        own = any(stage.blend == 0.0 for stage in self._control(problem, state.ensemble).stages)
        if not (state.finished and state.converged and state.blend and own):
            return state
        message = f"the averages of {state.ensemble.size} particles do not converge; "
        return replace(state, message=f"{message}converged with weight {state.blend:g} on Gaussian expectations")

    def _batch(self, problem: Problem, state: State) -> tuple[Moments, float]:
        """Return the moments of one batch, scaled to all rows, and the decaying tau."""
        ensemble, number = state.ensemble, state.steps - 1
        likelihood = batch_moments(problem, ensemble, self.batch or problem.size, state.seed, number)
        return likelihood + problem.prior_moments(ensemble), (number + 5) ** -0.7

    def _judged(self, problem: Problem, state: State) -> State:
        """Return a state whose control is the moments of all rows, finished when they are those of the equilibrium."""
        moments = problem.potential_moments(state.ensemble, empirical)
        state = replace(state, residual=moments.residual, control=moments)
        if moments.residual < tolerance(self.tol, state.ensemble.mean):
            return replace(state, finished=True, converged=True)
        if state.steps < self.max_steps:
            return state
        fixed = "use tau=None or a smaller tau, or raise max_steps"
        remedy = fixed if self.tau is not None else "mini-batches leave noise: raise max_steps or tol"
        message = f"residual {moments.residual:.1e} after {state.steps} steps; {remedy}"
        return replace(state, finished=True, message=message)


EXACT = (Stage(1.0, descend=True),)
QUADRATURE = (
    Stage(1.0, descend=True, limit=30, verify=True),
    Stage(1.0, descend=True, refine=1, limit=30, verify=True, tol=1e-5),
    Stage(1.0, descend=True, refine=2, verify=True, tol=1e-5),
)
"""Softmax quadrature takes up to 4**2 times its usual number of points. Near the end a check with more points decides
whether that is needed. A run that has not converged in 30 steps has met kinks of the quadrature."""

WARM = Stage(1.0, descend=True, until=1e-2)
OWN = (Stage(0.0, descend=False), Stage(0.5, descend=False), Stage(1.0, descend=True, refine=2))
LINEAR = (WARM, *OWN)
SOFTMAX = (replace(WARM, limit=30), replace(WARM, refine=2, rescue=True), *OWN)  # coarse quadrature may have kinks
NONLINEAR = (Stage(0.0, descend=True), Stage(0.0, descend=False))


def gaussian_stages(problem: Problem) -> tuple[Stage, ...]:
    """Return the stages of a run with Gaussian expectations throughout."""
    return EXACT if problem.likelihood.exact_closure else QUADRATURE


def _stages(problem: Problem) -> tuple[Stage, ...]:
    """Return the expectations of an adaptive run, one after the other."""
    if not problem.is_linear:
        return NONLINEAR
    return LINEAR if problem.likelihood.exact_closure else SOFTMAX
