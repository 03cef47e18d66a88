"""The default prior: a Gaussian whose width is not known, averaged over a grid of widths.

The width v is the prior variance of the logit of a typical row: weights N(0, v / mean|x|^2), each feature group in its
own proportion. A grid of widths v_k is weighed in two steps.

1. By evidence. The standard deviation sqrt(v) has a half-Cauchy prior, so on a grid with equal steps in log v

       e_k ~ Z(v_k) s_k / (1 + (s_k / scale)^2),        s_k = sqrt(v_k).

2. By prediction. Every fold of the rows is predicted by the fits to the others, p_nk for the class of row n. The
   weights of the average are those of stacking (Yao et al. 2018) with a Dirichlet prior around e, a little widened:

       w = argmax  sum_n log sum_k w_k p_nk  +  c sum_k ((1 - share) e_k + share h_k) log w_k,

   h the hyperprior. c counts in rows. Where predictions of the widths hardly differ the evidence decides, which is
   right if the model is; where they differ, predictions do, which are right in any case. The share of the hyperprior
   leaves some weight to widths that the evidence rules out, which outliers are better predicted by.

3. By prediction too, whether the Gaussian prior is right at all. Where the classes are almost separable its posterior
   is under-confident at every width, because few of the directions that separate the training rows are as good as
   their average. So every width also has a sharper Gaussian, the posterior with a small share of its covariance, and
   step 2 is done once more for both, the sharper ones with a share of the Dirichlet prior. They stay only if the rows
   are much more probable with them; otherwise the average is one of posteriors.

Leave-one-out from one fit would be cheaper than folds, but it is too optimistic where rows are fewer than features, or
priors wide. Folds are cheap where each fit starts from the one before it on the grid. With fewer rows than features all
fits are in the space of the rows, which is exact: outside it the posterior is the prior.

Rows are sorted by class and a random projection of their features, equal rows are joined, and folds are assigned in
this order: the order of the rows does not matter, equal rows share a fold, and a row of weight 2 counts as two rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse

from enkbayes.core.caller import warn
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian, informed_points, standard_points
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.moments import Diverged
from enkbayes.core.numerics import in_range
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import to_numpy
from enkbayes.engine.rows import ArrayRows, Chunk, Sums
from enkbayes.inference.empirical_bayes import FIXED, with_variances
from enkbayes.inference.evidence import elbo
from enkbayes.inference.many_classes import WidthAverage
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run

Numbers = np.ndarray[Any, Any]
LEAST = 1e-12  # probability that a row has at least, where logarithms are taken


@dataclass(frozen=True)
class PriorAverage:
    """The widths that are averaged over, from narrow to wide.

    widths : prior variance of the logit of a typical row, for each component
    variances : of the weights, for each component one number for each group of features
    weights : of the components in the average
    prior_weights : of the components under the hyperprior
    rows : number of rows that chose the weights, each predicted without itself; 0 if nothing was chosen
    message : a sentence
    intercept : variance of the intercept, if it was chosen too
    spreads : share of the posterior's covariance that each component has; empty if all have all of it
    """

    widths: tuple[float, ...]
    variances: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    prior_weights: tuple[float, ...]
    rows: int
    message: str
    intercept: float | None = None
    spreads: tuple[float, ...] = ()

    @property
    def precisions(self) -> Numbers:
        """One precision (G,) for each group of features: the geometric mean over the components, by their weights."""
        logs = np.log(np.asarray(self.variances))
        return np.asarray(np.exp(-np.asarray(self.weights) @ logs))

    @property
    def heaviest(self) -> tuple[float, ...]:
        """The variances (G,) of the component with the largest weight."""
        return self.variances[int(np.argmax(self.weights))]


@dataclass(frozen=True)
class WidthGrid:
    """The grid of widths, the hyperprior, and how the weights are found.

    widths : of the grid, from narrow to wide, with equal steps in the logarithm
    scale : of the half-Cauchy prior of the standard deviation of a typical row's logit
    scale_softmax : the same for the K logits of a softmax, which often need a wider prior
    start : width at which the search begins; it ends in both directions at widths that are hopeless
    hopeless : nats by which evidence and predictions are then below the best
    folds : parts of the rows, each predicted by the fits to the others
    few_folds, long : the same where a fit costs more than `long` multiplications
    pseudo_rows, share : c and the share of the hyperprior above
    spread, sharper : share of the covariance of the sharper Gaussians, and their share of the Dirichlet prior
    decisive, relative : nats by which the rows must be more probable with them, or the share of the log loss
    negligible : weight below which a component is left out
    tol, tol_folds : residual of the fits to all rows and of those that only predict a fold
    steps, steps_folds : largest numbers of steps of these fits, which start near their ends
    fallback : width that stands for all where nothing can be chosen, because rows cannot be held out
    most : number of parameters of one logit, in the space of the rows, beyond which as many rows as that choose
    most_softmax, most_logits : parameters and logits of all rows of a softmax, beyond which it is averaged over point
        estimates and their spreads, because averages over its Gaussian logits are expensive
    """

    widths: tuple[float, ...] = (0.03, 0.3, 3.0, 30.0, 300.0, 3000.0)
    scale: float = 4.0
    scale_softmax: float = 16.0
    start: float = 3.0
    hopeless: float = 8.0
    folds: int = 5
    few_folds: int = 2
    long: float = 1e9
    pseudo_rows: float = 3.0
    share: float = 0.1
    spread: float = 0.1
    sharper: float = 0.3
    decisive: float = 2.0
    relative: float = 0.2
    negligible: float = 0.01
    tol: float = 1e-2
    tol_folds: float = 5e-2
    steps: int = 40
    steps_folds: int = 12
    fallback: float = 3.0
    most: int = 1000
    most_softmax: int = 45
    most_logits: int = 1000

    def log_hyperprior(self, problem: Problem) -> Numbers:
        """Return the log prior weight of each width."""
        sd = np.sqrt(np.asarray(self.widths))
        scale = self.scale if problem.likelihood.outputs is None else self.scale_softmax
        density = sd / (1 + (sd / scale) ** 2)
        return np.asarray(np.log(density / density.sum()))

    def affordable(self, problem: Problem) -> bool:
        """Return whether fits of all widths to all rows and folds are affordable."""
        K = problem.likelihood.outputs
        if K is None:
            return True
        return min(problem.dim, problem.size * K) <= self.most_softmax and problem.size * K <= self.most_logits


@in_range("the average over the width of the prior")
def average_posterior(
    problem: Problem,
    groups: Numbers,
    fit: Callable[[Problem], Posterior],
    *,
    tuning: PriorAverage | None = None,
    particles: int = 200,
    seed: int = 0,
    short: bool = False,
    grid: WidthGrid | None = None,
) -> tuple[MixturePosterior, PriorAverage]:
    """Return the posterior of the default prior: what the estimators call, for problems of any size.

    A softmax that is too large for fits of all widths is averaged over point estimates and their spreads
    (`many_classes.py`). Rows that are not in memory, or are shared between processes, cannot be held out; then a single
    width stands for all, and a UserWarning says so. Parameters are those of `average_over_widths`; a `tuning` that was
    found before is used as it is. With `short`, `MeanField` in the space of the rows fits the components, instead of
    `fit`, where that space is smaller.
    """
    grid, many = WidthGrid() if grid is None else grid, WidthAverage()
    if tuning is None and not grid.affordable(problem) and many.fits(problem):
        mixture = many.posterior(problem, particles=particles, seed=seed)
        return mixture, _described(problem, groups, mixture)
    average = weigh(problem, groups, grid=grid) if tuning is None else tuning
    short = short and isinstance(problem.rows, ArrayRows) and problem.dim <= MeanField.dense
    space = RowSpace.of(problem.in_double(), groups) if short else None
    if space is not None:
        fit = partial(space.fit, particles=particles, seed=seed)
    return mixture_of(problem, groups, average, fit), average


def _described(problem: Problem, groups: Numbers, mixture: MixturePosterior) -> PriorAverage:
    """Return the widths of a mixture."""
    own = [problem.with_prior(prior) for prior in mixture.priors]
    return PriorAverage(
        widths=tuple(logit_variance(each, groups) for each in own),
        variances=tuple(tuple(map(float, _shape(each, groups))) for each in own),
        weights=mixture.weights,
        prior_weights=mixture.prior_weights,
        rows=problem.size,
        message=mixture.message,
    )


def weigh(problem: Problem, groups: Numbers, *, grid: WidthGrid | None = None) -> PriorAverage:
    """Return the widths and weights that the rows choose, or a single width, with a UserWarning, where they cannot."""
    grid = WidthGrid() if grid is None else grid
    if not isinstance(problem.rows, ArrayRows):
        why = "the rows are in several places and none can be held out; pass tuning=clf.tune(X, y) to choose from all"
    elif not grid.affordable(problem):
        why = f"{problem.dim:,} parameters of a softmax are too many to compare widths"
    else:
        return weigh_widths(problem, groups, grid=grid)
    found = fixed_width(problem, groups, why, grid=grid)
    warn(found.message)
    return found


def updated(problem: Problem, mixture: MixturePosterior, fit: Callable[[Problem], Posterior]) -> MixturePosterior:
    """Return the mixture after more rows: every component is the prior of its next fit, and its weight is multiplied by
    the evidence of the rows, how probable they were to it.

    The prior of the problem is not used. Point estimates have no spread to learn with, and stay as they are.

    >>> import enkbayes as eb
    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((200, 3))
    >>> first, second = (eb.Problem.create(x, x[:, 0] > 0) for x in np.split(features, 2))
    >>> mixture, _ = average_over_widths(first, np.zeros(3, dtype=int), eb.run)
    >>> later = updated(second, mixture, eb.run)
    >>> len(later.components) == len(mixture.components), later.weights != mixture.weights
    (True, True)
    """
    components, priors, logs = [], [], []
    for component, weight in zip(mixture.components, mixture.weights, strict=True):
        before = replace(component, ensemble=component.fitted.to(problem.prior.mean), before=None)
        own = replace(problem.with_prior(before.distribution), likelihood=component.likelihood)
        found = replace(fit(own), state=None)
        components.append(found)
        priors.append(own.prior)
        logs.append(math.log(max(weight, 1e-300)) + elbo(own, found).value)
    weights = np.exp(np.asarray(logs) - max(logs))
    weights /= weights.sum()
    return MixturePosterior(
        tuple(components), tuple(map(float, weights)), tuple(priors), mixture.weights, mixture.message
    )


def average_over_widths(
    problem: Problem, groups: Numbers, fit: Callable[[Problem], Posterior], *, grid: WidthGrid | None = None
) -> tuple[MixturePosterior, PriorAverage]:
    """Return the posterior averaged over the width of the prior, and how the widths were weighed.

    Parameters
    ----------
    problem : Problem
        With linear logits, classes and rows in memory, and a prior with a diagonal covariance.
    groups : array (P,) of integers
        As in `tune_prior`: the variances of the parameters of groups 0, 1, ... are scaled together; parameters with -1
        keep their prior. The ratios of the variances are those of the problem's prior.
    fit : callable
        Problem -> Posterior, the run of a component.
    grid : WidthGrid, optional
        The grid, the hyperprior, and how the weights are found.

    Examples
    --------
    >>> import enkbayes as eb
    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((100, 5))
    >>> problem = eb.Problem.create(features, features[:, 0] + rng.logistic(size=100) > 0)
    >>> posterior, average = average_over_widths(problem, np.zeros(5, dtype=int), eb.run)
    >>> bool(abs(sum(average.weights) - 1) < 1e-9), len(posterior.components) == len(average.widths) > 1
    (True, True)
    """
    average = weigh_widths(problem, groups, grid=grid)
    return mixture_of(problem, groups, average, fit), average


def mixture_of(
    problem: Problem, groups: Numbers, average: PriorAverage, fit: Callable[[Problem], Posterior]
) -> MixturePosterior:
    """Return the mixture of the fits to all rows under each prior of an average, the heaviest first to be fitted."""
    spreads = average.spreads or (1.0,) * len(average.widths)
    fitted: dict[tuple[float, ...], Posterior] = {}
    points: Any = None
    for k in map(int, np.argsort(-np.asarray(average.weights), kind="stable")):
        if average.variances[k] in fitted:
            continue
        found = replace(fit(with_variances(problem, groups, average.variances[k])), state=None)
        points = found.ensemble.points if points is None else points
        if np.array_equal(to_numpy(found.ensemble.points), to_numpy(points)):
            found = replace(found, ensemble=replace(found.ensemble, points=points))  # stored once
        fitted[average.variances[k]] = found
    components = tuple(
        fitted[each] if spread == 1 else _sharpened(fitted[each], spread)
        for each, spread in zip(average.variances, spreads, strict=True)
    )
    priors = tuple(with_variances(problem, groups, each).prior for each in average.variances)
    return MixturePosterior(
        components, average.weights, priors, average.prior_weights, average.message, held_out=min(spreads) < 1
    )


def _sharpened(posterior: Posterior, spread: float) -> Posterior:
    """Return the posterior with a share of its covariance."""
    return replace(posterior, ensemble=posterior.ensemble.scaled(1.0, spread), before=None)


def weigh_widths(problem: Problem, groups: Numbers, *, grid: WidthGrid | None = None) -> PriorAverage:
    """Return the widths of the prior and their weights; parameters are those of `average_over_widths`.

    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((100, 5))
    >>> weigh_widths(Problem.create(features, features[:, 0] > 0), np.zeros(5, dtype=int)).rows
    100
    """
    grid = WidthGrid() if grid is None else grid
    if not problem.prior.diagonal:
        raise ValueError("the prior has a full covariance; expected a diagonal one to average over its width")
    size = problem.size
    problem = distinct_rows(problem.in_double())
    shape = _shape(problem, groups)
    shape = shape / shape[0]  # ratios alone count, and the same ones give the same weights, bit by bit
    problem = with_variances(problem, groups, shape)
    unit = logit_variance(problem, groups)
    if problem.likelihood.outputs is None and min(problem.dim, problem.size) > grid.most:
        problem = problem.subset(np.sort(np.random.default_rng(10).permutation(problem.size)[: grid.most]))
    space = RowSpace.of(problem, groups)
    if space is not None:
        problem, groups = space.problem, _compact_groups(space.problem)
    cost = problem.size * problem.dim**2
    count = min(grid.folds if cost <= grid.long else grid.few_folds, problem.size)
    folds = np.arange(problem.size) % max(count, 1)  # the rows are sorted by class
    return _Search(problem, groups, shape, unit, folds, grid).average(size)


def fixed_width(problem: Problem, groups: Numbers, why: str, *, grid: WidthGrid | None = None) -> PriorAverage:
    """Return a single width, that of the grid's `fallback`, for rows of which none can be held out.

    >>> problem = Problem.create([[1.0, 1.0], [0.0, 2.0]], [1, 0])
    >>> fixed_width(problem, np.zeros(2, dtype=int), "rows are not in memory").variances
    ((1.0,),)
    """
    grid = WidthGrid() if grid is None else grid
    shape, unit = _shape(problem, groups), logit_variance(problem, groups)
    variances = tuple(float(x) for x in shape * grid.fallback / unit)
    message = f"one prior width, logit variance {grid.fallback:g}, because {why}"
    return PriorAverage((grid.fallback,), (variances,), (1.0,), (1.0,), 0, message)


def logit_variance(problem: Problem, groups: Numbers) -> float:
    """Return the prior variance of a typical row's logit that comes from the parameters of all groups.

    >>> problem = Problem.create([[1.0, 1.0], [0.0, 2.0]], [1, 0], 2.0, intercept=100.0)
    >>> logit_variance(problem, np.asarray([0, 0, -1]))
    6.0
    """
    linear = problem.linear_logits("an average over the width of the prior")
    outputs = linear.outputs or 1
    variances = np.where(groups == FIXED, 0.0, to_numpy(problem.prior.cov))
    by_feature = variances.reshape(-1, outputs).mean(axis=1)[: linear.features]

    def contribution(chunk: Chunk) -> Sums:
        x = chunk.features
        squares = x.multiply(x) if scipy.sparse.issparse(x) else to_numpy(x) ** 2
        weights = np.ones(chunk.size) if chunk.weights is None else to_numpy(chunk.weights).astype(np.float64)
        return np.asarray(weights @ squares).reshape(-1) @ by_feature + np.zeros(1), np.asarray([weights.sum()])

    with np.errstate(over="ignore"):
        total, size = problem.rows.sum(contribution)
    if not np.isfinite(total[0]):
        raise ValueError("the squares of the features overflow; scale the features, for example by StandardScaler")
    return float(total[0]) / max(float(size[0]), 1e-300) or 1.0  # features that are all zero have no logits


def stacking_weights(proba: Numbers, around: Numbers, pseudo_rows: float, counts: Numbers, *, steps: int = 300) -> Any:
    """Return the weights (W,) that maximise sum_n counts_n log sum_k w_k p_nk + pseudo_rows sum_k around_k log w_k, for
    the probabilities (N, W) of the classes that came: the EM steps of a mixture.

    >>> proba = np.asarray([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]])
    >>> stacking_weights(proba, np.asarray([0.5, 0.5]), 1e6, np.ones(3)).round(3).tolist()
    [0.5, 0.5]
    >>> stacking_weights(proba[:2], np.asarray([0.5, 0.5]), 1e-6, np.ones(2)).round(3).tolist()
    [1.0, 0.0]
    """
    w, p = around.copy(), np.maximum(proba, 1e-12)
    for _ in range(steps):
        w = w * ((counts / (p @ w)) @ p) + pseudo_rows * around
        w /= w.sum()
    return w


def distinct_rows(problem: Problem) -> Problem:
    """Return the problem with its rows in the order of their class and of a random projection of their features, equal
    rows joined into one with the sum of their weights, and rows of weight 0 left out.

    >>> problem = Problem.create([[2.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], weights=[1.0, 1.0, 2.0, 0.0])
    >>> small = distinct_rows(problem)
    >>> small.features.tolist(), small.targets.tolist(), small.weights.tolist()
    ([[2.0], [1.0]], [0.0, 1.0], [3.0, 1.0])
    """
    features, targets, weights = problem.features, problem.targets, problem.weights
    direction = np.random.default_rng(9).standard_normal(features.shape[1])
    scaled = features.multiply(direction) if scipy.sparse.issparse(features) else features * direction
    pairs = np.stack([targets.astype(np.float64), np.asarray(scaled.sum(axis=1)).reshape(-1)], axis=1)
    counts = np.ones(problem.size) if weights is None else weights
    some = np.flatnonzero(counts > 0)
    _, index, inverse = np.unique(pairs[some], axis=0, return_index=True, return_inverse=True)
    rows = some[index]
    joined = np.bincount(inverse.reshape(-1), counts[some])
    return problem.subset(rows).with_arrays(weights=joined)


@dataclass(eq=False)
class _Search:
    """Fits along the grid, in the space of the rows: to all rows, and without each fold."""

    problem: Problem
    groups: Numbers
    shape: Numbers
    unit: float
    folds: Numbers
    grid: WidthGrid
    starts: dict[int | None, Numbers] = field(default_factory=dict)  # for each fold, and for all rows (None)

    def average(self, rows: int) -> PriorAverage:
        """Return the weights of the widths; `rows` is the number of rows before equal ones were joined."""
        grid = self.grid
        log_prior = grid.log_hyperprior(self.problem)
        evidence: dict[int, float] = {}
        proba: dict[int, Numbers] = {}
        start = int(np.argmin(np.abs(np.log(np.asarray(grid.widths) / grid.start))))
        first: dict[int | None, Numbers] = {}
        for outwards in (range(start, len(grid.widths)), range(start - 1, -1, -1)):
            self.starts = dict(first)
            for k in outwards:
                evidence[k] = self._fitted(k)
                proba[k] = self._predicted(k)
                first = first or dict(self.starts)
                if self._hopeless(k, evidence, proba, log_prior):
                    break
        tried = sorted(evidence)
        logs, before = np.asarray([evidence[k] for k in tried]), log_prior[tried]
        weights = self._weights(logs + before, before, np.stack([proba[k] for k in tried], axis=1))
        kept = np.argwhere(weights >= min(grid.negligible, float(weights.max())))
        shares = np.asarray([weights[i, s] for i, s in kept])
        shares /= shares.sum()
        widths = tuple(grid.widths[tried[i]] for i, _ in kept)
        spreads = tuple((1.0, grid.spread)[s] for _, s in kept)
        count = len(np.unique(self.folds))
        return PriorAverage(
            widths=widths,
            variances=tuple(tuple(map(float, self._variances(width))) for width in widths),
            weights=tuple(map(float, shares)),
            prior_weights=tuple(float(np.exp(log_prior[tried[i]])) for i, _ in kept),
            rows=rows if count > 1 else 0,
            message=_message(widths, spreads, shares, rows, count, grid),
            spreads=spreads if min(spreads) < 1 else (),
        )

    def _weights(self, logs: Numbers, before: Numbers, proba: Numbers) -> Numbers:
        """Return the weights (W, 2) of the posteriors, and of the sharper Gaussians if the rows are much more probable
        with them.
        """
        grid, counts = self.grid, np.asarray(self.problem.weights)
        by_evidence, hyperprior = _normalised(logs), _normalised(before)
        if len(np.unique(self.folds)) < 2:
            return np.stack([by_evidence, np.zeros_like(by_evidence)], axis=1)
        around = (1 - grid.share) * by_evidence + grid.share * hyperprior
        plain = stacking_weights(proba[:, :, 0], around, grid.pseudo_rows, counts)
        both = np.stack([(1 - grid.sharper) * around, grid.sharper * hyperprior], axis=1)
        table = proba.reshape(len(proba), -1)
        weights = stacking_weights(table, both.reshape(-1), grid.pseudo_rows, counts)
        loss = -float(counts @ np.log(np.maximum(proba[:, :, 0] @ plain, LEAST)))
        gain = loss + float(counts @ np.log(np.maximum(table @ weights, LEAST)))
        decisive = gain > min(grid.decisive, grid.relative * loss)
        return weights.reshape(both.shape) if decisive else np.stack([plain, 0 * plain], axis=1)

    def _variances(self, width: float) -> Numbers:
        return self.shape * (width / self.unit)

    def _fit(self, problem: Problem, key: int | None, tol: float, steps: int) -> Posterior:
        """Return the mean-field fit, from the last one with the same key."""
        start = self.starts.get(key, self.starts.get(None))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fit that has not converged predicts badly, and is judged by that
            posterior = run(problem, MeanField(tol, steps), particles=problem.dim + 2, theta=start)
        following = _particles_to_start(posterior)
        if following is not None:
            self.starts[key] = following
        return posterior

    def _fitted(self, k: int) -> float:
        """Return the log evidence of a width, from below, and remember the fit."""
        problem = with_variances(self.problem, self.groups, self._variances(self.grid.widths[k]))
        try:
            return elbo(problem, self._fit(problem, None, self.grid.tol, self.grid.steps)).value
        except (Diverged, ValueError):
            return -math.inf

    def _predicted(self, k: int) -> Numbers:
        """Return the probability (N, 2) of each row's class under the fit without its fold, and under the sharper
        Gaussian.
        """
        problem = with_variances(self.problem, self.groups, self._variances(self.grid.widths[k]))
        targets = to_numpy(problem.targets).astype(int)
        found = np.full((problem.size, 2), 1.0)
        for fold in map(int, np.unique(self.folds)):
            inside, outside = np.flatnonzero(self.folds == fold), np.flatnonzero(self.folds != fold)
            if not len(outside):
                continue
            part = problem.subset(outside)
            try:
                fitted = self._fit(part, fold, self.grid.tol_folds, self.grid.steps_folds).fitted
                mean, V = part.linear_logits("a fold").predictive_logits(problem.features[inside, :], fitted)
                for i, root in enumerate((1.0, math.sqrt(self.grid.spread))):
                    proba = to_numpy(problem.likelihood.predictive(mean, V=root * V))
                    found[inside, i] = proba[np.arange(len(inside)), targets[inside]]
            except (Diverged, ValueError):
                found[inside] = LEAST
        return found

    def _hopeless(self, k: int, evidence: dict[int, float], proba: dict[int, Numbers], log_prior: Numbers) -> bool:
        """Return whether evidence and predictions both say that widths beyond this one are useless."""
        counts = np.asarray(self.problem.weights)
        scores = {i: float(np.max(counts @ np.log(np.maximum(p, LEAST)))) for i, p in proba.items()}
        heights = {i: e + log_prior[i] for i, e in evidence.items()}
        far = self.grid.hopeless
        return scores[k] < max(scores.values()) - far and heights[k] < max(heights.values()) - far


def _normalised(logs: Numbers) -> Numbers:
    """Return weights with the sum 1 from their logarithms."""
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def _particles_to_start(posterior: Posterior) -> Numbers | None:
    """Return particles from which a similar fit starts, one more than needed, if the Gaussian spans all directions."""
    fitted: AffineEnsemble = posterior.fitted
    dim = fitted.mean.shape[0]
    if fitted.rank < dim or fitted.complement is not None:
        return None
    points = standard_points(dim + 2, dim, np.random.default_rng(0))
    return np.asarray(replace(fitted, points=points).theta)


def _message(
    widths: Sequence[float], spreads: Sequence[float], weights: Numbers, size: int, folds: int, grid: WidthGrid
) -> str:
    shares: dict[float, float] = {}
    for width, weight in zip(widths, weights, strict=True):
        shares[width] = shares.get(width, 0.0) + float(weight)
    parts = ", ".join(f"{width:g} ({100 * share:.0f} %)" for width, share in shares.items())
    how = f"evidence and {folds} folds of {size:,} rows" if folds > 1 else "evidence"
    found = f"averaged over prior widths, logit variances {parts}, weighed by {how}"
    sharp = sum(weight for weight, spread in zip(weights, spreads, strict=True) if spread < 1)
    if sharp > 0:
        found += f"; {100 * sharp:.0f} % with a covariance of {grid.spread:g} times the posterior's, by held-out rows"
    if widths[-1] == grid.widths[-1] and shares[widths[-1]] > 0.5:
        return f"{found}; the data do not determine the width, which is as wide as allowed"
    return found


def _shape(problem: Problem, groups: Numbers) -> Numbers:
    """Return the prior variances (G,) of the groups."""
    cov = to_numpy(problem.prior.cov).astype(np.float64)
    return np.asarray([cov[groups == g][0] for g in range(int(groups.max()) + 1)])


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
        gram = problem.features @ problem.features.T
        gram = np.asarray(gram.toarray() if scipy.sparse.issparse(gram) else gram)
        values, U = np.linalg.eigh(gram)
        keep = values > max(values[-1], 1e-300) * size * np.finfo(np.float64).eps
        if not keep.any():
            return None
        roots = np.sqrt(values[keep])
        compact = problem.with_arrays(features=U[:, keep] * roots)
        model = replace(linear, features=len(roots))
        space = cls(replace(compact, model=model), np.asarray(problem.features.T @ (U[:, keep] / roots)))
        return replace(space, problem=replace(space.problem, prior=space._prior(problem)))

    def _prior(self, problem: Problem) -> Gaussian:
        """Return the prior of the problem with all features, in this space."""
        outputs = problem.likelihood.outputs or 1
        mean, cov = (to_numpy(x).astype(np.float64) for x in (problem.prior.mean, problem.prior.cov))
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

    def fit(self, problem: Problem, particles: int = 200, seed: int = 0) -> Posterior:
        """Return the mean-field posterior of a problem with these rows and all features, whose prior may have another
        width.
        """
        own = self.problem.with_prior(self._prior(problem))
        found = run(own, MeanField(), particles=own.dim + 2, seed=seed)
        inner, outputs = found.fitted, problem.likelihood.outputs or 1
        (D, r), P = self.vectors.shape, problem.dim
        lift = np.zeros((P, own.dim))
        lift[: D * outputs, : r * outputs] = np.kron(self.vectors, np.eye(outputs))
        lift[D * outputs :, r * outputs :] = np.eye(P - D * outputs)
        outside = np.zeros((P, (D - r) * outputs))
        sd = math.sqrt(float(problem.prior.cov[0]))
        outside[: D * outputs] = np.kron(sd * self._axes[:, r:], np.eye(outputs))
        basis = np.concatenate([lift @ inner.basis, outside], axis=1)
        points = informed_points(particles, P, np.random.default_rng((seed, 0)))
        ensemble = AffineEnsemble(lift @ inner.mean, basis, points).to(problem.prior.mean)
        return replace(found, ensemble=ensemble, map=problem.linear, state=None)


def _compact_groups(problem: Problem) -> Numbers:
    """Return the groups (P,) of a problem in the space of its rows."""
    linear = problem.linear_logits("an average over the width of the prior")
    outputs = linear.outputs or 1
    return np.repeat([0] * linear.features + [FIXED] * linear.intercept, outputs)
