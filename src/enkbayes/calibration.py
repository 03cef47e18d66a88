"""A posterior around trained weights that held-out rows choose: one that predicts no worse than temperature scaling.

A trained layer theta has seen its own features; a posterior fitted to these alone is sure of what the network has
over-fitted. Rows that the network has not seen are honest, so the answer is theirs, by sequential Bayes:

    q      = posterior of the training rows under the prior N(theta, v I); without training rows that prior itself
    prior  = N(c m, C),   m, C mean and covariance of q,   c = 1 / T the temperature scale of m
    answer = posterior of the held-out rows under that prior

The width v is stated as the spread, the variance v mean|phi|^2 that the logits of held-out rows have under N(theta, v
I). As it goes to zero the answer is temperature scaling (Guo et al. 2017), so that is one of the candidates. All are
judged by the log loss of held-out rows in cross-validation, T and answer found anew without the rows that judge. Wider
priors are tried while they improve. Chosen is the candidate whose gain over temperature scaling, less one standard
error of this paired difference, is the largest; temperature scaling itself has gain and error zero, so it stays where
nothing is better beyond doubt. log T has a standard normal prior: a few rows, perhaps all classified rightly, do not
send T to zero.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from enkbayes.arrays import Array, like, symmetric, to_numpy
from enkbayes.gaussian import Gaussian
from enkbayes.logits import LinearLogits
from enkbayes.posterior import Posterior
from enkbayes.problem import Problem
from enkbayes.propagation import in_double
from enkbayes.run import run
from enkbayes.samplers import MeanField
from enkbayes.samplers.meanfield import LARGEST

Vector = np.ndarray[Any, Any]
NARROW = 1e-4  # a spread that leaves the scaled weights as they are
SPREADS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
MARGIN = 1.0  # standard errors that are taken off the gain of a candidate
GUESS, SHARE = 1.0, 0.01  # spread and weight of training rows where no held-out rows are there to choose
FOLDS = 5
FEWEST = 20  # held-out rows below which nothing can be compared
MOST = 20_000  # training rows that are read; they then stand for all
COARSE = 1e-2  # residual, in posterior sds, of fits that are only compared
MEMBERS = 20  # particles of such fits; predictions do not depend on them
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
    """The cross-validated log loss of a candidate, and by how much that of temperature scaling is higher, with the
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
        Of the folds, and of the training rows that are read where there are many.

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
    read = None if train is None or held_out.dim > LARGEST else in_double(_thinned(train, seed))
    scores: tuple[Score, ...] = ()
    if held_out.size >= FEWEST:
        scores = tuple(_scores(held_out, theta, read, sorted(spreads), seed))
    best = max(scores, key=lambda score: score.bound(margin), default=None)
    chosen = TEMPERATURE if best is None else best.candidate
    law = _law(held_out, theta, read, chosen)
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
    """Return 1 / T, by which weights theta (P,) are best multiplied; log T has a standard normal prior.

    >>> rightly = Problem.create([[1.0], [2.0], [-1.0]], [1, 1, 0])
    >>> 1 < temperature_scale(rightly, np.asarray([1.0])) < 2
    True
    """

    def loss(log_scale: float) -> float:
        return float(problem.loss(theta[None, :] * math.exp(log_scale))[0]) + log_scale**2 / 2

    width = math.log(HOTTEST)
    return math.exp(minimize_scalar(loss, bounds=(-width, width), options={"xatol": 1e-6}).x)


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


def _thinned(train: Problem, seed: int) -> Problem:
    """Return at most `MOST` of the rows, which count for all."""
    if train.size <= MOST:
        return train
    rows = np.sort(np.random.default_rng((seed, 6)).choice(train.size, MOST, replace=False))
    part = train.subset(rows)
    weights = np.ones(MOST) if part.weights is None else to_numpy(part.weights)
    return replace(part, weights=like(weights * (train.size / MOST), train.prior.mean))


