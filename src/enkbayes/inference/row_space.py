"""The rows of a problem for an average over the width of its prior: equal rows joined, and the space that rows span.

With fewer rows than features the likelihood depends on the weights in the space of the rows alone, and a fit there is
exact: outside it the posterior is the prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian, informed_points
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import as_double, dense_numpy, like, to_numpy
from enkbayes.engine.rows import ArrayRows
from enkbayes.inference.empirical_bayes import FIXED
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run

Numbers = np.ndarray[Any, Any]


def distinct_rows(problem: Problem) -> Problem:
    """Return the problem with its rows in an order of their own, equal rows joined into one with the sum of their
    weights, and rows of weight 0 left out.

    Rows are sorted by class, and within a class by x' (mean of the class - mean of all): how typical they are of it.
    Neither the order of the rows nor that of the features changes this, nor do shifts and rotations. Rows that agree
    in it to nine digits are sorted by x' sum_m typical_m^2 x_m, and only then by a random projection.

    >>> problem = Problem.create([[2.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], weights=[1.0, 1.0, 2.0, 0.0])
    >>> small = distinct_rows(problem)
    >>> small.features.tolist(), small.targets.tolist(), small.weights.tolist()
    ([[2.0], [1.0]], [0.0, 1.0], [3.0, 1.0])
    """
    features, targets, counts = problem.features, problem.targets, problem.counts
    direction = np.random.default_rng(9).standard_normal(features.shape[1])
    scaled = features.multiply(direction) if scipy.sparse.issparse(features) else features * direction
    projection = np.asarray(scaled.sum(axis=1)).reshape(-1)
    pairs = np.stack([targets.astype(np.float64), projection], axis=1)
    some = np.flatnonzero(counts > 0)
    _, index, inverse = np.unique(pairs[some], axis=0, return_index=True, return_inverse=True)
    rows, joined = some[index], np.bincount(inverse.reshape(-1), counts[some])
    x, numbers = features[rows, :], np.unique(targets[rows], return_inverse=True)[1].reshape(-1)
    typical = _nine_digits(_typical(x, numbers, joined))
    second = _nine_digits(np.asarray(x @ (x.T @ (joined * typical**2))))
    order = np.lexsort((projection[rows], second, typical, numbers))
    return problem.subset(rows[order]).with_arrays(weights=joined[order])


def _typical(x: Any, numbers: Numbers, counts: Numbers) -> Numbers:
    """Return x_n' (mean of the class - mean of all) (n,) for rows of the classes 0, 1, ... with weights (n,)."""
    members = scipy.sparse.csr_array((counts, (numbers, np.arange(len(numbers)))))
    sums = dense_numpy(members @ x)
    means = sums / np.bincount(numbers, counts)[:, None] - sums.sum(axis=0) / counts.sum()
    return np.asarray(np.take_along_axis(np.asarray(x @ means.T), numbers[:, None], axis=1)[:, 0])


def _nine_digits(values: Numbers) -> Numbers:
    """Return numbers without their last digits, which depend on the order of sums."""
    return np.asarray(np.round(values / max(float(np.max(np.abs(values), initial=0.0)), 1e-300), 9))


@dataclass(frozen=True, eq=False)
class RowSpace:
    """A problem in the space that its rows span: orthonormal vectors (D, r) and the problem with r features.

    The weights are N(0, v I) in any orthonormal basis, and outside the rows' space the posterior is the prior.

    >>> rng = np.random.default_rng(0)
    >>> problem = Problem.create(rng.standard_normal((4, 6)), [0, 1, 1, 0], 2.0, intercept=100.0)
    >>> space = RowSpace.of(problem, np.asarray([0] * 6 + [FIXED]))
    >>> posterior, whole = space.fit(problem), run(problem, MeanField(), particles=20)
    >>> space.problem.dim, bool(np.allclose(posterior.cov, whole.cov, atol=1e-4))
    (5, True)
    """

    problem: Problem
    vectors: Numbers

    @classmethod
    def of(cls, problem: Problem, groups: Numbers) -> RowSpace | None:
        """Return the space of the rows, if it is smaller than that of the features, there is one group of features, and
        its prior is centred; otherwise None. The Gram matrix X X' = U diag(s^2) U' gives features U diag(s).
        """
        linear, size = problem.linear_logits("an average over the width of the prior"), problem.size
        one = int(groups.max()) == 0 and not np.any(to_numpy(problem.prior.mean)[groups == 0])
        if not one or linear.features <= size or not isinstance(problem.rows, ArrayRows):
            return None
        values, U = np.linalg.eigh(dense_numpy(problem.features @ problem.features.T))
        keep = values > max(values[-1], 1e-300) * size * np.finfo(np.float64).eps
        if not keep.any():
            return None
        roots = np.sqrt(values[keep])
        compact = problem.with_arrays(features=U[:, keep] * roots)
        model = replace(linear, features=len(roots))
        space = cls(replace(compact, model=model), np.asarray(problem.features.T @ (U[:, keep] / roots)))
        return replace(space, problem=replace(space.problem, prior=space._prior(problem)))

    @property
    def groups(self) -> Numbers:
        """The groups (P,) of the parameters here: all weights are one, and an intercept keeps its prior."""
        linear = self.problem.linear_logits("an average over the width of the prior")
        return np.repeat([0] * linear.features + [FIXED] * linear.intercept, linear.outputs or 1)

    def _prior(self, problem: Problem) -> Gaussian:
        """Return the prior of the problem with all features, in this space."""
        outputs = problem.likelihood.outputs or 1
        mean, cov = (as_double(x) for x in (problem.prior.mean, problem.prior.cov))
        D, r = self.vectors.shape
        weights, intercept = np.full(r * outputs, cov[0]), slice(D * outputs, None)
        return Gaussian(
            np.concatenate([np.zeros(r * outputs), mean[intercept]]), np.concatenate([weights, cov[intercept]])
        )

    @cached_property
    def _axes(self) -> Numbers:
        """The vectors and those orthogonal to them, (D, D)."""
        full = np.linalg.qr(self.vectors, mode="complete")[0]
        full[:, : self.vectors.shape[1]] = self.vectors
        return np.asarray(full)

    def posed(self, problem: Problem) -> Problem:
        """Return a problem with these rows and all features, whose prior may have another width, in this space."""
        return self.problem.with_prior(self._prior(problem))

    def fit(self, problem: Problem, particles: int = 200, seed: int = 0) -> Posterior:
        """Return the mean-field posterior of such a problem, with all features."""
        own = self.posed(problem)
        found = run(own, MeanField(), particles=own.dim + 2, seed=seed)
        inner = found.fitted
        ensemble = self.lifted(problem, inner.mean, inner.basis, particles, seed)
        return replace(found, ensemble=ensemble, map=problem.linear, state=None)

    def narrowed(self, ensemble: AffineEnsemble, share: float) -> AffineEnsemble:
        """Return an ensemble of weights of all features with this share of its covariance outside the space."""
        D, basis = len(self.vectors), to_numpy(ensemble.basis).astype(np.float64)
        rows = basis.copy()
        outputs = self.problem.likelihood.outputs or 1
        features = rows[: D * outputs].reshape(D, outputs, -1)
        outside = features - np.einsum("dr,rkj->dkj", self.vectors, np.einsum("dr,dkj->rkj", self.vectors, features))
        rows[: D * outputs] -= (1 - math.sqrt(share)) * outside.reshape(D * outputs, -1)
        return replace(ensemble, basis=like(rows, ensemble.mean))

    def lift(self, problem: Problem) -> Numbers:
        """Return the matrix (P, p) that turns weights here into weights of all features."""
        outputs, (D, r) = problem.likelihood.outputs or 1, self.vectors.shape
        found = np.zeros((problem.dim, self.problem.dim))
        found[: D * outputs, : r * outputs] = np.kron(self.vectors, np.eye(outputs))
        found[D * outputs :, r * outputs :] = np.eye(problem.dim - D * outputs)
        return found

    def lifted(self, problem: Problem, mean: Numbers, basis: Numbers, particles: int, seed: int) -> AffineEnsemble:
        """Return J particles of N(mean, basis basis') (p,), (p, p) here and the prior outside."""
        lift, outputs, (D, r), P = self.lift(problem), problem.likelihood.outputs or 1, self.vectors.shape, problem.dim
        outside = np.zeros((P, (D - r) * outputs))
        sd = math.sqrt(float(problem.prior.cov[0]))
        outside[: D * outputs] = np.kron(sd * self._axes[:, r:], np.eye(outputs))
        points = informed_points(particles, P, np.random.default_rng((seed, 0)))
        both = np.concatenate([lift @ basis, outside], axis=1)
        return AffineEnsemble(lift @ mean, both, points).to(problem.prior.mean)
