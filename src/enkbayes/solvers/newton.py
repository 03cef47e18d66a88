"""Newton's method for the most probable parameters, in the coordinates of an ensemble.

With g and S the gradient and Hessian of the potential at the mean, in the coordinates of a basis,

    mean+ = mean - basis S^{-1} g,        and at the end        basis+ = basis S^{-1/2}

is the Laplace approximation: an affine map of all particles like any other step, and affine invariant for the same
reason. A Newton step costs one symmetric product and no logits of the ensemble.

Where the curvature falls off, as that of a logistic function does, full steps from the prior are too short. So a step
from a distance is as long as the potential along it says: the potential at a few lengths costs one product with as many
columns, and saves one or two evaluations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import at_mean
from enkbayes.core.low_rank import LowRankGaussian
from enkbayes.core.moments import Diverged, Moments
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, epsilon, like, namespace, symmetric, to_numpy


@dataclass(frozen=True, eq=False)
class Newton:
    """A point of the search: the ensemble around the current mean, the moments of the potential at that mean, the step
    from there, how much of it to try, and the number of evaluations. at_round_off tells that the last step no longer
    changed the potential by more than round-off.
    """

    ensemble: Any
    moments: Moments
    step: Array
    scale: float = 1.0
    evaluations: int = 1
    at_round_off: bool = False

    @property
    def decrement(self) -> float:
        """The Newton decrement sqrt(g' S^{-1} g): a Newton step lowers the potential by half its square."""
        return math.sqrt(max(float(namespace(self.step).sum(self.moments.g * self.step)), 0.0))

    @property
    def residual(self) -> float:
        """The distance to the maximum in posterior standard deviations: the decrement over sqrt(r)."""
        return self.decrement / math.sqrt(self.step.shape[0])

    @property
    def round_off(self) -> float:
        """The decrement whose change of the potential drowns in round-off."""
        return 10 * math.sqrt(epsilon(self.ensemble.mean) * max(1.0, abs(float(self.moments.loss))))


@dataclass(frozen=True)
class NewtonSearch:
    """When a search ends and how long its steps are.

    near : residual at which the search ends
    far : residual from which a step may be longer than Newton's
    lengths : multiples of Newton's step that are tried from a distance
    sufficient : Armijo's constant, the part of the predicted decrease that a step must deliver
    smallest : share of a step below which the search gives up
    most : largest number of evaluations; a quarter of it is plenty
    """

    near: float = 0.5
    far: float = 1.0
    lengths: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
    sufficient: float = 1e-4
    smallest: float = 1e-6
    most: int = 40

    def done(self, point: Newton) -> bool:
        """Tell whether to stop: near the maximum, or where no step helps."""
        stuck = point.scale < self.smallest or point.evaluations >= self.most or point.at_round_off
        return point.residual < self.near or stuck

    def begin(self, problem: Problem, ensemble: AffineEnsemble | LowRankGaussian) -> Newton:
        """Return the first point, at the mean of the ensemble; its basis must span all directions."""
        moments = problem.moments(ensemble, at_mean) + potential_at_mean(problem, ensemble)
        if not math.isfinite(float(moments.loss) + moments.residual):
            raise Diverged("the potential at the mean of the ensemble is not finite")
        step = namespace(moments.g).linalg.solve(symmetric(moments.S), moments.g[:, None])[:, 0]
        return Newton(ensemble, moments, step)

    def advance(self, problem: Problem, point: Newton) -> Newton:
        """Take one trial step: return the new point, or the old one with a quarter of the step when neither the
        potential nor, where that drowns in round-off, the gradient has fallen.
        """
        ensemble = point.ensemble
        scale = self.reach(problem, point) if point.scale == 1.0 and point.residual > self.far else point.scale
        moved = replace(ensemble, mean=ensemble.mean - ensemble.basis @ (scale * point.step))
        evaluations = point.evaluations + 1
        drowned = point.decrement < point.round_off
        try:
            trial = self.begin(problem, moved)
        except Diverged:
            return replace(point, scale=min(1.0, scale) / 4, evaluations=evaluations)
        predicted = scale * point.decrement**2
        fallen = float(trial.moments.loss) <= float(point.moments.loss) - self.sufficient * predicted
        ratio = _norm(trial.moments.g) / max(_norm(point.moments.g), epsilon(ensemble.mean))
        ended = drowned and ratio > 0.5
        if not (fallen or (drowned and ratio < 1)):
            return replace(point, scale=min(1.0, scale) / 4, evaluations=evaluations, at_round_off=ended)
        return replace(trial, scale=min(1.0, 2 * scale), evaluations=evaluations, at_round_off=ended)

    def reach(self, problem: Problem, point: Newton) -> float:
        """Return how many of Newton's steps lower the potential most: the parabola through the best of `lengths` and
        its neighbours.
        """
        mean, prior, lengths = point.ensemble.mean, problem.prior, np.asarray(self.lengths)
        theta = mean - like(lengths, mean)[:, None] * (point.ensemble.basis @ point.step)
        shift = prior.whiten((theta - prior.mean).mT)
        V = to_numpy(problem.loss(theta) + namespace(mean).sum(shift**2, axis=0) / 2)
        best = int(np.argmin(np.where(np.isfinite(V), V, np.inf)))
        near = slice(max(best - 1, 0), best + 2)
        if best in (0, len(V) - 1) or not np.all(np.isfinite(V[near])):
            return float(lengths[best])
        bend, slope, _ = np.polyfit(lengths[near] - lengths[best], V[near] - V[best], 2)
        return float(lengths[best] - slope / (2 * bend)) if bend > 0 else float(lengths[best])


def potential_at_mean(problem: Problem, ensemble: AffineEnsemble | LowRankGaussian) -> Moments:
    """Return the prior's value, gradient and Hessian at the mean, without the spread of the ensemble."""
    xp = namespace(ensemble.mean)
    shift, basis = problem.prior.whiten(ensemble.mean - problem.prior.mean), problem.prior.whiten(ensemble.basis)
    return Moments(xp.sum(shift**2) / 2, basis.mT @ shift, basis.mT @ basis)


def _norm(g: Array) -> float:
    return math.sqrt(float(namespace(g).sum(g**2)))
