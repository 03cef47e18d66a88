"""Fits of a softmax under one prior after another, as `warm_fits.py` uses them: in the contrasts of its classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import informed_points
from enkbayes.core.posterior import Info, Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import as_double
from enkbayes.inference.row_space import RowSpace
from enkbayes.samplers import MeanField
from enkbayes.solvers.gaussian_softmax import ContrastPrior, SoftmaxGaussian, SoftmaxRows, contrasts, predicted
from enkbayes.solvers.logistic_path import with_constant

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class SoftmaxFit:
    """A fit of a softmax; `parts` are fits to parts of the rows under the same prior, and `before` under the prior
    before it, by the numbers of the parts.
    """

    problem: Problem
    prior: ContrastPrior
    rows: SoftmaxRows
    gaussian: SoftmaxGaussian
    parts: dict[int, SoftmaxFit] = field(default_factory=dict)
    before: dict[int, SoftmaxFit] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, last: SoftmaxFit | None, tol: float, steps: int) -> SoftmaxFit:
        """Fit a problem, from the fit to the same rows under another prior."""
        prior, rows = ContrastPrior.of(problem), SoftmaxRows.of(problem) if last is None else last.rows
        found = rows.gaussian(prior, None if last is None else last.gaussian, tol=tol, most=_steps(prior, steps, 20))
        return cls(problem, prior, rows, found, before={} if last is None else last.parts)

    def without(self, number: int, some: Numbers, tol: float, steps: int) -> SoftmaxFit:
        """Return the fit to some rows: from that under the prior before, or from the sites of these rows."""
        if number in self.before:
            rows, start = self.before[number].rows, self.before[number].gaussian
        else:
            rows, start = self.rows.subset(some), self.gaussian.subset(some)
        found = rows.gaussian(self.prior, start, tol=tol, most=_steps(self.prior, steps, 12))
        self.parts[number] = SoftmaxFit(self.problem, self.prior, rows, found)
        return self.parts[number]

    @property
    def log_evidence(self) -> float:
        """The bound of the mean-field Gaussian."""
        return self.gaussian.elbo

    def proba(self, features: Any, kinds: Sequence[tuple[float, bool, bool]]) -> Iterator[Numbers]:
        """Yield the class probabilities (n, K) of rows (n, D) under each Gaussian."""
        x = with_constant(self.problem, features)
        mean, cov = self.gaussian.logits(x)
        for share, around_mode, _ in kinds:  # outside the space of the rows they are as wide
            yield predicted(x @ self.mode if around_mode else mean, share * cov)

    @cached_property
    def mode(self) -> Numbers:
        """The most probable weights (d, k)."""
        return self.rows.mode(self.prior, self.gaussian.mean, tol=3e-2)


@dataclass(eq=False)
class ShortSoftmaxFits:
    """Converged fits of a softmax, each from the last one, in the space of the rows if there is one.

    tol : residual at which a fit ends; a few points a row are not more accurate
    most : steps with one number of points
    points : logarithms of their number, to the base 2, the first of which are enough if the fit converges,
        or if there are more than `small` logits at all points
    """

    distinct: Problem
    space: RowSpace | None
    particles: int
    seed: int
    tol: float = 2e-2
    most: int = 30
    points: tuple[int, ...] = (8, 10)
    small: int = 2**19
    last: SoftmaxGaussian | None = None

    def posterior(self, problem: Problem) -> Posterior:
        """Return the mean-field posterior of the problem with another prior."""
        begun, own = perf_counter(), self._own(problem)
        prior, sampler = ContrastPrior.of(own), MeanField(tol=self.tol)
        found = self._rows.gaussian(prior, self.last, tol=self.tol, most=self.most)
        steps = found.steps
        for log2_points in self.points if found.b.size << self.points[-1] <= self.small else self.points[:1]:
            found = replace(self._rows, points=log2_points).gaussian(prior, found, tol=self.tol, most=self.most)
            steps += found.steps
            if found.residual <= self.tol:
                break
        self.last = found
        mean, basis = with_all_classes(own, found)
        if self.space is None:
            points = informed_points(self.particles, own.dim, np.random.default_rng((self.seed, 0)))
            ensemble = AffineEnsemble(mean, basis, points).to(problem.prior.mean)
        else:
            ensemble = self.space.lifted(problem, mean, basis, self.particles, self.seed)
        converged = found.residual <= 5 * self.tol  # the rest is noise of the points
        message = "" if converged else f"residual {found.residual:.1e} after {steps} steps; narrow the prior"
        info = Info(repr(sampler), steps, converged, found.residual, message, 1.0, 0.0, perf_counter() - begun)
        return Posterior(ensemble, problem.likelihood, problem.linear, problem.classes, True, info)

    def mode(self, problem: Problem) -> Numbers:
        """Return the most probable weights (P,) of the problem."""
        own = self._own(problem)
        prior = ContrastPrior.of(own)
        start = self.last or self._rows.gaussian(prior, most=5)
        found = _weights(own, self._rows.mode(prior, start.mean, tol=1e-4))
        return found if self.space is None else self.space.lift(problem) @ found

    @cached_property
    def _rows(self) -> SoftmaxRows:
        return SoftmaxRows.of(self.distinct if self.space is None else self.space.problem)

    def _own(self, problem: Problem) -> Problem:
        """Return the problem with another prior, in the space of the rows."""
        return self.distinct.with_prior(problem.prior) if self.space is None else self.space.posed(problem)


def _steps(prior: ContrastPrior, steps: int, most: int, large: int = 250) -> int:
    """Return how many steps a fit that is only compared may take: a third of them with many parameters, whose steps
    are expensive.
    """
    return min(steps, most if prior.mean.size <= large else most // 3)


def with_all_classes(problem: Problem, fitted: SoftmaxGaussian) -> tuple[Numbers, Numbers]:
    """Return mean (P,) and basis (P, P) of the weights of all classes, the directions that the data determine best
    first: the fit of the contrasts, and the prior of what all classes share.
    """
    K = problem.likelihood.outputs or 1
    prior = as_double(problem.prior.cov).reshape(-1, K)
    values, vectors = np.linalg.eigh(fitted.cov)
    of_contrasts = vectors * np.sqrt(np.maximum(values, 0.0))
    d, k = fitted.mean.shape
    spread = np.einsum("ki,dip->dkp", contrasts(K), of_contrasts.reshape(d, k, d * k)).reshape(d * K, d * k)
    shared = np.kron(np.diag(np.sqrt(prior[:, 0])), np.full((K, 1), K**-0.5))
    return _weights(problem, fitted.mean), np.concatenate([spread, shared], axis=1)


def _weights(problem: Problem, U: Numbers) -> Numbers:
    """Return the weights (P,) with contrasts U (d, k), and the prior's mean for what all classes share."""
    K = problem.likelihood.outputs or 1
    mean = as_double(problem.prior.mean).reshape(-1, K).mean(axis=1, keepdims=True)
    return np.asarray(U @ contrasts(K).T + mean).reshape(-1)
