"""`enkbayes fit`: read training data, fit a classifier and write a model file."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from enkbayes.cli.console import AsJson, Output, Quiet, text, warnings_as_notes, written_already
from enkbayes.cli.pages import check_page, write_page
from enkbayes.cli.processes import Processes, together
from enkbayes.engine.processes import first, shared_errors

if TYPE_CHECKING:
    from enkbayes.cli.tables import Preprocessing, Table
    from enkbayes.estimators.classifier import EnsembleClassifier


class SamplerName(StrEnum):
    """The names of the samplers, as in `EnsembleClassifier`."""

    AUTO = "auto"
    EQUILIBRIUM = "equilibrium"
    HOMOTOPY = "homotopy"
    MEAN_FIELD = "mean-field"
    TROTTER = "trotter"
    TAMED_HOMOTOPY = "tamed-homotopy"
    STOCHASTIC = "stochastic"


def fit(
    train: Annotated[Path, typer.Argument(help="Training data: .csv, .parquet or .npz.")],
    target: Annotated[str, typer.Option(help="Name of the column with the classes.")],
    out: Annotated[Path, typer.Option(help="Model file to write: NAME.safetensors.")],
    sampler: Annotated[SamplerName, typer.Option(help="Algorithm for the posterior.")] = SamplerName.AUTO,
    particles: Annotated[int, typer.Option(help="Number of particles in the ensemble.")] = 200,
    prior_precision: Annotated[
        str,
        typer.Option(
            metavar="average|auto|X",
            help="Prior of the weights. average: average over its width. auto: the width with the highest evidence. X:"
            " exactly this inverse variance.",
        ),
    ] = "average",
    sweeps: Annotated[int, typer.Option(min=0, help="Polishing sweeps towards the exact posterior after the fit.")] = 0,
    far_field: Annotated[
        bool,
        typer.Option(
            "--far-field", help="Lower the confidence for rows far from the training data (far-field variance)."
        ),
    ] = False,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Largest number of steps of a sampler that runs until it has converged.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed; the same seed gives the same model.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Trust report to write, NAME.html; takes five more fits.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 3 if a verdict is 'do not trust'.")] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File that stores the state of the run; the same command resumes from it.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fit a Bayesian classifier to a table, and report how far it can be trusted.

    Columns of numbers are standardised and missing numbers are replaced by the median; columns of text become one
    feature per category. The model file stores this preprocessing.

    Under torchrun (torchrun --nproc-per-node 2 -m enkbayes fit ...) each process fits its share of the rows.
    """
    from enkbayes.estimators.classifier import EnsembleClassifier
    from enkbayes.inference.trust import COMMAND
    from enkbayes.inference.verdicts import BAD
    from enkbayes.storage.checkpoint import remove

    begin = time.perf_counter()
    with together(checkpoint) as processes:
        output = Output(as_json, quiet or not processes.leads)
        classifier = EnsembleClassifier(
            particles=particles, random_state=seed, progress=output.interactive, sweeps=sweeps, far_field=far_field
        )
        with shared_errors():
            classifier.set_params(sampler=_sampler(sampler, max_steps), prior_precision=_precision(prior_precision))
            if far_field and processes.count > 1:
                raise ValueError("--far-field needs all rows in one process; leave it out, or run without torchrun")
            if processes.leads:
                _check_files(out, report, checkpoint)
            data = TrainingData.load(train, target)
        data = data.agreed()
        with warnings_as_notes(output):
            resumed_from = _learn(classifier, data, processes, checkpoint)
        trust, _ = classifier.trust_.advised(COMMAND), classifier.evidence_  # now, so that the file contains both
        with shared_errors():
            if processes.leads:
                _save(classifier, data, out, whole=processes.count == 1)
        if checkpoint is not None:
            with warnings_as_notes(output):
                remove(checkpoint)
    if processes.leads:
        facts = _facts(classifier, data.preprocessing, data.table.rows) | {
            "trust": asdict(trust) | {"sentence": trust.sentence},
            "predictions": None if trust.predictions is None else trust.predictions.verdict_and_sentence,
            "resumed_from": resumed_from,
            "seconds": time.perf_counter() - begin,
            "file": str(out),
        }
        with written_already(f"the model is in {out}"):
            if report is not None:
                facts["report"] = str(_write_report(report, classifier, data, f"{train.name}: {target}"))
            _print(output, data.preprocessing, f"enkbayes fit {train}", facts)
    doubts = [verdict.sentence for verdict in (trust, trust.predictions) if verdict and verdict.verdict == BAD]
    if strict and doubts:
        if processes.leads:
            sys.stderr.write(f"do not trust: {'; '.join(doubts)}; the model was still written to {out}\n")
        raise typer.Exit(3)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """A table, its classes, and the preprocessing that computes its features."""

    table: Table
    labels: Any
    preprocessing: Preprocessing

    @classmethod
    def load(cls, path: Path, target: str) -> TrainingData:
        """Read a file. Every process reads all of it, so that all compute the same features."""
        from enkbayes.cli.tables import Preprocessing, check_classes, class_labels, read

        table = read(path)
        labels = class_labels(table, target)
        check_classes(labels, target)
        return cls(table, labels, Preprocessing.fit(table, target))

    def agreed(self) -> TrainingData:
        """Return the data with the preprocessing of the first process; raise if a process has read another table."""
        rows, preprocessing = first((self.table.rows, self.preprocessing))
        with shared_errors():
            if rows != self.table.rows or preprocessing.features != self.preprocessing.features:
                here, there = len(self.preprocessing.features), len(preprocessing.features)
                raise ValueError(
                    f"the table has {self.table.rows:,} rows and {here} features on this process, but {rows:,} rows "
                    f"and {there} features on the first; expected the same file on every process"
                )
        return replace(self, preprocessing=preprocessing)

    def features(self, rows: slice | None = None) -> Any:
        """Return the features (n, D) of some or all rows."""
        return self.preprocessing.transform(self.table if rows is None else self.table.take(rows))


