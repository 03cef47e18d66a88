"""`enkbayes demo`: the main job on built-in data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enkbayes.cli.console import AsJson, Quiet, Speech

if TYPE_CHECKING:
    from rich.table import Table

    from enkbayes.reproduction.demo import DemoResult


def demo(
    out: Annotated[Path, typer.Option(help="The folder for picture and report.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Of the data, the network and the ensemble.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a small network on two moons, give it a posterior, and show what changes: picture, table and report."""
    from enkbayes.reproduction.demo import run_demo

    speech = Speech(as_json, quiet)
    with speech.progress("training") as bar:
        result = run_demo(out, seed, progress=bar)
    facts = asdict(result) | {"picture": str(result.picture), "report": str(result.report)}
    if as_json:
        speech.result("enkbayes demo", facts)
        return
    speech.print(_table(result))
    speech.print(f"\npicture  {result.picture}\nreport   {result.report}\nseconds  {result.seconds:.1f}")


def _table(result: DemoResult) -> Table:
    from rich.table import Table

    table = Table(title="Two moons: 30 test points, and a circle far from the data", title_justify="left")
    table.add_column("method")
    for name in ("accuracy", "NLL", "ECE", "far-field confidence"):
        table.add_column(name, justify="right")
    for name, s in (("trained network (MLE)", result.mle), ("with a posterior", result.posterior)):
        table.add_row(name, f"{s.accuracy:.3f}", f"{s.nll:.4f}", f"{s.ece:.4f}", f"{s.far_confidence:.3f}")
    return table
