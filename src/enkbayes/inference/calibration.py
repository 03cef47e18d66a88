"""A posterior around trained weights that held-out rows choose: one that predicts no worse than temperature scaling.

A trained layer theta has seen its own features; a posterior fitted to these alone is sure of what the network has
over-fitted. Rows that the network has not seen are honest, so the answer is theirs, by sequential Bayes:

    q      = posterior of the training rows under the prior N(theta, v I); without training rows that prior itself
    prior  = N(c m, C),   m, C mean and covariance of q,   c = 1 / T the temperature scale of m
    answer = posterior of the held-out rows under that prior

The width v is stated as the spread, the variance v mean|phi|^2 that the logits of held-out rows have under N(theta, v
I). As it goes to zero the answer is temperature scaling (Guo et al. 2017), so that is one of the candidates. All are
judged by the log loss of held-out rows, each predicted by the answer to the others; that takes one fit a candidate
(`leave_one_out.py`). T alone is found once, on all held-out rows: one number, whose optimism of order 1 / rows is
common to temperature scaling and the candidates and cancels in the gain. Wider priors are tried while they improve.
Chosen is the candidate whose gain over temperature scaling, less one standard error of this paired difference, is the
largest; temperature scaling itself has gain and error zero, so it stays where nothing is better beyond doubt. Below 0
log T has a normal prior, of standard deviation 0.2: trained networks are rarely less sure than they should be, and a
few rows, perhaps all classified rightly, do not send T to zero. Above 0 it has none.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.logits import LinearLogits
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, like, symmetric, to_numpy
from enkbayes.inference.leave_one_out import leave_one_out_losses
from enkbayes.inference.propagation import in_double
from enkbayes.samplers import MeanField
from enkbayes.samplers.mean_field import LARGEST
from enkbayes.samplers.run import run
from enkbayes.solvers.map_estimate import map_estimate, whitened_moments

Vector = np.ndarray[Any, Any]
NARROW = 1e-4  # a spread that leaves the scaled weights as they are
SPREADS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
MARGIN = 1.0  # standard errors that are taken off the gain of a candidate
GUESS, SHARE = 1.0, 0.01  # spread and weight of training rows where no held-out rows are there to choose
FEWEST = 20  # held-out rows below which nothing can be compared
MOST = 20_000  # training rows that are read; they then stand for all
SMALL = 300  # parameters beyond which the Laplace approximation stands in for `MeanField` where fits are compared
CURVED = 5000  # rows that tell its covariance; they then stand for all
COARSE = 1e-2  # residual, in posterior sds, of fits that are only compared
MEMBERS = 20  # particles of such fits; predictions do not depend on them
SHARPER = 0.2  # standard deviation of log T below 0
HOTTEST = 100.0  # T between 1 / HOTTEST and HOTTEST


@dataclass(frozen=True)
class Candidate:
    """The spread of the prior around the trained weights, and whether the training rows shape it."""

    spread: float
    trained: bool = False

    def __str__(self) -> str:
        if self == TEMPERATURE:
            return "temperature scaling"
        return f"a posterior of prior spread {self.spread:g}"


TEMPERATURE = Candidate(NARROW)


@dataclass(frozen=True)
class Score:
    """The leave-one-out log loss of a candidate, and by how much that of temperature scaling is higher, with the
    standard error of this paired difference.
    """

    candidate: Candidate
    nll: float
    gain: float
    error: float

    def bound(self, margin: float) -> float:
        """Return the gain that is safe: less `margin` standard errors."""
        return self.gain - margin * self.error


@dataclass(frozen=True)
class Calibration:
    """What held-out rows chose: the candidate, the temperature scale 1 / T, the scores of the candidates that were
    tried (temperature scaling first), the number of rows, and a sentence.
    """

    chosen: Candidate
    scale: float
    scores: tuple[Score, ...]
    rows: int
    message: str


def calibrate(
    held_out: Problem,
    theta: Array,
    train: Problem | None = None,
    *,
    spreads: Sequence[float] = SPREADS,
    margin: float = MARGIN,
    seed: int = 0,
) -> tuple[Problem, Calibration]:
    """Return the problem whose posterior is the answer, held-out rows under the chosen prior, and how it was chosen.

    All of it is in numpy's double precision, for priors may be ill-conditioned.

    Parameters
    ----------
    held_out : Problem
        Rows that the training has not seen, with linear logits; its prior is not used.
    theta : array (P,)
        The trained weights.
    train : Problem, optional
        Rows of the training; its prior is not used. Not read beyond 2000 parameters.
    spreads : sequence of float
        To be tried, ascending.
    margin : float
        Standard errors that are taken off the gain of a candidate.
    seed : int
        Of the training rows that are read where there are many.

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
    held_out = in_double(held_out)
    theta = to_numpy(theta).astype(np.float64)
    read = None if train is None or held_out.dim > LARGEST else in_double(_thinned(train, MOST, seed))
    tried: list[tuple[Score, Gaussian]] = []
    if held_out.size >= FEWEST:
        tried = list(_tried(held_out, theta, read, sorted(spreads)))
    scores = tuple(score for score, _ in tried)
    best, law = max(tried, key=lambda pair: pair[0].bound(margin), default=(None, around(theta, held_out, NARROW)))
    chosen = TEMPERATURE if best is None else best.candidate
    scale = temperature_scale(held_out, law.mean)
    problem = held_out.with_prior(_scaled(law, scale))
    return problem, Calibration(chosen, scale, scores, held_out.size, _sentence(scores, best, held_out.size))


