"""Empirical Bayes: the prior variances under which the data are most probable.

Parameters come in groups with one prior variance each, N(m0, s_g^2 I). With the evidence Z(s) the slope is

    d log Z / d log s_g^2 = (E|theta_g - m0_g|^2 / s_g^2 - D_g) / 2,

D_g the size of the group and E over the posterior; setting it to zero is the EM step s_g^2 = E|theta_g - m0_g|^2 / D_g.
Value and slope go to a bounded quasi-Newton method in log s_g^2, which needs fewer fits than EM.

The evidence is that of expectation propagation. The mean-field bound, the ELBO, would be simpler, but it falls below
the evidence as the prior widens and so prefers narrow priors: on pairs of digits by more than two decades, at half as
much held-out loss again. It is used where expectation propagation finds no agreement, and beyond its P x P memory.

On separable data the evidence of wide priors is flat: the scale of the weights is not in the data. Two things keep the
choice well defined. The hyperprior, s_g^2 ~ Gamma with shape `WEAK` and mean `WIDEST`, tilts the plateau towards wide
priors, by less than any datum would. And s_g^2, in units of the inverse mean square of the group's features, stays
between `NARROWEST` and `WIDEST`. The search climbs from s_g^2 = 1 in these units to the nearest maximum.
"""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
from scipy.optimize import minimize

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian, standard_points
from enkbayes.core.linear_map import LinearMap
from enkbayes.core.logits import LinearLogits
from enkbayes.core.moments import Diverged
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import to_numpy
from enkbayes.inference.evidence import elbo
from enkbayes.inference.propagation import Sites, in_double, propagate
from enkbayes.samplers import MeanField
from enkbayes.samplers.mean_field import LARGEST
from enkbayes.samplers.run import run

Numbers = np.ndarray[Any, Any]
FIXED = -1  # the label of parameters whose prior stays
NARROWEST, WIDEST = 1e-4, 1e4  # bounds of the variance for features of unit mean square
WEAK = 0.1  # shape of the hyperprior: its slope in log s^2
SETTLED = 0.1  # residual of expectation propagation that is still believed
SLOPE = 0.02  # slope of the log evidence in log s^2 at which the search ends
DIFFERENCE = 0.1  # step in log s^2 where slopes are differences
MOST_FITS = 40


@dataclass(frozen=True)
class Tuning:
    """What was chosen: one prior variance a group, their log evidence and the method behind it, how many fits that
    took, whether the search settled, and a sentence.
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


def tune_prior(problem: Problem, groups: Any = None) -> tuple[Problem, Tuning]:
    """Return the problem with the prior variances under which its data are most probable, and how they were found;
    warns when the search did not settle.

    Parameters
    ----------
    problem : Problem
        With linear logits and a prior that has a diagonal covariance; its mean is kept.
    groups : array (P,) of integers, optional
        Groups 0, 1, ... share a variance each; the prior of parameters with -1 stays. By default all weights are one
        group, and an intercept keeps its prior.

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
    if not isinstance(problem.model, LinearLogits):
        raise ValueError("the prior of nonlinear logits cannot be tuned; choose it by held-out log loss")
    if not problem.prior.diagonal:
        raise ValueError("the prior has a full covariance; expected a diagonal one to tune its variances")
    labels = parameter_groups(problem.model.map) if groups is None else np.asarray(groups)
    numbers = set(labels.tolist()) - {FIXED}
    if labels.shape != (problem.dim,) or not numbers or numbers != set(range(len(numbers))):
        raise ValueError(
            f"groups have shape {labels.shape}; expected ({problem.dim},) with labels 0, 1, ... and -1 for fixed ones"
        )
    found, tuning = _found(problem, labels)
    if not tuning.converged:
        from sklearn.exceptions import ConvergenceWarning

        warnings.warn(f"prior {tuning.message}", ConvergenceWarning, stacklevel=2)
    return found, tuning


def _found(problem: Problem, labels: Numbers) -> tuple[Problem, Tuning]:
    """Search by the better evidence that there is."""
    if problem.dim <= LARGEST:
        with suppress(Diverged):
            return _searched(problem, labels, _ByPropagation(), slopes=problem.likelihood.outputs is None)
    return _searched(problem, labels, _ByBound(), slopes=True)


def parameter_groups(
    linear: LinearMap, features: Any = None, *, weights: bool = True, intercept: bool = False
) -> Numbers:
    """Return the group (P,) of every parameter from the group of every feature (D,), labels of any kind.

    Without `weights` theirs is -1: they keep their prior, and so does an intercept unless it is to be a group, the
    last one.

    >>> parameter_groups(LinearMap(3, None, intercept=True), ["a", "b", "a"]).tolist()
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
    known = np.asarray(labels)
    if known.shape != (size,):
        raise ValueError(f"prior_groups has shape {known.shape}; expected ({size},), a label for each feature")
    return np.unique(known, return_inverse=True)[1]


def with_variances(problem: Problem, groups: Numbers, variances: Any) -> Problem:
    """Return the problem with these prior variances (G,) of the groups of its parameters (P,)."""
    found = np.asarray(variances, dtype=np.float64)[np.maximum(groups, 0)]
    cov = np.where(groups == FIXED, to_numpy(problem.prior.cov), found)
    return problem.with_prior(Gaussian(to_numpy(problem.prior.mean), cov))


@dataclass
class _ByPropagation:
    """Problem -> log evidence and E(theta_i - m0_i)^2 (P,), by expectation propagation from the last fit's sites."""

    sites: Sites | None = None
    name: ClassVar[str] = "expectation propagation"

    def __call__(self, problem: Problem) -> tuple[float, Numbers]:
        found = propagate(problem, self.sites, tol=3e-3)  # the evidence is off by the square of the residual only
        if not found.residual < SETTLED:
            raise Diverged("expectation propagation finds no agreement")
        self.sites = found.sites
        return found.log_evidence, np.sum(found.basis**2, axis=1) + (found.mean - problem.prior.mean) ** 2


