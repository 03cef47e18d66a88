"""`enkbayes show`: what a model file holds, with a table of coefficients."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from enkbayes.cli.console import AsJson, Output, Quiet, text

if TYPE_CHECKING:
    from enkbayes.cli.model import TableModel
    from enkbayes.inference.summary import Summary

STANDARD = "Coefficients are per standard deviation of the column in the training data."
ORIGINAL = "Coefficients are per unit of the column; the intercept is that of a row of zeros."
INTERVALS = (
    "Each interval contains its coefficient with a probability of {level:.0%}. "
    "P(direction) is the probability that its sign is right."
)
MOST = 200  # coefficients that are printed; --json has all


def show(
    model: Annotated[Path, typer.Argument(help="Model file written by enkbayes fit.")],
    level: Annotated[float, typer.Option(help="Probability of the credible intervals.")] = 0.95,
    original_units: Annotated[
        bool, typer.Option("--original-units", help="Coefficients per unit of a column, not per standard deviation.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show what a model file holds: classes, columns, prior, verdict, and coefficients with credible intervals.

    Columns of text are contrasts with their first category. With three or more classes, coefficients are contrasts with
    the average class.
    """
    from enkbayes.cli.model import TableModel

    output = Output(as_json, quiet)
    fitted = TableModel.load(model)
    summary = fitted.classifier.summary(level, original_units=original_units)
    facts = _facts(fitted) | {"file": str(model)}
    if as_json:
        output.result("", facts | {"level": level, "coefficients": [asdict(row) for row in summary.rows]})
        return
    output.result(f"enkbayes show {model}", facts, _shown(facts))
    output.print(_table(summary))
    for sentence in _explanation(fitted, summary, original_units=original_units):
        output.print(Text(sentence, style="dim"))


def _facts(model: TableModel) -> dict[str, Any]:
    from enkbayes.inference.trust import COMMAND

    clf, prepared = model.classifier, model.preprocessing
    info, trust, evidence = clf.posterior_.info, clf._trust, clf._evidence  # noqa: SLF001
    trust = None if trust is None else trust.advised(COMMAND)
    predictions = None if trust is None else trust.predictions
    return {
        "classes": model.classes,
        "target": None if prepared is None else prepared.target,
        "columns": None if prepared is None else [column.name for column in prepared.columns],
        "features": clf.n_features_in_,
        "left_out": [] if prepared is None else [f"{name} {reason}" for name, reason in prepared.left_out],
        "notes": [] if prepared is None else list(prepared.notes),
        "prior_precision": str(clf.prior_precision),
        "sampler": info.sampler,
        "particles": clf.posterior_.ensemble.size,
        "steps": info.steps,
        "converged": info.converged,
        "log_evidence": None if evidence is None else str(evidence),
        "posterior": None if trust is None else f"{trust.verdict}: {trust.sentence}",
        "predictions": None if predictions is None else predictions.verdict_and_sentence,
        "fingerprint": clf.fingerprint_,
    }


def _shown(facts: dict[str, Any]) -> dict[str, str]:
    known = {name: value for name, value in facts.items() if value not in (None, [])}
    known |= {name: "; ".join(known[name]) for name in ("left_out", "notes") if name in known}  # clauses with commas
    shown = {name.replace("_", " "): text(value) for name, value in known.items()}
    return shown | {"sampler": facts["sampler"].partition("(")[0]}


def _table(summary: Summary) -> RichTable:
    table = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for head in summary.heads:
        table.add_column(head, justify="left" if head in ("coefficient", "class") else "right", overflow="fold")
    for cells in summary.cells[:MOST]:
        table.add_row(*cells)
    return table


def _explanation(model: TableModel, summary: Summary, *, original_units: bool) -> list[str]:
    """Return the sentences below the table."""
    more = len(summary.rows) - MOST
    sentences = [f"{more:,} more coefficients: see --json."] if more > 0 else []
    if model.preprocessing is not None:
        sentences.append(ORIGINAL if original_units else STANDARD)
    return [*sentences, summary.note or INTERVALS.format(level=summary.level)]
