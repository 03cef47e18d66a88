"""The way to the Laplace approximation: Newton's method for the mean, in the frame of an ensemble.

An ensemble that starts from the prior needs most of its steps to find where the posterior is. The most probable
parameters are there within a few posterior standard deviations, and finding them is cheap: a Newton step costs one
symmetric product, no logits of the ensemble. With g and S the gradient and Hessian of the potential at the mean, in the
coordinates of the ensemble's basis,

    mean+ = mean - basis S^{-1} g,        and at the end        basis+ = basis S^{-1/2},

which is an affine map of all particles like any other step, and affine invariant for the same reason.

Where the curvature falls off, as that of a logistic function does, full steps from the prior are too short. So a step
from afar is as long as the potential along it says: the potential at a few lengths costs one product with as many
columns, and saves one or two evaluations.

The equilibrium is not there yet: the average over the ensemble moves the mean by a good part of a standard deviation.
Most of that is seen by very few particles when they come in pairs mean +- basis x, and an evaluation with a few costs
no more than one at a point. So `start` takes one or two steps with such averages before the full ones begin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation
from enkbayes.core.moments import Diverged, Moments
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, like, namespace, symmetric, take_rows, to_numpy
from enkbayes.solvers.relaxation import History, evaluate, onward, try_step

NEAR = 0.5  # posterior sds, in the root mean square over directions, from which a sampler does better
FAR = 1.0  # the same from which a step may be longer than Newton's
LENGTHS = np.asarray([1.0, 1.5, 2.0, 2.5, 3.0, 4.0])  # times Newton's step
PAIRS = 32  # of particles in the steps that lead on from the most probable parameters
FEW = Expectation(energy=False)  # their averages
ENOUGH = 0.03  # residual of the first of these steps below which a second one has nothing to tell
SUFFICIENT = 1e-4  # Armijo's constant: the part of the predicted decrease that a step must deliver
SMALLEST = 1e-6  # share of a step below which something else is wrong
MOST = 40  # evaluations; a quarter of these is plenty


@dataclass(frozen=True, eq=False)
class Newton:
    """A point of the search: the ensemble around the current mean, the moments of the potential at that mean alone, the
    step from there, how much of it to try, and the number of evaluations.
    """

    ensemble: AffineEnsemble
    moments: Moments
    step: Array
    single: bool
    scale: float = 1.0
    evaluations: int = 1

    @property
    def residual(self) -> float:
        """The Newton decrement sqrt(g' S^{-1} g / r): the distance to the maximum in posterior standard deviations."""
        squared = float(namespace(self.step).sum(self.moments.g * self.step))
        return math.sqrt(max(squared, 0.0) / self.step.shape[0])

    @property
    def done(self) -> bool:
        """Whether to stop: near the maximum, or where no step helps."""
        return self.residual < NEAR or self.scale < SMALLEST or self.evaluations >= MOST


def begin(problem: Problem, ensemble: AffineEnsemble, *, single: bool) -> Newton:
    """Return the first point, at the mean of the ensemble; it must span all directions."""
    xp = namespace(ensemble.mean)
    middle = xp.zeros((1, ensemble.rank), dtype=ensemble.mean.dtype, device=ensemble.mean.device)
    at_mean = replace(ensemble, points=middle)
    moments = problem.moments(at_mean, single=single) + problem.prior_moments(at_mean)
    if not math.isfinite(float(moments.loss) + moments.residual):
        raise Diverged("the potential at the mean of the ensemble is not finite")
    return Newton(ensemble, moments, xp.linalg.solve(symmetric(moments.S), moments.g[:, None])[:, 0], single)


def advance(problem: Problem, point: Newton) -> Newton:
    """Take one trial step: return the new point, or the old one with a quarter of the step when V has not fallen."""
    ensemble = point.ensemble
    scale = _reach(problem, point) if point.scale == 1.0 and point.residual > FAR else point.scale
    moved = replace(ensemble, mean=ensemble.mean - ensemble.basis @ (scale * point.step))
    evaluations = point.evaluations + 1
    try:
        trial = begin(problem, moved, single=point.single)
        predicted = scale * point.residual**2 * ensemble.rank
        fallen = float(trial.moments.loss) <= float(point.moments.loss) - SUFFICIENT * predicted
    except Diverged:
        fallen = False
    if not fallen:
        return replace(point, scale=min(1.0, scale) / 4, evaluations=evaluations)
    return replace(trial, scale=min(1.0, 2 * scale), evaluations=evaluations)


def _reach(problem: Problem, point: Newton) -> float:
    """Return how many of Newton's steps lower the potential most, 1 to 4: the parabola through the best of LENGTHS and
    its neighbours.
    """
    mean, prior = point.ensemble.mean, problem.prior
    theta = mean - like(LENGTHS, mean)[:, None] * (point.ensemble.basis @ point.step)
    shift = prior.whiten((theta - prior.mean).mT)
    V = to_numpy(problem.loss(theta) + namespace(mean).sum(shift**2, axis=0) / 2)
    best = int(np.argmin(np.where(np.isfinite(V), V, np.inf)))
    near = slice(max(best - 1, 0), best + 2)
    if best in (0, len(V) - 1) or not np.all(np.isfinite(V[near])):
        return float(LENGTHS[best])
    bend, slope, _ = np.polyfit(LENGTHS[near] - LENGTHS[best], V[near] - V[best], 2)
    return float(LENGTHS[best] - slope / (2 * bend)) if bend > 0 else float(LENGTHS[best])


def laplace(point: Newton) -> AffineEnsemble:
    """Return the ensemble with the curvature at the mean as its precision.

    It keeps its own spread where Newton was stuck, and where that is as good, as in a run that goes on from another.
    """
    if _keeps(point):
        return point.ensemble
    return _matched(point.ensemble, replace(point.moments, g=0 * point.moments.g))


def _keeps(point: Newton) -> bool:
    return point.residual >= NEAR or point.moments.residual < NEAR


@dataclass(frozen=True, eq=False)
class Start:
    """Where the full averages begin: an ensemble, the history of the steps that led there (see `relaxation.py`), the
    residual that few particles saw one step before, and the number of evaluations.
    """

    ensemble: AffineEnsemble
    history: History = ()
    residual: float = math.inf
    evaluations: int = 0


def start(problem: Problem, point: Newton) -> Start:
    """Return the Laplace approximation, brought nearer to the equilibrium by averages over a few pairs of particles."""
    if _keeps(point):
        return Start(point.ensemble)
    try:
        ensemble = _matched(point.ensemble, point.moments)
        few = replace(ensemble, points=_pairs(ensemble.points))
        seen, count = evaluate(problem, few, FEW, single=point.single), 1
        if seen.residual > ENOUGH:
            (seen, _), count = try_step(problem, seen, FEW, descend=False), 2
        few, history = onward(seen)
    except Diverged:
        return Start(laplace(point))
    return Start(replace(few, points=point.ensemble.points), history, seen.residual, count)


def _matched(ensemble: AffineEnsemble, moments: Moments) -> AffineEnsemble:
    """Return the ensemble after the whole step: S as its precision, and the mean where g vanishes if S is constant."""
    return ensemble.transform(moments, gain=lambda w: 1 / w, scale=lambda w: w**-0.5)


def _pairs(points: Array) -> Array:
    """Return pairs x, -x (2 n, r) of some of the points (J, r), as long as normal ones are on average: so the variance
    of a logit is right on average over directions.

    Chosen by their lengths, which neither the order of the particles nor the coordinates change.
    """
    xp = namespace(points)
    length = xp.sqrt(xp.sum(points**2, axis=1))
    order = np.argsort(to_numpy(length), kind="stable")
    some = order[np.unique(np.linspace(0, len(order) - 1, PAIRS).astype(int))]
    x = take_rows(points, some) * (math.sqrt(points.shape[1]) / take_rows(length, some))[:, None]
    return xp.concat([x, -x], axis=0)
