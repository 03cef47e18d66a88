"""Leave-one-out prediction from one fit: what the posterior without a row predicts for that row.

A fitted Gaussian q solves m = m0 - P0 sum_n g_n, P^{-1} = P0^{-1} + sum_n H_n (see `MeanField`), so it is the prior
times one Gaussian factor for each row. To the logits z_n of row n the factor adds the precision L = E_q[Lambda] and the
force -g, g = E_q[p] - t, both times the weight of the row. Let N(mu, V) be the distribution of these logits under q.
Under q without the factor, the cavity, they have the precision V^{-1} - L and the natural mean V^{-1} mu - (L mu - g),
that is

    V_c = (V^{-1} - L)^{-1} = (I - V L)^{-1} V,        mu_c = V_c (V^{-1} mu - L mu + g) = mu + V_c g,

because (V^{-1} - L) mu = V_c^{-1} mu. Averages over q belong to the mean-field Gaussian; a Laplace approximation has
the slope and the curvature at its mode instead (`point`). The approximation is that the other rows keep their factors;
a fit without the row would change them. For a Gaussian likelihood the factors do not depend on q, and the cavity is the
refit:

>>> x, d = np.asarray([1.0, 2.0, -1.0]), np.asarray([0.5, 3.0, 0.0])
>>> def posterior(rows, s2=0.5):  # of theta ~ N(0, 1), d = theta x + N(0, s2)
...     v = 1 / (1 + sum(x[rows] ** 2) / s2)
...     return v * sum(x[rows] * d[rows]) / s2, v
>>> m, v = posterior([0, 1, 2])
>>> mu, V, g, L = 2 * m, 4 * v, (2 * m - 3) / 0.5, 1 / 0.5  # of the row in the middle
>>> mean, root = cavity(np.full((1, 1), mu), np.full((1, 1, 1), V), np.full((1, 1), g), np.full((1, 1, 1), L))
>>> without = posterior([0, 2])
>>> bool(np.allclose([mean.item(), root.item() ** 2], [2 * without[0], 4 * without[1]]))
True

For wide priors on few rows the other factors change much, and the prediction without a row is too good: with 40 rows,
30 features and prior variance 1000 the mean log loss is .33 where refits have .69. Verdicts, thresholds, far-field
variance and calibration fit real folds instead (`cross_validation.py`, `calibration.py`), unless the rows are many for
what they inform (`is_accurate`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.likelihoods import Normal
from enkbayes.core.low_rank import LowRankGaussian
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import row_slices, to_numpy
from enkbayes.inference.folds import log_losses

Numbers = np.ndarray[Any, Any]
SMALL = 0.05  # share of the precision of its own logits that a row contributes


def leave_one_out_losses(
    problem: Problem, ensemble: AffineEnsemble | LowRankGaussian, *, point: bool = False, chunk: int = 4096
) -> Numbers:
    """Return the log loss (N,) of every row, predicted by the fitted ensemble without that row.

    The problem has linear logits and classes, and is in numpy's double precision. `point` says that the Gaussian is a
    Laplace approximation. `chunk` is the number of logits that are held at a time. The losses are too small for wide
    priors, as the description of this module says.

    >>> rng = np.random.default_rng(0)
    >>> features, labels = rng.standard_normal((40, 20)), rng.integers(0, 2, 40)  # nothing to learn
    >>> problem = Problem.create(features, labels)
    >>> from enkbayes.samplers.run import run
    >>> from enkbayes.samplers import MeanField
    >>> posterior = run(problem, MeanField(), particles=30)
    >>> seen = -np.log(posterior.predict_proba(features)[np.arange(40), labels])
    >>> bool(seen.mean() < 0.5 < 0.9 < leave_one_out_losses(problem, posterior.ensemble).mean())
    True
    """
    return log_losses(leave_one_out_proba(problem, ensemble, point=point, chunk=chunk), problem.targets)


def leave_one_out_proba(
    problem: Problem, ensemble: AffineEnsemble | LowRankGaussian, *, point: bool = False, chunk: int = 4096
) -> Numbers:
    """Return the class probabilities (N, K) of every row, predicted without it; see `leave_one_out_losses`.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> posterior = eb.run(problem, eb.MeanField())
    >>> leave_one_out_proba(problem, posterior.ensemble).shape
    (4, 2)
    """
    chunks = row_slices(problem.size, max(chunk // (problem.likelihood.outputs or 1), 64))
    return np.concatenate([_predicted(problem, ensemble, rows, point=point) for rows in chunks])


def cavity(
    mean: Numbers, cov: Numbers, slope: Numbers, curvature: Numbers, *, largest: float = 0.99
) -> tuple[Numbers, Numbers]:
    """Return mean mu_c (n, K) and a root (n, K, K) of V_c from mu (n, K), V (n, K, K), g (n, K) and L (n, K, K).

    With V = R R' and R' L R = U diag(w) U', V_c = R U diag(1 / (1 - w)) U' R'. The share w of its own precision that a
    row has contributed is below 1 if the fit has converged; it is capped at `largest`.
    """
    s, E = np.linalg.eigh(cov)
    R = E * np.sqrt(np.maximum(s, 0.0))[:, None, :]
    w, U = np.linalg.eigh(R.mT @ curvature @ R)
    root = R @ (U / np.sqrt(1 - np.minimum(w, largest))[:, None, :])
    return mean + (root @ (root.mT @ slope[:, :, None]))[:, :, 0], root


def leave_one_out_logits(
    problem: Problem, ensemble: AffineEnsemble | LowRankGaussian, rows: Any = slice(None), *, point: bool = False
) -> tuple[Numbers, Numbers]:
    """Return the Gaussian logits of some rows, predicted without them: mean (n,) or (n, K), and a root (n, 1) or
    (n, K, K) of their covariance.
    """
    linear = problem.linear_logits("leave-one-out from one fit")
    likelihood, targets = problem.likelihood, problem.targets[rows]
    mu, V = linear.predictive_logits(problem.features[rows, :], ensemble)
    one = likelihood.outputs is None
    if point:
        slope, curvature = (term(mu[:, None], targets)[:, 0] for term in (likelihood.slope, likelihood.curvature))
    else:
        _, slope, curvature = likelihood.gaussian_averages(mu, targets, V=V)
    if one:  # K = 1
        mu, V, slope, curvature = mu[:, None], V[:, None, :], slope[:, None], curvature[:, None, None]
    w = problem.counts[rows]
    mean, root = cavity(mu, V @ V.mT, w[:, None] * slope, w[:, None, None] * curvature)
    return (mean[:, 0], root[:, 0, :]) if one else (mean, root)


def is_accurate(problem: Problem, fitted: AffineEnsemble | LowRankGaussian, small: float = SMALL) -> bool:
    """Return whether a row contributes at most `small` of the precision of its own logits, on average over the rows, so
    that leave-one-out from one fit is accurate: gamma = tr(I - P P0^{-1}), the number of directions that the data
    inform, is the sum of these shares. For a Gaussian likelihood leave-one-out is exact.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create(np.random.default_rng(0).standard_normal((80, 2)), np.arange(80) % 2)
    >>> few = problem.subset(np.arange(20))
    >>> is_accurate(problem, eb.run(problem).fitted), is_accurate(few, eb.run(few).fitted)
    (True, False)
    """
    if isinstance(problem.likelihood, Normal):
        return True
    contrasts = (problem.likelihood.outputs or 1) - problem.likelihood.shift_invariant
    rows = int(np.sum(problem.counts > 0))
    return informed_directions(problem, fitted) <= small * max(rows, 1) * contrasts


def informed_directions(problem: Problem, fitted: AffineEnsemble | LowRankGaussian) -> float:
    """Return gamma = tr(I - P P0^{-1}) over the directions that the Gaussian spans: at the fixed point the sum over the
    rows of tr(V L), the share of the precision of a row's logits that the row itself contributes.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0]], [1.0, 3.0], likelihood=eb.Normal())
    >>> round(informed_directions(problem, eb.run(problem).fitted), 6)  # precision 1 + 1 + 4
    0.833333
    """
    w = np.diag(to_numpy(problem.prior_moments(fitted).S))
    if fitted.complement is None:
        return fitted.rank - float(np.sum(w))
    variance, tightening = (to_numpy(x) for x in (fitted.complement.variance, fitted.complement.tightening))
    return fitted.freedom - float(np.sum(w) + np.sum(variance) - tightening @ w)


def _predicted(problem: Problem, ensemble: AffineEnsemble | LowRankGaussian, rows: slice, *, point: bool) -> Numbers:
    """Return the probabilities (n, K) of a chunk of rows."""
    mean, root = leave_one_out_logits(problem, ensemble, rows, point=point)
    return np.asarray(problem.likelihood.predictive(mean, V=root))
