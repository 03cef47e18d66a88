"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from enkbayes import __version__
from enkbayes.cli.console import one_sentence
from enkbayes.cli.demo import demo
from enkbayes.cli.evaluate import evaluate
from enkbayes.cli.fit import fit
from enkbayes.cli.predict import predict

app = typer.Typer(
    name="enkbayes",
    help="Give a classifier a posterior: fit, predict with uncertainty, evaluate. Data are .csv, .parquet or .npz files.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(asked: bool) -> None:  # noqa: FBT001 - typer calls it with the flag
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


EXAMPLES = {
    demo: "enkbayes demo --out demo",
    fit: "enkbayes fit train.csv --target species --out model.safetensors --seed 0",
    predict: "enkbayes predict model.safetensors new.csv --out predictions.csv",
    evaluate: "enkbayes evaluate model.safetensors test.csv --target species --ood strange.csv --json",
}
for _command, _example in EXAMPLES.items():
    app.command(epilog=f"Example: [bold]{_example}[/bold]", no_args_is_help=_command is not demo)(
        one_sentence(_command)
    )


def main() -> None:
    """Run the command line."""
    app()
