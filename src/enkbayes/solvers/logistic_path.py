"""Logistic regression under one Gaussian prior after another: the mean-field Gaussian and the most probable weights.

The mean-field Gaussian N(m, P) of `samplers/mean_field.py` solves, for a prior N(m0, A^-1) with a diagonal A,

    A (m - m0) + X' c (E sigma(z) - y) = 0,    P^-1 = A + X' diag(c E sigma'(z)) X,    z_n ~ N(x_n' m, x_n' P x_n),

with the averages in closed form (`core/quadrature.py`) and c the weights of the rows. A round holds P, takes damped
Newton steps to the mean, and then takes the curvatures E sigma' again. It costs two products of N P^2. From the fit
under a similar prior two to four rounds are enough for predictions, so that comparing many priors is cheap. A single
fit to many digits is what the samplers are for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.special import expit

from enkbayes.core.likelihoods import Bernoulli
from enkbayes.core.moments import Diverged
from enkbayes.core.problem import Problem
from enkbayes.core.quadrature import averaged_logit
from enkbayes.engine.arrays import as_double, row_slices, thin_svd
from enkbayes.engine.rows import ArrayRows
from enkbayes.solvers.anderson import extrapolated

Numbers = np.ndarray[Any, Any]
ROWS = 8192  # in work at a time
LEAST = 1e-300  # curvature of a row
MEMORY, RIDGE = 6, 1e-12  # of Anderson's method for the logarithms of the curvatures


@dataclass(frozen=True, eq=False)
class LogisticGaussian:
    """N(mean, precision^-1) with the Cholesky factor `root` (P, P) of the precision, and the averaged curvature (N,) of
    the rows; `residual` is the largest change, in posterior standard deviations, that another round would make.
    """

    mean: Numbers
    root: Numbers
    curvature: Numbers | None
    rounds: int
    residual: float

    @cached_property
    def basis(self) -> Numbers:
        """B (P, P) with the covariance B B'."""
        return np.asarray(solve_triangular(self.root, np.eye(len(self.mean)), lower=True, check_finite=False).T)

    def logits(self, features: Numbers) -> tuple[Numbers, Numbers]:
        """Return mean and variance (n,) of the logits of rows (n, P)."""
        return features @ self.mean, _variances(features, self.root)


