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
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import scipy.sparse

from enkbayes.core.caller import warn
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.moments import Diverged
from enkbayes.core.numerics import OutOfRange, in_range
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import dense_numpy, like, square, to_numpy
from enkbayes.engine.rows import ArrayRows, Chunk, Sums
from enkbayes.inference.empirical_bayes import FIXED, with_variances
from enkbayes.inference.feature_frame import FeatureFrame, frames_of, in_its_frame
from enkbayes.inference.folds import log_losses
from enkbayes.inference.many_classes import WidthAverage, WidthChoice
from enkbayes.inference.row_space import RowSpace, distinct_rows
from enkbayes.inference.stacking import stacking_weights
from enkbayes.inference.warm_fits import OUTSIDE, Fits, Kind, WarmFits, probabilities, short_fits
from enkbayes.samplers import MeanField
from enkbayes.solvers.map_estimate import map_estimate

Numbers = np.ndarray[Any, Any]
T = TypeVar("T")
LEAST = 1e-12  # probability that a row has at least, where logarithms are taken


@dataclass(frozen=True)
class Component:
    """One Gaussian of the average.

    width : prior variance of the logit of a typical row
    variances : prior variance of the weights, one number for each group of features; of standardised features, if the
        component has `standardised` ones
    weight : in the average
    prior_weight : under the hyperprior
    standardised : whether its prior is isotropic for standardised features
    spread : share of the posterior's covariance that it has
    around_mode : whether it is around the most probable weights instead of the mean
    inside : whether it has hardly any variance outside the space of the rows
    """

    width: float
    variances: tuple[float, ...]
    weight: float
    prior_weight: float
    standardised: bool = False
    spread: float = 1.0
    around_mode: bool = False
    inside: bool = False

    @property
    def sharper(self) -> bool:
        """Whether it is not the posterior under its prior."""
        return self.spread < 1 or self.around_mode or self.inside