def _law(held_out: Problem, theta: Array, train: Problem | None, candidate: Candidate) -> Gaussian:
    """Return q of a candidate."""
    law = around(theta, held_out, candidate.spread)
    if not candidate.trained or train is None:
        return law
    ensemble = _coarse(train.with_prior(law)).ensemble
    return Gaussian(ensemble.mean, symmetric(ensemble.cov))


def _scaled(law: Gaussian, scale: float) -> Gaussian:
    return Gaussian(scale * law.mean, law.cov)


def _coarse(problem: Problem) -> Posterior:
    """Return a fit good enough to be compared; up to 2000 parameters its covariance is full."""
    theta = problem.prior.whitened(MEMBERS, np.random.default_rng(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that does not settle is judged by what it predicts
        return run(problem, MeanField(tol=COARSE), theta=theta)


def _scores(
    held_out: Problem, theta: Array, train: Problem | None, spreads: Sequence[float], seed: int
) -> Iterator[Score]:
    """Yield the scores of temperature scaling, then of wider and wider priors while they improve."""
    folds = _folds(to_numpy(held_out.targets), seed)
    weights = np.ones(held_out.size) if held_out.weights is None else to_numpy(held_out.weights)
    weights = weights / np.sum(weights)
    plain = _losses(held_out, around(theta, held_out, NARROW), folds, TEMPERATURE)
    yield Score(TEMPERATURE, float(weights @ plain), 0.0, 0.0)
    before = -math.inf
    for candidate in (Candidate(spread, trained=train is not None) for spread in spreads):
        gains = plain - _losses(held_out, _law(held_out, theta, train, candidate), folds, candidate)
        gain = float(weights @ gains)
        error = math.sqrt(float(weights**2 @ (gains - gain) ** 2))
        yield Score(candidate, float(weights @ plain) - gain, gain, error)
        if not gain > before:
            break
        before = gain


def _folds(targets: Vector, seed: int) -> Vector:
    """Return the fold (N,) of each row, the classes in the same shares in all of them."""
    order = np.random.default_rng((seed, 5)).permutation(len(targets))
    order = order[np.argsort(targets[order], kind="stable")]
    folds = np.empty(len(targets), dtype=int)
    folds[order] = np.arange(len(targets)) % FOLDS
    return folds


def _losses(held_out: Problem, law: Gaussian, folds: Vector, candidate: Candidate) -> Vector:
    """Return the log loss (N,) of every row, predicted by the answer to the other folds."""
    losses = np.empty(len(folds))
    for fold in range(FOLDS):
        inside, outside = (held_out.subset(np.flatnonzero(rows)) for rows in (folds != fold, folds == fold))
        prior = _scaled(law, temperature_scale(inside, law.mean))
        proba = _predicted(inside.with_prior(prior), outside, point=candidate == TEMPERATURE)
        own = proba[np.arange(outside.size), to_numpy(outside.targets).astype(int)]
        losses[folds == fold] = -np.log(np.maximum(own, np.finfo(own.dtype).tiny))
    return losses


def _predicted(inside: Problem, outside: Problem, *, point: bool) -> Vector:
    """Return what the posterior of some rows, or the prior's mean, predicts for other rows, (n, K)."""
    features, linear = outside.model.features, outside.model.map  # type: ignore[union-attr]
    if point:
        logits = linear.particle_logits(features, inside.prior.mean[None, :])
        return to_numpy(inside.likelihood.probabilities(logits))[:, 0, :]
    return to_numpy(_coarse(inside).predict_proba(features))


def _sentence(scores: Sequence[Score], best: Score | None, rows: int) -> str:
    if best is None:
        return f"{rows} held-out rows are too few to compare: temperature scaling"
    if best.candidate == TEMPERATURE:
        most = max(score.gain for score in scores)
        return f"temperature scaling: no posterior is better beyond doubt on {rows} held-out rows (gain {most:.4f})"
    gain = f"{best.gain:.4f} (standard error {best.error:.4f})"
    return f"{best.candidate}: log loss {gain} below temperature scaling's on {rows} held-out rows"