@dataclass
class _ByBound:
    """The same by `MeanField`, each time from the Gaussian of the last unless that has a structure."""

    law: AffineEnsemble | None = None
    name: ClassVar[str] = "ELBO"

    def __call__(self, problem: Problem) -> tuple[float, Numbers]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fit that has not settled yet still bounds the evidence
            posterior = run(problem, MeanField(tol=1e-4), particles=200, theta=self._start())
        law = posterior.ensemble
        self.law = law if law.complement is None else None
        return elbo(problem, posterior).value, law.variances + (law.mean - problem.prior.mean) ** 2

    def _start(self) -> Numbers | None:
        if self.law is None:
            return None
        points = standard_points(self.law.rank + 1, self.law.rank, np.random.default_rng(0))
        return np.asarray(replace(self.law, points=points).theta)


def _searched(
    problem: Problem, labels: Numbers, fit: _ByPropagation | _ByBound, *, slopes: bool
) -> tuple[Problem, Tuning]:
    """Climb from unit variances to the nearest maximum of log evidence plus log hyperprior.

    In log s_g^2 / sqrt(2 / D_g) the first step is about that of EM, so that the climb does not leap over a maximum.
    Without `slopes` they are differences of the evidence: the quadrature of softmax leaves an error in E|theta|^2 that
    its evidence, stationary in the sites, does not have.
    """
    double, chosen = in_double(problem), labels != FIXED
    sizes = np.bincount(labels[chosen])
    centre, unit = -np.log(_mean_squares(double, labels)), np.sqrt(2 / sizes)
    low, high = math.log(NARROWEST) / unit, math.log(WIDEST) / unit
    widest = centre + math.log(WIDEST)

    def loss(u: Numbers) -> tuple[float, Numbers]:
        x = centre + unit * u
        value, squares = fit(with_variances(double, labels, np.exp(x)))
        slope = (np.bincount(labels[chosen], squares[chosen]) / np.exp(x) - sizes) / 2
        return -value - _log_hyperprior(x - widest), -unit * (slope + WEAK * (1 - np.exp(x - widest)))

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = minimize(
            loss if slopes else lambda u: loss(u)[0],
            np.zeros(len(sizes)),
            jac=True if slopes else None,
            method="L-BFGS-B",
            bounds=[*zip(low, high, strict=True)],
            options={"gtol": SLOPE * float(unit.min()), "ftol": 1e-9, "maxfun": MOST_FITS, "maxls": 10}
            | ({} if slopes else {"eps": DIFFERENCE / unit, "ftol": 1e-6, "maxfun": MOST_FITS * (1 + len(sizes))}),
        )
    x, fits = centre + unit * found.x, int(found.nfev)
    left = np.where((found.x > low) & (found.x < high), found.jac / unit, 0.0)
    settled = bool(found.success or np.max(np.abs(left)) < 10 * SLOPE)
    tuning = Tuning(
        variances=tuple(map(float, np.exp(x))),
        log_evidence=float(-found.fun) - _log_hyperprior(x - widest),
        method=fit.name,
        fits=fits,
        converged=settled,
        message=_message(x - widest, f"{fit.name}, {fits} fits", settled),
    )
    return with_variances(problem, labels, np.exp(x)), tuning


def _log_hyperprior(below: Numbers) -> float:
    """Return the log density of s_g^2 / WIDEST = exp(below) under the hyperprior, up to a constant."""
    return WEAK * float(np.sum(below - np.exp(below)))


def _mean_squares(problem: Problem, labels: Numbers) -> Numbers:
    """Return the mean square of the features of each group; 1 for features that are all zero."""
    features, linear = problem.model.features, problem.model.map  # type: ignore[union-attr]
    squares = features.multiply(features) if scipy.sparse.issparse(features) else features * features
    by_feature = np.append(np.asarray(squares.mean(axis=0)).reshape(-1), 1.0)[: linear.features + linear.intercept]
    by_parameter, chosen = np.repeat(by_feature, linear.outputs or 1), labels != FIXED
    means = np.bincount(labels[chosen], by_parameter[chosen]) / np.bincount(labels[chosen])
    return np.asarray(np.where(means > 0, means, 1.0))


def _message(below: Numbers, how: str, settled: bool) -> str:
    told = f"chosen by evidence ({how})"
    if not settled:
        return f"{told}, but the search for the best prior has not settled, so compare it with a grid"
    if np.any(below > -1):
        return f"{told}; the data leave the width open, so it is as wide as allowed"
    if np.any(below < math.log(NARROWEST / WIDEST) + 0.1):
        return f"{told}; the features tell nothing of the classes, so it is as narrow as allowed"
    return told
