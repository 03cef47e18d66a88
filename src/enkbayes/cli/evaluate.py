"""`enkbayes evaluate`: scores of a model on labelled data, and on data it should not be sure about."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from enkbayes.cli.console import AsJson, Quiet, Speech, text

if TYPE_CHECKING:
    from enkbayes.cli.model import TableModel


def evaluate(
    model: Annotated[Path, typer.Argument(help="A model that enkbayes fit has written.")],
    data: Annotated[Path, typer.Argument(help="Labelled data: .csv, .parquet or .npz.")],
    target: Annotated[str, typer.Option(help="The column that holds the classes.")],
    ood: Annotated[Path | None, typer.Option(help="Out-of-distribution data, no classes needed.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score a model: accuracy, negative log-likelihood (nats), Brier score (0 to 2), calibration error (15 bins).

    With --ood also AUROC, AUPR and FPR95 of telling those rows from the others by their lack of confidence.
    """
    from enkbayes.cli.model import TableModel
    from enkbayes.evaluation.metrics import ood_score, score

    speech = Speech(as_json, quiet)
    fitted = TableModel.load(model)
    proba, numbers = _labelled(fitted, data, target, speech)
    facts: dict[str, Any] = asdict(score(proba, numbers))
    shown = {"rows": text(facts["rows"])}
    shown |= {name: f"{facts[name.lower()]:.4f}" for name in ("accuracy", "NLL", "Brier", "ECE")}
    if ood is not None:
        scores = ood_score(proba, _unlabelled(fitted, ood, target, speech))
        facts["ood"] = asdict(scores)
        shown["OOD rows"] = text(scores.rows)
        shown |= {f"OOD {name}": f"{facts['ood'][name.lower()]:.4f}" for name in ("AUROC", "AUPR", "FPR95")}
    speech.result(f"enkbayes evaluate {data}", facts, shown)


def _labelled(
    model: TableModel, path: Path, target: str, speech: Speech
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return probabilities (n, K) and class numbers (n,)."""
    from enkbayes.cli.model import following
    from enkbayes.cli.tables import class_labels, stream

    proba, numbers = [], []
    with speech.progress("evaluating") as bar:
        for table in following(stream(path), bar):
            numbers.append(model.class_numbers(class_labels(table, target), table.start))
            proba.append(model.proba(table, target))
    return np.concatenate(proba), np.concatenate(numbers)


def _unlabelled(model: TableModel, path: Path, target: str, speech: Speech) -> np.ndarray[Any, Any]:
    from enkbayes.cli.model import following
    from enkbayes.cli.tables import stream

    with speech.progress("out of distribution") as bar:
        return np.concatenate([model.proba(table, target) for table in following(stream(path), bar)])
