"""`enkbayes predict`: classes, probabilities and uncertainties for a file of any length."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from enkbayes._version import __version__
from enkbayes.cli.console import AsJson, Output, Quiet, text, written_already

if TYPE_CHECKING:
    from enkbayes.cli.model import TableModel
    from enkbayes.cli.tables import Table

Vector = np.ndarray[Any, Any]
Columns = dict[str, Vector]


def predict(
    model: Annotated[Path, typer.Argument(help="Model file written by enkbayes fit.")],
    data: Annotated[
        Path, typer.Argument(help="Data: .csv, .parquet or .npz. Columns that the model does not use are ignored.")
    ],
    out: Annotated[Path, typer.Option(help="File to write: .csv or .parquet; - prints CSV.")],
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Column of the data to copy; may be given several times.")
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(help="Add a column decision (the class, or abstain) of which at most this share is wrong."),
    ] = None,
    review: Annotated[
        Path | None, typer.Option(help="Page to write, NAME.html, with the rows to review first and the reasons.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict the class of each row, with probabilities and uncertainties.

    The output has the columns class, p_CLASS (the probability of each class), confidence (the largest probability), and
    total, aleatoric and epistemic (uncertainty in nats; total = aleatoric + epistemic), and ood_score (how unlike the
    training rows a row is; about standard normal for rows like them). With --max-error there is a column decision: the
    class, or abstain where the confidence is too low. Among rows like the training rows, the share of wrong decisions
    is at most max-error, with confidence 95 %. Columns named by --keep come before all others. Rows are processed in
    chunks, so files may be larger than memory. Notes count missing numbers and categories that are new to the model.

    With --review there is also a page for the person who decides: how many rows can be accepted, and the 2,000 most
    doubtful rows, each with its probabilities and the evidence for and against its class. It can be sorted and
    searched, and needs no network.
    """
    from enkbayes.cli.model import TableModel, following
    from enkbayes.cli.pages import check_page, write_page
    from enkbayes.cli.review import Review
    from enkbayes.cli.tables import check_output, stream, table_printer, table_writer
    from enkbayes.estimators.preprocessing import Gaps

    started, output = time.perf_counter(), Output(as_json, quiet)
    printed = str(out) == "-"
    if printed and as_json:
        raise ValueError("--out - and --json both print to standard output; expected one of them")
    if not printed:
        check_output(out)
        if out.exists() and data.exists() and out.samefile(data):
            raise ValueError(f"--out is {out}, the file that contains the data; expected another file")
    check_page(review, "review")
    fitted, rows, abstained, gaps = TableModel.load(model), 0, 0, Gaps(Counter(), Counter())
    threshold = None if max_error is None else fitted.reject_threshold(max_error)
    reviewed = None if review is None else Review(fitted, max_error, threshold, keep or [])
    with output.progress("predicting") as bar, table_printer() if printed else table_writer(out) as append:
        for table in following(stream(data), bar):
            features = fitted.features(table)
            found = predictions(fitted, features, threshold)
            append(joined(kept(table, keep or []), found))
            rows, gaps = rows + table.rows, gaps + fitted.gaps(table)
            abstained += int(np.sum(found["decision"] == "abstain")) if threshold is not None else 0
            if reviewed is not None:
                reviewed.add(table, features, found)
    if review is not None and reviewed is not None:
        with written_already(None if printed else f"the predictions are in {out}"):
            made_by = f"enkbayes predict {model} {data}, enkbayes {__version__}"
            write_page(review, reviewed.page(data.name, gaps.sentences, made_by))
    for sentence in gaps.sentences:
        output.note(sentence)
    if printed:
        return
    facts = {"rows": rows, "classes": fitted.classes, "notes": gaps.sentences}
    if threshold is not None:
        facts |= {"threshold": threshold, "decided": rows - abstained, "abstained": abstained}
    facts |= {"seconds": time.perf_counter() - started, "file": str(out)}
    facts |= {} if review is None else {"review": str(review)}
    with written_already(f"the predictions are in {out}"):
        output.result(
            f"enkbayes predict {data}", facts, {name: text(value) for name, value in facts.items() if name != "notes"}
        )


def kept(table: Table, names: list[str]) -> Columns:
    """Return the columns that are copied from the data."""
    return {name: table.column(name, "the --keep column") for name in names}


def joined(kept: Columns, found: Columns) -> Columns:
    """Return the columns of the output; a column of the data must not replace one of the predictions."""
    if both := [name for name in kept if name in found]:
        raise ValueError(f"--keep {both[0]} is also the name of a prediction; rename the column in the data")
    return kept | found


def predictions(model: TableModel, features: Vector, threshold: float | None = None) -> Columns:
    """Return the output columns for features (n, D); with a threshold on the confidence, decisions as well."""
    classes = model.classes
    proba = model.classifier.predict_proba(features)
    uncertainty = model.classifier.predict_uncertainty(features)
    best = np.array(classes)[np.argmax(proba, axis=1)]
    columns = (
        {"class": best}
        | {f"p_{name}": proba[:, k] for k, name in enumerate(classes)}
        | {
            "confidence": uncertainty.confidence,
            "total": uncertainty.total,
            "aleatoric": uncertainty.aleatoric,
            "epistemic": uncertainty.epistemic,
        }
    )
    score = model.ood_score(features)
    if score is not None:
        columns["ood_score"] = score
    if threshold is not None:
        columns["decision"] = np.where(uncertainty.confidence > threshold, best, "abstain")
    return columns
