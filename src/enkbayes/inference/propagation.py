"""Expectation propagation: the Gaussian that gives the logits of each row the right mean and covariance.

A Gaussian factor, the site, replaces the likelihood of each row n. It depends on the k logits that the likelihood
distinguishes: one for two classes, the K - 1 contrasts of the K logits of a softmax. The posterior is the prior times
all sites. The posterior without the site of a row is its cavity, and the cavity times the likelihood of the row is its
tilted distribution. A site is right when posterior and tilted distribution have the same mean and covariance:

    site_n = N(mean and covariance of cavity_n * likelihood_n) / cavity_n                 (Minka 2001)
    log p(data) ~ log int prior * sites + sum_n log (int cavity_n * likelihood_n / int cavity_n * site_n)

The samplers of this package minimise KL(q || posterior) instead. That is robust, but the Gaussian is too narrow, and
the bound on the evidence gets worse as the prior widens: it is off by 7.6 on the hardest test problem of
`docs/understand/trust.md`, T4, where this evidence is off by .05. So priors are compared by this evidence. All sites
move at once, with damping when needed, and the sums over rows are those of any other step. The moments of tilted
distributions are those of `tilted.py`, in the same way for every likelihood.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

from enkbayes.core.ensemble import AffineEnsemble, affine_map
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.moments import Diverged, Moments
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import row_slices
from enkbayes.inference.tilted import DenseRule, PointRule, RowLikelihoods
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run

Numbers = np.ndarray[Any, Any]
NO_SPREAD = 1e-12  # variance of the logits of a row of zeros


@dataclass(frozen=True, eq=False)
class Sites:
    """The factors exp(-u' precision u / 2 + shift' u) of all rows: precision (N, k, k) and shift (N, k)."""

    precision: Numbers
    shift: Numbers

    @classmethod
    def flat(cls, size: int, contrasts: int) -> Sites:
        """Return constant sites."""
        return cls(np.zeros((size, contrasts, contrasts)), np.zeros((size, contrasts)))

    def rows(self, rows: slice) -> Sites:
        """Return the sites of some rows."""
        return Sites(self.precision[rows], self.shift[rows])

    def towards(self, other: Sites, step: float) -> Sites:
        """Return (1 - step) of these and step of the others, in natural parameters."""
        return Sites(
            self.precision + step * (other.precision - self.precision), self.shift + step * (other.shift - self.shift)
        )


@dataclass(frozen=True)
class Rules:
    """How tilted distributions are integrated: those of one logit or contrast, and those of several."""

    dense: DenseRule = field(default_factory=DenseRule)
    points: PointRule = field(default_factory=PointRule)


@dataclass(frozen=True, eq=False)
class Propagation:
    """Mean (P,) and basis (P, P) of the fitted Gaussian, its log evidence, the residual of its fixed point, the number
    of sweeps, and the sites, from which a problem with another prior can start.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> found = propagate(problem)
    >>> found.mean.shape, found.residual < 1e-3
    ((1,), True)
    """

    mean: Numbers
    basis: Numbers
    log_evidence: float
    residual: float
    sweeps: int
    sites: Sites


def propagate(
    problem: Problem,
    sites: Sites | None = None,
    *,
    tol: float = 1e-3,
    max_sweeps: int = 100,
    damping: float = 0.7,
    smallest_step: float = 0.1,
    slow: float = 0.8,
    rules: Rules | None = None,
) -> Propagation:
    """Return the fixed point of expectation propagation for a problem with linear logits, in double precision.

    Parameters
    ----------
    problem : Problem
        Needs linear logits, and memory for a P x P matrix.
    sites : Sites, optional
        The sites to start from, such as those of the same rows under another prior. By default they are flat, or, for
        several logits, those of the mean-field Gaussian, whose marginals are close to the tilted distributions.
    tol : float
        The natural-gradient residual at which the iteration ends.
    max_sweeps : int
        Passes over the rows after which it ends in any case; `residual` then says how far it came.
    damping, smallest_step : float
        The step is multiplied by `damping` whenever the residual grows, down to `smallest_step`, and grows back where
        two moves in a row go the same way.
    slow : float
        Where a move goes back on the last one, and the residual does not fall below this share, the step is shortened
        too, down to a half.
    rules : Rules, optional
        How tilted distributions are integrated.

    Examples
    --------
    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((100, 2))
    >>> problem = eb.Problem.create(features, features[:, 0] > 0.2)
    >>> bool(abs(propagate(problem).log_evidence - eb.log_evidence(problem).value) < 0.05)
    True
    """
    problem, contrasts = problem.in_double(), _contrasts(problem.likelihood)
    rules = Rules() if rules is None else rules
    start = _first_sites(problem, contrasts) if sites is None else sites
    q, eye, last, step = _assembled(problem, start, contrasts), np.eye(problem.dim), np.inf, 1.0
    before = np.zeros(problem.dim * (problem.dim + 1))
    for sweep in range(max_sweeps + 1):
        wanted, force, energy = _sweep(problem, q, start, contrasts, rules)
        residual = force.residual
        if residual < tol or sweep == max_sweeps:
            break
        move = np.append(force.g, force.S - eye)
        swings = float(move @ before) < 0
        if residual > last or (swings and residual > slow * last):
            step = max(damping * step, smallest_step if residual > last else min(step, 0.5))
        elif not swings:
            step = min(step / damping, 1.0)
        last, before, start = residual, move, start.towards(wanted, step)
        q = _moved(q, Moments(0.0, step * force.g, eye + step * (force.S - eye)))
    return Propagation(q.mean, q.basis, energy + _log_volume(problem.prior, q), residual, sweep, start)


def _contrasts(likelihood: Likelihood) -> Numbers:
    """Return an orthonormal basis (K, k) of the logits that the likelihood distinguishes: all of them, or the K - 1
    contrasts where a common shift changes nothing.
    """
    K = likelihood.outputs or 1
    return np.asarray(scipy.linalg.helmert(K).T) if likelihood.shift_invariant else np.eye(K)


def _first_sites(problem: Problem, contrasts: Numbers) -> Sites:
    """Return flat sites, or, for several contrasts, those whose Gaussian is the mean-field one: the averaged slope and
    curvature of each row.
    """
    if contrasts.shape[1] == 1:
        return Sites.flat(problem.size, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # any Gaussian near the posterior will do
        q = run(problem, MeanField(tol=1e-2), particles=2).ensemble
    precisions, shifts = [], []
    for rows in row_slices(problem.size, problem.rows.chunk):
        mean_logits, V = problem.linear_logits("expectation propagation").predictive_logits(
            problem.features[rows, :], q
        )
        _, slope, curvature = problem.likelihood.gaussian_averages(mean_logits, problem.targets[rows], V=V)
        weights = problem.counts[rows]
        w, U = np.linalg.eigh(weights[:, None, None] * (contrasts.T @ curvature @ contrasts))
        precision = (U * np.maximum(w, 0.0)[:, None, :]) @ U.mT
        precisions.append(precision)
        shifts.append(_times(precision, mean_logits @ contrasts) - weights[:, None] * (slope @ contrasts))
    return Sites(np.concatenate(precisions), np.concatenate(shifts))


def _marginals(problem: Problem, q: AffineEnsemble, rows: slice, contrasts: Numbers) -> tuple[Numbers, Numbers]:
    """Return the mean (n, k) of the contrasts of some rows, and their columns (n, k, r) in the basis."""
    linear = problem.linear_logits("expectation propagation")
    mean_logits, V = linear.gaussian_logits(problem.features[rows, :], q)
    if problem.likelihood.outputs is None:
        return mean_logits[:, None], V[:, None, :]
    return mean_logits @ contrasts, contrasts.T @ V


def _pulled_back(columns: Numbers, precision: Numbers, slope: Numbers) -> Moments:
    """Return g = sum_n columns' slope and S = sum_n columns' precision columns."""
    flat = columns.reshape(-1, columns.shape[-1])
    return Moments(0.0, flat.T @ slope.reshape(-1), flat.T @ (precision @ columns).reshape(flat.shape))


def _assembled(problem: Problem, sites: Sites, contrasts: Numbers) -> AffineEnsemble:
    """Return prior times sites."""
    prior = problem.prior
    q = AffineEnsemble(prior.mean, prior.dense_root, np.zeros((0, prior.dim)))
    total = problem.prior_moments(q)
    for rows in row_slices(problem.size, problem.rows.chunk):
        mean, columns = _marginals(problem, q, rows, contrasts)
        some = sites.rows(rows)
        total = total + _pulled_back(columns, some.precision, _times(some.precision, mean) - some.shift)
    return _moved(q, total)


def _moved(q: AffineEnsemble, moments: Moments) -> AffineEnsemble:
    """Return the Gaussian with this gradient and precision in the coordinates of the given one."""
    return q.affine(*affine_map(moments, gain=lambda w: 1 / w, scale=lambda w: w**-0.5))


def _sweep(
    problem: Problem, q: AffineEnsemble, sites: Sites, contrasts: Numbers, rules: Rules
) -> tuple[Sites, Moments, float]:
    """Return the sites that match the tilted moments of each row, the gradient and precision of the posterior with
    these sites in its own coordinates, and the contribution of the rows to the log evidence at the present sites.
    """
    wanted, total, energy = [], problem.prior_moments(q), 0.0
    for rows in row_slices(problem.size, problem.rows.chunk):
        mean, columns = _marginals(problem, q, rows, contrasts)
        weights = None if problem.weights is None else problem.weights[rows]
        likelihoods = RowLikelihoods(problem.likelihood, contrasts, problem.targets[rows], weights)
        site, gain = _matched(likelihoods, mean, columns @ columns.mT, sites.rows(rows), rules, problem.size)
        total = total + _pulled_back(columns, site.precision, _times(site.precision, mean) - site.shift)
        wanted.append(site)
        energy += gain
    joined = Sites(np.concatenate([s.precision for s in wanted]), np.concatenate([s.shift for s in wanted]))
    return joined, total, energy


def _matched(
    rows: RowLikelihoods, mean: Numbers, cov: Numbers, sites: Sites, rules: Rules, size: int
) -> tuple[Sites, float]:
    """Return the sites that match the tilted moments, and sum_n log int tilted - log int posterior, for contrasts with
    mean (n, k) and covariance (n, k, k) under the posterior of `size` rows.
    """
    cov = cov + NO_SPREAD * np.eye(cov.shape[-1])
    try:
        precision = np.linalg.inv(cov)
        cavity = Sites(precision - sites.precision, _times(precision, mean) - sites.shift)
        if mean.shape[1] == 1:
            variance = np.linalg.cholesky(cavity.precision)[:, 0, 0] ** -2  # raises if it is not positive
            centre = variance * cavity.shift[:, 0]
            log_z, tilted_mean, tilted_cov = rules.dense.moments(rows, centre, variance, mean[:, 0])
            tilted_mean, tilted_cov = tilted_mean[:, None], tilted_cov[:, None, None]
            gain = log_z + _log_integral(cavity) - _log_integral(Sites(precision, _times(precision, mean)))
        else:
            gain, tilted_mean, tilted_cov = rules.points.moments(
                rows, mean, cov, sites.precision, sites.shift, size * rows.contrasts.shape[0]
            )
        w, U = np.linalg.eigh(np.linalg.inv(tilted_cov) - cavity.precision)
    except np.linalg.LinAlgError:
        raise Diverged("the cavities of expectation propagation are not positive definite") from None
    matched = (U * np.maximum(w, 0.0)[:, None, :]) @ U.mT  # likelihoods are log-concave; only quadrature gives w < 0
    site = Sites(matched, _times(matched + cavity.precision, tilted_mean) - cavity.shift)
    return site, float(np.sum(gain))


def _log_integral(factor: Sites) -> Numbers:
    """Return log int exp(-u' precision u / 2 + shift' u) du, (n,), up to the powers of 2 pi."""
    centre = np.linalg.solve(factor.precision, factor.shift[:, :, None])[:, :, 0]
    return np.asarray(np.sum(factor.shift * centre, axis=1) - np.linalg.slogdet(factor.precision)[1]) / 2


def _log_volume(prior: Gaussian, q: AffineEnsemble) -> float:
    """Return log int of the posterior's Gaussian in natural form, less that of the prior."""
    inside, before = np.linalg.solve(q.basis, q.mean), prior.whiten(prior.mean)
    return float(np.linalg.slogdet(prior.whiten(q.basis))[1] + (inside @ inside - before @ before) / 2)


def _times(matrices: Numbers, vectors: Numbers) -> Numbers:
    """Return the products (n, i) of matrices (n, i, j) and vectors (n, j)."""
    return np.asarray((matrices @ vectors[:, :, None])[:, :, 0])
