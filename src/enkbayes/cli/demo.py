"""`enkbayes demo`: the main task on built-in data."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enkbayes.cli.console import AsJson, Output, Quiet, written_already

if TYPE_CHECKING:
    from rich.table import Table

    from enkbayes.reproduction.demo import DemoResult


def demo(
    out: Annotated[Path, typer.Option(help="Folder for picture and report.")] = Path("demo"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps of the network.")] = 1500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data, the network and the ensemble.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a small network on two moons, compute a posterior over its last layer with and without far-field variance,
    and compare them.

    Writes a picture and a report.
    """
    from enkbayes.reproduction.demo import run_demo
    from enkbayes.storage.files import check_folder_writable

    output = Output(as_json, quiet)
    check_folder_writable(out)
    with output.progress("training") as bar:
        result = run_demo(out, seed, steps=steps, progress=bar, program=program())
    facts = asdict(result) | {"picture": str(result.picture), "report": str(result.report)}
    with written_already(f"picture and report are in {out}"):
        if as_json:
            output.result("enkbayes demo", facts)
            return
        output.print(_table(result))
        output.print(f"\npicture  {result.picture}\nreport   {result.report}\nseconds  {result.seconds:.1f}")
        output.print(f"\nNext, fit your own file:\n{program()} fit data.csv --target label --out model.safetensors")


def program() -> str:
    """Return what the user has typed to start this program, such as .venv/bin/enkbayes."""
    return sys.argv[0] if Path(sys.argv[0]).name == "enkbayes" else "enkbayes"


def _table(result: DemoResult) -> Table:
    from rich.table import Table

    from enkbayes.reproduction.demo import RADII, TEST

    table = Table(title=f"Two moons: scores on {TEST} test points, confidence at a distance", title_justify="left")
    table.add_column("method")
    for name in ("accuracy", "NLL", "ECE", *(f"at {radius:g}" for radius in RADII)):
        table.add_column(name, justify="right")
    for name, s in result.scores.items():
        figures = (f"{s.accuracy:.3f}", f"{s.nll:.4f}", f"{s.ece:.4f}", *(f"{value:.3f}" for value in s.confidence))
        table.add_row(name, *figures)
    return table
