"""A comparison as people, programs and folders get it: a table, one JSON object, a figure."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from enkbayes.cli.console import Speech, json_text
from enkbayes.evaluation.compare import INTERVAL

if TYPE_CHECKING:
    from enkbayes.evaluation.compare import Comparison, Estimate, Row

COLUMNS = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE",
    "epistemic_share": "epistemic",
    "time_ratio": "time/MAP",
    "distance": "distance",
}
LEGEND = (
    "NLL in nats, Brier from 0 to 2, ECE over 15 bins. epistemic: mean epistemic over mean total uncertainty."
    " time/MAP: time of the fit, as a multiple of the MAP's in the same run."
)
FIGURES = ("reliability.png", "reliability.svg")
TABLE = "comparison.json"
DIGITS = {"distance": 5, "time_ratio": 2, "epistemic_share": 3}
WIDTH = 140


def comparison_facts(found: Comparison, skipped: dict[str, str]) -> dict[str, Any]:
    """Return everything the comparison found, as a program wants it."""
    return {
        "features": found.features,
        "train_rows": found.train_rows,
        "test_rows": found.test_rows,
        "repeats": found.repeats,
        "interval": INTERVAL if found.repeats > 1 else None,
        "prior_precision": found.prior_precision,
        "intercept_precision": found.intercept_precision,
        "reference": found.reference,
        "reference_error": asdict(found.reference_error),
        "reference_remarks": found.reference_remarks,
        "methods": [asdict(row) for row in found.rows],
        "skipped": [{"method": name, "reason": reason} for name, reason in skipped.items()],
    }


def say(speech: Speech, found: Comparison, facts: dict[str, Any]) -> None:
    """Print the table and what belongs under it, or the facts as JSON."""
    if speech.as_json:
        speech.result("", facts)
        return
    title = f"{facts['file']}: {found.train_rows} rows to train on, {found.test_rows} to test on"
    for thing in (Text(title, style="bold"), table_of(found)):
        speech.print(thing, width=WIDTH)
    for sentence in (*under_the_table(found), *(f"figure {path}" for path in facts["figures"])):
        speech.print(sentence, width=WIDTH)
    for entry in facts["skipped"]:
        speech.note(f"{entry['method']} is skipped: {entry['reason']}")
    for remark in found.reference_remarks:
        speech.note(f"the reference {found.reference}: {remark}")
    for row in found.rows:
        for remark in row.remarks:
            speech.note(f"{row.method}: {remark}")


def table_of(found: Comparison) -> RichTable:
    """Return the table, a line for each method."""
    table = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    shown = {name: head for name, head in COLUMNS.items() if name != "distance" or found.reference}
    for name, head in shown.items():
        table.add_column(f"{head} to {found.reference}" if name == "distance" else head, justify="right")
    for row in found.rows:
        if row.failures == found.repeats:
            table.add_row(row.method, "failed", *[""] * (len(shown) - 1))
        else:
            table.add_row(row.method, *(_cell(name, row) for name in shown))
    return table


def under_the_table(found: Comparison) -> list[str]:
    """Return the sentences that explain the table."""
    features = f"{found.features} features, {found.classes} classes"
    prior = (
        f"prior variance {1 / found.prior_precision:g} of every weight, {1 / found.intercept_precision:g} of intercepts"
    )
    no_prior = " but mle, which has none" if any(row.method == "mle" for row in found.rows) else ""
    sentences = [f"{features}; {prior}; the same for every method{no_prior}.", LEGEND]
    if any(row.method == "deep-ensemble" for row in found.rows):
        sentences.append("deep-ensemble: another model, networks with a hidden layer, on the same features and prior.")
    if found.reference is not None:
        error = _number(found.reference_error.mean, DIGITS["distance"])
        sentences.append(
            f"distance: mean |difference| of probabilities; {found.reference}'s own Monte Carlo error is {error}."
        )
    if found.repeats > 1:
        sentences.append(f"{found.repeats} random splits; {INTERVAL}.")
    for row in found.rows:
        if row.failures:
            times = "" if row.failures == found.repeats else f" on {row.failures} of {found.repeats} splits"
            sentences.append(f"{row.method} failed{times}: {row.failure}")
    return sentences


def check_folder_for(out: Path) -> None:
    """Refuse, before any work is done, a folder that cannot hold the figure, or figures that cannot be drawn."""
    from enkbayes.evaluation.plots import require_matplotlib

    require_matplotlib()
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; expected a folder for figure and table")


def write(out: Path, found: Comparison, facts: dict[str, Any]) -> list[Path]:
    """Write figure and table into the folder, all or nothing, and return the paths of the figures."""
    from enkbayes.evaluation.compare import reliability_figure
    from enkbayes.storage.files import replacing

    out.mkdir(parents=True, exist_ok=True)
    paths = [out / name for name in FIGURES] if found.proba else []
    with ExitStack() as stack:
        drafts = [stack.enter_context(replacing(path)) for path in (*paths, out / TABLE)]
        if paths:
            figure = reliability_figure(found)
            for draft in drafts[:-1]:
                figure.savefig(draft, dpi=150)
        drafts[-1].write_text(json_text(facts) + "\n", encoding="utf-8")
    return paths


def _cell(name: str, row: Row) -> str:
    estimate: Estimate = getattr(row, name)
    digits = DIGITS.get(name, 4)
    spread = "" if math.isnan(estimate.half_width) else f" ± {_number(estimate.half_width, digits - 1)}"
    return _number(estimate.mean, digits) + spread


def _number(value: float, digits: int) -> str:
    """Return a number with so many decimals, or three digits of a large one.

    >>> _number(0.12345, 3), _number(1234.5, 1), _number(math.nan, 2)
    ('0.123', '1230', '-')
    """
    if math.isnan(value):
        return "-"
    return f"{value:.{digits}f}" if abs(value) < 100 else f"{float(f'{value:.3g}'):g}"
