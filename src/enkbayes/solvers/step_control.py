"""Step control: which moments, which tau and which expectation the next step of a flow takes, and whether it counts.

In natural parameters lambda = (P^{-1} m, P^{-1}) the exact frozen flow over a time ds, tau = 1 - exp(-ds), is a
relaxation

    lambda+ = (1 - tau) lambda + tau G(lambda),        G = (H m - g, H),

so the machinery of fixed-point iterations applies. In the moving frame of the ensemble (`natural.py`) the current point
is (0, I), and its residual is f = (g, S - I). Anderson's method (`anderson.py`) extrapolates f from the last few steps;
the flow then runs with the extrapolated moments in place of the last ones. The accelerated step is again an affine map
of the ensemble, it has the same fixed point, and it is affine invariant because frame and norm are.

A run goes through stages, each with its own expectation:

    search      Newton's steps to the most probable parameters (`newton.py`), then one or two steps with averages over
                a few pairs of particles mean +- x, which see most of what separates the equilibrium from there;
    stages      relaxation with the expectation of the stage, until its residual or its number of steps is reached.

Far from the end, sums need not be exact: a run takes those of `problem.coarse` until the residual is small or a step
fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation, at_mean
from enkbayes.core.moments import Diverged, Moments
from enkbayes.core.numerics import plain
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, identity_like, namespace, symmetric, take_rows, to_numpy, tolerance
from enkbayes.solvers.anderson import extrapolated
from enkbayes.solvers.natural import History, Natural, arrived, carried, fisher_norm
from enkbayes.solvers.newton import Newton, NewtonSearch
from enkbayes.solvers.roots import exceeds


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the relaxation: ensemble, moments of the whole potential, free energy, step size, and history."""

    ensemble: AffineEnsemble
    moments: Moments
    free_energy: float
    tau: float = 1.0
    history: History = ()

    @property
    def residual(self) -> float:
        """The natural-gradient norm."""
        return self.moments.residual

    @cached_property
    def force(self) -> Natural:
        """F = G(lambda) - lambda = (g, S - I), up to the sign of g."""
        S = symmetric(self.moments.S)
        return Natural(self.moments.g, S - identity_like(S))


Flow = Callable[[Moments, float, float], tuple[Array, Array]]
"""The step of a sampler: the affine map (shift, root) of its flow with frozen moments over tau, up to a share of it."""


def evaluate(problem: Problem, ensemble: AffineEnsemble, expectation: Expectation) -> Point:
    """Return the point of the relaxation at an ensemble."""
    likelihood, prior = problem.moments(ensemble, expectation), problem.prior_moments(ensemble)
    energy = free_energy(likelihood, prior) if expectation.energy else math.nan
    return Point(ensemble, likelihood + prior, energy)


def free_energy(likelihood: Moments, prior: Moments) -> float:
    """Return F = E[Psi] + KL(N(m, P) || prior), the negative ELBO; within the ensemble's affine subspace when r < P.

    KL = (tr S0 + (m - m0)' P0^{-1} (m - m0) - r - log det S0) / 2 with S0 = basis' P0^{-1} basis.
    """
    return float(likelihood.loss + prior.loss) - (int(prior.g.shape[0]) + _log_det(prior)) / 2


def _log_det(prior: Moments) -> float:
    """Return log det S0; the eigenvalues of a numerically singular S0 are clipped."""
    xp = namespace(prior.S)
    sign, value = xp.linalg.slogdet(prior.S)
    if float(sign) > 0 and math.isfinite(float(value)):
        return float(value)
    w, _ = prior.spectrum
    tiny = xp.finfo(w.dtype).smallest_normal
    return float(xp.sum(xp.log(xp.maximum(w, xp.full_like(w, tiny)))))