def _learn(classifier: EnsembleClassifier, data: TrainingData, processes: Processes, path: Path | None) -> int | None:
    """Fit the classifier to all rows, or to the share of this process. Return the step from which the run resumed."""
    from enkbayes.storage.checkpoint import CheckpointWriter

    writer = None if path is None else CheckpointWriter(path, keep=True)  # the model is written before it is removed
    if processes.count == 1:
        classifier.fit(data.features(), data.labels, checkpoint=writer)
        return None if writer is None else writer.resumed_from
    tuning, rows = None, processes.share(data.table.rows)
    if isinstance(classifier.prior_precision, str):  # a choice by all rows, which every process makes
        tuning = first(classifier.tune(data.features(), data.labels))
    classes = np.unique(data.labels)
    classifier.fit_shard(data.features(rows), data.labels[rows], classes=classes, tuning=tuning, checkpoint=writer)
    return None if writer is None else writer.resumed_from


def _save(classifier: EnsembleClassifier, data: TrainingData, out: Path, *, whole: bool) -> None:
    """Write the model. If no process was fitted to all rows, compute their fingerprint here."""
    from enkbayes.storage.fingerprint import fingerprint

    if whole:
        classifier.remember()
    else:
        classifier.fingerprint_ = fingerprint(data.features(), data.labels)
    # whether progress was shown is not a property of the model
    classifier.set_params(progress=False).save(out, preprocessing=data.preprocessing.to_json())


def _print(output: Output, preprocessing: Preprocessing, title: str, facts: dict[str, Any]) -> None:
    for remark in preprocessing.remarks:
        output.note(remark)
    output.result(title, facts, _shown(facts))


def _check_files(out: Path, report: Path | None, checkpoint: Path | None) -> None:
    """Raise before the fit if its files could not be written."""
    from enkbayes.storage.files import check_writable, destination

    if out.suffix != ".safetensors":
        raise ValueError(f"the model file is {out}; expected a name that ends in .safetensors")
    check_writable(out)
    if checkpoint is not None:
        if destination(checkpoint) == destination(out):
            raise ValueError(f"model and checkpoint are both {out}; expected two files")
        check_writable(checkpoint)
    check_page(report, "report")


def _write_report(path: Path, classifier: EnsembleClassifier, data: TrainingData, title: str) -> Path:
    """Write the trust report. This process computes it from all rows."""
    from enkbayes.evaluation.report import trust_page

    features, labels = data.features(), data.labels
    classifier.problem_ = classifier.problem_of(features, labels)
    prepared = data.preprocessing
    page = trust_page(
        classifier, features, labels, title=title, feature_names=prepared.features, notes=prepared.remarks
    )
    write_page(path, page)
    return path


