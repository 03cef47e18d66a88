"""`enkbayes predict`: classes, probabilities and uncertainty for a file of any length."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from enkbayes.cli.console import AsJson, Quiet, Speech

if TYPE_CHECKING:
    from enkbayes.cli.model import TableModel
    from enkbayes.cli.tables import Table


def predict(
    model: Annotated[Path, typer.Argument(help="A model that enkbayes fit has written.")],
    data: Annotated[
        Path, typer.Argument(help="Data: .csv, .parquet or .npz; columns the model does not use are ignored.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write, .csv or .parquet.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict the class of each row, with probabilities and uncertainty.

    The columns written are: class, one probability p_CLASS for each class, confidence (the largest probability), and
    total = aleatoric + epistemic uncertainty in nats. Rows are read and written piece by piece, so files may be larger
    than memory.
    """
    from enkbayes.cli.model import TableModel, following
    from enkbayes.cli.tables import check_output, stream, table_writer

    started, speech = time.perf_counter(), Speech(as_json, quiet)
    check_output(out)
    if out.exists() and data.exists() and out.samefile(data):
        raise ValueError(f"{out} is the file the data come from; expected another name to write to")
    fitted, rows = TableModel.load(model), 0
    with speech.progress("predicting") as bar, table_writer(out) as append:
        for table in following(stream(data), bar):
            append(predictions(fitted, table))
            rows += table.rows
    facts = {"rows": rows, "classes": fitted.classes, "seconds": time.perf_counter() - started, "file": str(out)}
    speech.result(f"enkbayes predict {data}", facts)


def predictions(model: TableModel, table: Table) -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns that are written for some rows."""
    features, classes = model.features(table), model.classes
    proba = model.classifier.predict_proba(features)
    uncertainty = model.classifier.predict_uncertainty(features)
    return (
        {"class": np.array(classes)[np.argmax(proba, axis=1)]}
        | {f"p_{name}": proba[:, k] for k, name in enumerate(classes)}
        | {
            "confidence": uncertainty.confidence,
            "total": uncertainty.total,
            "aleatoric": uncertainty.aleatoric,
            "epistemic": uncertainty.epistemic,
        }
    )
