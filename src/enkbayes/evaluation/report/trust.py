"""The trust report: a page that says whether a fitted classifier can be trusted, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.numerics import plain
from enkbayes.core.posterior import Posterior
from enkbayes.engine.arrays import to_numpy
from enkbayes.evaluation.metrics import Scores, confidence, score
from enkbayes.evaluation.report import figures
from enkbayes.evaluation.report.diagnostics import TONES, diagnostic_rows, next_steps
from enkbayes.evaluation.report.page import Picture, render
from enkbayes.inference.assessment import held_out_proba
from enkbayes.inference.prediction_verdict import PredictionVerdict
from enkbayes.inference.prior_average import PriorAverage
from enkbayes.inference.trust import COMMAND, Trust
from enkbayes.inference.verdicts import BAD, GOOD, USABLE

if TYPE_CHECKING:
    from enkbayes.estimators.classifier import EnsembleClassifier

BASIS = "By {}: the fit that predicts a row has not seen it. Predictions for training rows would be too optimistic."
UNCHECKED = "No row can be held out, so confidence cannot be checked."
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

    The reliability diagram and the scores use predictions of rows by fits that have not seen them: those that the
    second verdict of `classifier.trust_` judges. Everything else describes the fit itself. `notes` are remarks on the
    data. The page needs no network and no other file.

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
    trust, posterior, problem = classifier.trust_.advised(COMMAND), classifier.posterior_, classifier.problem_of(X, y)
    predictions, found = trust.predictions, held_out_proba(problem, posterior)
    rows, proba, basis = (None, None, UNCHECKED) if found is None else (found[0], found[1], BASIS.format(found[2]))
    targets = None if rows is None else to_numpy(problem.targets)[rows].astype(int)
    scores = None if proba is None or targets is None else score(proba, targets)
    names = parameter_names(posterior, feature_names)
    reference, marginals = ("", []) if posterior.held_out else figures.marginals(problem, posterior, trust, names)
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
        calibration=[] if proba is None or targets is None else _calibration(proba, targets),
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

    parts = [
        f"enkbayes {__version__}",
        classifier.posterior_.info.sampler,
        _prior(classifier),
        f"training data {(classifier.fingerprint_ or '')[:16]} (sha256)",
    ]
    return " · ".join(parts)


def _prior(classifier: EnsembleClassifier) -> str:
    """Say which prior the classifier has."""
    if isinstance(classifier.tuning_, PriorAverage):
        return "prior averaged over its width"
    precision = _precision(classifier)
    return "custom prior" if precision is None else f"prior precision {precision:.4g}"


def _precision(classifier: EnsembleClassifier) -> float | None:
    """Return the precision of the prior if it is a single number."""
    value = classifier.prior_precision_
    return float(value) if isinstance(value, int | float) else None
