"""`enkbayes compare`: fit every method to the same features, splits and prior, and print, store or draw the result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from enkbayes.cli.console import AsJson, Output, Quiet, json_text, written_already

if TYPE_CHECKING:
    from enkbayes.cli.tables import Table
    from enkbayes.evaluation.baselines import Method
    from enkbayes.evaluation.compare import Comparison, Estimate, Row, Split

EXTRAS = {"torch": "torch", "numpyro": "hmc", "arviz": "arviz"}
"""The extra that installs a library which a method needs."""

REFERENCE_SAMPLES = 1000
"""Draws of each of the seven chains when NUTS is the reference: more than as a method, because its Monte Carlo error is
part of every distance.
"""

COLUMNS = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE",
    "epistemic_share": "epistemic share",
    "time_ratio": "time / MAP",
    "distance": "distance",
}
LEGEND = (
    "NLL in nats; Brier score from 0 to 2; ECE over 15 bins. Epistemic share: mean epistemic divided by mean total"
    " uncertainty. time / MAP: time of the fit divided by that of the MAP in the same run."
)
FIGURES = ("reliability.png", "reliability.svg")
TABLE = "comparison.json"
DIGITS = {"distance": 5, "time_ratio": 2, "epistemic_share": 3}
WIDTH = 140


def compare(
    data: Annotated[Path, typer.Argument(help="Labelled data: .csv, .parquet or .npz.")],
    target: Annotated[str, typer.Option(help="Name of the column with the classes.")],
    methods: Annotated[str, typer.Option(metavar="A,B,...", help="Names of methods, separated by commas.")] = "all",
    repeats: Annotated[int, typer.Option(min=1, help="Number of random splits; two or more give intervals.")] = 1,
    test_size: Annotated[float, typer.Option(help="Share of the rows in the test set.")] = 0.3,
    prior_precision: Annotated[
        float, typer.Option(help="Inverse prior variance of the weights of standardised features, for every method.")
    ] = 1.0,
    reference: Annotated[
        str | None, typer.Option(metavar="METHOD", help="Report the distance of predictions to this method, e.g. hmc.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the figure and the table as JSON.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the splits and of the methods.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on a table. All methods get the same features, splits and prior.

    Features are computed as in enkbayes fit, from the training rows of each split alone. A method whose library is not
    installed is skipped with a note; a method that fails on the data is reported, and the others still run.
    """
    from enkbayes.cli.tables import check_classes, class_labels, read
    from enkbayes.evaluation.compare import compare as run_comparison

    output = Output(as_json, quiet)
    chosen, skipped = _chosen(methods)
    judge = None if reference is None else _reference(reference)
    if out is not None:
        _check_folder(out)
    table = read(data)
    labels = class_labels(table, target)
    check_classes(labels, target)
    splits = _splits(table, target, labels, test_size, repeats, seed, output)
    classes = np.unique(labels)
    with output.steps(repeats * (1 + (judge is not None) + len(chosen))) as advance:
        found = run_comparison(
            splits,
            chosen,
            classes=len(classes),
            yardstick=_method("map"),
            reference=judge,
            prior_precision=prior_precision,
            seed=seed,
            progress=advance,
        )
    facts = {"file": str(data), "rows": table.rows, "classes": classes.tolist(), "seed": seed}
    facts |= _facts(found, skipped)
    facts["figures"] = [] if out is None else [str(path) for path in _write(out, found, facts)]
    with written_already(None if out is None else f"figure and table are in {out}"):
        _print(output, found, facts)


def _chosen(words: str) -> tuple[list[Method], dict[str, str]]:
    """Return the methods to run and, by name, why others are skipped."""
    from enkbayes.evaluation.baselines import BY_NAME

    names = list(BY_NAME) if words == "all" else list(dict.fromkeys(name.strip() for name in words.split(",")))
    wanted = [_method(name) for name in names]
    skipped = {method.name: sentence for method in wanted if (sentence := _missing(method))}
    chosen = [method for method in wanted if method.name not in skipped]
    if not chosen:
        raise ValueError(f"no method can run: {'; '.join(f'{name}: {why}' for name, why in skipped.items())}")
    return chosen, skipped


def _method(name: str) -> Method:
    """Return the method with this name."""
    from enkbayes.evaluation.baselines import BY_NAME

    if name not in BY_NAME:
        close = get_close_matches(name, BY_NAME, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(BY_NAME)}"
        raise ValueError(f"there is no method {name!r}; {hint}")
    return BY_NAME[name]()


def _reference(name: str) -> Method:
    """Return the reference method."""
    from enkbayes.evaluation.baselines import HMC

    method = _method(name)
    if sentence := _missing(method):
        raise ValueError(f"the reference {name} cannot run: {sentence}")
    return replace(method, samples=REFERENCE_SAMPLES) if isinstance(method, HMC) else method


def _missing(method: Method) -> str:
    """Return a sentence if a library that the method needs is not installed, otherwise an empty string."""
    absent = [module for module in getattr(method, "needs", ()) if find_spec(module) is None]
    if not absent:
        return ""
    return f"it needs {absent[0]}; install it with: pip install 'enkbayes[{EXTRAS[absent[0]]}]'"