def _sampler(name: SamplerName, max_steps: int | None) -> Any:
    """Return the name of a sampler, or, with a number of steps, the sampler."""
    from enkbayes.samplers import BY_NAME

    if max_steps is None:
        return name.value
    kind: Any = BY_NAME["equilibrium" if name is SamplerName.AUTO else name.value]
    if "max_steps" not in (f.name for f in fields(kind)):
        raise ValueError(f"--sampler {name.value} has a fixed number of steps; leave out --max-steps")
    return kind(max_steps=max_steps)


def _precision(value: str) -> float | str:
    """Return a number, or the name of a choice that the estimator makes."""
    if value in ("average", "auto"):
        return value
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"prior-precision is {value!r}; expected average, auto, or a positive number") from None


def _facts(classifier: EnsembleClassifier, preprocessing: Preprocessing, rows: int) -> dict[str, Any]:
    info = classifier.posterior_.info
    return {
        "rows": rows,
        "classes": [str(name) for name in classifier.classes_],
        "columns": len(preprocessing.columns),
        "features": len(preprocessing.features),
        "left_out": [name for name, _ in preprocessing.left_out],
        "notes": list(preprocessing.notes),
        "prior_precision": np.asarray(classifier.prior_precision_).tolist(),  # of each feature, where units differ
        "prior_choice": None if classifier.tuning_ is None else asdict(classifier.tuning_),
        "intercept_precision": float(classifier.intercept_precision),
        "far_field": _far_field(classifier),
        "log_evidence": asdict(classifier.evidence_) | {"text": str(classifier.evidence_)},
        "sampler": info.sampler,
        "particles": classifier.particles,
        "steps": info.steps,
        "residual": info.residual,
        "converged": info.converged,
        "message": info.message,
    }


def _far_field(classifier: EnsembleClassifier) -> str | None:
    """Say what was chosen, if far-field variance was asked for."""
    found = classifier.far_field_ if classifier.far_field else None
    return None if found is None or found.choice is None else found.choice.message


def _prior(facts: dict[str, Any]) -> str:
    """Describe the prior and, if it was chosen, how."""
    if facts["prior_choice"] is not None and "components" in facts["prior_choice"]:
        return str(facts["prior_choice"]["message"])
    weights, intercepts = 1 / facts["prior_precision"], 1 / facts["intercept_precision"]
    prior = f"variance {plain(weights)} for weights, {plain(intercepts)} for intercepts"
    return prior if facts["prior_choice"] is None else f"{prior}; {facts['prior_choice']['message']}"


def plain(value: float) -> str:
    """Return a number with four digits and without an exponent, as far as it is readable.

    >>> plain(10_000.0), plain(0.012345), plain(1e-12)
    ('10,000', '0.01235', '1e-12')
    """
    return f"{value:,.0f}" if 1e4 <= value < 1e15 else f"{value:.4g}"


def _shown(facts: dict[str, Any]) -> dict[str, str]:
    classes = facts["classes"]
    few = text(classes[:6]) + (", ..." if len(classes) > 6 else "")
    resumed = facts["resumed_from"]
    return {
        "rows": text(facts["rows"]),
        "classes": f"{len(classes)}: {few}",
        "features": f"{facts['features']} from {facts['columns']} columns",
        "prior": _prior(facts),
        **({} if facts["far_field"] is None else {"far field": facts["far_field"]}),
        "sampler": f"{facts['sampler'].partition('(')[0]}, {facts['particles']} particles",
        "steps": text(facts["steps"]) + ("" if resumed is None else f", resumed from step {text(resumed)}"),
        "residual": text(facts["residual"]),
        "converged": text(facts["converged"]) if facts["converged"] else f"no: {facts['message'].partition(';')[0]}",
        "log evidence": facts["log_evidence"]["text"],
        "posterior": f"{facts['trust']['verdict']}: {facts['trust']['sentence']}",
        "predictions": facts["predictions"] or "not judged",
        "seconds": f"{facts['seconds']:.2f}",
        "file": facts["file"],
    } | ({"report": facts["report"]} if "report" in facts else {})
