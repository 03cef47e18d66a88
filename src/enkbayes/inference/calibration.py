"""A posterior around trained weights that held-out rows choose, and that predicts no worse than temperature scaling.

A trained layer theta has been fitted to its own features, so a posterior of the training rows alone is confident in
whatever the network has over-fitted. Held-out rows do not have this bias. The answer is their posterior, by sequential
Bayes:

    q      = posterior of the training rows under the prior N(theta, v I); without training rows that prior itself
    prior  = N(c m, C),   m, C mean and covariance of q,   c = 1 / T the temperature scale of m
    answer = posterior of the held-out rows under that prior

`held_out.py` chooses the width v, given as the spread v mean|phi|^2 of the logits of held-out rows under N(theta, v I).
Each held-out row is predicted by the answer to the others. Where rows contribute little to their own predictions one
fit for each candidate is enough (`leave_one_out.py`), otherwise folds predict them, because leave-one-out from one fit
favours priors that are too wide.
T alone is fitted once, to all held-out rows: its optimism, of order 1 / rows, is common to temperature scaling and the
other candidates and cancels in their difference. With more parameters than have a full covariance, leave-one-out from
one fit is too optimistic; then the held-out rows are predicted by folds, and wide spreads are not tried.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.low_rank import LowRankGaussian
from enkbayes.core.numerics import in_range
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, as_double, like, square, symmetric, to_numpy
from enkbayes.inference.folds import log_losses, stratified_folds
from enkbayes.inference.held_out import NARROW, SPREADS, TEMPERATURE, Calibration, Candidate, choose
from enkbayes.inference.leave_one_out import is_accurate, leave_one_out_losses
from enkbayes.inference.temperature import temperature_scale
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run
from enkbayes.solvers.laplace import laplace
from enkbayes.solvers.map_estimate import map_estimate

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CoarseFits:
    """How exact fits need to be that are only compared with each other.

    train_rows : training rows that are read at most; of more rows, a weighted sample is read
    small : parameters up to which `MeanField` makes the fit; with more, up to a full covariance, Laplace does
    curvature_rows : rows that the covariance of Laplace's approximation is computed from, also a weighted sample
    tol : residual at which a fit ends, in posterior standard deviations
    particles : of `MeanField`; predictions do not depend on them
    folds : parts of the held-out rows where leave-one-out from one fit is too optimistic
    widest : widest spread that is tried in that case
    """

    train_rows: int = 20_000
    small: int = 300
    curvature_rows: int = 5000
    tol: float = 1e-2
    particles: int = 20
    folds: int = 5
    widest: float = 10.0

    def fit(self, problem: Problem, start: Array | None = None) -> LowRankGaussian:
        """Return the Gaussian of a problem; up to 2000 parameters its covariance is full."""
        if self.by_laplace(problem):
            return self._laplace(problem, start)
        theta = problem.prior.whitened(self.particles, np.random.default_rng(0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the held-out loss also judges a fit that does not converge
            return run(problem, MeanField(tol=self.tol), theta=theta).fitted.gaussian

    def fold_losses(self, problem: Problem) -> Vector:
        """Return the log loss (N,) of every row, predicted by the fit to the rows outside its fold."""
        linear, targets = problem.linear_logits("calibration"), to_numpy(problem.targets)
        folds = stratified_folds(targets, self.folds, np.random.default_rng(0))
        found = np.empty(problem.size)
        for fold in range(self.folds):
            inside, outside = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            mean, V = linear.predictive_logits(problem.features[inside, :], self.fit(problem.subset(outside)))
            found[inside] = log_losses(problem.likelihood.predictive(mean, V=V), targets[inside])
        return found

    def by_laplace(self, problem: Problem) -> bool:
        """Return whether the fit is a Laplace approximation."""
        return self.small < problem.dim <= MeanField.dense

    def _laplace(self, problem: Problem, start: Array | None) -> LowRankGaussian:
        """Return the Laplace approximation: the mode of all rows, found from `start` (P,), the curvature of some."""
        mode = map_estimate(problem, tol=self.tol * math.sqrt(problem.dim), start=start).theta
        return laplace(thinned(problem, self.curvature_rows, 0), mode)


@in_range("the prior")
def calibrate(
    held_out: Problem,
    theta: Array,
    train: Problem | None = None,
    *,
    spreads: Sequence[float] = SPREADS,
    margin: float = 1.0,
    seed: int = 0,
    fits: CoarseFits | None = None,
) -> tuple[Problem, Calibration]:
    """Return the held-out rows as a problem, under the prior that they choose, and how it was chosen. The posterior of
    that problem is the calibrated one.

    All arrays are in numpy's double precision, because priors may be ill-conditioned.

    Parameters
    ----------
    held_out : Problem
        Rows that were not used in training, with linear logits; its prior is not used.
    theta : array (P,)
        The trained weights.
    train : Problem, optional
        Rows of the training; its prior is not used. Not read beyond 2000 parameters.
    spreads : sequence of float
        The spreads to try.
    margin : float
        Standard errors that the gain of a candidate has to exceed.
    seed : int
        Seed of the choice of training rows, if there are many.
    fits : CoarseFits, optional
        How exact the fits are that are compared.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((300, 2))
    >>> labels = features[:, 0] + rng.logistic(size=300) > 0
    >>> problem, calibration = calibrate(Problem.create(features, labels), np.asarray([5.0, 0.0]))
    >>> round(calibration.scale, 1), str(calibration.chosen)
    (0.2, 'temperature scaling')
    """
    _check(held_out, theta)
    held_out = held_out.in_double()
    theta = as_double(theta)
    fits = CoarseFits() if fits is None else fits
    too_many = held_out.dim > MeanField.dense
    read = None if train is None or too_many else thinned(train, fits.train_rows, seed).in_double()
    found = {TEMPERATURE: around(theta, held_out, NARROW)}  # q of each candidate

    def scale(candidate: Candidate) -> float:
        return temperature_scale(held_out, found[candidate].mean)

    def answer(candidate: Candidate, scale: float) -> Problem:
        return held_out.with_prior(Gaussian(scale * found[candidate].mean, found[candidate].cov))

    def losses(candidate: Candidate) -> Vector:
        if candidate == TEMPERATURE:
            return _point_losses(held_out, temperature_scale(held_out, theta) * theta)
        q = around(theta, held_out, candidate.spread)
        if read is not None:
            start = next((before.mean for other, before in reversed(found.items()) if other.trained), None)
            fitted = fits.fit(read.with_prior(q), start)
            q = Gaussian(fitted.mean, symmetric(fitted.cov))
        found[candidate] = q
        problem = answer(candidate, scale(candidate))
        answered = None if too_many else fits.fit(problem)
        if answered is None or not is_accurate(problem, answered):
            return fits.fold_losses(problem)
        return leave_one_out_losses(problem, answered, point=fits.by_laplace(problem))

    tried = [spread for spread in sorted(spreads) if spread <= fits.widest or not too_many]
    candidates = [Candidate(spread, trained=read is not None) for spread in tried]
    calibration = choose(candidates, losses, scale, held_out.size, weights=held_out.counts, margin=margin)
    return answer(calibration.chosen, calibration.scale), calibration


@in_range("the prior")
def uncalibrated(
    train: Problem, theta: Array, *, spread: float = 1.0, share: float = 0.01
) -> tuple[Problem, Calibration]:
    """Return a cautious problem for trained weights theta (P,) without held-out rows, and a sentence on what is lost.

    The prior is N(theta, v I) with this spread, and each training row counts as this share of a row: the predictions
    stay near those of the trained weights, a little less confident.

    >>> train = Problem.create([[1.0, 1.0], [0.0, 2.0]], [1, 0])
    >>> problem, calibration = uncalibrated(train, np.asarray([3.0, 4.0]))
    >>> problem.prior.mean.tolist(), problem.weights.tolist(), calibration.rows
    ([3.0, 4.0], [0.01, 0.01], 0)
    """
    _check(train, theta)
    theta = like(theta, train.prior.mean)
    weights = like(share * train.counts, theta)
    problem = train.with_arrays(weights=weights).with_prior(around(theta, train, spread))
    message = (
        "no held-out rows: the width of the posterior is a guess and over-confidence of the trained weights stays; "
        "pass held-out rows as calibration="
    )
    return problem, Calibration(Candidate(spread, trained=True), 1.0, (), 0, message)


def around(theta: Array, problem: Problem, spread: float) -> Gaussian:
    """Return N(theta, v I) with the v that gives the logits of the problem's rows the variance `spread` on average.

    >>> around(np.asarray([3.0, 4.0]), Problem.create([[1.0, 1.0], [0.0, 2.0]], [1, 0]), 3.0).cov.tolist()
    [1.0, 1.0]
    """
    intercept = problem.linear_logits("calibration").intercept
    size = float(square(problem.features).sum()) / problem.size + intercept
    return Gaussian(theta, spread / (size or 1.0))


def thinned(problem: Problem, most: int, seed: int) -> Problem:
    """Return at most `most` of the rows, drawn at random and weighted so that they stand for all."""
    if problem.size <= most:
        return problem
    rows = np.sort(np.random.default_rng((seed, 6)).choice(problem.size, most, replace=False))
    part = problem.subset(rows)
    return part.with_arrays(weights=like(part.counts * (problem.size / most), problem.prior.mean))


def _check(held_out: Problem, theta: Array) -> None:
    if not held_out.is_linear or held_out.classes is None:
        raise ValueError("calibration needs linear logits and classes; choose the prior of this problem by hand")
    if tuple(theta.shape) != (held_out.dim,):
        raise ValueError(f"the trained weights have shape {tuple(theta.shape)}; expected ({held_out.dim},)")


def _point_losses(problem: Problem, theta: Array) -> Vector:
    """Return the log loss (N,) of every row, predicted by weights theta (P,)."""
    logits = problem.linear_logits("calibration").particle_logits(problem.features, theta[None, :])
    return np.asarray(problem.likelihood.loss(logits, problem.targets))[:, 0]
