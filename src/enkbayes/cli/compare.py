"""`enkbayes compare`: every method on the same features, split and prior."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from enkbayes.cli.console import AsJson, Quiet, Speech

if TYPE_CHECKING:
    from enkbayes.cli.tables import Table
    from enkbayes.evaluation.baselines import Method
    from enkbayes.evaluation.compare import Split

EXTRAS = {"torch": "torch", "numpyro": "hmc", "arviz": "arviz"}
"""Which extra installs a library that a method needs."""

REFERENCE_SAMPLES = 1000  # of each of the seven chains


def compare(
    data: Annotated[Path, typer.Argument(help="Labelled data: .csv, .parquet or .npz.")],
    target: Annotated[str, typer.Option(help="The column that holds the classes.")],
    methods: Annotated[str, typer.Option(metavar="A,B,...", help="Which methods, by name; default all.")] = "all",
    repeats: Annotated[int, typer.Option(min=1, help="Random splits; with two or more there are intervals.")] = 1,
    test_size: Annotated[float, typer.Option(help="Share of the rows to test on.")] = 0.3,
    prior_precision: Annotated[
        float, typer.Option(help="Inverse prior variance of the weights of standardised features, for every method.")
    ] = 1.0,
    reference: Annotated[
        str | None, typer.Option(metavar="METHOD", help="Measure the distance of predictions to this one, say hmc.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for the figure and the table as JSON.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the splits and of the methods.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on a table: every one gets the same features, the same split and the same prior.

    Features are made as fit makes them, from the training rows of each split alone. A method whose library is not
    installed is named and skipped; one that fails on the data says so, and the others go on.
    """
    from enkbayes.cli.comparison import check_folder_for, comparison_facts, say, write
    from enkbayes.cli.tables import check_classes, class_labels, read
    from enkbayes.evaluation.compare import compare as run_comparison

    speech = Speech(as_json, quiet)
    chosen, skipped = _chosen(methods)
    judge = None if reference is None else _reference(reference)
    if out is not None:
        check_folder_for(out)
    table = read(data)
    labels = class_labels(table, target)
    check_classes(labels, target)
    splits = _splits(table, target, labels, test_size, repeats, seed, speech)
    classes = np.unique(labels)
    with speech.steps(repeats * (1 + (judge is not None) + len(chosen))) as advance:
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
    facts |= comparison_facts(found, skipped)
    facts["figures"] = [] if out is None else [str(path) for path in write(out, found, facts)]
    say(speech, found, facts)


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
    """Return a method by its name: the only place where it is resolved."""
    from enkbayes.evaluation.baselines import BY_NAME

    if name not in BY_NAME:
        close = get_close_matches(name, BY_NAME, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "expected one of"
        rest = "" if close else f" {', '.join(BY_NAME)}"
        raise ValueError(f"there is no method {name!r}; {hint}{rest}")
    return BY_NAME[name]()


def _reference(name: str) -> Method:
    """Return the reference; NUTS with more draws than as a method, since its noise is in every distance."""
    from enkbayes.evaluation.baselines import HMC

    method = _method(name)
    if sentence := _missing(method):
        raise ValueError(f"the reference {name} cannot run: {sentence}")
    return replace(method, samples=REFERENCE_SAMPLES) if isinstance(method, HMC) else method


def _missing(method: Method) -> str:
    """Return a sentence when a library that the method needs is not installed."""
    absent = [module for module in getattr(method, "needs", ()) if find_spec(module) is None]
    if not absent:
        return ""
    return f"it needs {absent[0]}, which is not installed; pip install 'enkbayes[{EXTRAS[absent[0]]}]'"


def _splits(
    table: Table, target: str, labels: np.ndarray[Any, Any], test_size: float, repeats: int, seed: int, speech: Speech
) -> Iterator[Split]:
    """Return the splits. Which columns can be used is decided on all rows, where ids and names show best; means,
    medians and categories are those of the training rows.
    """
    from enkbayes.cli.tables import Preprocessing
    from enkbayes.evaluation.compare import stratified_rows

    whole = Preprocessing.fit(table, target)
    whole.transform(table)  # a bad entry is named by its row in the file
    for name, reason in whole.left_out:
        speech.note(f"column {name!r} {reason}; it is left out")
    kept = {column.name: table.column(column.name) for column in whole.columns}
    pairs = stratified_rows(labels, test_size, repeats, seed)
    numbers = np.unique(labels, return_inverse=True)[1]
    return (_split(kept, numbers, train, test) for train, test in pairs)


def _split(columns: dict[str, Any], numbers: Any, train: Any, test: Any) -> Split:
    from enkbayes.cli.tables import Preprocessing, Table
    from enkbayes.evaluation.compare import Split

    known, fresh = (Table({name: values[rows] for name, values in columns.items()}) for rows in (train, test))
    preprocessing = Preprocessing.fit(known)
    return Split(preprocessing.transform(known), numbers[train], preprocessing.transform(fresh), numbers[test])
