"""Do predictions deserve their confidence? A verdict that looks at held-out rows, not at the computation.

A posterior can be computed well and predict no better than a coin, and it can be computed badly and predict well. So
this is a separate verdict. It needs predictions of rows that the model was not fitted to, by cross-validation or by
leave-one-out, and compares them with two things: the log loss of the base rates, which know no features, and the
accuracy that the confidence promises. Differences count where they exceed their own uncertainty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.inference.folds import log_losses, mean_and_error
from enkbayes.inference.verdicts import BAD, GOOD, USABLE

Numbers = np.ndarray[Any, Any]
FEWEST = 20  # rows from which predictions can be judged
GAP, WIDE_GAP = 0.05, 0.15  # difference of confidence and accuracy that is usable only, and not to be trusted
LEAST_GAIN = 0.05  # share of the log loss of the base rates that predictions have to gain
CERTAIN = 2.0  # standard errors beyond which a difference counts


@dataclass(frozen=True)
class PredictionVerdict:
    """A verdict ("good", "usable", "do not trust") on predictions, the reason, what to do, and the figures behind it.

    nll, base_rate : mean log loss of the predictions, and of the shares of the classes in the other rows
    gain, gain_error : base_rate - nll, and its standard error
    gap, gap_error : mean confidence minus accuracy, and its standard error
    accuracy, rows : of the held-out predictions
    method : how rows were held out
    """

    verdict: str
    reason: str
    advice: str
    nll: float
    base_rate: float
    gain: float
    gain_error: float
    gap: float
    gap_error: float
    accuracy: float
    rows: int
    method: str

    @property
    def sentence(self) -> str:
        """Reason and advice."""
        return f"{self.reason}; {self.advice}" if self.advice else self.reason

    @property
    def verdict_and_sentence(self) -> str:
        """Verdict, reason and advice."""
        return f"{self.verdict}: {self.sentence}"


def judge_predictions(
    proba: Numbers, targets: Numbers, weights: Numbers | None = None, *, method: str = "held-out rows"
) -> PredictionVerdict:
    """Return the verdict on held-out class probabilities (N, K) of rows with classes targets (N,).

    Probabilities are not to be trusted if their log loss is not clearly below that of the base rates, or if their
    confidence is clearly more than 15 percentage points above their accuracy. They are usable if the difference is 5 to
    15 percentage points, in either direction, or if there are too few rows to judge by.

    >>> rng = np.random.default_rng(0)
    >>> targets = rng.integers(0, 2, 400)
    >>> judge_predictions(np.full((400, 2), 0.5), targets).verdict
    'do not trust'
    >>> judge_predictions(np.where(targets[:, None] == [0, 1], 0.98, 0.02), targets).verdict
    'good'
    """
    own = targets.astype(int)
    w = np.ones(len(own)) if weights is None else np.asarray(weights, dtype=np.float64)
    own, proba, w = own[w > 0], np.asarray(proba, dtype=np.float64)[w > 0], w[w > 0]
    share = w / w.sum()
    losses = log_losses(proba, own)
    counts = np.bincount(own, w, minlength=proba.shape[1])
    others = (counts[own] - w + 1) / (w.sum() - w + proba.shape[1])  # of the class of a row, in the other rows
    gains, sure = -np.log(others) - losses, proba.max(axis=1)
    right = (proba.argmax(axis=1) == own).astype(np.float64)
    gaps = sure - right
    (gain, gain_error), (gap, gap_error) = mean_and_error(gains, share), mean_and_error(gaps, share)
    base = float(share @ -np.log(others))
    better = gain > max(CERTAIN * gain_error, LEAST_GAIN * base)
    verdict, reason, advice = _judged(len(own), gap, gap_error, better=better)
    nll = float(share @ losses)
    against = f"log loss {nll:.3f} against {base:.3f} of the base rates (difference {gain:.3f} ± {gain_error:.3f})"
    return PredictionVerdict(
        verdict=verdict,
        reason=f"{reason}: {against}, by {method}",
        advice=advice,
        nll=nll,
        base_rate=base,
        gain=gain,
        gain_error=gain_error,
        gap=gap,
        gap_error=gap_error,
        accuracy=float(share @ right),
        rows=len(own),
        method=method,
    )


def _judged(rows: int, gap: float, gap_error: float, *, better: bool) -> tuple[str, str, str]:
    points = f"{100 * abs(gap):.0f} ± {100 * gap_error:.0f} percentage points"
    certain = abs(gap) > CERTAIN * gap_error
    if rows < FEWEST:
        return USABLE, f"{rows} rows are too few to judge predictions", "collect more rows"
    if not better:
        return BAD, "predictions are not clearly better than the base rates", "find other features"
    if certain and gap > WIDE_GAP:
        return BAD, f"confidence is {points} above accuracy", "choose a narrower prior, or calibrate"
    if certain and gap > GAP:
        return USABLE, f"confidence is {points} above accuracy", "choose a narrower prior, or calibrate"
    if certain and gap < -GAP:
        return USABLE, f"confidence is {points} below accuracy", "choose a wider prior, or calibrate"
    return GOOD, "predictions deserve their confidence", ""
