"""`enkbayes predict`: classes, probabilities and uncertainties for a file of any length."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from enkbayes.cli.console import AsJson, Output, Quiet, written_already

if TYPE_CHECKING:
    from enkbayes.cli.model import TableModel
    from enkbayes.cli.tables import Table


def predict(
    model: Annotated[Path, typer.Argument(help="Model file written by enkbayes fit.")],
    data: Annotated[
        Path, typer.Argument(help="Data: .csv, .parquet or .npz. Columns that the model does not use are ignored.")
    ],
    out: Annotated[Path, typer.Option(help="File to write: .csv or .parquet.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict the class of each row, with probabilities and uncertainties.

    The output has the columns class, p_CLASS (the probability of each class), confidence (the largest probability), and
    total, aleatoric and epistemic (uncertainty in nats; total = aleatoric + epistemic). Rows are processed in chunks,
    so files may be larger than memory.
    """
    from enkbayes.cli.model import TableModel, following
    from enkbayes.cli.tables import check_output, stream, table_writer

    started, output = time.perf_counter(), Output(as_json, quiet)
    check_output(out)
    if out.exists() and data.exists() and out.samefile(data):
        raise ValueError(f"--out is {out}, the file that contains the data; expected another file")
    fitted, rows = TableModel.load(model), 0
    with output.progress("predicting") as bar, table_writer(out) as append:
        for table in following(stream(data), bar):
            append(predictions(fitted, table))
            rows += table.rows
    facts = {"rows": rows, "classes": fitted.classes, "seconds": time.perf_counter() - started, "file": str(out)}
    with written_already(f"the predictions are in {out}"):
        output.result(f"enkbayes predict {data}", facts)


def predictions(model: TableModel, table: Table) -> dict[str, np.ndarray[Any, Any]]:
    """Return the output columns for some rows."""
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
