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


def evaluate(
    model: Annotated[Path, typer.Argument(help="Model file written by enkbayes fit.")],
    data: Annotated[Path, typer.Argument(help="Labelled data: .csv, .parquet or .npz.")],
    target: Annotated[str, typer.Option(help="Name of the column with the classes.")],
    ood: Annotated[Path | None, typer.Option(help="Out-of-distribution data; needs no classes.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score a model: accuracy, negative log-likelihood (nats), Brier score (0 to 2) and calibration error (15 bins).

    With --ood, also print how well low confidence detects the out-of-distribution rows: AUROC, AUPR and FPR95.
    """
    from enkbayes.cli.model import TableModel
    from enkbayes.evaluation.metrics import ood_score, score

    output = Output(as_json, quiet)
    fitted = TableModel.load(model)
    proba, numbers = _labelled(fitted, data, target, output)
    facts: dict[str, Any] = asdict(score(proba, numbers))
    shown = {"rows": text(facts["rows"])}
    shown |= {name: f"{facts[name.lower()]:.4f}" for name in ("accuracy", "NLL", "Brier", "ECE")}
    if ood is not None:
        scores = ood_score(proba, _unlabelled(fitted, ood, target, output))
        facts["ood"] = asdict(scores)
        shown["OOD rows"] = text(scores.rows)
        shown |= {f"OOD {name}": f"{facts['ood'][name.lower()]:.4f}" for name in ("AUROC", "AUPR", "FPR95")}
    output.result(f"enkbayes evaluate {data}", facts, shown)


def _labelled(
    model: TableModel, path: Path, target: str, output: Output
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return probabilities (n, K) and class numbers (n,)."""
    from enkbayes.cli.model import following
    from enkbayes.cli.tables import class_labels, stream

    proba, numbers = [], []
    with output.progress("evaluating") as bar:
        for table in following(stream(path), bar):
            numbers.append(model.class_numbers(class_labels(table, target), table.start))
            proba.append(model.proba(table, target))
    return np.concatenate(proba), np.concatenate(numbers)


def _unlabelled(model: TableModel, path: Path, target: str, output: Output) -> np.ndarray[Any, Any]:
    from enkbayes.cli.model import following
    from enkbayes.cli.tables import stream

    with output.progress("evaluating OOD data") as bar:
        return np.concatenate([model.proba(table, target) for table in following(stream(path), bar)])
