"""Predictions of every row by a posterior that was not fitted to it.

Real folds: the mean-field Gaussian of the other rows, under the same prior, predicts those of a fold. It does not
depend on the number of particles, and the steps that it takes are few because it need not be exact. Problems for which
even that takes too long have enough rows for leave-one-out from the one fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedKFold

from enkbayes.core.mixture import LEAST, MixturePosterior
from enkbayes.core.moments import Diverged
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import to_numpy
from enkbayes.inference.empirical_bayes import parameter_groups
from enkbayes.inference.folds import stratified_folds
from enkbayes.inference.leave_one_out import leave_one_out_proba
from enkbayes.inference.prior_average import average_posterior
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run

Numbers = np.ndarray[Any, Any]


def left_out(
    problem: Problem, posterior: Posterior | MixturePosterior, *, folds: int = 5, work: float = 1e9, tol: float = 1e-2
) -> tuple[Numbers, str]:
    """Return the class probabilities (N, K) of every row, predicted without it, and how they were found.

    Parameters
    ----------
    problem : Problem
        With linear logits, classes, and rows in memory.
    posterior : Posterior or MixturePosterior
        What `run` returned for it. Components of a mixture that weigh something are fitted each, under their own
        priors, and keep their weights.
    folds : int
        Number of folds.
    work : float
        Multiplications that one evaluation of a fit may cost; beyond, leave-one-out from the given fit is the answer.
    tol : float
        Residual at which the fits end.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> features, labels = rng.standard_normal((40, 20)), rng.integers(0, 2, 40)  # nothing to learn
    >>> problem = Problem.create(features, labels)
    >>> proba, method = left_out(problem, run(problem))
    >>> bool(-np.log(proba[np.arange(40), labels]).mean() > 0.8), method
    (True, '5-fold cross-validation')
    """
    problem = problem.in_double()
    if isinstance(posterior, MixturePosterior):
        own = [*zip(posterior.problems(problem), posterior.components, posterior.weights, strict=True)]
        heavy = [part for part in own if part[2] >= LEAST] or [max(own, key=lambda part: part[2])]
        found = [left_out(each, part, folds=folds, work=work, tol=tol) for each, part, _ in heavy]
        shares = np.asarray([weight for _, _, weight in heavy])
        return np.tensordot(shares / shares.sum(), np.stack([proba for proba, _ in found]), 1), found[0][1]
    folds = min(folds, problem.size)
    if folds > 1 and problem.size * (problem.likelihood.outputs or 1) * problem.dim**2 <= work:
        try:
            return _by_folds(problem, folds, tol), f"{folds}-fold cross-validation"
        except Diverged:
            pass
    return leave_one_out_proba(problem, posterior.fitted.to(problem.prior.mean)), "leave-one-out from one fit"


def _by_folds(problem: Problem, folds: int, tol: float) -> Numbers:
    """Return the class probabilities (N, K) by stratified folds of shuffled rows."""
    fold = stratified_folds(problem.targets, folds, np.random.default_rng(0))
    proba = np.empty((problem.size, problem.likelihood.n_classes or 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit of the other rows that has not converged predicts all the same
        for number in range(folds):
            rows = np.flatnonzero(fold == number)
            others = problem.subset(np.flatnonzero(fold != number))
            proba[rows] = run(others, MeanField(tol=tol), particles=2).predict_proba(problem.features[rows, :])
    return proba


def left_out_of_average(problem: Problem, *, folds: int = 5) -> tuple[Numbers, str] | None:
    """Return the class probabilities (N, K) of every row by folds of an average whose scales and spreads held-out rows
    choose (`average_posterior`), and how they were found; None where that takes too long.

    >>> rng = np.random.default_rng(0)
    >>> problem = Problem.create(rng.standard_normal((60, 2)), np.arange(60) % 3)  # nothing to learn
    >>> proba, method = left_out_of_average(problem)
    >>> bool(0.9 < -np.log(proba[np.arange(60), np.arange(60) % 3]).mean() < 1.3), method
    (True, '5-fold cross-validation')
    """
    proba, count = np.empty((problem.size, problem.likelihood.n_classes or 1)), 0
    for rows, fitted in folds_of_average(problem, folds=folds):
        proba[rows] = to_numpy(fitted.predict_proba(problem.features[rows, :]))
        count += 1
    return (proba, f"{count}-fold cross-validation") if count else None


def logits_of_average(
    problem: Problem, *, folds: int = 5, most: float = 2e7
) -> tuple[Numbers, Numbers, Numbers] | None:
    """Return rows (n,) and mean (n, K) and root (n, K, r) of the covariance of their logits by the same folds; (n,) and
    (n, r) of a single logit. It is how the components differ, and the covariance of those that have a full one. The
    rows are all of them, or those of one fold where rows x parameters are more than `most`. None where no class has
    two rows.
    """
    found: dict[int, tuple[Numbers, Numbers]] = {}
    for rows, fitted in folds_of_average(problem, folds=folds, most=most, one=True):
        shares = np.sqrt(fitted.weights)
        pairs = [_logits(component, problem.features[rows, :]) for component in fitted.components]
        each = np.stack([mean for mean, _ in pairs], axis=-1)
        mean = each @ shares**2
        spread = [share * V for share, (_, V) in zip(shares, pairs, strict=True) if V is not None]
        root = np.concatenate([(each - mean[..., None]) * shares, *spread], axis=-1)
        found |= {int(row): (m, R) for row, m, R in zip(rows, mean, root, strict=True)}
    if not found:
        return None
    widest = max(R.shape[-1] for _, R in found.values())
    seen = sorted(found)
    roots = [np.pad(R, [(0, 0)] * (R.ndim - 1) + [(0, widest - R.shape[-1])]) for R in (found[row][1] for row in seen)]
    return np.asarray(seen), np.stack([found[row][0] for row in seen]), np.stack(roots)


def _logits(posterior: Posterior, features: Numbers) -> tuple[Numbers, Numbers | None]:
    """Return the mean (n, K) and a root (n, K, r) of the covariance, if that is full, of the logits of a posterior with
    linear logits; (n,) and (n, 1) of a single logit.
    """
    if posterior.map is None:
        raise ValueError("the posterior has nonlinear logits; expected linear ones")
    mean, V = (np.asarray(to_numpy(x)) for x in posterior.map.predictive_logits(features, posterior.fitted))
    if posterior.fitted.complement is not None or not posterior.fitted.rank:
        return mean, None
    return mean, V if mean.ndim == 2 else np.sqrt(np.sum(V**2, axis=1, keepdims=True))


def folds_of_average(
    problem: Problem, *, folds: int = 5, most: float = 2e7, one: bool = False
) -> Iterator[tuple[Numbers, MixturePosterior]]:
    """Yield the rows of every fold and the average of the others. If rows x parameters are more than `most`, yield only
    one fold with `one`, otherwise none.
    """
    long = problem.size * problem.dim > most
    if long and not one:
        return
    groups, targets = _groups_by_variance(problem), to_numpy(problem.targets).astype(int)
    folds = min(folds, int(np.max(np.bincount(targets))))
    if folds < 2:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class with fewer rows than folds; a fit that has not converged
        for others, rows in StratifiedKFold(folds, shuffle=True, random_state=0).split(targets, targets):
            part = problem.subset(others)
            yield rows, average_posterior(part, groups, _mean_field, particles=2, short=True)[0]
            if long:
                return


def _mean_field(problem: Problem) -> Posterior:
    return run(problem, MeanField(tol=1e-3), particles=problem.dim + 2)


def _groups_by_variance(problem: Problem) -> Numbers:
    """Return the groups (P,) of weights with the same prior variance; an intercept keeps its prior."""
    linear = problem.linear_logits("cross-validation of an average")
    by_feature = to_numpy(problem.prior.cov).reshape(-1, linear.outputs or 1)[: linear.features, 0]
    return parameter_groups(linear, by_feature)