@dataclass(frozen=True, eq=False)
class LogisticRows:
    """Rows of a logistic regression: features (N, P), the constant among them, targets and weights (N,), and the mean
    of the prior (P,).

    constant : whether the last feature is the constant 1

    >>> problem = Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0], 4.0)
    >>> rows = LogisticRows.of(problem)
    >>> found = rows.gaussian(np.asarray([0.25]), tol=1e-8)
    >>> import enkbayes as eb
    >>> posterior = eb.run(problem, eb.MeanField())
    >>> bool(abs(found.mean - posterior.mean) < 1e-6), bool(abs(found.basis**2 - posterior.cov) < 1e-6)
    (True, True)
    """

    features: Numbers
    targets: Numbers
    counts: Numbers
    prior_mean: Numbers
    constant: bool = False

    @staticmethod
    def fits(problem: Problem) -> bool:
        """Tell whether a problem is one: binary, linear, in memory, with a diagonal prior."""
        plain = type(problem.likelihood) is Bernoulli and isinstance(problem.rows, ArrayRows)
        return plain and problem.is_linear and problem.prior.diagonal

    @classmethod
    def of(cls, problem: Problem) -> LogisticRows:
        """Return the rows of a problem in double precision."""
        features = with_constant(problem, problem.features)
        constant = problem.linear_logits("logistic regression").intercept
        return cls(features, as_double(problem.targets), problem.counts, as_double(problem.prior.mean), constant)

    def subset(self, rows: Numbers) -> LogisticRows:
        """Return some of the rows."""
        return replace(self, features=self.features[rows], targets=self.targets[rows], counts=self.counts[rows])

    @cached_property
    def span(self) -> Numbers:
        """Orthonormal columns (D, r) of the space of the rows, without the constant."""
        x = self.features[:, :-1] if self.constant else self.features
        U, s, _ = thin_svd(x.T)
        return np.asarray(U[:, s > s[0] * max(x.shape) * np.finfo(np.float64).eps])

    def gaussian(
        self, precision: Numbers, start: LogisticGaussian | None = None, *, tol: float = 1e-2, most: int = 40
    ) -> LogisticGaussian:
        """Return the mean-field Gaussian for a prior precision (P,), from that for a similar one.

        The curvatures are a fixed point, which Anderson's method finds in their logarithms.
        """
        mean, curvature = self.prior_mean, None
        if start is not None:
            mean, curvature = start.mean, start.curvature
        if curvature is None:
            chances = expit(self.features @ mean)
            curvature = chances * (1 - chances)
        x, residual, rounds = np.log(np.maximum(curvature, LEAST)), np.inf, 0
        last: tuple[Numbers, Numbers] | None = None
        history: list[tuple[Numbers, Numbers]] = []
        while True:
            root = self._root(precision, np.exp(x))
            if residual <= tol or rounds >= most:
                return LogisticGaussian(mean, root, np.exp(x), rounds, float(residual))
            v = _variances(self.features, root)
            mean, left, curvature = self._newton(precision, mean, root, v, 0.3 * tol, most=4, renewed=False)
            share = self.counts * np.exp(x) * v / len(mean)  # of each row in what the data determine
            force = np.log(np.maximum(curvature, LEAST)) - x
            residual, rounds = max(float(np.abs(force) @ share), left), rounds + 1
            if last is not None:
                history = [*history, (x - last[0], force - last[1])][-MEMORY:]
            last = x, force
            if rounds > 2:
                force = extrapolated(force, history, 1.0, lambda a, b: float(a * share @ b), RIDGE)  # noqa: B023
            x = np.minimum(x + force, np.log(0.25))

    def mode(self, precision: Numbers, start: Numbers, root: Numbers, *, tol: float = 1e-2, most: int = 60) -> Numbers:
        """Return the most probable weights (P,), from some weights and the root of a precision near them."""
        return self._newton(precision, start, root, np.zeros(len(self.targets)), tol, most)[0]

    def elbo(self, precision: Numbers, found: LogisticGaussian) -> float:
        """Return the lower bound of the log evidence, -E[Psi] - KL(N(m, P) || prior)."""
        z, v = found.logits(self.features)
        shift = found.mean - self.prior_mean
        spread = precision @ (np.sum(found.basis**2, axis=1) + shift**2) - len(shift)
        volumes = 2 * np.log(np.diagonal(found.root)).sum() - np.log(precision).sum()
        return -float(self.counts @ (averaged_logit(z, v)[2] - self.targets * z)) - float(spread + volumes) / 2

    def _newton(
        self, precision: Numbers, mean: Numbers, root: Numbers, v: Numbers, tol: float, most: int, renewed: bool = True
    ) -> tuple[Numbers, float, Numbers]:
        """Minimise E[Psi] + |m - m0|^2 / 2 over m for fixed variances v (N,) of the logits, by Newton's steps with the
        curvature behind `root`, which is renewed where steps with it are short or slow.
        """
        z, first, size, before = self.features @ mean, np.inf, len(mean), np.inf
        value, slope, curvature = self._energy(precision, mean, z, v)
        for k in range(most):
            gradient = self.features.T @ slope + precision * (mean - self.prior_mean)
            step = cho_solve((root, True), gradient, check_finite=False)
            decrement = max(float(gradient @ step), 0.0)
            first = min(first, np.sqrt(decrement / size)) if k == 0 else first
            if decrement <= tol**2 * size:
                break
            if renewed and decrement > before / 10:
                root, before = self._root(precision, curvature), np.inf
                continue
            before, along, length = decrement, self.features @ step, 1.0
            while length > 1e-6:
                trial = self._energy(precision, mean - length * step, z - length * along, v)
                if trial[0] <= value - 1e-4 * length * decrement:
                    break
                length /= 4
            else:
                break
            mean, z = mean - length * step, z - length * along
            value, slope, curvature = trial
        return mean, float(first), curvature

    def _energy(self, precision: Numbers, mean: Numbers, z: Numbers, v: Numbers) -> tuple[float, Numbers, Numbers]:
        """Return E[Psi] + |m - m0|^2 / 2, its slope in the logits (N,) and the averaged curvature (N,)."""
        if v.any():
            chances, curvature, softplus = averaged_logit(z, v)
        else:
            chances = expit(z)
            curvature, softplus = chances * (1 - chances), np.logaddexp(0.0, z)
        energy = self.counts @ (softplus - self.targets * z) + precision @ (mean - self.prior_mean) ** 2 / 2
        return float(energy), self.counts * (chances - self.targets), curvature

    def _root(self, precision: Numbers, curvature: Numbers) -> Numbers:
        """Return the lower Cholesky factor of A + X' diag(c curvature) X."""
        total, half = np.diag(precision), np.sqrt(self.counts * curvature)
        for some in row_slices(len(half), ROWS):
            scaled = half[some, None] * self.features[some]
            total += scaled.T @ scaled
        try:
            return np.asarray(cholesky(total, lower=True, overwrite_a=True))
        except (np.linalg.LinAlgError, ValueError):
            raise Diverged("the precision of the weights is not positive definite") from None


def with_constant(problem: Problem, features: Any) -> Numbers:
    """Return features (n, D) as an array, with the constant 1 (n, D + 1) if the problem has an intercept."""
    found = as_double(features)
    constant = problem.linear_logits("logistic regression").intercept
    return np.column_stack([found, np.ones(len(found))]) if constant else found


def _variances(features: Numbers, root: Numbers) -> Numbers:
    """Return |root^-1 x_n|^2 (n,)."""
    found = np.empty(len(features))
    for some in row_slices(len(features), ROWS):
        columns = solve_triangular(root, features[some].T, lower=True, check_finite=False)
        found[some] = np.einsum("ij,ij->j", columns, columns)
    return found