def uncalibrated(train: Problem, theta: Array) -> tuple[Problem, Calibration]:
    """Return a cautious problem for trained weights theta (P,) without held-out rows, and a sentence on what is lost.

    The prior is N(theta, v I) of spread 1, and each training row counts a hundredth: the predictions stay near those of
    the trained weights, a little less confident.

    >>> train = Problem.create([[1.0, 1.0], [0.0, 2.0]], [1, 0])
    >>> problem, calibration = uncalibrated(train, np.asarray([3.0, 4.0]))
    >>> problem.prior.mean.tolist(), problem.weights.tolist(), calibration.rows
    ([3.0, 4.0], [0.01, 0.01], 0)
    """
    _check(train, theta)
    theta = like(theta, train.prior.mean)
    weights = SHARE * (np.ones(train.size) if train.weights is None else to_numpy(train.weights))
    problem = replace(train, weights=like(weights, theta)).with_prior(around(theta, train, GUESS))
    message = (
        "no held-out rows: the width of the posterior is a guess and over-confidence of the trained weights stays; "
        "pass calibration= rows that the training has not seen"
    )
    return problem, Calibration(Candidate(GUESS, trained=True), 1.0, (), 0, message)


def temperature_scale(problem: Problem, theta: Array) -> float:
    """Return 1 / T, by which weights theta (P,) are best multiplied, under the prior of log T < 0.

    >>> rightly = Problem.create([[1.0], [2.0], [-1.0]], [1, 1, 0])
    >>> 1 < temperature_scale(rightly, np.asarray([1.0])) < 2
    True
    """

    def potential(log_scale: float) -> float:
        loss = float(problem.loss(theta[None, :] * math.exp(log_scale))[0])
        return loss + (max(log_scale, 0.0) / SHARPER) ** 2 / 2

    width = math.log(HOTTEST)
    return math.exp(minimize_scalar(potential, bounds=(-width, width), options={"xatol": 1e-6}).x)


def around(theta: Array, problem: Problem, spread: float) -> Gaussian:
    """Return N(theta, v I) with the v that gives the logits of the problem's rows the variance `spread` on average.

    >>> around(np.asarray([3.0, 4.0]), Problem.create([[1.0, 1.0], [0.0, 2.0]], [1, 0]), 3.0).cov.tolist()
    [1.0, 1.0]
    """
    linear = problem.model.map  # type: ignore[union-attr]
    features = problem.model.features  # type: ignore[union-attr]
    squares = features.multiply(features) if hasattr(features, "multiply") else features * features
    size = float(squares.sum()) / problem.size + linear.intercept
    return Gaussian(theta, spread / (size or 1.0))


def _check(held_out: Problem, theta: Array) -> None:
    if not isinstance(held_out.model, LinearLogits) or held_out.classes is None:
        raise ValueError("calibration needs linear logits and classes; choose the prior of this problem by hand")
    if tuple(theta.shape) != (held_out.dim,):
        raise ValueError(f"the trained weights have shape {tuple(theta.shape)}; expected ({held_out.dim},)")


