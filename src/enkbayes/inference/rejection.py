"""Which predictions to accept: a threshold on confidence that guarantees the error among accepted rows.

Held-out rows have a confidence each, and their prediction is right or wrong. Rows with a confidence above t are
accepted. Given t, the errors among n accepted rows are binomial, so that t fails the test "the error is above
`max_error`" unless

    P(Binomial(n, max_error) <= errors) <= delta,

which is the same as a Clopper-Pearson upper bound of at most `max_error`. Many thresholds are tested, and the least
strict that passes is returned, so delta has to be shared (learn then test, Angelopoulos et al. 2021): from each of a
few starting points, fixed before any error is seen, thresholds are tested from strict to less strict until one fails,
each sequence with an equal part of 1 - confidence. The probability that any threshold that passes has an error above
`max_error` is then at most 1 - confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import beta, binom

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class HeldOutConfidence:
    """Confidence (n,) of the predictions of rows that were predicted without them, and whether each was right (n,)."""

    confidence: Vector
    correct: Vector

    @classmethod
    def of(cls, proba: Vector, labels: Vector) -> HeldOutConfidence:
        """Return the confidences of probabilities (n, K) with true class numbers (n,).

        >>> HeldOutConfidence.of(np.asarray([[0.2, 0.8], [0.7, 0.3]]), np.asarray([1, 1])).correct.tolist()
        [True, False]
        """
        proba = np.asarray(proba, dtype=np.float64)
        return cls(proba.max(axis=1), proba.argmax(axis=1) == np.asarray(labels))

    def threshold(self, max_error: float = 0.05, confidence: float = 0.95) -> float:
        """Return the threshold of `reject_threshold`."""
        return reject_threshold(self.confidence, self.correct, max_error=max_error, confidence=confidence)


def reject_threshold(
    confidence_of_rows: Vector,
    correct: Vector,
    *,
    max_error: float = 0.05,
    confidence: float = 0.95,
    starts: Sequence[float] = (0.25, 0.5, 0.75, 1.0),
) -> float:
    """Return the smallest threshold above which predictions are wrong at most `max_error` of the time, with this
    confidence; accept rows whose confidence is larger.

    The guarantee holds for new rows of the same kind as the held-out rows, averaged over them. Where no threshold
    achieves it, a ValueError says so. Where all held-out rows can be accepted, the threshold is just below the smallest
    confidence among them, so that rows unlike them are still rejected.

    Parameters
    ----------
    confidence_of_rows, correct : arrays (n,)
        Confidence of held-out rows, and whether their predicted class was right.
    max_error : float
        The largest share of wrong predictions among accepted rows, between 0 and 1.
    confidence : float
        Probability, over held-out sets, that the threshold keeps its promise.
    starts : sequence of float
        Shares of accepted rows from which less and less strict thresholds are tested.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> sure = rng.uniform(0.5, 1, 5000)
    >>> right = rng.uniform(size=5000) < sure
    >>> 0.8 < reject_threshold(sure, right, max_error=0.1) < 0.85
    True
    """
    for name, value in (("max_error", max_error), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} is {value}; expected a number between 0 and 1")
    sure, right = np.asarray(confidence_of_rows, dtype=np.float64), np.asarray(correct, dtype=bool)
    if sure.ndim != 1 or sure.shape != right.shape or not np.all(np.isfinite(sure)):
        raise ValueError(
            f"confidences have shape {sure.shape} and correct has shape {right.shape}; expected two arrays (n,) "
            "without NaN"
        )
    order = np.argsort(-sure, kind="stable")
    sure, wrong = sure[order], np.cumsum(~right[order])
    last = np.flatnonzero(np.append(np.diff(sure) < 0, True)) if len(sure) else np.zeros(0, dtype=int)  # ties together
    counts, errors = last + 1, wrong[last] if len(sure) else wrong
    lowest = np.nextafter(sure[-1:], 0.0)  # rows that are less sure than all held-out rows are never accepted
    limits = np.concatenate([sure[last[:-1] + 1], lowest])  # accepted: strictly above
    passed = binom.cdf(errors, counts, max_error) <= (1 - confidence) / len(starts)
    loosest = max((_run_of_passes(passed, counts, share * len(sure)) for share in starts), default=-1)
    if loosest < 0:
        bounds = beta.ppf(1 - (1 - confidence) / len(starts), errors + 1, np.maximum(counts - errors, 1e-9))
        tested = [_first(counts, share * len(sure)) for share in starts]
        smallest = min((bounds[first] for first in tested if first < len(counts)), default=1.0)
        raise ValueError(
            f"no threshold keeps the error at most {max_error:g} with confidence {confidence:g}; the smallest error "
            f"that {len(sure)} held-out rows can promise here is {np.ceil(1000 * smallest) / 1000:g}, so allow a "
            "larger error, or use more rows"
        )
    return float(limits[loosest])


def _run_of_passes(passed: Vector, counts: Vector, start: float) -> int:
    """Return the place of the last threshold of the sequence of passes that begins with the first count of at least
    `start` rows; -1 if that one fails.
    """
    first = _first(counts, start)
    if first >= len(passed) or not passed[first]:
        return -1
    failures = np.flatnonzero(~passed[first:])
    return first + (int(failures[0]) if len(failures) else len(passed) - first) - 1


def _first(counts: Vector, start: float) -> int:
    """Return the place of the first count of at least `start` rows."""
    return int(np.searchsorted(counts, np.ceil(start)))