@dataclass(frozen=True)
class Stage:
    """A part of a run: the expectation (weight of the Gaussian one, and its fineness), whether the free energy judges
    the steps, and the residual or number of steps at which to move on.

    verify : look at a point near the end through a finer quadrature, which decides between the stage and the next one
    rescue : only for runs whose stage before has given up
    tol : residual at the end of the stage, where the error of its quadrature makes a smaller one pointless
    """

    blend: float
    descend: bool
    until: float = 0.0
    refine: int = 0
    limit: int | None = None
    verify: bool = False
    rescue: bool = False
    tol: float = 0.0

    @property
    def expectation(self) -> Expectation:
        """The averages that this part takes."""
        return Expectation(self.blend, self.refine, energy=self.descend)


@dataclass(frozen=True, eq=False)
class Track:
    """Where a controlled run is.

    point : where the search or the relaxation is
    stage : number of the stage
    start : ensemble that the next stage starts from if this one gives up
    best, stale : lowest residual of the stage, and trial steps since it was clearly lowered
    since : steps of the run at the beginning of the stage
    steps : evaluations that were followed by a decision
    coarse : whether sums are those of `problem.coarse`
    verified : whether a finer quadrature has confirmed that of the stage
    """

    point: Any
    steps: int = 0
    stage: int = 0
    start: Any = None
    best: float = math.inf
    stale: int = 0
    since: int = 0
    coarse: bool = False
    verified: bool = False
    finished: bool = False
    converged: bool = False
    message: str = ""
    blend: float = 0.0

    @property
    def searching(self) -> bool:
        """Whether the run still searches the most probable parameters."""
        return isinstance(self.point, Newton)


