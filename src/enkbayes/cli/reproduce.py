"""`enkbayes reproduce`: run experiments of the paper by name and write one report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enkbayes.cli.console import AsJson, Output, Quiet, written_already

if TYPE_CHECKING:
    from enkbayes.reproduction.experiments import Outcome
    from enkbayes.reproduction.sizes import Progress


def reproduce(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...|all", help="Experiments (table1, figure2, ...) or all.")
    ],
    size: Annotated[
        str,
        typer.Option(metavar="smoke|paper", help="smoke: a few minutes, no downloads. paper: the size of the paper."),
    ] = "smoke",
    out: Annotated[Path, typer.Option(help="Folder for the report. An interrupted run resumes from there.")] = Path(
        "reproduced"
    ),
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the official binary batches of CIFAR-10, instead of a download.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run again even if there is a result.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run experiments of the paper and write one report that compares every table and figure with the paper's claims.

    Names: table1, table2, figure1 to figure7, meanfield, beyond, or all. Finished results are stored, so the same
    command resumes an interrupted run; image networks resume at their last epoch.
    """
    from enkbayes.evaluation.report import require_report
    from enkbayes.reproduction import experiments
    from enkbayes.reproduction.sizes import BY_NAME
    from enkbayes.storage.files import check_folder_writable

    output = Output(as_json, quiet)
    chosen = _chosen(names, list(experiments.EXPERIMENTS))
    if size not in BY_NAME:
        raise ValueError(f"there is no size {size!r}; expected {' or '.join(BY_NAME)}")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; expected a folder for the report")
    require_report()
    check_folder_writable(out)
    command = f"enkbayes reproduce {' '.join(names)} --size {size}"
    with _progress(output) as progress:
        outcome = experiments.reproduce(
            chosen,
            BY_NAME[size],
            out,
            again=again,
            data_dir=data_dir,
            command=command,
            progress=progress,
            experiments=experiments.EXPERIMENTS,
        )
    with written_already(f"the report is in {outcome.report}"):
        _print(output, outcome)
    if outcome.missing:
        raise typer.Exit(2 if not outcome.results else 1)


def _chosen(names: list[str], known: list[str]) -> list[str]:
    """Return the names of the experiments, in the order of the paper."""
    if "all" in names:
        return known
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=2)
            hint = f"did you mean {' or '.join(close)}?" if close else f"expected all, or some of {', '.join(known)}"
            raise ValueError(f"there is no experiment {name!r}; {hint}")
    return [name for name in known if name in names]


@contextmanager
def _progress(output: Output) -> Iterator[Progress]:
    """Yield a function that shows progress: a bar on a terminal, a line for each experiment in a file."""
    with output.progress("") as bar:
        current = ""

        def show(share: float, doing: str) -> None:
            nonlocal current
            bar(share, doing)
            name = doing.split(":", maxsplit=1)[0]
            if name != current and not (output.interactive or output.quiet or output.as_json):
                sys.stderr.write(f"{name} ...\n")
            current = name

        yield show


def _print(output: Output, outcome: Outcome) -> None:
    facts = {
        "report": str(outcome.report),
        "verdicts": {name: result.verdict for name, result in outcome.results.items()},
        "seconds": {name: result.seconds for name, result in outcome.results.items()},
        "kept": list(outcome.kept),
        "missing": outcome.missing,
    }
    if output.as_json:
        output.result("enkbayes reproduce", facts)
        return
    from rich.table import Table

    table = Table(title="The paper, reproduced", title_justify="left")
    for column in ("experiment", "verdict", "claims that hold"):
        table.add_column(column)
    table.add_column("seconds", justify="right")
    for name, result in outcome.results.items():
        held = sum(claim.verdict == "reproduced" for claim in result.claims)
        seconds = "reused" if name in outcome.kept else f"{result.seconds:.0f}"
        table.add_row(name, result.verdict, f"{held} of {len(result.claims)}", seconds)
    output.print(table)
    for name, sentence in outcome.missing.items():
        output.note(f"{name} could not be run: {sentence}")
    output.print(f"\nreport  {outcome.report}")
