"""Expectation propagation: the Gaussian that sees each datum's logits with the right mean and covariance.

Every datum n is stood in for by a Gaussian factor, its site, in the k logits it can tell apart (one for two classes,
the K - 1 contrasts of K). The posterior is prior times sites. Without its own site it is the cavity, what the other
data say of these logits; cavity times likelihood is tilted; and the site is right when posterior and tilted law agree:

    site_n = N(mean and covariance of cavity_n * likelihood_n) / cavity_n                 (Minka 2001)
    log p(data) ~ log int prior * sites + sum_n log (int cavity_n * likelihood_n / int cavity_n * site_n)

The samplers of this package minimise KL(q || posterior) instead, which is safe but narrow, and their bound on the
evidence falls away as the prior widens: by 7.6 on METHOD's T4, where this one is off by .05. So priors are compared by
this evidence. All sites move at once (the sums over data are those of any other step), with damping when needed; the
moments of tilted laws are averages over quasi-random points of the cavity, for every likelihood the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

from enkbayes.core.ensemble import AffineEnsemble, affine_map
from enkbayes.core.expectations import quasi_random_points
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.logits import LinearLogits
from enkbayes.core.moments import Diverged, Moments
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import row_slices, to_numpy

Numbers = np.ndarray[Any, Any]
LOG2_POINTS = 8
CALMER, SLOWEST = 0.7, 0.1  # factor on the step when the residual grows, and the smallest step


@dataclass(frozen=True, eq=False)
class Sites:
    """The factors exp(-u' precision u / 2 + shift' u) of all data: precision (N, k, k) and shift (N, k)."""

    precision: Numbers
    shift: Numbers

    @classmethod
    def flat(cls, size: int, contrasts: int) -> Sites:
        """Return sites that say nothing."""
        return cls(np.zeros((size, contrasts, contrasts)), np.zeros((size, contrasts)))

    def rows(self, rows: slice) -> Sites:
        """Return the sites of some data."""
        return Sites(self.precision[rows], self.shift[rows])

    def towards(self, other: Sites, step: float) -> Sites:
        """Return (1 - step) of these and step of the others, in natural parameters."""
        return Sites(
            self.precision + step * (other.precision - self.precision), self.shift + step * (other.shift - self.shift)
        )


@dataclass(frozen=True, eq=False)
class Propagation:
    """Mean (P,) and basis (P, P) of the fitted Gaussian, its log evidence, how far it is from its fixed point, and the
    sites, from which a problem with another prior can start.
    """

    mean: Numbers
    basis: Numbers
    log_evidence: float
    residual: float
    sweeps: int
    sites: Sites


def propagate(problem: Problem, sites: Sites | None = None, *, tol: float = 1e-3, max_sweeps: int = 100) -> Propagation:
    """Return the fixed point of expectation propagation for a problem with linear logits, in double precision.

    Parameters
    ----------
    problem : Problem
        Needs linear logits, and memory for a P x P matrix.
    sites : Sites, optional
        Where to start: those of the same data under another prior.
    tol : float
        Stop when the natural-gradient residual is below.
    max_sweeps : int
        Passes over the data after which `residual` tells that there is no agreement yet.

    Examples
    --------
    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((100, 2))
    >>> problem = eb.Problem.create(features, features[:, 0] > 0.2)
    >>> bool(abs(propagate(problem).log_evidence - eb.log_evidence(problem).value) < 0.05)
    True
    """
    problem, contrasts = in_double(problem), _contrasts(problem.likelihood)
    start = Sites.flat(problem.size, contrasts.shape[1]) if sites is None else sites
    law, best, step = _assembled(problem, start, contrasts), np.inf, 1.0
    for sweep in range(max_sweeps + 1):
        wanted, force, energy = _sweep(problem, law, start, contrasts)
        residual = force.residual
        if residual < tol or sweep == max_sweeps:
            break
        if residual > best:
            step = max(CALMER * step, SLOWEST)
        best, start = residual, start.towards(wanted, step)
        eye = np.eye(problem.dim)
        law = _moved(law, Moments(0.0, step * force.g, eye + step * (force.S - eye)))
    return Propagation(law.mean, law.basis, energy + _log_volume(problem.prior, law), residual, sweep, start)


def in_double(problem: Problem) -> Problem:
    """Return the same problem with linear logits in numpy's double precision, sparse features kept sparse."""
    model = problem.model
    if not isinstance(model, LinearLogits):
        raise ValueError("expectation propagation needs linear logits; nonlinear ones have no evidence of this kind")
    sparse = scipy.sparse.issparse(model.features)
    features = (model.features if sparse else to_numpy(model.features)).astype(np.float64, copy=False)
    whole = np.int64 if problem.likelihood.outputs else np.float64
    return replace(
        problem,
        model=replace(model, features=features),
        targets=to_numpy(problem.targets).astype(whole),
        weights=None if problem.weights is None else to_numpy(problem.weights).astype(np.float64),
        prior=Gaussian(*(to_numpy(x).astype(np.float64) for x in (problem.prior.mean, problem.prior.cov))),
    )


def _contrasts(likelihood: Likelihood) -> Numbers:
    """Return an orthonormal basis (K, K - 1) of what K logits can say, whose sum says nothing; [[1]] for one logit."""
    K = likelihood.outputs
    return np.eye(1) if K is None else np.asarray(scipy.linalg.helmert(K).T)


