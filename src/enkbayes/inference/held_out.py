"""The choice between temperature scaling and posteriors of different widths, by their log loss on held-out rows.

A candidate is a prior around trained weights. Its width is given as the spread, the variance of the logits of held-out
rows under that prior. As the spread goes to zero the posterior becomes temperature scaling (Guo et al. 2017), which is
the first candidate. Wider priors are tried while they improve the mean log loss of held-out rows, each predicted
without itself. The winner is the candidate with the largest gain over temperature scaling, minus one standard error of
this paired difference. Temperature scaling itself has gain and error zero, so it wins unless a posterior is clearly
better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from enkbayes.core.numerics import plain
from enkbayes.engine.arrays import as_double, square
from enkbayes.inference.folds import mean_and_error

Vector = np.ndarray[Any, Any]
NARROW = 1e-4  # a spread that leaves the scaled weights as they are
SPREADS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


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
    """The held-out log loss of a candidate, its gain over temperature scaling, and the standard error of the gain."""

    candidate: Candidate
    nll: float
    gain: float
    error: float

    def bound(self, margin: float) -> float:
        """Return the gain minus `margin` standard errors."""
        return self.gain - margin * self.error


@dataclass(frozen=True)
class Calibration:
    """What held-out rows chose: the candidate, the temperature scale 1 / T, the scores of the candidates that were
    tried (temperature scaling first), the number of rows, and a sentence.

    >>> from enkbayes import EnsembleClassifier
    >>> X = np.linspace(-2, 2, 90)[:, None]
    >>> y = X[:, 0] + np.sin(9 * X[:, 0]) > 0
    >>> clf = EnsembleClassifier(prior_mean=[4.0], random_state=0).fit(X[::2], y[::2], X_val=X[1::2], y_val=y[1::2])
    >>> type(clf.calibration_).__name__, clf.calibration_.rows
    ('Calibration', 45)
    """

    chosen: Candidate
    scale: float
    scores: tuple[Score, ...]
    rows: int
    message: str


def choose(
    candidates: Sequence[Candidate],
    losses: Callable[[Candidate], Vector],
    scale: Callable[[Candidate], float],
    rows: int,
    *,
    weights: Vector | None = None,
    margin: float = 1.0,
    fewest: int = 20,
) -> Calibration:
    """Return the candidate that held-out rows choose, with the scores of all that were tried.

    Parameters
    ----------
    candidates : sequence of Candidate
        In the order in which they are tried, from narrow to wide; temperature scaling is always tried first.
    losses : callable
        Candidate -> log loss (n,) of every held-out row, predicted without that row.
    scale : callable
        Candidate -> 1 / T of the chosen one.
    rows : int
        The number of held-out rows.
    weights : array (n,), optional
        How often each held-out row counts.
    margin : float
        Standard errors that a gain has to exceed.
    fewest : int
        With fewer rows nothing can be compared, and temperature scaling is chosen.

    Examples
    --------
    >>> table = {TEMPERATURE: np.full(50, 0.5), Candidate(0.3): np.full(50, 0.4), Candidate(1.0): np.full(50, 0.6)}
    >>> chosen = choose([Candidate(0.3), Candidate(1.0)], table.__getitem__, lambda _: 1.0, 50)
    >>> chosen.message[:64]
    'a posterior of prior spread 0.3: log loss 0.1000 (standard error'
    """
    if rows < fewest:
        message = f"{rows} held-out rows are too few to compare: {TEMPERATURE}"
        return Calibration(TEMPERATURE, scale(TEMPERATURE), (), rows, message)
    share = np.full(rows, 1 / rows) if weights is None else weights / np.sum(weights)
    scores = tuple(_scores(candidates, losses, share))
    best = max(scores, key=lambda score: score.bound(margin))
    if best.candidate == TEMPERATURE:
        most = max(score.gain for score in scores)
        message = f"{TEMPERATURE}: no posterior is clearly better on {rows} held-out rows (largest gain {most:.4f})"
    else:
        gain = f"{best.gain:.4f} (standard error {best.error:.4f})"
        message = f"{best.candidate}: log loss {gain} below {TEMPERATURE}, on {rows} held-out rows"
    return Calibration(best.candidate, scale(best.candidate), scores, rows, message)


def _scores(candidates: Sequence[Candidate], losses: Callable[[Candidate], Vector], share: Vector) -> Iterator[Score]:
    """Yield the score of temperature scaling, then those of the candidates while they improve."""
    plain = losses(TEMPERATURE)
    yield Score(TEMPERATURE, float(share @ plain), 0.0, 0.0)
    before = -math.inf
    for candidate in candidates:
        gain, error = mean_and_error(plain - losses(candidate), share)
        yield Score(candidate, float(share @ plain) - gain, gain, error)
        if not gain > before:
            break
        before = gain


def pooled(X: Any, y: Any, weights: Any, X_val: Any, y_val: Any) -> tuple[Any, Any, Any]:
    """Return rows, labels and weights of the training rows followed by the held-out rows, which have weight 1. Without
    weights of the training rows there are none.

    >>> X, y, weights = pooled(np.zeros((2, 1)), [0, 1], [2.0, 2.0], np.ones((1, 1)), [1])
    >>> X.shape, y.tolist(), weights.tolist()
    ((3, 1), [0, 1, 1], [2.0, 2.0, 1.0])
    """
    sparse = scipy.sparse.issparse(X) or scipy.sparse.issparse(X_val)
    rows = scipy.sparse.vstack([X, X_val], format="csr") if sparse else np.concatenate([X, X_val])
    own = None if weights is None else np.broadcast_to(np.asarray(weights, dtype=np.float64), (len(y),))
    counts = None if own is None else np.concatenate([own, np.ones(len(y_val))])
    return rows, np.concatenate([np.asarray(y), np.asarray(y_val)]), counts


def check_same_scale(X: Any, X_val: Any, *, ratio: float = 10.0, fewest: int = 5) -> None:
    """Raise a ValueError if held-out rows (n, D) are on another scale than the training rows (N, D): if the typical
    feature (the median over those that vary) has a spread that differs by more than this ratio, or a mean that is more
    than as many standard deviations away.

    >>> rows = np.random.default_rng(0).standard_normal((20, 3))
    >>> check_same_scale(rows, 100 * rows)
    Traceback (most recent call last):
    ...
    ValueError: the spread of the held-out rows X_val is 100 times that of the training rows; ...
    """
    if X_val.shape[0] < fewest:
        return
    unit = max(float(abs(X).max()), float(abs(X_val).max())) or 1.0
    (mean, sd), (mean_val, sd_val) = _moments(X, unit), _moments(X_val, unit)
    varies = (sd > 0) & (sd_val > 0)
    if not varies.any():
        return
    spread = float(np.exp(np.median(np.log(sd_val[varies] / sd[varies]))))
    shift = float(np.median(np.abs(mean_val - mean)[varies] / sd[varies]))
    remedy = 'scale both alike, in a pipeline with Pipeline(..., transform_input=["X_val"])'
    if not 1 / ratio < spread < ratio:
        raise ValueError(
            f"the spread of the held-out rows X_val is {plain(spread)} times that of the training rows; {remedy}"
        )
    if shift > ratio:
        raise ValueError(
            f"the mean of the held-out rows X_val is {plain(shift)} standard deviations from that of the training "
            f"rows; {remedy}"
        )


def _moments(X: Any, unit: float) -> tuple[Vector, Vector]:
    """Return mean and standard deviation (D,) of columns, dense or sparse, in a unit in which no square overflows."""
    X = (X if scipy.sparse.issparse(X) else as_double(X)) / unit
    mean, squares = (as_double(x.mean(axis=0)).reshape(-1) for x in (X, square(X)))
    variance = squares - mean**2
    return mean, np.sqrt(np.where(variance > 1e-12 * mean**2, variance, 0.0))
