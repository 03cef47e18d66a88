"""`enkbayes reproduce`: the experiments of the paper, by name, with one report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enkbayes.cli.console import AsJson, Quiet, Speech

if TYPE_CHECKING:
    from enkbayes.reproduction.experiments import Outcome
    from enkbayes.reproduction.sizes import Tell


def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="NAME...|all", help="table1, figure2, meanfield ..., or all.")],
    size: Annotated[
        str, typer.Option(metavar="smoke|paper", help="smoke: a few minutes, no downloads. paper: the full thing.")
    ] = "smoke",
    out: Annotated[
        Path, typer.Option(help="The folder for the report; a run that was stopped goes on from there.")
    ] = Path("reproduced"),
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the official binary batches of CIFAR-10 are, instead of a download.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run also what is there already.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run the experiments of the paper and write one report: every table and figure beside the paper's claim.

    Names: table1, table2, figure1 to figure7, meanfield, beyond; all is all of them. What is finished is kept, so a
    call with the same names, size and folder goes on where the last one stopped; networks go on at their last epoch.
    """
    from enkbayes.evaluation.report import require_report
    from enkbayes.reproduction.experiments import EXPERIMENTS
    from enkbayes.reproduction.experiments import reproduce as run_experiments
    from enkbayes.reproduction.sizes import BY_NAME

    speech = Speech(as_json, quiet)
    chosen = _chosen(names, list(EXPERIMENTS))
    if size not in BY_NAME:
        raise ValueError(f"there is no size {size!r}; expected {' or '.join(BY_NAME)}")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; expected a folder for the report")
    require_report()
    command = f"enkbayes reproduce {' '.join(names)} --size {size}"
    with _told(speech) as tell:
        outcome = run_experiments(
            chosen, BY_NAME[size], out, again=again, data_dir=data_dir, command=command, tell=tell
        )
    _say(speech, outcome)
    if outcome.missing:
        raise typer.Exit(2 if not outcome.results else 1)


def _chosen(names: list[str], known: list[str]) -> list[str]:
    """Return the experiments in the order of the paper."""
    if "all" in names:
        return known
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=2)
            hint = f"did you mean {' or '.join(close)}?" if close else f"expected all, or some of {', '.join(known)}"
            raise ValueError(f"there is no experiment {name!r}; {hint}")
    return [name for name in known if name in names]


@contextmanager
def _told(speech: Speech) -> Iterator[Tell]:
    """Yield a function that shows progress: a bar to a person, a line for each experiment to a file."""
    with speech.progress("") as bar:
        said = ""

        def tell(share: float, doing: str) -> None:
            nonlocal said
            bar(share, doing)
            name = doing.split(":", maxsplit=1)[0]
            if name != said and not (speech.lively or speech.quiet or speech.as_json):
                sys.stderr.write(f"{name} ...\n")
            said = name

        yield tell


def _say(speech: Speech, outcome: Outcome) -> None:
    facts = {
        "report": str(outcome.report),
        "verdicts": {name: result.verdict for name, result in outcome.results.items()},
        "seconds": {name: result.seconds for name, result in outcome.results.items()},
        "kept": list(outcome.kept),
        "missing": outcome.missing,
    }
    if speech.as_json:
        speech.result("enkbayes reproduce", facts)
        return
    from rich.table import Table

    table = Table(title="The paper, reproduced", title_justify="left")
    for column in ("experiment", "verdict", "claims that hold"):
        table.add_column(column)
    table.add_column("seconds", justify="right")
    for name, result in outcome.results.items():
        held = sum(claim.verdict == "reproduced" for claim in result.claims)
        seconds = "kept" if name in outcome.kept else f"{result.seconds:.0f}"
        table.add_row(name, result.verdict, f"{held} of {len(result.claims)}", seconds)
    speech.print(table)
    for name, sentence in outcome.missing.items():
        speech.note(f"{name} could not be run: {sentence}")
    speech.print(f"\nreport  {outcome.report}")