@dataclass(frozen=True)
class PriorAverage:
    """The Gaussians that are averaged over, from narrow to wide priors.

    components : the Gaussians
    rows : number of rows that chose the weights, each predicted without itself; 0 if nothing was chosen
    message : a sentence
    intercept : variance of the intercept, if it was chosen too
    centre, scale : means and standard deviations of the features, where the prior refers to centred ones; else empty
    log_loss : of a row, predicted without itself; None if nothing was chosen
    """

    components: tuple[Component, ...]
    rows: int
    message: str
    intercept: float | None = None
    centre: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    log_loss: float | None = None

    @property
    def widths(self) -> tuple[float, ...]:
        """The width of each component."""
        return tuple(each.width for each in self.components)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each component."""
        return tuple(each.weight for each in self.components)

    @property
    def heaviest(self) -> Component:
        """The component with the largest weight."""
        return max(self.components, key=lambda each: each.weight)

    @property
    def precisions(self) -> Numbers:
        """One precision (G,) for each group of features, or (D,) for each feature if components standardise them: the
        geometric mean over the components, by their weights.
        """
        squares = np.asarray(self.scale) ** 2 if any(each.standardised for each in self.components) else np.ones(1)
        found = [np.asarray(each.variances) / (squares if each.standardised else 1.0) for each in self.components]
        found = [variances * np.ones_like(squares) if len(squares) > 1 else variances for variances in found]
        return np.asarray(np.exp(-np.asarray(self.weights) @ np.log(np.stack(found))))

    def in_units_of(self, frames: Sequence[FeatureFrame | None]) -> PriorAverage:
        """Return the average that knows the centre and, from the last of the coordinates, the scale of the features."""
        if (last := frames[-1]) is None:
            return self
        return replace(self, centre=tuple(map(float, last.centre)), scale=tuple(map(float, last.scale)))

    def frame(self, component: Component) -> FeatureFrame | None:
        """The coordinates in which the prior of a component is isotropic; None for those of the features."""
        if not self.centre:
            return None
        centre, scale = np.asarray(self.centre), np.asarray(self.scale)
        return FeatureFrame(centre, scale if component.standardised else np.ones_like(scale))

    def prior(self, component: Component, problem: Problem, groups: Numbers) -> Gaussian:
        """Return the prior of a component; parameters without a group keep that of the problem."""
        own, frame = with_variances(_uncentred(problem), groups, component.variances).prior, self.frame(component)
        return own if frame is None else frame.prior(own)


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
    if tuning is None and not grid.affordable(problem) and many.fits(_uncentred(problem)):
        return _PointEstimates.of(problem, groups, many).average(particles, seed)
    average = weigh(problem, groups, grid=grid) if tuning is None else tuning
    if tuning is None and average.log_loss is not None and many.fits(_uncentred(problem)):
        points = _PointEstimates.of(problem, groups, many)
        if grid.prefers(points.choice.log_loss, average.log_loss, problem):
            return points.average(particles, seed)
    short = short and isinstance(problem.rows, ArrayRows) and problem.dim <= MeanField.dense
    make = partial(short_fits, groups=groups, fit=fit, particles=particles, seed=seed) if short else None
    return mixture_of(problem, groups, average, fit, make), average


@dataclass(frozen=True, eq=False)
class _PointEstimates:
    """An average over point estimates of a problem, in the coordinates in which left-out rows are most probable."""

    problem: Problem
    groups: Numbers
    frame: FeatureFrame | None
    frames: tuple[FeatureFrame | None, ...]
    many: WidthAverage
    choice: WidthChoice

    @classmethod
    def of(cls, problem: Problem, groups: Numbers, many: WidthAverage) -> _PointEstimates:
        """Choose the average in each of the coordinates that are worth trying."""
        frames = frames_of(problem, groups)
        inner = [_inside(problem, frame) for frame in frames]
        tried = [
            cls(own, groups, frame, frames, many, many.choose(own)) for own, frame in zip(inner, frames, strict=True)
        ]
        return min(tried, key=lambda each: each.choice.log_loss)

    def average(self, particles: int, seed: int) -> tuple[MixturePosterior, PriorAverage]:
        """Return the mixture, and what it averages over."""
        mixture = self.many.posterior(self.problem, self.choice, particles=particles, seed=seed)
        own, frame = [self.problem.with_prior(prior) for prior in mixture.priors], self.frame
        standardised = _standardised(frame)
        components = []
        for each, weight, prior_weight in zip(own, mixture.weights, mixture.prior_weights, strict=True):
            variances = tuple(map(float, _shape(each, self.groups)))
            width = logit_variance(each, self.groups)
            components.append(Component(width, variances, weight, prior_weight, standardised))
        found = PriorAverage(tuple(components), self.problem.size, mixture.message)
        average = found.in_units_of(self.frames)
        return mixture if frame is None else frame.mixture(mixture), average


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


def updated(
    problem: Problem, mixture: MixturePosterior, fit: Callable[[Problem], Posterior], average: T
) -> tuple[MixturePosterior, T]:
    """Return the mixture after more rows, and the average with the number of all rows: every component is the prior of
    its next fit, and the weights of those that predicted the new rows better grow.

    They are those of stacking for what each component predicted of the new rows before it learned them, around the
    weights so far, which count as much as the rows that have chosen them. Evidence would compare components, too, but
    its bounds are looser for wide priors. Point estimates have no spread to learn with, and stay as they are.

    >>> import enkbayes as eb
    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((200, 3))
    >>> first, second = (eb.Problem.create(x, x[:, 0] > 0) for x in np.split(features, 2))
    >>> mixture, average = average_over_widths(first, np.zeros(3, dtype=int), eb.run)
    >>> later, average = updated(second, mixture, eb.run, average)
    >>> len(later.components) == len(mixture.components), later.weights != mixture.weights, average.rows
    (True, True, 200)
    """
    frame = FeatureFrame.of(problem.prior)
    components, priors, logs = [], [], []
    for component in mixture.components:
        proba = to_numpy(component.predict_proba(problem.features))
        logs.append(-log_losses(np.maximum(proba, LEAST), to_numpy(problem.targets)))
        before = component.fitted.to(problem.prior.mean)
        before = before if frame is None else frame.ensemble(before, inwards=True)
        prior = replace(component, ensemble=before, before=None).distribution
        priors.append(prior if frame is None else frame.prior(prior))
        own = replace(problem.with_prior(priors[-1]), likelihood=component.likelihood)
        components.append(replace(in_its_frame(own, fit), state=None))
    rows = average.rows if isinstance(average, PriorAverage) else 0
    weights = stacking_weights(np.stack(logs), problem.counts, rows, np.asarray(mixture.weights))
    found_weights = tuple(map(float, weights / weights.sum()))
    later = MixturePosterior(tuple(components), found_weights, tuple(priors), mixture.weights, mixture.message)
    return later, replace(average, rows=rows + problem.size) if isinstance(average, PriorAverage) else average


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
    short: Callable[[Problem], Fits] | None = None,
) -> MixturePosterior:
    """Return the mixture of the fits to all rows under each prior of an average, the heaviest first to be fitted. Of a
    problem in the coordinates of a component, `short` returns the functions that fit it and find its most probable
    weights; by default they are `fit`, and a search.
    """
    parts: dict[bool, _Part] = {}
    found: dict[Component, Posterior] = {}
    points: Any = None
    for each in sorted(average.components, key=lambda each: -each.weight):
        if each.standardised not in parts:
            frame = average.frame(each) if isinstance(problem.rows, ArrayRows) else None
            own = _inside(problem, frame)
            parts[each.standardised] = _Part(own, groups, frame, *((fit, None) if short is None else short(own)))
        part = parts[each.standardised]
        prior = average.prior(each, problem, groups) if part.frame is None else None
        found[each] = part.posterior(each, prior, points)
        points = found[each].ensemble.points if points is None else points
    return MixturePosterior(
        tuple(found[each] for each in average.components),
        average.weights,
        tuple(average.prior(each, problem, groups) for each in average.components),
        tuple(each.prior_weight for each in average.components),
        average.message,
        any(each.sharper for each in average.components),
    )


@dataclass(eq=False)
class _Part:
    """The components of a mixture whose fits have the same coordinates."""

    problem: Problem
    groups: Numbers
    frame: FeatureFrame | None
    fit: Callable[[Problem], Posterior]
    mode: Callable[[Problem], Any] | None
    fitted: dict[tuple[float, ...], Posterior] = field(default_factory=dict)

    def posterior(self, component: Component, prior: Gaussian | None, points: Any) -> Posterior:
        """Return a component with all features as they were given; equal points are stored once."""
        own = (
            self.problem.with_prior(prior) if prior else with_variances(self.problem, self.groups, component.variances)
        )
        if component.variances not in self.fitted:
            found = replace(self.fit(own), state=None)
            if points is not None and np.array_equal(to_numpy(found.ensemble.points), to_numpy(points)):
                found = replace(found, ensemble=replace(found.ensemble, points=points))
            self.fitted[component.variances] = found
        found = self.fitted[component.variances]
        if component.inside and self.space is not None:
            found = replace(found, ensemble=self.space.narrowed(found.ensemble, OUTSIDE), before=None)
        if component.spread < 1:
            found = replace(found, ensemble=found.ensemble.scaled(1.0, component.spread), before=None)
        if component.around_mode:
            mode = map_estimate(own, tol=1e-4).theta if self.mode is None else self.mode(own)
            found = replace(found, ensemble=replace(found.ensemble, mean=like(mode, found.ensemble.mean)))
        return found if self.frame is None else self.frame.outside(found)

    @cached_property
    def space(self) -> RowSpace | None:
        """The space of the rows, if it is smaller than that of the features."""
        return RowSpace.of(distinct_rows(self.problem.in_double()), self.groups)


def weigh_widths(problem: Problem, groups: Numbers, *, grid: WidthGrid | None = None) -> PriorAverage:
    """Return the widths of the prior and their weights; parameters are those of `average_over_widths`.

    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((100, 5))
    >>> weigh_widths(Problem.create(features, features[:, 0] > 0), np.zeros(5, dtype=int)).rows
    100
    """
    grid = grid or grid_of(problem)
    if not _uncentred(problem).prior.diagonal:
        raise ValueError("the prior has a full covariance; expected a diagonal one to average over its width")
    return SearchedPriors.of(problem, groups, grid).average(problem.size)


def fixed_width(problem: Problem, groups: Numbers, why: str, *, grid: WidthGrid | None = None) -> PriorAverage:
    """Return the grid's `fallback` as the only width, for data of which no rows can be held out.

    >>> problem = Problem.create([[1.0, 1.0], [0.0, 2.0]], [1, 0])
    >>> fixed_width(problem, np.zeros(2, dtype=int), "rows are not in memory").components[0].variances
    (1.0,)
    """
    grid, frames = grid or grid_of(problem), frames_of(problem, groups)
    own = _inside(problem, frames[-1])
    variances = tuple(float(x) for x in _shape(own, groups) * grid.fallback / logit_variance(own, groups))
    message = f"one prior width, logit variance {grid.fallback:g}, because {why}"
    component = Component(grid.fallback, variances, 1.0, 1.0, _standardised(frames[-1]))
    return PriorAverage((component,), 0, message).in_units_of(frames)


def _inside(problem: Problem, frame: FeatureFrame | None) -> Problem:
    """Return a problem in some coordinates, or with its features as they are."""
    return _uncentred(problem) if frame is None else frame.inside(problem)


def _standardised(frame: FeatureFrame | None) -> bool:
    """Return whether features are divided by their standard deviations."""
    return frame is not None and frame.standardised


def _uncentred(problem: Problem) -> Problem:
    """Return a problem whose prior, if an average has chosen it, is one for features that are centred already."""
    prior, linear = problem.prior, problem.linear_logits("an average over the width of the prior")
    if prior.centre is None:
        return problem
    cov = to_numpy(prior.cov).copy()
    cov[: linear.features * (linear.outputs or 1)] = 1.0
    return problem.with_prior(Gaussian(to_numpy(prior.mean), cov))


def logit_variance(problem: Problem, groups: Numbers) -> float:
    """Return the prior variance of a typical row's logit that comes from the parameters of all groups.

    >>> problem = Problem.create([[1.0, 1.0], [0.0, 2.0]], [1, 0], 2.0, intercept=100.0)
    >>> logit_variance(problem, np.asarray([0, 0, -1]))
    6.0
    """
    linear = problem.linear_logits("an average over the width of the prior")
    outputs = linear.outputs or 1
    centre = None if problem.prior.centre is None else to_numpy(problem.prior.centre)
    variances = np.where(groups == FIXED, 0.0, to_numpy(problem.prior.cov))
    by_feature = variances.reshape(-1, outputs).mean(axis=1)[: linear.features]

    def contribution(chunk: Chunk) -> Sums:
        squares = square(chunk.features if centre is None else dense_numpy(chunk.features) - centre)
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
    `part` (W,) is the number of the coordinates.
    """

    widths: Numbers
    logs: Numbers
    log_prior: Numbers
    counts: Numbers
    proba: Numbers | None
    part: Numbers

    @classmethod
    def joined(cls, parts: Sequence[Compared]) -> Compared:
        """Return what was compared in several coordinates, which are equally probable beforehand."""
        if len(parts) == 1:
            return parts[0]
        logs, widths, log_prior = (
            np.concatenate([getattr(p, name) for p in parts]) for name in ("logs", "widths", "log_prior")
        )
        proba = None if parts[0].proba is None else np.concatenate([p.proba for p in parts], axis=1)
        number = np.repeat(np.arange(len(parts)), [len(p.widths) for p in parts])
        return cls(widths, logs, log_prior - math.log(len(parts)), parts[0].counts, proba, number)