def _splits(
    table: Table, target: str, labels: np.ndarray[Any, Any], test_size: float, repeats: int, seed: int, output: Output
) -> Iterator[Split]:
    """Return the splits.

    All rows decide which columns are used, because ids and names are best recognised there. Means, medians and
    categories are computed from the training rows of each split.
    """
    from enkbayes.cli.tables import Preprocessing, Table
    from enkbayes.evaluation.compare import stratified_rows

    whole = Preprocessing.fit(table, target)
    whole.transform(table)  # so that an error names the row in the file
    for name, reason in whole.left_out:
        output.note(f"column {name!r} {reason}; it is not used")
    used = Table({column.name: table.column(column.name) for column in whole.columns})
    pairs = stratified_rows(labels, test_size, repeats, seed)
    numbers = np.unique(labels, return_inverse=True)[1]
    return (_split(used, numbers, train, test) for train, test in pairs)


def _split(table: Table, numbers: Any, train: Any, test: Any) -> Split:
    from enkbayes.cli.tables import Preprocessing
    from enkbayes.evaluation.compare import Split

    preprocessing = Preprocessing.fit(table.take(train))
    train_features, test_features = (preprocessing.transform(table.take(rows)) for rows in (train, test))
    return Split(train_features, numbers[train], test_features, numbers[test])


def _facts(found: Comparison, skipped: dict[str, str]) -> dict[str, Any]:
    """Return the whole comparison as values for JSON."""
    from enkbayes.evaluation.compare import INTERVAL

    facts = {field.name: getattr(found, field.name) for field in fields(found)}
    del facts["proba"], facts["targets"], facts["rows"], facts["classes"]
    return facts | {
        "reference_error": asdict(found.reference_error),
        "interval": INTERVAL if found.repeats > 1 else None,
        "methods": [asdict(row) for row in found.rows],
        "skipped": [{"method": name, "reason": reason} for name, reason in skipped.items()],
    }


def _print(output: Output, found: Comparison, facts: dict[str, Any]) -> None:
    """Print the table and its explanation, or the facts as JSON."""
    if output.as_json:
        output.result("", facts)
        return
    title = f"{facts['file']}: {found.train_rows} training rows, {found.test_rows} test rows"
    for thing in (Text(title, style="bold"), _table(found), *_explanation(found)):
        output.print(thing, width=WIDTH)
    for path in facts["figures"]:
        output.print(f"figure  {path}", width=WIDTH)
    for entry in facts["skipped"]:
        output.note(f"{entry['method']} is skipped: {entry['reason']}")
    for remark in found.reference_remarks:
        output.note(f"the reference {found.reference}: {remark}")
    for row in found.rows:
        for remark in row.remarks:
            output.note(f"{row.method}: {remark}")


def _table(found: Comparison) -> RichTable:
    """Return a table with one line for each method."""
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


def _explanation(found: Comparison) -> list[str]:
    """Return the sentences below the table."""
    from enkbayes.evaluation.compare import INTERVAL

    names = {row.method for row in found.rows}
    no_prior = " (mle has none)" if "mle" in names else ""
    prior = f"variance {1 / found.prior_precision:g} for weights, {1 / found.intercept_precision:g} for intercepts"
    features = f"{found.features} features, {found.classes} classes"
    sentences = [f"{features}. Prior of all methods{no_prior}: {prior}.", LEGEND]
    if "deep-ensemble" in names:
        sentences.append(
            "deep-ensemble is a different model: networks with a hidden layer, on the same features and with the same"
            " prior."
        )
    if found.reference is not None:
        error = _number(found.reference_error.mean, DIGITS["distance"])
        sentences.append(
            f"Distance: mean absolute difference of probabilities. The Monte Carlo error of {found.reference} itself is"
            f" {error}."
        )
    if found.repeats > 1:
        sentences.append(f"{found.repeats} random splits; each entry is the {INTERVAL}.")
    for row in found.rows:
        if row.failures:
            times = "" if row.failures == found.repeats else f" on {row.failures} of {found.repeats} splits"
            sentences.append(f"{row.method} failed{times}: {row.failure}")
    return sentences


def _check_folder(out: Path) -> None:
    """Raise before any work is done if the folder cannot be used or figures cannot be drawn."""
    from enkbayes.evaluation.plots import require_matplotlib
    from enkbayes.storage.files import check_folder_writable

    require_matplotlib()
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; expected a folder for figure and table")
    check_folder_writable(out)


def _write(out: Path, found: Comparison, facts: dict[str, Any]) -> list[Path]:
    """Write figure and table into the folder, all of them or none, and return the paths of the figures."""
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
    """Return a number with `digits` decimals, or with three significant digits if it is large.

    >>> _number(0.12345, 3), _number(1234.5, 1), _number(math.nan, 2)
    ('0.123', '1230', '-')
    """
    if math.isnan(value):
        return "-"
    return f"{value:.{digits}f}" if abs(value) < 100 else f"{float(f'{value:.3g}'):g}"
