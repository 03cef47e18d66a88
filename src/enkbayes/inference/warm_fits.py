"""Fits of one problem under one prior after another, each from the last one: what an average over priors compares.

A binary problem is fitted by `solvers/logistic_path.py`, whose rounds are cheap; any other by the `MeanField` sampler.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import informed_points, standard_points
from enkbayes.core.posterior import Info, Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, thin_svd, to_numpy
from enkbayes.inference.evidence import elbo
from enkbayes.inference.row_space import RowSpace, distinct_rows
from enkbayes.inference.softmax_fits import ShortSoftmaxFits, SoftmaxFit
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run
from enkbayes.solvers.gaussian_softmax import SoftmaxRows
from enkbayes.solvers.logistic_path import LogisticGaussian, LogisticRows, with_constant
from enkbayes.solvers.map_estimate import map_estimate

Numbers = np.ndarray[Any, Any]
Kind = tuple[float, bool, bool]
"""A Gaussian made of a fit N(m, C): the share s of its covariance, whether it is around the most probable weights
instead of m, and whether it has hardly any variance outside the space of the fitted rows, where C is the prior's."""
Fits = tuple[Callable[[Problem], Posterior], Callable[[Problem], Any] | None]
"""Functions that fit a problem and find its most probable weights; None where there is none for the latter."""
OUTSIDE = 1e-4  # share of the variance outside that it has


class WarmFit(Protocol):
    """The Gaussian of a fit to a problem."""

    @property
    def problem(self) -> Problem:
        """Rows and prior."""

    @property
    def start(self) -> Numbers | None:
        """Particles from which a similar fit starts."""

    @property
    def log_evidence(self) -> float:
        """A lower bound of the log evidence."""

    def logits(self, features: Any, kinds: Iterable[Kind]) -> Iterator[tuple[Array, Array]]:
        """Yield mean and columns V, with V V' the covariance, of the logits of rows (n, D) under each Gaussian."""


@dataclass(frozen=True, eq=False)
class LogisticFit:
    """A fit of logistic regression."""

    problem: Problem
    rows: LogisticRows
    gaussian: LogisticGaussian
    whole: LogisticFit | None = None  # to more rows, under the same prior

    @property
    def start(self) -> None:
        """Fits of logistic regression start from the Gaussian itself."""

    @property
    def log_evidence(self) -> float:
        """The bound of the mean-field Gaussian."""
        return self.rows.elbo(_precision(self.problem), self.gaussian)

    def logits(self, features: Any, kinds: Iterable[Kind]) -> Iterator[tuple[Array, Array]]:
        """Yield mean and one column for each Gaussian."""
        seen = with_constant(self.problem, features)
        mean, variance = self.gaussian.logits(seen)
        for share, around_mode, inside in kinds:
            v = variance
            if inside:
                x = seen[:, : len(self.rows.span)]
                outside = np.sum(x**2, axis=1) - np.sum((x @ self.rows.span) ** 2, axis=1)
                v = variance - (1 - OUTSIDE) * np.maximum(outside, 0) / _precision(self.problem)[0]
            yield (seen @ self.mode if around_mode else mean), np.sqrt(share * np.maximum(v, 0))[:, None]

    @cached_property
    def mode(self) -> Numbers:
        """The most probable weights (P,)."""
        near = self.gaussian.mean if self.whole is None else self.whole.mode
        return self.rows.mode(_precision(self.problem), near, self.gaussian.root)


