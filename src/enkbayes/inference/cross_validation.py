"""Predictions of rows by a posterior that was not fitted to them.

Real folds: the mean-field Gaussian of the other rows, under the same prior, predicts those of a fold. It does not
depend on the number of particles, and the steps that it takes are few because it need not be exact.

Leave-one-out from the one fit (`leave_one_out.py`) is faster, but leaves too much of a row in the factors of the
others, the more the larger the share of the data that one row is: where the data inform half as many directions as
there are rows, the mean log loss comes out up to two times too small. So it stands in for folds only where a row
contributes at most `SMALL` of the precision of its own logits. There it was at most a fifth too small in trials, on
almost separable classes. Where folds take too long and rows contribute more, the rows of one fold are predicted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedKFold

from enkbayes.core.logit_noise import noisy_predictive
from enkbayes.core.mixture import LEAST, MixturePosterior
from enkbayes.core.moments import Diverged
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import to_numpy
from enkbayes.inference.empirical_bayes import parameter_groups
from enkbayes.inference.far_field import informative_rows
from enkbayes.inference.feature_frame import in_its_frame
from enkbayes.inference.folds import stratified_folds
from enkbayes.inference.leave_one_out import is_accurate, leave_one_out_logits, leave_one_out_proba
from enkbayes.inference.prior_average import average_posterior
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run

Numbers = np.ndarray[Any, Any]


def left_out(
    problem: Problem, posterior: Posterior | MixturePosterior, *, folds: int = 5, work: float = 1e9, tol: float = 1e-2
) -> tuple[Numbers, Numbers, str] | None:
    """Return rows (n,), their class probabilities (n, K), predicted without them, and how they were found; None where
    no fit to other rows succeeds.

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
        Multiplications that one evaluation of a fit may cost; beyond, leave-one-out from the given fit is the answer
        where rows are many, otherwise the predictions of one fold.
    tol : float
        Residual at which the fits end.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> features, labels = rng.standard_normal((40, 20)), rng.integers(0, 2, 40)  # nothing to learn
    >>> problem = Problem.create(features, labels)
    >>> rows, proba, method = left_out(problem, run(problem))
    >>> bool(-np.log(proba[rows, labels]).mean() > 0.8), method
    (True, '5-fold cross-validation')
    """
    problem = problem.in_double()
    posterior = _heavy(posterior)
    if not affordable(problem, work) and contributes_little(problem, posterior):
        return np.arange(problem.size), _leave_one_out(problem, posterior), "leave-one-out from one fit"
    found = [
        (rows, to_numpy(fitted.predict_proba(problem.features[rows, :])))
        for rows, fitted in fits_to_others(problem, posterior, folds=folds, work=work, tol=tol)
    ]
    if not found:
        return None
    rows, proba = _in_order(found)
    whole = len(rows) == problem.size
    folded, one = f"{len(found)}-fold cross-validation", f"predictions of {len(rows):,} rows by a fit to the others"
    return rows, proba, folded if whole else one


def fits_to_others(
    problem: Problem, posterior: Posterior | MixturePosterior, *, folds: int = 5, work: float = 1e9, tol: float = 1e-2
) -> Iterator[tuple[Numbers, Posterior | MixturePosterior]]:
    """Yield the rows of every fold, and the posterior of the others under the same priors and with the same weights;
    only one fold if an evaluation costs more than `work` multiplications. A fold whose fit diverges is left out.

    >>> problem = Problem.create(np.random.default_rng(0).standard_normal((30, 2)), np.arange(30) % 2)
    >>> [len(rows) for rows, _ in fits_to_others(problem, run(problem))]
    [6, 6, 6, 6, 6]
    """
    folds = min(folds, problem.size)
    if folds < 2:
        return
    fold = stratified_folds(to_numpy(problem.targets), folds, np.random.default_rng(0))
    for number in range(folds if affordable(problem, work) else 1):
        rows = np.flatnonzero(fold == number)
        others = problem.subset(np.flatnonzero(fold != number))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a fit of the other rows that has not converged predicts all the same
                fit = partial(run, sampler=MeanField(tol=tol), particles=2)
                parts = [in_its_frame(each, fit) for each in posterior.problems(others)]
        except Diverged:
            continue
        yield rows, posterior.with_components(parts)


def affordable(problem: Problem, work: float = 1e9) -> bool:
    """Return whether one evaluation of a fit costs at most so many multiplications."""
    return problem.size * (problem.likelihood.outputs or 1) * problem.dim**2 <= work


def contributes_little(problem: Problem, posterior: Posterior | MixturePosterior) -> bool:
    """Return whether leave-one-out from one fit is accurate for all components of a posterior; see `is_accurate`."""
    pairs = zip(posterior.problems(problem), posterior.components, strict=True)
    return all(is_accurate(each, component.fitted) for each, component in pairs)


def _heavy(posterior: Posterior | MixturePosterior) -> Posterior | MixturePosterior:
    """Return the mixture of the components that weigh something."""
    if not isinstance(posterior, MixturePosterior):
        return posterior
    weights = np.asarray(posterior.weights)
    keep = np.flatnonzero(weights >= min(LEAST, float(weights.max())))
    return replace(
        posterior,
        components=tuple(posterior.components[k] for k in keep),
        weights=tuple(float(w) for w in weights[keep] / weights[keep].sum()),
        priors=tuple(posterior.priors[k] for k in keep),
        prior_weights=tuple(posterior.prior_weights[k] for k in keep),
    )


def _leave_one_out(problem: Problem, posterior: Posterior | MixturePosterior) -> Numbers:
    """Return the class probabilities (N, K) of every row by leave-one-out from one fit."""
    own = zip(posterior.weights, posterior.problems(problem), posterior.components, strict=True)
    return np.asarray(sum(w * leave_one_out_proba(each, part.fitted.to(problem.prior.mean)) for w, each, part in own))


def left_out_of_average(problem: Problem, *, folds: int = 5) -> tuple[Numbers, Numbers, str] | None:
    """Return rows (N,) and their class probabilities (N, K) by folds of an average whose scales and spreads held-out
    rows choose (`average_posterior`), and how they were found; None where that takes too long.

    >>> rng = np.random.default_rng(0)
    >>> problem = Problem.create(rng.standard_normal((60, 2)), np.arange(60) % 3)  # nothing to learn
    >>> rows, proba, method = left_out_of_average(problem)
    >>> bool(0.9 < -np.log(proba[rows, rows % 3]).mean() < 1.3), method
    (True, '5-fold cross-validation')
    """
    proba, count = np.empty((problem.size, problem.likelihood.n_classes or 1)), 0
    for rows, fitted in folds_of_average(problem, folds=folds):
        proba[rows] = to_numpy(fitted.predict_proba(problem.features[rows, :]))
        count += 1
    return (np.arange(problem.size), proba, f"{count}-fold cross-validation") if count else None


def logits_without(problem: Problem, posterior: Posterior | MixturePosterior) -> tuple[Numbers, Numbers, Numbers]:
    """Return rows (n,), and mean (n, K) and root (n, K, r) of the covariance of their logits, each predicted without
    itself; (n,) and (n, r) of a single logit. A mixture is replaced by the Gaussian with its moments.

    By leave-one-out from one fit where rows contribute little, otherwise by folds. An average of many parameters
    consists of points, which tell nothing about their fit without a row: folds predict the rows.
    """
    problem, outputs, found = problem.in_double(), posterior.likelihood.outputs, None
    averaged = isinstance(posterior, MixturePosterior) and posterior.held_out
    if averaged:
        found = logits_of_average(problem)
    elif not contributes_little(problem, posterior):
        found = _logits_by_folds(problem, _heavy(posterior))
    if found is not None:
        some = informative_rows(len(found[0]), outputs)
        return found[0][some], found[1][some], found[2][some]
    rows = informative_rows(problem.size, outputs)
    own = zip(posterior.problems(problem), posterior.components, strict=True)
    pairs = [leave_one_out_logits(each, part.fitted.to(problem.prior.mean), rows) for each, part in own]
    return (rows, *_mixed(posterior.weights, pairs))


def proba_without(
    problem: Problem,
    posterior: Posterior | MixturePosterior,
    *,
    scale: float = 1.0,
    noise: Numbers | None = None,
    work: float = 1e9,
) -> tuple[Numbers, Numbers]:
    """Return rows (n,) and their class probabilities (n, K), each predicted without itself, with all logits multiplied
    by `scale` and noise of variance (N,) in them: what the posterior predicts for new rows.
    """
    problem, averaged = problem.in_double(), isinstance(posterior, MixturePosterior) and posterior.held_out
    posterior = posterior if averaged else _heavy(posterior)
    folds: Iterator[tuple[Numbers, Posterior | MixturePosterior]] = iter(())
    if averaged:
        folds = folds_of_average(problem, one=True)
    elif affordable(problem, work) or not contributes_little(problem, posterior):
        folds = fits_to_others(problem, posterior, work=work)
    found: list[tuple[Numbers, Numbers]] = []
    for rows, fitted in folds:
        own = None if noise is None else noise[rows]
        proba = fitted.tempered(scale).predict_proba(problem.features[rows, :], noise=own)
        found.append((rows, to_numpy(proba)))
    if found:
        rows, proba = _in_order(found)
        return rows, proba
    rows, likelihood = informative_rows(problem.size, posterior.likelihood.outputs), posterior.likelihood
    own = None if noise is None else noise[rows]
    parts = []
    for weight, each, part in zip(posterior.weights, posterior.problems(problem), posterior.components, strict=True):
        mean, root = (scale * x for x in leave_one_out_logits(each, part.fitted.to(problem.prior.mean), rows))
        plain = own is None
        predicted = likelihood.predictive(mean, V=root) if plain else noisy_predictive(likelihood, mean, root, own)
        parts.append(weight * to_numpy(predicted))
    return rows, np.asarray(sum(parts))


def _logits_by_folds(
    problem: Problem, posterior: Posterior | MixturePosterior, *, work: float = 2e8
) -> tuple[Numbers, Numbers, Numbers] | None:
    """Return rows, mean and root of the covariance of their logits by real folds; None if all fits diverge."""
    found: list[tuple[Numbers, Numbers, Numbers]] = []
    for rows, fitted in fits_to_others(problem, posterior, work=work):
        linear, features = problem.linear_logits("cross-validation"), problem.features[rows, :]
        pairs = [linear.predictive_logits(features, part.fitted) for part in fitted.components]
        found.append((rows, *_mixed(fitted.weights, pairs)))
    if not found:
        return None
    rows, mean, root = _in_order(found)
    return rows, mean, root


def _in_order(found: Sequence[tuple[Numbers, ...]]) -> tuple[Numbers, ...]:
    """Return the arrays of all folds, joined in the order of the first ones, the numbers of rows."""
    joined = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    order = np.argsort(joined[0])
    return tuple(part[order] for part in joined)


def _mixed(weights: Sequence[float], pairs: Sequence[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    """Return mean (n, K) and root (n, K, K) of the covariance of a mixture of Gaussian logits, of which the means
    (n, K) and roots (n, K, r) are given; (n,) and (n, 1), (n, r) of a single logit.
    """
    mean = np.asarray(sum(w * np.asarray(m) for w, (m, _) in zip(weights, pairs, strict=True)))
    columns = [math.sqrt(w) * np.asarray(R) for w, (_, R) in zip(weights, pairs, strict=True)]
    columns += [math.sqrt(w) * (np.asarray(m) - mean)[..., None] for w, (m, _) in zip(weights, pairs, strict=True)]
    root = np.concatenate(columns, axis=-1)
    if mean.ndim == 1:
        return mean, np.sqrt(np.sum(root**2, axis=-1, keepdims=True))
    values, U = np.linalg.eigh(root @ root.mT)
    return mean, U * np.sqrt(np.maximum(values, 0.0))[:, None, :]


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
    if problem.prior.centre is not None:  # of an average over one width, whose features may have different units
        return parameter_groups(linear)
    by_feature = to_numpy(problem.prior.cov).reshape(-1, linear.outputs or 1)[: linear.features, 0]
    return parameter_groups(linear, by_feature)