@dataclass(frozen=True)
class StepControl:
    """The controller of a run: the flow that it controls, stages, tolerance, and the constants of its decisions.

    depth : steps that Anderson's method remembers; ridge : of its least squares
    sufficient : Armijo's constant, the part of the predicted decrease that a step must deliver
    near : residual below which the residual itself judges steps, for differences of energy drown in round-off there
    smallest_tau : step size at which a stage gives up
    smallest_precision : an accelerated step may widen the ensemble by the inverse root of this
    patience : trial steps without a clearly lower residual after which a stage without an energy gives up
    reuse : residual below which a stage keeps the history of steps that were taken with other averages
    fine : residual below which sums are exact; a softmax has directions that only the prior determines
    large : multiplications in a step from which coarse sums are worth it
    sample : one row of so many is summed both ways, to know the error of coarse sums
    share : error of a step, relative to its length, that is not worth a product of matrices
    pairs : of particles in the steps that follow the search; enough : residual below which one such step is enough
    accurate : residual under a finer rule, in posterior sds, that shows a quadrature to be fine enough
    """

    flow: Flow
    stages: tuple[Stage, ...]
    tol: float
    max_steps: int
    coarse: bool = True
    search: NewtonSearch | None = field(default_factory=NewtonSearch)
    remedy: str = "raise max_steps or tol"
    depth: int = 6
    ridge: float = 1e-10
    sufficient: float = 1e-4
    near: float = 0.01
    smallest_tau: float = 1e-6
    smallest_precision: float = 0.1
    patience: int = 10
    reuse: float = 0.05
    fine: float = 1e-3
    large: float = 3e7
    sample: int = 64
    share: float = 1e-3
    pairs: int = 32
    enough: float = 0.03
    accurate: float = 1e-2

    # -- what a sampler calls --------------------------------------------------------------------------------------

    def begin(self, problem: Problem, ensemble: AffineEnsemble) -> Track:
        """Return where a run begins: at the search, or at its first stage."""
        coarse = self.coarse and self._coarse_is_worth_it(problem, ensemble)
        if self.search is None:
            return self._enter(problem, Track(None, coarse=coarse), 0, ensemble, ())
        point = self.search.begin(self._source(problem, coarse=coarse), ensemble)
        return self._searched(problem, Track(point, coarse=coarse))

    def propose(self, track: Track) -> tuple[Moments, float]:
        """Return the moments and the tau that the flow runs with: extrapolated by Anderson's method where there is a
        history, unless the precision would then be nearly singular.
        """
        return self._proposed(track.point)

    def judge(self, problem: Problem, track: Track, moments: Moments, shift: Array, root: Array) -> Track:
        """Return where the run is after the flow with the proposed moments has moved the ensemble by (shift, root)."""
        number = min(track.stage, len(self.stages) - 1)
        old, stage = track.point, self.stages[number]
        if number != track.stage or (stage.descend and math.isnan(old.free_energy)):  # resumed from other stages
            return self._enter(problem, replace(track, steps=track.steps + 1), number, old.ensemble, ())
        coarse = track.coarse and old.residual > self.fine
        point, accepted = self._trial(self._source(problem, coarse=coarse), old, moments, shift, root, stage)
        track = replace(track, steps=track.steps + 1)
        if not accepted and track.coarse:  # perhaps only because sums are coarse
            point, coarse = replace(evaluate(problem, old.ensemble, stage.expectation), tau=old.tau), False
        improved = point.residual < 0.9 * track.best
        best, stale = (point.residual, 0) if improved else (track.best, track.stale + 1)
        return self._follow(problem, replace(track, point=point, best=best, stale=stale, coarse=coarse))

    def advance_search(self, problem: Problem, track: Track) -> Track:
        """Return where the run is after one more step of the search."""
        search = self.search or NewtonSearch()
        point = search.advance(self._source(problem, coarse=track.coarse), track.point)
        return self._searched(problem, replace(track, point=point, steps=track.steps + 1))

    # -- from the search to the stages -----------------------------------------------------------------------------

    def _searched(self, problem: Problem, track: Track) -> Track:
        """Continue the search or, at its end, go to the stages: to the ensemble's own averages if a few particles show
        that the equilibrium is near.
        """
        search = self.search or NewtonSearch()
        if not search.done(track.point):
            return self._exhausted(track) if track.steps >= self.max_steps else track
        ensemble, history, seen, evaluations = self._start(problem, track, search)
        own = next((i for i, stage in enumerate(self.stages) if stage.blend == 0.0), 0)
        steps = track.steps + evaluations
        return self._enter(
            problem, replace(track, steps=steps, since=steps), own if seen < self.reuse else 0, ensemble, history
        )

    def _start(
        self, problem: Problem, track: Track, search: NewtonSearch
    ) -> tuple[AffineEnsemble, History, float, int]:
        """Return the ensemble that the stages begin with, the history of the steps that led there, the residual that
        few particles saw one step before, and the number of evaluations.

        The ensemble stays as it is where the search was stuck, and where it is near the equilibrium already, as in a
        run that continues another.
        """
        found: Newton = track.point
        if found.residual >= search.near or found.moments.residual < search.near:
            return found.ensemble, (), math.inf, 0
        source, own = self._source(problem, coarse=track.coarse), Stage(0.0, descend=False)
        try:
            laplace = found.ensemble.affine(*self.flow(found.moments, 1.0, self.share))
            point = evaluate(source, replace(laplace, points=few_pairs(laplace.points, self.pairs)), own.expectation)
            count = 1
            if point.residual > self.enough:
                moments, tau = self._proposed(point)
                point, count = self._trial(source, point, moments, *self.flow(moments, tau, self.share), own)[0], 2
            shift, root = self.flow(*self._proposed(point), self.share)
        except Diverged:
            still = replace(found.moments, g=0 * found.moments.g)
            return found.ensemble.affine(*self.flow(still, 1.0, self.share)), (), math.inf, 0
        moved = replace(point.ensemble.affine(shift, root), points=found.ensemble.points)
        return moved, carried(point.history, shift, root), point.residual, count

    def _enter(
        self,
        problem: Problem,
        track: Track,
        stage: int,
        ensemble: AffineEnsemble,
        history: History,
        known: Point | None = None,
    ) -> Track:
        """Begin a stage at an ensemble; `known` is the point there, if it has been evaluated. The history is kept if
        the first residual is small, because the earlier steps then have nearly the same slopes.
        """
        source = self._source(problem, coarse=track.coarse)
        point = evaluate(source, ensemble, self.stages[stage].expectation) if known is None else known
        point = replace(point, history=history if point.residual < self.reuse else ())
        entered = replace(track, point=point, stage=stage, start=ensemble, best=point.residual, stale=0)
        return self._follow(problem, entered)

    def _follow(self, problem: Problem, track: Track) -> Track:
        """Move on to the next stage when this one has done its work or given up, and end the run when it may."""
        stage, last = self.stages[track.stage], track.stage + 1 == len(self.stages)
        point: Point = track.point
        overdue = stage.limit is not None and track.steps - track.since >= stage.limit
        stuck = point.tau < self.smallest_tau
        given_up = stuck or overdue or (track.stale >= self.patience and not stage.descend)
        final, enough = not stage.until, tolerance(max(self.tol, stage.tol), point.ensemble.mean)
        if stage.verify and not (last or track.verified) and point.residual < self.accurate / 3:
            finer = evaluate(problem, point.ensemble, replace(stage.expectation, refine=stage.refine + 1))
            if not finer.residual < self.accurate:
                return self._next_stage(problem, track, known=finer)
            track = replace(track, verified=True)
        if final and point.residual < enough:
            track = self._exact(problem, track)
            if track.point.residual < enough:
                return self._end(problem, track)
            return self._follow(problem, track)
        if not last and (given_up or point.residual < stage.until):
            return self._next_stage(problem, track, given_up=given_up)
        track = replace(track, blend=stage.blend, message="", finished=False, converged=False)
        return self._exhausted(track) if given_up or track.steps >= self.max_steps else track

    def _next_stage(
        self, problem: Problem, track: Track, *, given_up: bool = True, known: Point | None = None
    ) -> Track:
        """Begin the next stage: where this one has ended, if its steps had to lower an energy, or where it began."""
        found, number = track.point, track.stage + 1
        while self.stages[number].rescue and not given_up:
            number += 1
        goes_on = self.stages[track.stage].descend
        ensemble, history = (found.ensemble, found.history) if goes_on else (track.start, ())
        track = replace(track, steps=track.steps + 1, since=track.steps, verified=False)
        return self._enter(problem, track, number, ensemble, history, known)

    def _end(self, problem: Problem, track: Track) -> Track:
        """End the run; the finest quadrature says how far it is from the one before."""
        stage, point = self.stages[track.stage], track.point
        done = replace(track, finished=True, converged=True, blend=stage.blend, message="")
        if not stage.verify or track.stage + 1 < len(self.stages):
            return done
        other = Expectation(stage.blend, stage.refine - 1)
        residual = evaluate(problem, point.ensemble, other).residual
        doubt = "logits are spread so widely that expectations may be off by"
        message = f"{doubt} {plain(residual, 1)} posterior sds; narrow the prior"
        return done if residual < 10 * self.accurate else replace(done, message=message)

    def _exhausted(self, track: Track) -> Track:
        message = f"residual {track.point.residual:.1e} after {track.steps} steps; {self.remedy}"
        if not track.searching and track.point.tau < self.smallest_tau:
            message = f"no step lowers the residual {track.point.residual:.1e} any more; {self.remedy}"
        return replace(track, finished=True, converged=False, message=message)

    # -- a trial step ----------------------------------------------------------------------------------------------

    def _proposed(self, point: Point) -> tuple[Moments, float]:
        """Return the moments and the tau of the next step from a point."""
        if not point.history:
            return point.moments, point.tau
        force = extrapolated(point.force, point.history, point.tau, Natural.dot, self.ridge)
        eye = identity_like(force.S)
        if not exceeds(eye + point.tau * force.S, self.smallest_precision):
            return point.moments, point.tau
        return Moments(0.0, force.g, eye + force.S), point.tau

    def _trial(
        self, problem: Problem, old: Point, moments: Moments, shift: Array, root: Array, stage: Stage
    ) -> tuple[Point, bool]:
        """Return the new point and True, or the old point and False, without its history or with half the step size."""
        accelerated = moments is not old.moments
        try:
            trial = evaluate(problem, old.ensemble.affine(shift, root), stage.expectation)
            accepted = self._better(old, trial, descend=stage.descend)
        except Diverged:
            accepted = False
        if not accepted:
            return replace(old, history=()) if accelerated else replace(old, tau=old.tau / 2), False
        dlambda = arrived(shift, root)
        before = old.force.carry(shift, root) if accelerated else dlambda * (1 / old.tau)
        history = (*carried(old.history[1 - self.depth :], shift, root), (dlambda, trial.force - before))
        tau = old.tau if accelerated else min(1.0, 2 * old.tau)
        return replace(trial, tau=tau, history=history), True

    def _better(self, old: Point, new: Point, *, descend: bool) -> bool:
        """Tell whether a step counts.

        With `descend` it must lower the free energy or, near the equilibrium, the residual. Without (averages over
        particles are not the gradient of any energy) it must lower the residual.
        """
        closer = new.residual < old.residual
        if not descend:
            return closer
        predicted = old.tau * old.residual**2 * old.ensemble.rank
        fallen = new.free_energy <= old.free_energy - self.sufficient * predicted
        return fallen or (closer and new.residual < self.near)

    # -- coarse and exact sums -------------------------------------------------------------------------------------

    def _source(self, problem: Problem, *, coarse: bool) -> Problem:
        return problem.coarse or problem if coarse else problem

    def _coarse_is_worth_it(self, problem: Problem, ensemble: AffineEnsemble) -> bool:
        """Tell whether coarse sums save anything worth mentioning and are good enough: whether their error, at the mean
        of the ensemble, is small in units of the posterior.
        """
        work = problem.size * ensemble.rank * max(ensemble.rank, ensemble.size)
        if work <= self.large or ensemble.rank < problem.dim or problem.coarse is None:
            return False
        error, likelihood = self._coarse_error(problem, ensemble, at_mean)
        S = symmetric((likelihood + problem.prior_moments(ensemble)).S)
        return fisher_norm(error, S) < self.fine

    def _exact(self, problem: Problem, track: Track) -> Track:
        """Return the track with moments that are accurate enough for a verdict."""
        stage, point = self.stages[track.stage], track.point
        if not track.coarse:
            return track
        error, _ = self._coarse_error(problem, point.ensemble, stage.expectation)
        if fisher_norm(error) < self.tol / 10:  # here the precision is nearly the identity
            return track
        exact = replace(evaluate(problem, point.ensemble, stage.expectation), tau=point.tau)
        return replace(track, point=exact, coarse=False)

    def _coarse_error(
        self, problem: Problem, ensemble: AffineEnsemble, expectation: Expectation
    ) -> tuple[Moments, Moments]:
        """Return the error of the likelihood's coarse moments and these moments, estimated from one row in `sample`."""
        few = problem.head(max(-(-problem.size // self.sample), 64))
        exact, times = few.moments(ensemble, expectation), problem.size / few.size
        rough = exact if few.coarse is None else few.coarse.moments(ensemble, expectation)
        return (rough - exact) * times, exact * times


def few_pairs(points: Array, pairs: int) -> Array:
    """Return pairs x, -x (2 n, r) of some of the points (J, r), scaled to the length that normal ones have on average,
    so that the variance of a logit is right on average over directions.

    Chosen by their lengths, which neither the order of the particles nor the coordinates change.
    """
    xp = namespace(points)
    length = xp.sqrt(xp.sum(points**2, axis=1))
    order = np.argsort(to_numpy(length), kind="stable")
    some = order[np.unique(np.linspace(0, len(order) - 1, pairs).astype(int))]
    x = take_rows(points, some) * (math.sqrt(points.shape[1]) / take_rows(length, some))[:, None]
    return xp.concat([x, -x], axis=0)