@dataclass(frozen=True, eq=False)
class SearchedPriors:
    """The searches along the grid in each of the coordinates that are worth trying, with the same rows and folds."""

    frames: tuple[FeatureFrame | None, ...]
    searches: tuple[WidthSearch, ...]
    grid: WidthGrid

    @classmethod
    def of(cls, problem: Problem, groups: Numbers, grid: WidthGrid) -> SearchedPriors:
        """Pose the searches. The order of the rows is that in the last coordinates, in which units do not matter."""
        frames = frames_of(problem, groups)
        rows = distinct_rows(_inside(problem.in_double(), frames[-1]))
        if rows.likelihood.outputs is None and min(rows.dim, rows.size) > grid.most:
            rows = rows.subset(np.sort(np.random.default_rng(10).permutation(rows.size)[: grid.most]))
        last, searches = frames[-1], []
        for frame in frames:
            own = rows
            if frame is not None and last is not None and frame is not last:
                own = rows.with_arrays(features=rows.features * (last.scale / frame.scale))
            searches.append(WidthSearch.of(own, groups, grid))
        return cls(frames, tuple(searches), searches[0].grid)

    def average(self, rows: int) -> PriorAverage:
        """Return the weights of the widths; `rows` is the number of rows before equal ones were joined."""
        grid, first = self.grid, self.searches[0]
        found = Compared.joined([search.compared() for search in self.searches])
        problem, folds = first.problem, len(np.unique(first.folds))
        weights = grid.weights(found.logs, found.log_prior, found.proba, found.counts, problem.likelihood.n_classes)
        kept = np.argwhere(weights >= min(grid.negligible, float(weights.max())))
        total = sum(weights[i, s] for i, s in kept)
        components = []
        for i, s in kept:
            search, frame = self.searches[found.part[i]], self.frames[found.part[i]]
            width = float(found.widths[i])
            variances = tuple(map(float, search.variances(width)))
            weight, prior_weight = float(weights[i, s] / total), float(np.exp(found.log_prior[i]))
            components.append(Component(width, variances, weight, prior_weight, _standardised(frame), *grid.kinds[s]))
        loss = None
        if found.proba is not None:
            proba = np.einsum("nws,ws->n", found.proba, np.where(weights >= grid.negligible, weights, 0.0))
            loss = -float(found.counts @ np.log(np.maximum(proba, LEAST)) / found.counts.sum())
        message = _message(components, rows, folds, grid)
        average = PriorAverage(tuple(components), rows if folds > 1 else 0, message, log_loss=loss)
        return average.in_units_of(self.frames)