def _marginals(problem: Problem, law: AffineEnsemble, rows: slice, contrasts: Numbers) -> tuple[Numbers, Numbers]:
    """Return the mean (n, k) of the contrasts of some data and their columns (n, k, r) in the basis."""
    model = problem.model
    mean_logits, V = model.map.gaussian_logits(model.features[rows, :], law)  # type: ignore[union-attr]
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
    law = AffineEnsemble(prior.mean, prior.dense_root, np.zeros((0, prior.dim)))
    total = problem.prior_moments(law)
    for rows in row_slices(problem.size, problem.model.chunk):
        mean, columns = _marginals(problem, law, rows, contrasts)
        some = sites.rows(rows)
        total = total + _pulled_back(columns, some.precision, _times(some.precision, mean) - some.shift)
    return _moved(law, total)


def _moved(law: AffineEnsemble, moments: Moments) -> AffineEnsemble:
    """Return the Gaussian with these gradient and precision in the frame of the given one."""
    return law.affine(*affine_map(moments, gain=lambda w: 1 / w, scale=lambda w: w**-0.5))


def _sweep(problem: Problem, law: AffineEnsemble, sites: Sites, contrasts: Numbers) -> tuple[Sites, Moments, float]:
    """Return the sites that every datum asks for, the gradient and precision they would give the posterior in its own
    frame, and the data's part of the log evidence at the present sites.
    """
    wanted, total, energy = [], problem.prior_moments(law), 0.0
    for rows in row_slices(problem.size, problem.model.chunk):
        mean, columns = _marginals(problem, law, rows, contrasts)
        site, gain = _matched(problem, rows, mean, columns @ columns.mT, sites.rows(rows), contrasts)
        total = total + _pulled_back(columns, site.precision, _times(site.precision, mean) - site.shift)
        wanted.append(site)
        energy += gain
    joined = Sites(np.concatenate([s.precision for s in wanted]), np.concatenate([s.shift for s in wanted]))
    return joined, total, energy


def _matched(
    problem: Problem, rows: slice, mean: Numbers, cov: Numbers, sites: Sites, contrasts: Numbers
) -> tuple[Sites, float]:
    """Return the sites that match the tilted moments, and sum_n log int tilted - log int posterior, for contrasts with
    mean (n, k) and covariance (n, k, k) under the posterior.
    """
    try:
        precision = np.linalg.inv(cov + 1e-12 * np.eye(cov.shape[-1]))  # a datum without features has no spread
        shift = _times(precision, mean)
        cavity = Sites(precision - sites.precision, shift - sites.shift)
        cavity_cov = np.linalg.inv(cavity.precision)
        centre, root = _times(cavity_cov, cavity.shift), np.linalg.cholesky(cavity_cov)
        log_z, tilted_mean, tilted_cov = _tilted(problem, rows, centre, root, contrasts)
        w, U = np.linalg.eigh(np.linalg.inv(tilted_cov) - cavity.precision)
    except np.linalg.LinAlgError:
        raise Diverged("the cavities of expectation propagation are not positive definite") from None
    matched = (U * np.maximum(w, 0.0)[:, None, :]) @ U.mT  # likelihoods are log-concave; only quadrature says otherwise
    site = Sites(matched, _times(matched + cavity.precision, tilted_mean) - cavity.shift)
    return site, float(np.sum(log_z + _log_integral(cavity) - _log_integral(Sites(precision, shift))))


def _tilted(
    problem: Problem, rows: slice, centre: Numbers, root: Numbers, contrasts: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """Return log int (n,), mean (n, k) and covariance (n, k, k) of likelihood times N(centre, root root')."""
    points = quasi_random_points(centre.shape[1], LOG2_POINTS)
    u = centre[:, None, :] + points @ root.mT
    logits = u[:, :, 0] if problem.likelihood.outputs is None else u @ contrasts.T
    losses = problem.likelihood.terms(logits, problem.targets[rows])
    if problem.weights is not None:
        losses = problem.weights[rows, None] * losses
    least = losses.min(axis=1, keepdims=True)
    share = np.exp(least - losses)
    total = share.sum(axis=1)
    share = share / total[:, None]
    mean = _times(u.mT, share)
    apart = u - mean[:, None, :]
    return np.log(total / len(points)) - least[:, 0], mean, (apart * share[:, :, None]).mT @ apart


def _log_integral(factor: Sites) -> Numbers:
    """Return log int exp(-u' precision u / 2 + shift' u) du, (n,), up to the powers of 2 pi."""
    centre = np.linalg.solve(factor.precision, factor.shift[:, :, None])[:, :, 0]
    return np.asarray(np.sum(factor.shift * centre, axis=1) - np.linalg.slogdet(factor.precision)[1]) / 2


def _log_volume(prior: Gaussian, law: AffineEnsemble) -> float:
    """Return log int of the posterior's Gaussian in natural form, less that of the prior."""
    inside, before = np.linalg.solve(law.basis, law.mean), prior.whiten(prior.mean)
    return float(np.linalg.slogdet(prior.whiten(law.basis))[1] + (inside @ inside - before @ before) / 2)


def _times(matrices: Numbers, vectors: Numbers) -> Numbers:
    """Return the products (n, i) of matrices (n, i, j) and vectors (n, j)."""
    return np.asarray((matrices @ vectors[:, :, None])[:, :, 0])
