"""Empirical Bayes: the prior variances that maximise the evidence.

Parameters come in groups with one prior variance each, N(m0, s_g^2 I). The evidence Z(s) has the slope

    d log Z / d log s_g^2 = (E|theta_g - m0_g|^2 / s_g^2 - D_g) / 2,

with D_g the size of the group and E over the posterior. The search first moves all groups together: it climbs in log
s^2 until the slope changes its sign, and then narrows the bracket until the tangents at both of its ends leave less
than a stated gain to be found. More than one group continues with a bounded quasi-Newton method.

The evidence is that of expectation propagation. The mean-field bound, the ELBO, would be simpler, but it falls below
the evidence as the prior widens and so prefers narrow priors: on pairs of digits by more than two decades, at 1.5 times
the held-out loss. It is used where expectation propagation does not converge, and where P x P matrices do not fit into
memory.

On separable data the evidence of wide priors rises towards a limit, because the data do not determine the scale of the
weights. Three things keep the choice well defined. A weak hyperprior of v = s_g^2, in units of the inverse mean square
of the group's features, with the log density shape (log(1 + v) - v / widest), tilts the plateau towards wide priors, by
less than any observation would, and says nothing of narrow ones. v stays between `narrowest` and `widest`. And where
the classes are separated and a ten times wider prior gains less than `plateau` nats, the search stops: further on, fits
take longer and longer, and the evidence cannot tell their widths apart. The search climbs from v = 1 to the nearest
maximum, and warns if it ends at a plateau or a bound.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from scipy.interpolate import CubicHermiteSpline
from scipy.optimize import minimize

from enkbayes.core.caller import warn
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian, standard_points
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.moments import Diverged
from enkbayes.core.numerics import in_range
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import as_double, square, to_numpy
from enkbayes.inference.evidence import elbo
from enkbayes.inference.propagation import Sites, propagate
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run
from enkbayes.samplers.start import default_sampler

Numbers = np.ndarray[Any, Any]
FIXED = -1  # the label of parameters that keep their prior


@dataclass(frozen=True)
class PriorSearch:
    """The bounds, the hyperprior and the stopping rule of the search.

    narrowest, widest : bounds of a variance, for features of unit mean square
    shape : of the hyperprior; for wide priors it is the slope of its log density in log s^2
    largest_residual : of expectation propagation, beyond which its evidence is not used
    gain : of the log evidence that may be left when the search ends
    factor : between the variances of the climb
    plateau : gain of the log evidence by another factor, below which that of separated classes counts as flat; less
        than the log 2 = .69 of a single coin
    closest : factor between the two ends of a bracket at which the search ends
    most_fits : after which the search stops
    most_parameters : beyond which the ELBO replaces the evidence of expectation propagation
    """

    narrowest: float = 1e-4
    widest: float = 1e4
    shape: float = 0.1
    largest_residual: float = 0.1
    gain: float = 0.01
    factor: float = 10.0
    plateau: float = 0.5
    closest: float = 1.1
    most_fits: int = 40
    most_parameters: int = MeanField.dense

    def log_hyperprior(self, x: Numbers) -> float:
        """Return the log density of s_g^2 = exp(x), in units of the features, up to a constant."""
        return self.shape * float(np.sum(np.logaddexp(0.0, x) - np.exp(x) / self.widest))

    def hyperprior_slope(self, x: Numbers) -> Numbers:
        """Return the slope of the log density in log s_g^2."""
        return np.asarray(self.shape * (1 / (1 + np.exp(-x)) - np.exp(x) / self.widest))


@dataclass(frozen=True)
class Tuning:
    """What was chosen: one prior variance for each group, their log evidence and its method, the number of fits,
    whether the search converged to a maximum inside its bounds (false for a plateau, which has none), and a sentence.

    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((60, 2))
    >>> _, tuning = tune_prior(eb.Problem.create(features, features[:, 0] > 0.3))
    >>> len(tuning.variances), tuning.converged
    (1, True)
    """

    variances: tuple[float, ...]
    log_evidence: float
    method: str
    fits: int
    converged: bool
    message: str

    @property
    def precisions(self) -> Numbers:
        """The inverse variances (G,)."""
        return 1 / np.asarray(self.variances)


def tune_prior(problem: Problem, groups: Any = None, *, search: PriorSearch | None = None) -> tuple[Problem, Tuning]:
    """Return the problem with the prior variances that maximise the evidence, and how they were found.

    A `ConvergenceWarning` says when the search did not converge, or ended at a bound.

    Parameters
    ----------
    problem : Problem
        With linear logits and a prior that has a diagonal covariance; its mean is kept.
    groups : array (P,) of integers, optional
        The parameters of each group 0, 1, ... share a variance; parameters with -1 keep their prior. By default all
        weights are one group, and an intercept keeps its prior.
    search : PriorSearch, optional
        The bounds, the hyperprior and the stopping rule of the search.

    Examples
    --------
    >>> import enkbayes as eb
    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((400, 5))
    >>> labels = rng.random(400) < 1 / (1 + np.exp(-features @ np.full(5, 0.3)))
    >>> tuned, tuning = tune_prior(eb.Problem.create(features, labels, prior=100.0))
    >>> tuning.converged, bool(0.02 < tuned.prior.cov[0] < 0.5)
    (True, True)
    """
    linear = problem.linear_logits("a prior chosen by evidence")
    if not problem.prior.diagonal:
        raise ValueError("the prior has a full covariance; expected a diagonal one to tune its variances")
    labels = parameter_groups(linear) if groups is None else np.asarray(groups)
    numbers = set(labels.tolist()) - {FIXED}
    if labels.shape != (problem.dim,) or not numbers or numbers != set(range(len(numbers))):
        raise ValueError(
            f"groups have shape {labels.shape}; expected ({problem.dim},) with labels 0, 1, ... and -1 for fixed ones"
        )
    with in_range("the evidence"):
        found, tuning = _found(problem, labels, PriorSearch() if search is None else search)
    if not tuning.converged:
        from sklearn.exceptions import ConvergenceWarning

        warn(f"prior {tuning.message}", ConvergenceWarning)
    return found, tuning


def _found(problem: Problem, labels: Numbers, search: PriorSearch) -> tuple[Problem, Tuning]:
    """Maximise the evidence of expectation propagation, or the ELBO where it is not available or takes too long."""
    quick = default_sampler(problem)
    if isinstance(quick, MeanField):
        return _searched(problem, labels, _ByBound(quick), search)
    if problem.dim <= search.most_parameters:
        with suppress(Diverged):
            by_propagation = _ByPropagation(search.largest_residual)
            return _searched(problem, labels, by_propagation, search)
    return _searched(problem, labels, _ByBound(), search)


def parameter_groups(
    linear: LinearLogits, features: Any = None, *, weights: bool = True, intercept: bool = False
) -> Numbers:
    """Return the group (P,) of each parameter from the label (D,) of each feature, of any kind.

    Without `weights` the weights keep their prior (-1). So does an intercept, unless it is to be a group, the last one.

    >>> parameter_groups(LinearLogits(3, None, intercept=True), ["a", "b", "a"]).tolist()
    [0, 1, 0, -1]
    """
    numbers = feature_groups(linear.features, features) if weights else np.full(linear.features, FIXED)
    if linear.intercept:
        numbers = np.append(numbers, numbers.max() + 1 if intercept else FIXED)
    return np.repeat(numbers, linear.outputs or 1)


def feature_groups(size: int, labels: Any = None) -> Numbers:
    """Return labels (D,) of any kind as numbers 0, 1, ...; one group without labels."""
    if labels is None:
        return np.zeros(size, dtype=np.int64)
    given = np.asarray(labels)
    if given.shape != (size,):
        raise ValueError(f"prior_groups has shape {given.shape}; expected ({size},), a label for each feature")
    if given.dtype.kind == "f" and not np.all(np.isfinite(given)):
        raise ValueError("prior_groups contains NaN or infinite values; expected text, or numbers")
    try:
        return np.unique(given, return_inverse=True)[1]
    except TypeError:
        raise ValueError("prior_groups has labels that cannot be sorted; expected text, or numbers") from None


def with_variances(problem: Problem, groups: Numbers, variances: Any) -> Problem:
    """Return the problem with these prior variances (G,) of the groups of its parameters (P,)."""
    found = np.asarray(variances, dtype=np.float64)[np.maximum(groups, 0)]
    cov = np.where(groups == FIXED, to_numpy(problem.prior.cov), found)
    return problem.with_prior(Gaussian(to_numpy(problem.prior.mean), cov, problem.prior.centre))


@dataclass
class _ByPropagation:
    """Problem -> log evidence, E(theta_i - m0_i)^2 (P,) and E theta (P,), by expectation propagation from the last
    fit's sites.
    """

    largest_residual: float
    sites: Sites | None = None
    name: ClassVar[str] = "expectation propagation"

    def __call__(self, problem: Problem) -> tuple[float, Numbers, Numbers]:
        found = propagate(problem, self.sites, tol=5e-3)  # the evidence is off by the square of the residual only
        if not found.residual < self.largest_residual:
            raise Diverged("expectation propagation does not converge")
        self.sites = found.sites
        squares = np.sum(found.basis**2, axis=1) + (found.mean - problem.prior.mean) ** 2
        return found.log_evidence, squares, found.mean


@dataclass
class _ByBound:
    """The same by `MeanField`, each time from the Gaussian of the last fit unless that has a complement."""

    sampler: MeanField = field(default=MeanField(tol=1e-4))
    last: AffineEnsemble | None = None
    name: ClassVar[str] = "ELBO"

    def __call__(self, problem: Problem) -> tuple[float, Numbers, Numbers]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fit that has not converged yet still bounds the evidence
            posterior = run(problem, self.sampler, particles=200, theta=self._start())
        fitted = posterior.ensemble
        self.last = fitted if fitted.complement is None else None
        bound = -posterior.state.control.free_energy if self.sampler.rank == 0 else elbo(problem, posterior).value
        return bound, fitted.variances + (fitted.mean - problem.prior.mean) ** 2, as_double(fitted.mean)

    def _start(self) -> Numbers | None:
        if self.last is None:
            return None
        points = standard_points(self.last.rank + 1, self.last.rank, np.random.default_rng(0))
        return np.asarray(replace(self.last, points=points).theta)


@dataclass(eq=False)
class _Objective:
    """x = log s_g^2 (G,) -> log evidence plus log hyperprior, and its slope (G,). It counts the fits."""

    problem: Problem
    labels: Numbers
    fit: _ByPropagation | _ByBound
    search: PriorSearch
    centre: Numbers
    fits: int = 0
    mean: Numbers | None = None  # of the parameters in the last fit

    def __call__(self, x: Numbers) -> tuple[float, Numbers]:
        self.fits += 1
        chosen = self.labels != FIXED
        value, squares, self.mean = self.fit(with_variances(self.problem, self.labels, np.exp(x)))
        groups = self.labels[chosen]
        slope = (np.bincount(groups, squares[chosen]) / np.exp(x) - np.bincount(groups)) / 2
        v = x - self.centre
        return value + self.search.log_hyperprior(v), slope + self.search.hyperprior_slope(v)

    def separates(self) -> bool:
        """Return whether the mean parameters of the last fit predict the class of every row."""
        if self.mean is None or self.problem.likelihood.n_classes is None:
            return False
        linear = self.problem.linear_logits("a prior chosen by evidence")
        logits = linear.particle_logits(self.problem.features, self.mean[None, :])
        proba = as_double(self.problem.likelihood.mean(logits))[:, 0, :]
        return bool(np.all(np.argmax(proba, axis=1) == as_double(self.problem.targets)))


@dataclass(frozen=True, eq=False)
class _Place:
    """A variance that was tried, its objective and its slope along the line; `at` is log s^2 from the start."""

    at: float
    value: float
    slope: float
    evidence: float
    separated: Callable[[], bool]


MAXIMUM, PLATEAU, ELSEWHERE = "maximum", "plateau", "elsewhere"


def _climbed(line: Callable[[float], _Place], search: PriorSearch) -> tuple[_Place, str]:
    """Return the best place found on a line, log s^2 = 0 at its start, and what it is: a maximum within bounds, the
    start of a plateau, or a place where the search was cut short.
    """
    low, high, step = math.log(search.narrowest), math.log(search.widest), math.log(search.factor)
    here = line(0.0)
    up, fits = here.slope > 0, 1
    while (there := line(float(np.clip(here.at + (step if up else -step), low, high)))).slope * (1 if up else -1) > 0:
        if up and there.evidence - here.evidence < search.plateau and there.separated():
            return here, PLATEAU
        fits, here = fits + 1, there
        if there.at in (low, high) or fits >= search.most_fits:
            return there, ELSEWHERE
    left, right = (here, there) if up else (there, here)
    while fits < search.most_fits:
        best = max(left, right, key=lambda place: place.value)
        rise, width = right.value - left.value, right.at - left.at
        top = (rise - right.slope * width) / (left.slope - right.slope)  # where the tangents meet
        within = left.value + left.slope * top - best.value < search.gain
        if within or width < math.log(search.closest):
            return best, MAXIMUM
        cubic = CubicHermiteSpline([0.0, width], [left.value, right.value], [left.slope, right.slope])
        stationary = [float(x) for x in cubic.derivative().roots() if 0.1 * width < x < 0.9 * width]
        middle = line(left.at + max(stationary, key=cubic, default=width / 2))
        left, right = (middle, right) if middle.slope > 0 else (left, middle)
        fits += 1
    return max(left, right, key=lambda place: place.value), ELSEWHERE


def _searched(
    problem: Problem, labels: Numbers, fit: _ByPropagation | _ByBound, search: PriorSearch
) -> tuple[Problem, Tuning]:
    """Climb from unit variances to the nearest maximum of log evidence plus log hyperprior."""
    double, sizes = problem.in_double(), np.bincount(labels[labels != FIXED])
    centre = -np.log(_mean_squares(double, labels))
    objective = _Objective(double, labels, fit, search, centre)

    def line(at: float) -> _Place:
        value, slope = objective(centre + at)
        evidence = value - search.log_hyperprior(np.full(len(centre), at))
        return _Place(at, value, float(slope.sum()), evidence, objective.separates)

    best, end = _climbed(line, search)
    x, value, converged, flat = centre + best.at, best.value, end == MAXIMUM, end == PLATEAU
    if len(sizes) > 1:
        most = best.at if flat else math.log(search.widest)
        x, value, converged = _refined(objective, x, centre, np.sqrt(2 / sizes), most)
    widest = bool(np.any(x - centre > math.log(search.widest) - 1e-6))
    narrowest = bool(np.any(x - centre < math.log(search.narrowest) + 1e-6))
    tuning = Tuning(
        variances=tuple(map(float, np.exp(x))),
        log_evidence=value - search.log_hyperprior(x - centre),
        method=fit.name,
        fits=objective.fits,
        converged=converged and not (widest or narrowest or flat),
        message=_message(
            f"chosen by evidence ({fit.name}, {objective.fits} fits)",
            converged=converged,
            flat=flat,
            separable=widest and objective.separates(),
            widest=widest,
            narrowest=narrowest,
        ),
    )
    return with_variances(problem, labels, np.exp(x)), tuning


def _refined(
    objective: _Objective, x: Numbers, centre: Numbers, unit: Numbers, most: float
) -> tuple[Numbers, float, bool]:
    """Return the maximum over the variances of several groups, all at most exp(most), its value, and whether it was
    reached.

    In log s_g^2 / sqrt(2 / D_g) the curvature of a variance that the data determine is about 1, so a slope of h leaves
    a gain of h^2 / 2.
    """
    search = objective.search
    low, high = ((centre + bound) / unit for bound in (math.log(search.narrowest), most))

    def loss(u: Numbers) -> tuple[float, Numbers]:
        value, slope = objective(unit * u)
        return -value, -unit * slope

    first = -loss(np.clip(x / unit, low, high))[0]
    options = {
        "gtol": math.sqrt(2 * search.gain / len(x)),
        "ftol": 0.1 * search.gain / max(abs(first), 1.0),  # scipy's is relative
        "maxls": 10,
        "maxfun": search.most_fits,
    }
    bounds = [*zip(low, high, strict=True)]
    found = minimize(loss, x / unit, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    left = np.where((found.x > low) & (found.x < high), found.jac, 0.0)
    reached = bool(found.success or left @ left / 2 < 10 * search.gain)
    return unit * found.x, -float(found.fun), reached


def _mean_squares(problem: Problem, labels: Numbers) -> Numbers:
    """Return the mean square of the features of each group; 1 for features that are all zero."""
    linear = problem.linear_logits("a prior chosen by evidence")
    by_feature = as_double(square(problem.features).mean(axis=0)).reshape(-1)
    by_feature = np.append(by_feature, 1.0)[: linear.features + linear.intercept]
    by_parameter, chosen = np.repeat(by_feature, linear.outputs or 1), labels != FIXED
    means = np.bincount(labels[chosen], by_parameter[chosen]) / np.bincount(labels[chosen])
    return np.asarray(np.where(means > 0, means, 1.0))


def _message(chosen: str, *, converged: bool, flat: bool, separable: bool, widest: bool, narrowest: bool) -> str:
    if flat:
        return (
            f"{chosen}; the features separate the classes, so the evidence does not determine the width: it rises "
            "towards a limit, and the width is where it becomes flat"
        )
    if widest:
        why = "the data do not determine the width"
        if separable:
            why = "the features separate the classes, for which the evidence of ever wider priors rises towards a limit"
        return f"{chosen}; {why}, so it is as wide as allowed"
    if narrowest:
        return f"{chosen}; the features do not predict the classes, so it is as narrow as allowed"
    if not converged:
        return f"{chosen}, but the search for the best prior has not converged, so compare it with a grid"
    return chosen