@dataclass(frozen=True, eq=False)
class SampledFit:
    """A fit by `MeanField`."""

    problem: Problem
    posterior: Posterior

    @classmethod
    def of(cls, problem: Problem, tol: float, steps: int, start: Numbers | None) -> SampledFit:
        """Fit a problem, from particles of a similar fit if there are any."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fit that has not converged predicts badly, and is judged by that
            return cls(problem, run(problem, MeanField(tol, steps), particles=problem.dim + 2, theta=start))

    @property
    def start(self) -> Numbers | None:
        """Particles from which a similar fit starts, one more than needed, if the Gaussian spans all directions."""
        fitted: AffineEnsemble = self.posterior.fitted
        dim = fitted.mean.shape[0]
        if fitted.rank < dim or fitted.complement is not None:
            return None
        points = standard_points(dim + 2, dim, np.random.default_rng(0))
        return np.asarray(replace(fitted, points=points).theta)

    @property
    def log_evidence(self) -> float:
        """The evidence lower bound."""
        return elbo(self.problem, self.posterior).value

    def logits(self, features: Any, kinds: Iterable[Kind]) -> Iterator[tuple[Array, Array]]:
        """Yield mean and columns for each Gaussian."""
        linear = self.problem.linear_logits("a fold")
        mean, V = linear.predictive_logits(features, self.posterior.fitted)
        for share, around_mode, _ in kinds:  # outside the space of the rows they are as wide
            centre = linear.project(features, self.mode[:, None])[..., 0] if around_mode else mean
            yield centre, math.sqrt(share) * V

    @cached_property
    def mode(self) -> Array:
        """The most probable weights (P,)."""
        return map_estimate(self.problem, tol=1e-2, start=self.posterior.mean).theta


def probabilities(fit: WarmFit | SoftmaxFit, features: Any, kinds: Sequence[Kind]) -> Iterator[Numbers]:
    """Yield the class probabilities (n, K) of rows (n, D) under each Gaussian of a fit."""
    if isinstance(fit, SoftmaxFit):
        yield from fit.proba(features, kinds)
    else:
        for mean, V in fit.logits(features, kinds):
            yield to_numpy(fit.problem.likelihood.predictive(mean, V=V))


@dataclass(eq=False)
class WarmFits:
    """Fits to all rows, each from the last one, and to parts of them, each from the last fit to all rows.

    tol, tol_parts : residual of the fits to all rows, and to parts of them
    steps, steps_parts : largest numbers of steps
    last : the last fit to all rows
    """

    tol: float
    tol_parts: float
    steps: int
    steps_parts: int
    last: WarmFit | SoftmaxFit | None = None
    _rows: dict[int, LogisticRows] = field(default_factory=dict)

    def whole(self, problem: Problem) -> WarmFit | SoftmaxFit:
        """Return the fit to all rows under another prior than the last one's."""
        last = self.last
        if SoftmaxRows.fits(problem):
            before = last if isinstance(last, SoftmaxFit) else None
            self.last = SoftmaxFit.of(problem, before, self.tol, self.steps)
        elif not LogisticRows.fits(problem):
            start = last.start if isinstance(last, SampledFit) else None
            self.last = SampledFit.of(problem, self.tol, self.steps, start)
        elif isinstance(last, LogisticFit):
            found = last.rows.gaussian(_precision(problem), last.gaussian, tol=self.tol, most=self.steps)
            self.last = LogisticFit(problem, last.rows, found)
        else:
            rows = LogisticRows.of(problem)
            found = rows.gaussian(_precision(problem), tol=self.tol, most=self.steps)
            self.last = LogisticFit(problem, rows, found)
        return self.last

    def part(self, whole: WarmFit | SoftmaxFit, number: int, rows: Numbers) -> WarmFit | SoftmaxFit:
        """Return the fit to some rows (integers) under the prior of a fit to all; the same number always means the same
        rows.
        """
        if isinstance(whole, SoftmaxFit):
            return whole.without(number, rows, self.tol_parts, self.steps_parts)
        if not isinstance(whole, LogisticFit):
            return SampledFit.of(whole.problem.subset(rows), self.tol_parts, self.steps_parts, whole.start)
        if number not in self._rows:
            self._rows[number] = whole.rows.subset(rows)
        some, curvature = self._rows[number], whole.gaussian.curvature
        start = replace(whole.gaussian, curvature=None if curvature is None else curvature[rows])
        found = some.gaussian(_precision(whole.problem), start, tol=self.tol_parts, most=self.steps_parts)
        return LogisticFit(whole.problem, some, found, whole)


def short_fits(
    problem: Problem, groups: Numbers, fit: Callable[[Problem], Posterior], particles: int, seed: int
) -> Fits:
    """Return the functions that fit a problem and find its most probable weights: in the space of the rows where that
    is smaller, and in few rounds where particles are too few for averages over them; otherwise `fit`, and None.
    """
    distinct = distinct_rows(problem.in_double())
    space = RowSpace.of(distinct, groups)
    if SoftmaxRows.fits(distinct):
        many = ShortSoftmaxFits(distinct, space, particles, seed)
        return many.posterior, many.mode
    if LogisticRows.fits(distinct) and (space is not None or particles < 2 * problem.dim):
        short = ShortFits(distinct, space, particles, seed)
        return short.posterior, short.mode
    return (fit if space is None else partial(space.fit, particles=particles, seed=seed)), None


@dataclass(eq=False)
class ShortFits:
    """Converged fits of a logistic regression, each from the last one, in the space of the rows if there is one."""

    distinct: Problem
    space: RowSpace | None
    particles: int
    seed: int
    last: LogisticGaussian | None = None

    def posterior(self, problem: Problem) -> Posterior:
        """Return the mean-field posterior of the problem with another prior, as `MeanField` finds it."""
        begun, sampler = perf_counter(), MeanField(tol=1e-4)
        own = self._own(problem)
        found = self._rows.gaussian(_precision(own), self.last, tol=sampler.tol, most=sampler.max_steps)
        self.last = found
        if self.space is None:
            points = informed_points(self.particles, own.dim, np.random.default_rng((self.seed, 0)))
            ensemble = AffineEnsemble(found.mean, _best_determined_first(found.basis), points).to(problem.prior.mean)
        else:
            ensemble = self.space.lifted(problem, found.mean, found.basis, self.particles, self.seed)
        converged = found.residual <= sampler.tol
        message = "" if converged else f"residual {found.residual:.1e} after {found.rounds} rounds; narrow the prior"
        info = Info(
            sampler=repr(sampler),
            steps=found.rounds,
            converged=converged,
            residual=found.residual,
            message=message,
            blend=1.0,
            time=0.0,
            seconds=perf_counter() - begun,
        )
        return Posterior(ensemble, problem.likelihood, problem.linear, problem.classes, True, info)

    def mode(self, problem: Problem) -> Array:
        """Return the most probable weights (P,) of the problem."""
        own, start = self._own(problem), self.last
        if start is None:
            start = self._rows.gaussian(_precision(own))
        found = self._rows.mode(_precision(own), start.mean, start.root, tol=1e-6)
        return found if self.space is None else self.space.lift(problem) @ found

    @cached_property
    def _rows(self) -> LogisticRows:
        return LogisticRows.of(self.distinct if self.space is None else self.space.problem)

    def _own(self, problem: Problem) -> Problem:
        """Return the problem with another prior, in the space of the rows."""
        return self.distinct.with_prior(problem.prior) if self.space is None else self.space.posed(problem)


def _best_determined_first(basis: Numbers) -> Numbers:
    """Return another basis B of the same covariance B B', whose columns are its principal directions, the shortest
    first: those that particles have exactly, if they are few.
    """
    U, s, _ = thin_svd(basis)
    return np.asarray((U * s)[:, ::-1])


def _precision(problem: Problem) -> Numbers:
    return np.asarray(1 / to_numpy(problem.prior.cov))
