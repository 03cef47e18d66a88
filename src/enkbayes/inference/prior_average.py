"""The default prior: a Gaussian whose width is not known, averaged over a grid of widths.

The width v is the prior variance of the logit of a typical row: weights N(0, v / mean|x|^2), each feature group in its
own proportion. A grid of widths v_k is weighted in two steps.

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
   their average. So every width N(m, C) also has sharper Gaussians, N(m, s C) and N(m_max, s C) around its most
   probable weights, which are less extreme than the mean. With fewer rows than features they have hardly any variance
   outside the space of the rows, where C is that of the prior and no row can contradict it. Step 2 is done once more
   for all, the sharper ones with a share of the Dirichlet prior. They stay only if the rows are much more probable
   with them; otherwise the average is one of posteriors.

c is smaller where the rows are predicted almost perfectly, in proportion to their log loss: a row of an easy problem
says little, and c rows of an ordinary one would outweigh many of them.

Leave-one-out from one fit would be cheaper than folds, but it is too optimistic where rows are fewer than features, or
priors wide. Folds are cheap where each fit starts from the one before it on the grid. With fewer rows than features all
fits are in the space of the rows, which is exact: outside it the posterior is the prior.

Rows are sorted by class and by how typical they are of it, equal rows are joined, and folds are assigned in this order:
neither the order of the rows nor that of the features matters, equal rows share a fold, and a row of weight 2 counts as
two rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from enkbayes.core.caller import warn
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.moments import Diverged
from enkbayes.core.numerics import OutOfRange, in_range
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import like, square, to_numpy
from enkbayes.engine.rows import ArrayRows, Chunk, Sums
from enkbayes.inference.empirical_bayes import FIXED, with_variances
from enkbayes.inference.evidence import elbo
from enkbayes.inference.many_classes import WidthAverage
from enkbayes.inference.row_space import RowSpace, distinct_rows
from enkbayes.inference.stacking import stacking_weights
from enkbayes.inference.warm_fits import OUTSIDE, Kind, WarmFits, probabilities, short_fits
from enkbayes.samplers import MeanField
from enkbayes.solvers.map_estimate import map_estimate

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
    modes : whether a component is around the most probable weights instead of the mean; empty if none is
    insides : whether it has hardly any variance outside the space of the rows; empty if all have the prior's
    log_loss : of a row, predicted without itself; None if nothing was chosen
    """

    widths: tuple[float, ...]
    variances: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    prior_weights: tuple[float, ...]
    rows: int
    message: str
    intercept: float | None = None
    spreads: tuple[float, ...] = ()
    modes: tuple[bool, ...] = ()
    insides: tuple[bool, ...] = ()
    log_loss: float | None = None

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
    ordinary : log loss of a row, as a share of the entropy of equal classes, below which c is smaller in proportion
    sharp : the sharper Gaussians: the share of the covariance, whether they are around the most probable weights, and
        whether they have hardly any variance outside the space of the rows
    sharper : their share of the Dirichlet prior
    decisive, relative : nats by which the rows must be more probable with them, or the share of the log loss
    negligible : weight below which a component is left out
    tol, tol_folds : residual of the fits to all rows and of those that only predict a fold
    steps, steps_folds : largest numbers of steps of these fits, which start near their ends
    fallback : width that stands for all where nothing can be chosen, because rows cannot be held out
    most : number of parameters of one logit, in the space of the rows, beyond which as many rows as that choose
    most_softmax, most_classes : parameters of a softmax, in the contrasts of its classes and the space of the rows, and
        classes, beyond which it is averaged over point estimates and their spreads, because the cost of a fit grows as
        the third power of the first and the second of the latter
    points_decisive, points_relative : nats, and share of the log loss, by which the rows of a softmax must be more
        probable with an average over point estimates, which folds have scaled, for it to replace a posterior
    counted : logits of all rows up to which equal rows count once in these bounds, so that weights of rows decide as
        their repetitions do
    """

    widths: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
    scale: float = 4.0
    scale_softmax: float = 16.0
    start: float = 10.0
    hopeless: float = 8.0
    folds: int = 5
    few_folds: int = 2
    long: float = 1e9
    pseudo_rows: float = 3.0
    share: float = 0.3
    ordinary: float = 0.72
    sharp: tuple[Kind, ...] = ((1.0, False, True), (0.3, False, True), (0.1, True, True))
    sharper: float = 0.5
    decisive: float = 1.0
    relative: float = 0.1
    negligible: float = 0.01
    tol: float = 1e-2
    tol_folds: float = 5e-2
    steps: int = 40
    steps_folds: int = 12
    fallback: float = 3.0
    most: int = 1000
    most_softmax: int = 500
    most_classes: int = 12
    points_decisive: float = 6.0
    points_relative: float = 0.2
    counted: int = 100_000

    def log_hyperprior(self, problem: Problem) -> Numbers:
        """Return the log prior weight of each width."""
        sd = np.sqrt(np.asarray(self.widths))
        scale = self.scale if problem.likelihood.outputs is None else self.scale_softmax
        density = sd / (1 + (sd / scale) ** 2)
        return np.asarray(np.log(density / density.sum()))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The Gaussians of each width: the posterior, and the sharper ones."""
        return ((1.0, False, False), *self.sharp)

    def weights(
        self, logs: Numbers, log_prior: Numbers, proba: Numbers | None, counts: Numbers, classes: int | None = 2
    ) -> Numbers:
        """Return the weights (W, 1 + S) of the posteriors, and of the S sharper Gaussians of each width if the rows are
        much more probable with them.

        logs, log_prior : log evidence and log prior weight of each width (W,)
        proba : probability (N, W, 1 + S) of each row's class without the row's fold; None where there are no folds
        counts : weights of the rows (N,)
        """
        hyperprior, rest = _normalised(log_prior), np.zeros((len(logs), len(self.sharp)))
        around = _normalised(logs + log_prior)
        if proba is None:
            return np.column_stack([around, rest])
        around = (1 - self.share) * around + self.share * hyperprior
        proba = np.maximum(proba, LEAST)
        posteriors, table = proba[:, :, 0], proba.reshape(len(proba), -1)
        easiest = -float(np.max(counts @ np.log(posteriors))) / float(counts.sum())
        rows = self.pseudo_rows * min(max(easiest / (self.ordinary * math.log(max(classes or 2, 2))), 1e-3), 1.0)
        plain = self._stacked(posteriors, counts, rows, around)
        shares = np.asarray([1 - self.sharper, *(self.sharper / max(rest.shape[1], 1) + rest[0])])
        both = self._stacked(table, counts, rows, np.outer(around, shares).reshape(-1))
        loss, with_all = (-float(counts @ np.log(p @ w)) for p, w in ((posteriors, plain), (table, both)))
        decisive = rest.size and loss - with_all > min(self.decisive, self.relative * loss)
        return both.reshape(len(logs), -1) if decisive else np.column_stack([plain, rest])

    def _stacked(self, proba: Numbers, counts: Numbers, rows: float, around: Numbers) -> Numbers:
        """Return the weights (W,) of predictions that give the classes of the rows these probabilities (N, W)."""
        return stacking_weights(np.log(proba).T, counts, rows, around, steps=300, enough=0.0)

    def prefers(self, points: float, average: float, problem: Problem) -> bool:
        """Return whether the log loss of a row is so much lower with an average over point estimates."""
        rows = problem.size if problem.weights is None else float(np.sum(to_numpy(problem.weights)))
        return (average - points) * rows > self.points_decisive and points < (1 - self.points_relative) * average

    def affordable(self, problem: Problem) -> bool:
        """Return whether fits of all widths to all rows and folds are affordable."""
        K = problem.likelihood.outputs
        if K is None:
            return True
        rows = problem.size
        if rows * K <= self.counted and isinstance(problem.rows, ArrayRows):
            rows = distinct_rows(problem.in_double()).size
        return self.most_classes >= K and (K - 1) * min(problem.dim // K, rows + 1) <= self.most_softmax


SEVERAL_LOGITS = WidthGrid(
    widths=(0.1, 1.0, 10.0, 100.0, 1000.0),
    share=0.1,
    ordinary=0.43,
    sharp=((0.3, False, False), (0.1, True, False)),
    sharper=0.3,
    decisive=2.0,
    relative=math.inf,
)
"""Of a softmax: averages over a few points a row do not converge at wider widths, and a posterior gives way to a
sharper average only where the left-out rows are e^2 times as probable with it (`benchmarks/softmax_choices.py`).
"""


def grid_of(problem: Problem) -> WidthGrid:
    """Return the grid for the likelihood of a problem.

    >>> grid_of(Problem.create(np.eye(3), [0, 1, 2])) == SEVERAL_LOGITS
    True
    """
    return WidthGrid() if problem.likelihood.outputs is None else SEVERAL_LOGITS


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
    """Return the posterior under the default prior, and how its widths were weighted. Estimators call this for problems
    of any size.

    A softmax that is too large for fits of all widths is averaged over point estimates and their spreads
    (`many_classes.py`), and so is a smaller one where the left-out rows are far more probable with them. Rows that are
    not in memory, or are shared between processes, cannot be held out; then a single width stands for all, and a
    UserWarning says so. Parameters are those of `average_over_widths`; a `tuning` that was found before is used as it
    is. With `short`, mean-field fits of few steps, in the space of the rows where that is smaller, stand for `fit`.
    """
    grid, many = grid or grid_of(problem), WidthAverage()
    if tuning is None and not grid.affordable(problem) and many.fits(problem):
        mixture = many.posterior(problem, particles=particles, seed=seed)
        return mixture, _described(problem, groups, mixture)
    average = weigh(problem, groups, grid=grid) if tuning is None else tuning
    if tuning is None and average.log_loss is not None and many.fits(problem):
        choice = many.choose(problem)
        if grid.prefers(choice.log_loss, average.log_loss, problem):
            mixture = many.posterior(problem, choice, particles=particles, seed=seed)
            return mixture, _described(problem, groups, mixture)
    if short and isinstance(problem.rows, ArrayRows) and problem.dim <= MeanField.dense:
        return mixture_of(problem, groups, average, *short_fits(problem, groups, fit, particles, seed)), average
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
    grid = grid or grid_of(problem)
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
    """Return the posterior averaged over the width of the prior, and how the widths were weighted.

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
    problem: Problem,
    groups: Numbers,
    average: PriorAverage,
    fit: Callable[[Problem], Posterior],
    mode: Callable[[Problem], Any] | None = None,
) -> MixturePosterior:
    """Return the mixture of the fits to all rows under each prior of an average, the heaviest first to be fitted;
    `mode` finds the most probable weights of a problem.
    """
    count, mode = len(average.widths), mode or _mode
    spreads = average.spreads or (1.0,) * count
    modes, insides = (kinds or (False,) * count for kinds in (average.modes, average.insides))
    space = RowSpace.of(distinct_rows(problem.in_double()), groups) if any(insides) else None
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
    components = []
    for each, spread, around_mode, inside in zip(average.variances, spreads, modes, insides, strict=True):
        found = fitted[each]
        if inside and space is not None:
            found = replace(found, ensemble=space.narrowed(found.ensemble, OUTSIDE), before=None)
        if spread < 1:
            found = replace(found, ensemble=found.ensemble.scaled(1.0, spread), before=None)
        if around_mode:
            centre = like(mode(with_variances(problem, groups, each)), found.ensemble.mean)
            found = replace(found, ensemble=replace(found.ensemble, mean=centre))
        components.append(found)
    priors = tuple(with_variances(problem, groups, each).prior for each in average.variances)
    return MixturePosterior(
        tuple(components),
        average.weights,
        priors,
        average.prior_weights,
        average.message,
        any(insides) or min(spreads) < 1,
    )


def _mode(problem: Problem) -> Any:
    return map_estimate(problem, tol=1e-4).theta


def weigh_widths(problem: Problem, groups: Numbers, *, grid: WidthGrid | None = None) -> PriorAverage:
    """Return the widths of the prior and their weights; parameters are those of `average_over_widths`.

    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((100, 5))
    >>> weigh_widths(Problem.create(features, features[:, 0] > 0), np.zeros(5, dtype=int)).rows
    100
    """
    return WidthSearch.of(problem, groups, grid or grid_of(problem)).average(problem.size)


def fixed_width(problem: Problem, groups: Numbers, why: str, *, grid: WidthGrid | None = None) -> PriorAverage:
    """Return the grid's `fallback` as the only width, for data of which no rows can be held out.

    >>> problem = Problem.create([[1.0, 1.0], [0.0, 2.0]], [1, 0])
    >>> fixed_width(problem, np.zeros(2, dtype=int), "rows are not in memory").variances
    ((1.0,),)
    """
    grid = grid or grid_of(problem)
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
        squares = square(chunk.features)
        squares = squares if scipy.sparse.issparse(squares) else to_numpy(squares)
        weighted = np.asarray(chunk.counts @ squares).reshape(-1)
        return weighted @ by_feature + np.zeros(1), np.asarray([chunk.counts.sum()])

    with np.errstate(over="ignore"):
        total, size = problem.rows.sum(contribution)
    if not np.isfinite(total[0]):
        raise ValueError("the squares of the features overflow; scale the features, for example by StandardScaler")
    return float(total[0]) / max(float(size[0]), 1e-300) or 1.0  # features that are all zero have no logits


@dataclass(frozen=True, eq=False)
class Compared:
    """Widths (W,) that were compared, their log evidence and log prior weight (W,), and, for each of the rows with
    these weights (N,), the probability (N, W, 1 + S) of its class without its fold; None where there are no folds.
    """

    widths: Numbers
    logs: Numbers
    log_prior: Numbers
    counts: Numbers
    proba: Numbers | None


@dataclass(eq=False)
class WidthSearch:
    """Fits along the grid, in the space of the rows: to all rows, and without each fold.

    problem, groups : rows in their order, equal ones joined, in the space that they span
    shape, unit : prior variances of the groups, and the logit variance that they give
    folds : the fold of each row
    """

    problem: Problem
    groups: Numbers
    shape: Numbers
    unit: float
    folds: Numbers
    grid: WidthGrid
    fits: WarmFits

    @classmethod
    def of(cls, problem: Problem, groups: Numbers, grid: WidthGrid) -> WidthSearch:
        """Pose the search."""
        if not problem.prior.diagonal:
            raise ValueError("the prior has a full covariance; expected a diagonal one to average over its width")
        problem = distinct_rows(problem.in_double())
        shape = _shape(problem, groups)
        shape = shape / shape[0]  # ratios alone count, and the same ones give the same weights, bit by bit
        problem = with_variances(problem, groups, shape)
        unit = logit_variance(problem, groups)
        if problem.likelihood.outputs is None and min(problem.dim, problem.size) > grid.most:
            problem = problem.subset(np.sort(np.random.default_rng(10).permutation(problem.size)[: grid.most]))
        space = RowSpace.of(problem, groups)
        if space is not None:
            problem, groups = space.problem, space.groups
        else:  # there is no space outside that of the rows
            grid = replace(grid, sharp=tuple(dict.fromkeys((s, mode, False) for s, mode, _ in grid.sharp if s < 1)))
        cost = problem.size * problem.dim**2
        count = min(grid.folds if cost <= grid.long else grid.few_folds, problem.size)
        folds = np.arange(problem.size) % max(count, 1)  # the rows are sorted by class
        fits = WarmFits(grid.tol, grid.tol_folds, grid.steps, grid.steps_folds)
        return cls(problem, groups, shape, unit, folds, grid, fits)

    def compared(self) -> Compared:
        """Return what evidence and folds say of the widths, from the start outwards until they are hopeless."""
        grid = self.grid
        log_prior = grid.log_hyperprior(self.problem)
        evidence: dict[int, float] = {}
        proba: dict[int, Numbers] = {}
        start = int(np.argmin(np.abs(np.log(np.asarray(grid.widths) / grid.start))))
        first = None
        for outwards in (range(start, len(grid.widths)), range(start - 1, -1, -1)):
            self.fits.last = first
            for k in outwards:
                evidence[k], proba[k] = self._compared(k)
                first = first or self.fits.last
                if self._hopeless(k, evidence, proba, log_prior):
                    break
        tried = sorted(evidence)
        table = np.stack([proba[k] for k in tried], axis=1) if len(np.unique(self.folds)) > 1 else None
        logs, counts = np.asarray([evidence[k] for k in tried]), np.asarray(self.problem.weights)
        return Compared(np.asarray(grid.widths)[tried], logs, log_prior[tried], counts, table)

    def average(self, rows: int) -> PriorAverage:
        """Return the weights of the widths; `rows` is the number of rows before equal ones were joined."""
        grid, found, folds = self.grid, self.compared(), len(np.unique(self.folds))
        classes = self.problem.likelihood.n_classes
        weights = grid.weights(found.logs, found.log_prior, found.proba, found.counts, classes)
        kept = np.argwhere(weights >= min(grid.negligible, float(weights.max())))
        shares = np.asarray([weights[i, s] for i, s in kept])
        shares /= shares.sum()
        widths = tuple(float(found.widths[i]) for i, _ in kept)
        kinds = [grid.kinds[s] for _, s in kept]
        spreads, modes, insides = zip(*kinds, strict=True)
        sharper, loss = min(spreads) < 1 or any(insides), None
        if found.proba is not None:
            proba = np.einsum("nws,ws->n", found.proba, np.where(weights >= grid.negligible, weights, 0.0))
            loss = -float(found.counts @ np.log(np.maximum(proba, LEAST)) / found.counts.sum())
        return PriorAverage(
            widths=widths,
            variances=tuple(tuple(map(float, self._variances(width))) for width in widths),
            weights=tuple(map(float, shares)),
            prior_weights=tuple(float(np.exp(found.log_prior[i])) for i, _ in kept),
            rows=rows if folds > 1 else 0,
            message=_message(widths, kinds, shares, rows, folds, grid),
            spreads=spreads if sharper else (),
            modes=modes if sharper else (),
            insides=insides if sharper else (),
            log_loss=loss,
        )

    def _variances(self, width: float) -> Numbers:
        return self.shape * (width / self.unit)

    def _compared(self, k: int) -> tuple[float, Numbers]:
        """Return the log evidence of a width, from below, and the probability (N, 1 + S) of each row's class under the
        fit without its fold, and under the sharper Gaussians.
        """
        found = np.full((self.problem.size, len(self.grid.kinds)), LEAST)
        before = self.fits.last
        try:
            whole = self.fits.whole(with_variances(self.problem, self.groups, self._variances(self.grid.widths[k])))
            evidence = whole.log_evidence
        except (Diverged, OutOfRange, np.linalg.LinAlgError):
            self.fits.last = before
            return -math.inf, found
        targets = to_numpy(self.problem.targets).astype(int)
        for fold in map(int, np.unique(self.folds)):
            inside, outside = np.flatnonzero(self.folds == fold), np.flatnonzero(self.folds != fold)
            if not len(outside):
                continue
            try:
                fit = self.fits.part(whole, fold, outside)
                for i, proba in enumerate(probabilities(fit, self.problem.features[inside, :], self.grid.kinds)):
                    found[inside, i] = proba[np.arange(len(inside)), targets[inside]]
            except (Diverged, OutOfRange, np.linalg.LinAlgError):
                found[inside] = LEAST
        return evidence, found

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


def _message(
    widths: Sequence[float], kinds: Sequence[Kind], weights: Numbers, size: int, folds: int, grid: WidthGrid
) -> str:
    by_width: dict[float, float] = {}
    for width, weight in zip(widths, weights, strict=True):
        by_width[width] = by_width.get(width, 0.0) + float(weight)
    parts = ", ".join(f"{width:g} ({100 * share:.0f} %)" for width, share in by_width.items())
    how = f"evidence and {folds} folds of {size:,} rows" if folds > 1 else "evidence"
    found = f"averaged over prior widths, logit variances {parts}, weighted by {how}"
    sharp = [(weight, kind) for weight, kind in zip(weights, kinds, strict=True) if kind != grid.kinds[0]]
    if sharp:
        shares = " or ".join(f"{share:g}" for share in sorted({share for _, (share, _, _) in sharp}))
        inside = " in the space of the rows" if any(inside for _, (_, _, inside) in sharp) else ""
        total = 100 * sum(weight for weight, _ in sharp)
        found += f"; {total:.0f} % with a covariance of {shares} times the posterior's{inside}, by held-out rows"
    if widths[-1] == grid.widths[-1] and by_width[widths[-1]] > 0.5:
        return f"{found}; the data do not determine the width, which is as wide as allowed"
    return found


def _shape(problem: Problem, groups: Numbers) -> Numbers:
    """Return the prior variances (G,) of the groups."""
    cov = to_numpy(problem.prior.cov).astype(np.float64)
    return np.asarray([cov[groups == g][0] for g in range(int(groups.max()) + 1)])
