"""The trust report: one page that says how far to trust a classifier, and why."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.core.labels import encode
from enkbayes.core.posterior import Posterior
from enkbayes.evaluation.metrics import Scores, confidence, score
from enkbayes.evaluation.report import figures
from enkbayes.evaluation.report.page import Picture, render
from enkbayes.evaluation.report.steps import TONES, figure_rows, next_steps

if TYPE_CHECKING:
    from enkbayes.estimators.classifier import EnsembleClassifier

FOLDS = 5
Vector = np.ndarray[Any, Any]


def trust_page(
    classifier: EnsembleClassifier, X: Any, y: Any, *, title: str, feature_names: Sequence[str] | None = None
) -> str:
    """Return the trust report of a classifier that was just fitted to features X (N, D) and labels y (N,), as HTML.

    Reliability and confidence rest on cross-validated predictions, five more fits of the same kind; everything else on
    the fit itself. The page needs no network and no other file.

    Examples
    --------
    >>> import enkbayes as eb
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> page = trust_page(eb.EnsembleClassifier(random_state=0).fit(X, y), X, y, title="Iris")
    >>> page.startswith("<!doctype html>"), "Iris" in page
    (True, True)
    """
    trust, posterior, problem = classifier.trust_, classifier.posterior_, classifier.problem_
    targets = encode(y, len(y), classifier.classes_)[0]
    proba, basis = held_out(classifier, X, np.asarray(y), targets)
    scores = None if proba is None else score(proba, targets)
    names = parameter_names(posterior, feature_names)
    reference, marginals = figures.marginals(problem, posterior, trust, names)
    sure = 0.0 if proba is None else float(np.mean(confidence(proba)))
    return render(
        "trust.html.j2",
        title=title,
        about=_about(classifier),
        trust=trust,
        tone=TONES[trust.verdict],
        sentence=_sentence,
        rows=figure_rows(trust),
        basis=basis,
        scores=_tiles(scores),
        calibration=[] if proba is None else _calibration(proba, targets),
        convergence=figures.convergence(posterior.info),
        run=_run(posterior),
        reference=reference,
        marginals=marginals,
        steps=next_steps(trust, scores, sure, _precision(classifier)),
        provenance=_provenance(classifier),
    )


def held_out(classifier: EnsembleClassifier, X: Any, y: Vector, targets: Vector) -> tuple[Vector | None, str]:
    """Return cross-validated probabilities (N, K), None if a class is too rare, and a sentence on their origin."""
    from sklearn.base import clone
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    smallest = int(np.min(np.bincount(targets)))
    folds = min(FOLDS, smallest)
    if folds < 2:
        return None, "A class has a single row, so there are no cross-validated predictions to judge confidence by."
    split = StratifiedKFold(folds, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit itself has said what there is to say
        model = clone(classifier).set_params(progress=False, warm_start=False)
        proba = cross_val_predict(model, X, y, cv=split, method="predict_proba")
    words = (
        f"From {folds}-fold cross-validation: every row was predicted by a model that had not seen it. Predictions of "
        "the rows a model was fitted to would flatter it."
    )
    return np.asarray(proba), words


def parameter_names(posterior: Posterior, feature_names: Sequence[str] | None) -> list[str]:
    """Return a name for each of the P parameters: the feature's, with the class where there are K logits.

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
    deserved = (
        "Accuracy against confidence, with 95 % intervals. On the dashed line confidence is deserved; below it "
        "the model is too sure of itself."
    )
    apart = "How confident the predictions are, right and wrong ones apart."
    return [(figures.reliability(proba, targets), deserved), (figures.confidences(proba, targets), apart)]


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


def _run(posterior: Posterior) -> str:
    info = posterior.info
    ended = "settled" if info.converged else "did not settle"
    words = f"{info.sampler.partition('(')[0]} {ended} after {info.steps} steps and {info.seconds:.2g} seconds."
    return f"{words} {_sentence(info.message)}" if info.message else words


def _about(classifier: EnsembleClassifier) -> str:
    names = [str(name) for name in classifier.classes_]
    few = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"{classifier.problem_.size:,} rows, {classifier.n_features_in_:,} features, {len(names)} classes: {few}"


def _sentence(words: str) -> str:
    """Return words with a capital letter and a full stop."""
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"


def _provenance(classifier: EnsembleClassifier) -> str:
    from enkbayes._version import __version__

    precision = _precision(classifier)
    parts = [
        f"enkbayes {__version__}",
        classifier.posterior_.info.sampler,
        "a prior of its own" if precision is None else f"prior precision {precision:.4g}",
        f"training data {(classifier.fingerprint_ or '')[:16]} (sha256)",
    ]
    return " · ".join(parts)


def _precision(classifier: EnsembleClassifier) -> float | None:
    """Return the prior's precision if it is a single number."""
    value = classifier.prior_precision_
    return float(value) if isinstance(value, int | float) else None