@dataclass(eq=False)
class WidthSearch:
    """Fits along the grid, in the space of the rows: to all rows, and without each fold.

    problem, groups : distinct rows in their order, in the space that they span
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
        """Pose the search for distinct rows."""
        shape = _shape(problem, groups)
        shape = shape / shape[0]  # ratios alone count, and the same ones give the same weights, bit by bit
        problem = with_variances(problem, groups, shape)
        unit = logit_variance(problem, groups)
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
        widths, part = np.asarray(grid.widths)[tried], np.zeros(len(tried), dtype=int)
        return Compared(widths, logs, log_prior[tried], counts, table, part)

    def variances(self, width: float) -> Numbers:
        """Return the prior variances (G,) of the groups at a width."""
        return self.shape * (width / self.unit)

    def _compared(self, k: int) -> tuple[float, Numbers]:
        """Return the log evidence of a width, from below, and the probability (N, 1 + S) of each row's class under the
        fit without its fold, and under the sharper Gaussians.
        """
        found = np.full((self.problem.size, len(self.grid.kinds)), LEAST)
        before = self.fits.last
        try:
            whole = self.fits.whole(with_variances(self.problem, self.groups, self.variances(self.grid.widths[k])))
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


def _message(components: Sequence[Component], size: int, folds: int, grid: WidthGrid) -> str:
    by_width: dict[float, float] = {}
    for each in sorted(components, key=lambda each: each.width):
        by_width[each.width] = by_width.get(each.width, 0.0) + each.weight
    parts = ", ".join(f"{width:g} ({100 * share:.0f} %)" for width, share in by_width.items())
    how = f"evidence and {folds} folds of {size:,} rows" if folds > 1 else "evidence"
    found = f"averaged over prior widths, logit variances {parts}, weighted by {how}"
    if standardised := 100 * sum(each.weight for each in components if each.standardised):
        found += f"; {standardised:.0f} % for standardised features"
    sharp = [each for each in components if each.sharper]
    if sharp:
        shares = " or ".join(f"{share:g}" for share in sorted({each.spread for each in sharp}))
        inside = " in the space of the rows" if any(each.inside for each in sharp) else ""
        total = 100 * sum(each.weight for each in sharp)
        found += f"; {total:.0f} % with a covariance of {shares} times the posterior's{inside}, by held-out rows"
    widths = sorted(by_width)
    if widths[-1] == grid.widths[-1] and by_width[widths[-1]] > 0.5:
        return f"{found}; the data do not determine the width, which is as wide as allowed"
    return found


def _shape(problem: Problem, groups: Numbers) -> Numbers:
    """Return the prior variances (G,) of the groups."""
    cov = to_numpy(problem.prior.cov).astype(np.float64)
    return np.asarray([cov[groups == g][0] for g in range(int(groups.max()) + 1)])