def _thinned(problem: Problem, most: int, seed: int) -> Problem:
    """Return at most so many of the rows, which count for all."""
    if problem.size <= most:
        return problem
    rows = np.sort(np.random.default_rng((seed, 6)).choice(problem.size, most, replace=False))
    part = problem.subset(rows)
    weights = np.ones(most) if part.weights is None else to_numpy(part.weights)
    return replace(part, weights=like(weights * (problem.size / most), problem.prior.mean))


def _scaled(law: Gaussian, scale: float) -> Gaussian:
    return Gaussian(scale * law.mean, law.cov)


def _coarse(problem: Problem, start: Array | None = None) -> AffineEnsemble:
    """Return a fit good enough to be compared; up to 2000 parameters its covariance is full."""
    if SMALL < problem.dim <= LARGEST:
        return _laplace(problem, start)
    theta = problem.prior.whitened(MEMBERS, np.random.default_rng(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that does not settle is judged by what it predicts
        return run(problem, MeanField(tol=COARSE), theta=theta).fitted


def _laplace(problem: Problem, start: Array | None) -> AffineEnsemble:
    """Return the Laplace approximation: the mode of all rows, found from `start` (P,), the curvature of some."""
    mode = map_estimate(problem, tol=COARSE * math.sqrt(problem.dim), start=start).theta
    moments = whitened_moments(_thinned(problem, CURVED, 0), mode)
    around_mode = AffineEnsemble(mode, problem.prior.dense_root, np.zeros((1, problem.dim)))
    return around_mode.transform(replace(moments, g=0 * moments.g), gain=lambda w: 1 / w, scale=lambda w: w**-0.5)


def _laws(
    held_out: Problem, theta: Array, train: Problem | None, spreads: Sequence[float]
) -> Iterator[tuple[Candidate, Gaussian]]:
    """Yield the candidates but temperature scaling, and their q."""
    start = None
    for spread in spreads:
        law = around(theta, held_out, spread)
        if train is not None:
            fitted = _coarse(train.with_prior(law), start)
            start, law = fitted.mean, Gaussian(fitted.mean, symmetric(fitted.cov))
        yield Candidate(spread, trained=train is not None), law


def _tried(
    held_out: Problem, theta: Array, train: Problem | None, spreads: Sequence[float]
) -> Iterator[tuple[Score, Gaussian]]:
    """Yield score and q of temperature scaling, then of wider and wider priors while they improve."""
    weights = np.ones(held_out.size) if held_out.weights is None else to_numpy(held_out.weights)
    weights = weights / np.sum(weights)
    narrow = around(theta, held_out, NARROW)
    plain = _point_losses(held_out, temperature_scale(held_out, theta) * theta)
    yield Score(TEMPERATURE, float(weights @ plain), 0.0, 0.0), narrow
    before = -math.inf
    for candidate, law in _laws(held_out, theta, train, spreads):
        problem = held_out.with_prior(_scaled(law, temperature_scale(held_out, law.mean)))
        gains = plain - leave_one_out_losses(problem, _coarse(problem))
        gain = float(weights @ gains)
        error = math.sqrt(float(weights**2 @ (gains - gain) ** 2))
        yield Score(candidate, float(weights @ plain) - gain, gain, error), law
        if not gain > before:
            break
        before = gain


def _point_losses(problem: Problem, theta: Array) -> Vector:
    """Return the log loss (N,) of every row, predicted by weights theta (P,)."""
    logits = problem.model.map.particle_logits(problem.model.features, theta[None, :])  # type: ignore[union-attr]
    return np.asarray(problem.likelihood.terms(logits, problem.targets))[:, 0]


def _sentence(scores: Sequence[Score], best: Score | None, rows: int) -> str:
    if best is None:
        return f"{rows} held-out rows are too few to compare: temperature scaling"
    if best.candidate == TEMPERATURE:
        most = max(score.gain for score in scores)
        return f"temperature scaling: no posterior is better beyond doubt on {rows} held-out rows (gain {most:.4f})"
    gain = f"{best.gain:.4f} (standard error {best.error:.4f})"
    return f"{best.candidate}: log loss {gain} below temperature scaling's on {rows} held-out rows"
