"""The trust report: a page that says whether a fitted classifier can be trusted, and why."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.core.labels import encode
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.numerics import plain
from enkbayes.core.posterior import Posterior
from enkbayes.evaluation.metrics import Scores, confidence, score
from enkbayes.evaluation.report import figures
from enkbayes.evaluation.report.page import Picture, render

if TYPE_CHECKING:
    from enkbayes.estimators.classifier import EnsembleClassifier


import math
from dataclasses import dataclass

from enkbayes.inference.prediction_verdict import PredictionVerdict, judge_predictions
from enkbayes.inference.trust import CLOSE, COMMAND, CONVERGED, EVEN, FAR, HEAVY, MOVING, SLOW, UNCONVERGED, Trust
from enkbayes.inference.verdicts import BAD, GOOD, USABLE

FOLDS = 5
Vector = np.ndarray[Any, Any]


def trust_page(
    classifier: EnsembleClassifier,
    X: Any,
    y: Any,
    *,
    title: str,
    feature_names: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Return the trust report on a classifier that was just fitted to features X (N, D) and labels y (N,), as HTML.

    The reliability diagram and the scores use cross-validated predictions, which need five more fits. Everything else
    describes the fit itself. `notes` are remarks on the data. The page needs no network and no other file.

    Examples
    --------
    >>> import enkbayes as eb
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    >>> page = trust_page(clf, X, y, title="Iris")
    >>> page.startswith("<!doctype html>"), "Iris" in page
    (True, True)
    """
    trust, posterior, problem = classifier.trust_.advised(COMMAND), classifier.posterior_, classifier.problem_
    targets = encode(y, len(y), classifier.classes_)[0]
    proba, basis = held_out(classifier, X, np.asarray(y), targets)
    scores = None if proba is None else score(proba, targets)
    predictions = None if proba is None else judge_predictions(proba, targets, method="cross-validation")
    names = parameter_names(posterior, feature_names)
    reference, marginals = figures.marginals(problem, posterior, trust, names)
    banners = _banners(trust, predictions)
    sure = 0.0 if proba is None else float(np.mean(confidence(proba)))
    return render(
        "trust.html.j2",
        title=title,
        about=_about(classifier),
        worst=max((verdict.verdict for *_, verdict in banners), key=(GOOD, USABLE, BAD).index),
        verdicts=banners,
        sentence=_sentence,
        rows=diagnostic_rows(trust),
        basis=basis,
        scores=_tiles(scores),
        calibration=[] if proba is None else _calibration(proba, targets),
        convergence=figures.convergence(posterior.info),
        run=_run(posterior),
        reference=reference,
        marginals=marginals,
        steps=next_steps(trust, scores, sure, _precision(classifier), predictions),
        provenance=_provenance(classifier),
        notes=notes,
    )


def _banners(trust: Trust, predictions: PredictionVerdict | None) -> list[tuple[str, str, Any]]:
    """Return the question, the tone and the verdict of each banner. A good computation is not good news where
    predictions are not to be trusted, so its banner has no colour then.
    """
    empty = trust.verdict == GOOD and predictions is not None and predictions.verdict == BAD
    tone = "plain" if empty else TONES[trust.verdict]
    found: list[tuple[str, str, Any]] = [("Is the posterior computed well?", tone, trust)]
    if predictions is not None:
        found.append(("Do predictions deserve their confidence?", TONES[predictions.verdict], predictions))
    return found


def held_out(classifier: EnsembleClassifier, X: Any, y: Vector, targets: Vector) -> tuple[Vector | None, str]:
    """Return cross-validated probabilities (N, K), or None if a class is too rare, and a sentence about them."""
    from sklearn.base import clone
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    smallest = int(np.min(np.bincount(targets)))
    folds = min(FOLDS, smallest)
    if folds < 2:
        return None, "A class has a single row, so cross-validation is not possible and confidence cannot be checked."
    split = StratifiedKFold(folds, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit itself has already warned
        model = clone(classifier).set_params(progress=False, warm_start=False)
        proba = cross_val_predict(model, X, y, cv=split, method="predict_proba")
    words = (
        f"From {folds}-fold cross-validation: the model that predicts a row was fitted without it. Predictions for "
        "training rows would be too optimistic."
    )
    return np.asarray(proba), words


def parameter_names(posterior: Posterior | MixturePosterior, feature_names: Sequence[str] | None) -> list[str]:
    """Return a name for each of the P parameters: that of the feature and, with K logits, that of the class.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create(np.eye(2), [0, 1], intercept=1.0)
    >>> parameter_names(eb.run(problem), ["length", "width"])
    ['length', 'width', 'intercept']
    """
    linear, classes = posterior.map, posterior.classes
    if linear is None:
        return [f"parameter {i}" for i in range(int(posterior.mean.shape[0]))]
    names = (
        [f"feature {i}" for i in range(linear.features)] if feature_names is None else [str(n) for n in feature_names]
    )
    names = [*names, "intercept"] if linear.intercept else names
    if linear.outputs is None:
        return names
    labels = range(linear.outputs) if classes is None else classes
    return [f"{name} → {label}" for name in names for label in labels]


def _calibration(proba: Vector, targets: Vector) -> list[tuple[Picture, str]]:
    diagram = (
        "Accuracy against confidence, with 95 % intervals. On the dashed line the model is calibrated; below it the "
        "model is overconfident."
    )
    histogram = "Confidence of the correct and of the wrong predictions."
    return [(figures.reliability(proba, targets), diagram), (figures.confidences(proba, targets), histogram)]


def _tiles(scores: Scores | None) -> dict[str, str]:
    if scores is None:
        return {}
    return {
        "rows": f"{scores.rows:,}",
        "accuracy": f"{scores.accuracy:.3f}",
        "NLL (nats)": f"{scores.nll:.3f}",
        "Brier score": f"{scores.brier:.3f}",
        "calibration error": f"{scores.ece:.3f}",
    }


def _run(posterior: Posterior | MixturePosterior) -> str:
    info = posterior.info
    ended = "converged" if info.converged else "did not converge"
    words = f"{info.sampler.partition('(')[0]} {ended} after {info.steps} steps and {plain(info.seconds)} seconds."
    return f"{words} {_sentence(info.message)}" if info.message else words


def _about(classifier: EnsembleClassifier) -> str:
    names = [str(name) for name in classifier.classes_]
    few = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"{classifier.problem_.size:,} rows, {classifier.n_features_in_:,} features, {len(names)} classes: {few}"


def _sentence(words: str) -> str:
    """Return text with a capital letter and a full stop."""
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"


def _provenance(classifier: EnsembleClassifier) -> str:
    from enkbayes._version import __version__

    precision = _precision(classifier)
    parts = [
        f"enkbayes {__version__}",
        classifier.posterior_.info.sampler,
        "custom prior" if precision is None else f"prior precision {precision:.4g}",
        f"training data {(classifier.fingerprint_ or '')[:16]} (sha256)",
    ]
    return " · ".join(parts)


def _precision(classifier: EnsembleClassifier) -> float | None:
    """Return the precision of the prior if it is a single number."""
    value = classifier.prior_precision_
    return float(value) if isinstance(value, int | float) else None


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
    tone = "good" if trust.spanned == trust.parameters else TONES[trust.verdict]
    rank = "" if trust.data_rank is None else f"the features span {min(trust.data_rank, trust.parameters)} directions; "
    meaning = f"{rank}the data determine about {trust.informed:.0f} directions; the Gaussian spans {trust.spanned}"
    return Row("Size", f"{trust.particles:,} particles, {trust.parameters:,} parameters", tone, meaning)
