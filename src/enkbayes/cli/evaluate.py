"""`enkbayes evaluate`: the scores of a model on labelled data, and how well it detects out-of-distribution data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from enkbayes.cli.console import AsJson, Output, Quiet, text

if TYPE_CHECKING:
    from enkbayes.cli.model import TableModel
    from enkbayes.cli.tables import Table

Vector = np.ndarray[Any, Any]


def evaluate(
    model: Annotated[Path, typer.Argument(help="Model file written by enkbayes fit.")],
    data: Annotated[Path, typer.Argument(help="Labelled data: .csv, .parquet or .npz.")],
    target: Annotated[str, typer.Option(help="Name of the column with the classes.")],
    ood: Annotated[Path | None, typer.Option(help="Out-of-distribution data, with or without classes.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score a model: accuracy, negative log-likelihood (nats), Brier score (0 to 2) and calibration error (15 bins).

    With --ood, also print how well low confidence detects the out-of-distribution rows, and how well the ood_score of
    `enkbayes predict` does if the model has one: AUROC, AUPR and FPR95.
    """
    from enkbayes.cli.model import TableModel
    from enkbayes.evaluation.metrics import ood_score, ood_separation, score

    output = Output(as_json, quiet)
    fitted = TableModel.load(model)
    proba, numbers, inside = _labelled(fitted, data, target, output)
    facts: dict[str, Any] = asdict(score(proba, numbers))
    shown = {"rows": text(facts["rows"])}
    shown |= {name: f"{facts[name.lower()]:.4f}" for name in ("accuracy", "NLL", "Brier", "ECE")}
    if ood is not None:
        others, outside = _unlabelled(fitted, ood, target, output)
        scores = {"confidence": ood_score(proba, others)}
        if inside is not None and outside is not None:
            scores["score"] = ood_separation(inside, outside)
        facts["ood"] = asdict(scores["confidence"])
        facts["ood_score"] = asdict(scores["score"]) if "score" in scores else None
        shown["OOD rows"] = text(len(others))
        for name in ("AUROC", "AUPR", "FPR95"):
            found = [f"{asdict(each)[name.lower()]:.4f} by {by}" for by, each in scores.items()]
            shown[f"OOD {name}"] = ", ".join(found)
    output.result(f"enkbayes evaluate {data}", facts, shown)


def _labelled(model: TableModel, path: Path, target: str, output: Output) -> tuple[Vector, Vector, Vector | None]:
    """Return probabilities (n, K), class numbers (n,) and out-of-distribution scores (n,), None if there are none."""
    from enkbayes.cli.model import following
    from enkbayes.cli.tables import class_labels, stream

    proba, numbers, scores = [], [], []
    with output.progress("evaluating") as bar:
        for table in following(stream(path), bar):
            numbers.append(model.class_numbers(class_labels(table, target), table.start))
            found, score = _predicted(model, table, target)
            proba.append(found)
            scores.append(score)
    return np.concatenate(proba), np.concatenate(numbers), _joined(scores)


def _unlabelled(model: TableModel, path: Path, target: str, output: Output) -> tuple[Vector, Vector | None]:
    """Return probabilities and out-of-distribution scores."""
    from enkbayes.cli.model import following
    from enkbayes.cli.tables import stream

    with output.progress("evaluating OOD data") as bar:
        found = [_predicted(model, table, target) for table in following(stream(path), bar)]
    return np.concatenate([proba for proba, _ in found]), _joined([score for _, score in found])


def _predicted(model: TableModel, table: Table, target: str) -> tuple[Vector, Vector | None]:
    features = model.features(table, target)
    return model.classifier.predict_proba(features), model.ood_score(features)


def _joined(scores: list[Vector | None]) -> Vector | None:
    known = [score for score in scores if score is not None]
    return np.concatenate(known) if known else None
