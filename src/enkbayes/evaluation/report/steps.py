"""From a verdict to what to do next, and from figures to rows of a table."""

from __future__ import annotations

import math
from dataclasses import dataclass

from enkbayes.evaluation.metrics import Scores
from enkbayes.inference.trust import (
    BAD,
    CLOSE,
    CONVERGED,
    EVEN,
    FAR,
    GOOD,
    HEAVY,
    MOVING,
    SLOW,
    UNCONVERGED,
    USABLE,
    Trust,
)

TONES = {GOOD: "good", USABLE: "usable", BAD: "bad"}
WORDS = {"good": "fine", "usable": "watch", "bad": "poor"}


@dataclass(frozen=True)
class Row:
    """A figure: name, value, tone ("good", "usable", "bad" or "" for no judgement) and what it says."""

    name: str
    value: str
    tone: str
    meaning: str

    @property
    def reading(self) -> str:
        """The tone in one word."""
        return WORDS.get(self.tone, "")


@dataclass(frozen=True)
class Step:
    """Something to do, and the code that does it."""

    text: str
    codes: tuple[str, ...] = ()


def figure_rows(trust: Trust) -> list[Row]:
    """Return the figures of a trust report as rows of a table."""
    rows = [_residual(trust), *_weights(trust), _size(trust)]
    if trust.nonlinearity is not None:
        meaning = "share of the logits' spread over the ensemble that no linear function explains"
        rows.append(Row("Non-linearity", f"{trust.nonlinearity:.2f}", "", meaning))
    if trust.sweeps:
        late = "noise only" if trust.drift == 0 else f"{100 * trust.drift:.0f} %"
        meaning = f"climb in log posterior that came in the second half of the sweeps: {late}; settled below 10 %"
        rows.append(Row("Polish", f"{trust.sweeps} sweeps", _tone(trust.drift, SLOW, MOVING), meaning))
    return rows


def next_steps(trust: Trust, scores: Scores | None, confidence: float, precision: float | None) -> list[Step]:
    """Return what to do next, the most useful first.

    confidence is the mean one of the predictions behind the scores, precision that of the prior, None if it is no
    single number.
    """
    steps, narrower = _repairs(trust), "" if precision is None else f"{10 * precision:.3g}"
    if trust.verdict != GOOD and trust.shift >= CLOSE and narrower:
        text = "More rows, or a narrower prior, bring the posterior closer to a Gaussian:"
        steps.append(Step(text, (f"--prior-precision {narrower}",)))
    if scores is not None:
        gap, error = confidence - scores.accuracy, math.sqrt(max(scores.accuracy * (1 - scores.accuracy), 1e-9))
        if gap > max(2 * error / math.sqrt(scores.rows), 0.01) and narrower:
            text = f"Predictions are {100 * gap:.0f} points more confident than right; a narrower prior tempers them:"
            steps.append(Step(text, (f"--prior-precision {narrower}",)))
    steps.append(
        Step(
            "Score the model on data it has not seen, and on data it should not be sure about:",
            ("enkbayes evaluate MODEL TEST --target COLUMN --ood STRANGE",),
        )
    )
    return steps


def _repairs(trust: Trust) -> list[Step]:
    if trust.verdict == GOOD:
        return [Step("Nothing needs repair: use probabilities and uncertainties as they are.")]
    if trust.reason == UNCONVERGED:
        return [
            Step(
                "Let the run settle: more steps, or the mean-field sampler, which always does:",
                ("--sampler mean-field",),
            )
        ]
    if trust.spanned < trust.parameters:
        more = f"--particles {2 * trust.parameters}"
        return [
            Step("Use more particles than parameters, or a sampler that needs none:", (more, "--sampler mean-field"))
        ]
    sweeps = 2 * trust.sweeps or 20
    polish = (f"clf.polish({sweeps})", f"enkbayes fit ... --sweeps {sweeps}")
    return [
        Step("Move the particles from the Gaussian to the exact posterior:", polish),
        Step("Polished predictions average over particles, so have some more of them:", ("--particles 1000",)),
    ]


def _tone(value: float, good: float, usable: float) -> str:
    if math.isnan(value):
        return ""
    return "good" if value < good else "usable" if value < usable else "bad"


def _residual(trust: Trust) -> Row:
    if math.isnan(trust.residual):
        return Row("Residual", "none", "", "a homotopy ends at s = 1 and has no equilibrium to settle in")
    meaning = f"natural-gradient norm at the end of the run; settled below {CONVERGED:g}"
    return Row("Residual", f"{trust.residual:.1e}", _tone(trust.residual, CONVERGED, CONVERGED), meaning)


def _weights(trust: Trust) -> list[Row]:
    if math.isnan(trust.shift):
        return []
    meaning = f"the Gaussian is as wrong as one whose mean is this far off; close below {CLOSE:g}, far above {FAR:g}"
    rows = [Row("Distance to the posterior", f"{trust.shift:.2f} sd", _tone(trust.shift, CLOSE, FAR), meaning)]
    if not math.isnan(trust.k_hat):
        even = trust.effective >= EVEN
        meaning = f"tail of the importance weights (PSIS); averages of weights are reliable below {HEAVY:g}"
        if even and trust.k_hat >= HEAVY:
            meaning = "tail of the importance weights (PSIS); they are nearly equal, so their tail is noise"
        rows.append(Row("k-hat", f"{trust.k_hat:.2f}", "good" if even else _tone(trust.k_hat, HEAVY, 1.0), meaning))
    share = f"{trust.effective_size:,.0f} of {trust.draws:,} ({100 * trust.effective:.2g} %)"
    meaning = "draws of the Gaussian that count as draws of the posterior; falls with the number of parameters"
    return [*rows, Row("Effective sample size", share, "", meaning)]


def _size(trust: Trust) -> Row:
    tone = "good" if trust.spanned == trust.parameters else TONES[trust.verdict]
    seen = "" if trust.data_rank is None else f"the data see {min(trust.data_rank, trust.parameters)} directions, "
    meaning = f"{seen}and have a say in about {trust.informed:.0f}; the Gaussian spans {trust.spanned}"
    return Row("Size", f"{trust.particles:,} particles, {trust.parameters:,} parameters", tone, meaning)
