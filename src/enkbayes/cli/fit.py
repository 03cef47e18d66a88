"""`enkbayes fit`: a file of training data in, a model out."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enkbayes.cli.console import AsJson, Quiet, Speech, text, warnings_as_notes

if TYPE_CHECKING:
    from enkbayes.estimators import EnsembleClassifier
    from enkbayes.tables import Preprocessing


class SamplerName(StrEnum):
    """The samplers by the names of `EnsembleClassifier`."""

    EQUILIBRIUM = "equilibrium"
    HOMOTOPY = "homotopy"
    MEAN_FIELD = "mean-field"
    TROTTER = "trotter"
    TAMED_HOMOTOPY = "tamed-homotopy"
    STOCHASTIC = "stochastic"


def fit(
    train: Annotated[Path, typer.Argument(help="Training data: .csv, .parquet or .npz.")],
    target: Annotated[str, typer.Option(help="The column that holds the classes.")],
    out: Annotated[Path, typer.Option(help="The model file to write, NAME.safetensors.")],
    sampler: Annotated[SamplerName, typer.Option(help="How the posterior is found.")] = SamplerName.EQUILIBRIUM,
    particles: Annotated[int, typer.Option(help="Size of the ensemble.")] = 200,
    prior_precision: Annotated[
        str, typer.Option(metavar="X|auto", help="Inverse prior variance of the weights; auto chooses by evidence.")
    ] = "1.0",
    sweeps: Annotated[int, typer.Option(min=0, help="Sweeps of polish to the exact posterior after the fit.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same model.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write a trust report, NAME.html, with 5 more fits.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 3 if the verdict is: do not trust.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fit a Bayesian classifier to a table, and say how far to trust it.

    Numbers are standardised and missing ones imputed by the median; text becomes one feature for each category. The
    model file remembers all of it.
    """
    from enkbayes.estimators import EnsembleClassifier
    from enkbayes.tables import Preprocessing, check_classes, check_folder, class_labels, read
    from enkbayes.trust import BAD

    started, speech = time.perf_counter(), Speech(as_json, quiet)
    if out.suffix != ".safetensors":
        raise ValueError(f"the model file is {out}; expected a name that ends in .safetensors")
    check_folder(out)
    _check_report(report)
    table = read(train)
    labels = class_labels(table, target)
    check_classes(labels, target)
    preprocessing = Preprocessing.fit(table, target)
    classifier = EnsembleClassifier(
        sampler=sampler.value,
        particles=particles,
        prior_precision=_precision(prior_precision),
        random_state=seed,
        progress=speech.lively,
        sweeps=sweeps,
    )
    features = preprocessing.transform(table)
    with warnings_as_notes(speech):
        classifier.fit(features, labels)
    trust, _ = classifier.trust_, classifier.evidence_  # both are kept in the file
    # whether someone watched is no property of the model
    classifier.set_params(progress=False).save(out, preprocessing=preprocessing.to_json())
    for name, reason in preprocessing.left_out:
        speech.note(f"column {name!r} {reason}; it is left out")
    for note in preprocessing.notes:
        speech.note(note)
    facts = _facts(classifier, preprocessing, table.rows) | {
        "trust": trust.to_json() | {"sentence": trust.sentence},
        "seconds": time.perf_counter() - started,
        "file": str(out),
    }
    if report is not None:
        facts["report"] = str(
            _write_report(report, classifier, features, labels, f"{train.name}: {target}", preprocessing)
        )
    speech.result(f"enkbayes fit {train}", facts, _shown(facts))
    if strict and trust.verdict == BAD:
        sys.stderr.write(f"do not trust: {trust.sentence}; {out} is written all the same\n")
        raise typer.Exit(3)


def _check_report(path: Path | None) -> None:
    """Say before the fit what would keep the report from being written."""
    if path is None:
        return
    from enkbayes.report import require_report
    from enkbayes.tables import check_folder

    if path.suffix != ".html":
        raise ValueError(f"the report is {path}; expected a name that ends in .html")
    check_folder(path)
    require_report()


def _write_report(
    path: Path, classifier: EnsembleClassifier, features: Any, labels: Any, title: str, preprocessing: Preprocessing
) -> Path:
    from enkbayes.report import trust_page
    from enkbayes.tables import replacing

    page = trust_page(classifier, features, labels, title=title, feature_names=preprocessing.features)
    with replacing(path) as draft:
        draft.write_text(page, encoding="utf-8")
    return path


def _precision(words: str) -> float | str:
    """Return the number; what `auto` means is the estimator's affair."""
    if words == "auto":
        return words
    try:
        return float(words)
    except ValueError:
        raise ValueError(f"prior-precision is {words!r}; expected a positive number or auto") from None


def _facts(classifier: EnsembleClassifier, preprocessing: Preprocessing, rows: int) -> dict[str, Any]:
    from enkbayes.records import to_json

    info = classifier.posterior_.info
    return {
        "rows": rows,
        "classes": [str(name) for name in classifier.classes_],
        "columns": len(preprocessing.columns),
        "features": len(preprocessing.features),
        "left_out": [name for name, _ in preprocessing.left_out],
        "prior_precision": float(classifier.prior_precision_),
        "prior_choice": None if classifier.tuning_ is None else to_json(classifier.tuning_),
        "intercept_precision": float(classifier.intercept_precision),
        "log_evidence": to_json(classifier.evidence_) | {"text": str(classifier.evidence_)},
        "sampler": info.sampler,
        "particles": classifier.particles,
        "steps": info.steps,
        "residual": info.residual,
        "converged": info.converged,
        "message": info.message,
    }


def _prior(facts: dict[str, Any]) -> str:
    """Return the prior in a few words, and how it was chosen if it was."""
    words = f"variance {1 / facts['prior_precision']:.4g}, of intercepts {1 / facts['intercept_precision']:g}"
    return words if facts["prior_choice"] is None else f"{words}; {facts['prior_choice']['message']}"


def _shown(facts: dict[str, Any]) -> dict[str, str]:
    classes = facts["classes"]
    few = text(classes[:6]) + (", ..." if len(classes) > 6 else "")
    return {
        "rows": text(facts["rows"]),
        "classes": f"{len(classes)}: {few}",
        "features": f"{facts['features']} from {facts['columns']} columns",
        "prior": _prior(facts),
        "sampler": f"{facts['sampler']}, {facts['particles']} particles",
        "steps": text(facts["steps"]),
        "residual": text(facts["residual"]),
        "converged": text(facts["converged"]) if facts["converged"] else f"no: {facts['message']}",
        "log evidence": facts["log_evidence"]["text"],
        "trust": f"{facts['trust']['verdict']}: {facts['trust']['sentence']}",
        "seconds": f"{facts['seconds']:.2f}",
        "file": facts["file"],
    } | ({"report": facts["report"]} if "report" in facts else {})
