"""The table of diagnostics of the trust report, and the suggestions below it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from enkbayes.core.numerics import plain
from enkbayes.evaluation.metrics import Scores
from enkbayes.inference.prediction_verdict import PredictionVerdict
from enkbayes.inference.trust import CLOSE, CONVERGED, EVEN, FAR, HEAVY, MOVING, SLOW, UNCONVERGED, Trust
from enkbayes.inference.verdicts import BAD, GOOD, USABLE

TONES = {GOOD: "good", USABLE: "usable", BAD: "bad"}
READINGS = {"good": "good", "usable": "fair", "bad": "poor"}


@dataclass(frozen=True)
class Row:
    """A diagnostic: its name, value, tone ("good", "usable", "bad", or "" for no rating) and meaning."""

    name: str
    value: str
    tone: str
    meaning: str

    @property
    def reading(self) -> str:
        """The rating in one word."""
        return READINGS.get(self.tone, "")


@dataclass(frozen=True)
class Step:
    """A suggestion, and code or options that carry it out."""

    text: str
    codes: tuple[str, ...] = ()


def diagnostic_rows(trust: Trust) -> list[Row]:
    """Return the diagnostics of a trust report as rows of a table."""
    rows = [_residual(trust), *_weights(trust), _size(trust)]
    if trust.nonlinearity is not None:
        meaning = "share of the variation of the logits over the ensemble that no linear function explains"
        rows.append(Row("Nonlinearity", f"{trust.nonlinearity:.2f}", "", meaning))
    if trust.sweeps:
        late = "noise only" if trust.drift == 0 else f"{100 * trust.drift:.0f} %"
        meaning = (
            f"share of the increase in log posterior that came in the second half of the sweeps: {late}; converged "
            "below 10 %"
        )
        rows.append(Row("Polish", f"{trust.sweeps} sweeps", _tone(trust.drift, SLOW, MOVING), meaning))
    return rows


def next_steps(
    trust: Trust,
    scores: Scores | None,
    confidence: float,
    precision: float | None,
    predictions: PredictionVerdict | None = None,
) -> list[Step]:
    """Return suggestions, the most useful first.

    confidence : mean confidence of the predictions that were scored
    precision : precision of the prior, None if it is not a single number
    predictions : the verdict on them, if there is one
    """
    steps, narrower = _repairs(trust, predictions), "" if precision is None else plain(10 * precision, 3)
    if trust.verdict != GOOD and trust.shift >= CLOSE and narrower:
        text = "Collect more rows or choose a narrower prior; both bring the posterior closer to a Gaussian:"
        steps.append(Step(text, (f"--prior-precision {narrower}",)))
    if scores is not None:
        gap, error = confidence - scores.accuracy, math.sqrt(max(scores.accuracy * (1 - scores.accuracy), 1e-9))
        if gap > max(2 * error / math.sqrt(scores.rows), 0.01) and narrower:
            text = (
                f"Choose a narrower prior: mean confidence is {100 * gap:.0f} percentage points above accuracy, and a "
                "narrower prior lowers it:"
            )
            steps.append(Step(text, (f"--prior-precision {narrower}",)))
    steps.append(
        Step(
            "Score the model on held-out rows and on out-of-distribution rows:",
            ("enkbayes evaluate MODEL TEST --target COLUMN --ood OTHER",),
        )
    )
    return steps


def _repairs(trust: Trust, predictions: PredictionVerdict | None) -> list[Step]:
    if trust.verdict == GOOD and predictions is not None and predictions.verdict == BAD:
        return [Step(f"Do not use the probabilities: {predictions.reason.partition(':')[0]}.")]
    if trust.verdict == GOOD:
        return [Step("Nothing needs to be fixed: use the probabilities and uncertainties as they are.")]
    if trust.reason == UNCONVERGED:
        return [
            Step(
                "Let the run converge: allow more steps, or use the mean-field sampler, which converges reliably:",
                ("--sampler mean-field",),
            )
        ]
    if trust.held_out:
        return [
            Step(
                "Use the probabilities. For a posterior with credible intervals, fix the prior:",
                ("--prior-precision 1",),
            )
        ]
    if trust.spanned < trust.parameters:
        more = f"--particles {2 * trust.parameters}"
        return [
            Step(
                "Use more particles than parameters, or the mean-field sampler, which needs none:",
                (more, "--sampler mean-field"),
            )
        ]
    sweeps = 2 * trust.sweeps or 20
    polish = (f"--sweeps {sweeps}", f"clf.polish({sweeps})")
    return [
        Step("Polish: move the particles from the Gaussian to the exact posterior:", polish),
        Step("Use more particles, because polished predictions average over them:", ("--particles 1000",)),
    ]


def _tone(value: float, good: float, usable: float) -> str:
    if math.isnan(value):
        return ""
    return "good" if value < good else "usable" if value < usable else "bad"


def _residual(trust: Trust) -> Row:
    if math.isnan(trust.residual):
        return Row("Residual", "none", "", "a homotopy ends at s = 1 and has no equilibrium to converge to")
    meaning = f"natural-gradient norm at the end of the run; converged below {CONVERGED:g}"
    return Row("Residual", f"{trust.residual:.1e}", _tone(trust.residual, CONVERGED, CONVERGED), meaning)


def _weights(trust: Trust) -> list[Row]:
    if math.isnan(trust.shift):
        return []
    meaning = (
        "the Gaussian is as inaccurate as one whose mean is off by this many standard deviations; close below "
        f"{CLOSE:g}, far above {FAR:g}"
    )
    rows = [Row("Distance to the posterior", f"{trust.shift:.2f} sd", _tone(trust.shift, CLOSE, FAR), meaning)]
    if not math.isnan(trust.k_hat):
        even = trust.effective >= EVEN
        meaning = f"tail of the importance weights (PSIS); weighted averages are reliable below {HEAVY:g}"
        if even and trust.k_hat >= HEAVY:
            meaning = "tail of the importance weights (PSIS); the weights are nearly equal, so their tail is noise"
        rows.append(Row("k-hat", f"{trust.k_hat:.2f}", "good" if even else _tone(trust.k_hat, HEAVY, 1.0), meaning))
    share = f"{trust.effective_size:,.0f} of {trust.draws:,} ({_percent(trust.effective)})"
    meaning = (
        "number of independent posterior draws that the draws of the Gaussian are worth; it falls with the number of "
        "parameters"
    )
    return [*rows, Row("Effective sample size", share, "", meaning)]


def _percent(share: float) -> str:
    """Return a share in per cent, without an exponent: 100 %, 12 %, 0.031 %."""
    value = 100 * share
    return f"{value:.0f} %" if not value < 1 else f"{float(f'{value:.2g}'):f}".rstrip("0").rstrip(".") + " %"


def _size(trust: Trust) -> Row:
    size = f"{trust.particles:,} particles, {trust.parameters:,} parameters"
    if trust.held_out:
        return Row("Size", size, "", "held-out rows chose the spread of the particles")
    tone = "good" if trust.spanned == trust.parameters else TONES[trust.verdict]
    rank = "" if trust.data_rank is None else f"the features span {min(trust.data_rank, trust.parameters)} directions; "
    meaning = f"{rank}the data determine about {trust.informed:.0f} directions; the Gaussian spans {trust.spanned}"
    return Row("Size", size, tone, meaning)
