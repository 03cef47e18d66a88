"""The command line: all commands and their help."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from enkbayes._version import __version__
from enkbayes.cli.compare import compare
from enkbayes.cli.console import BAD_INPUT, BROKEN_PIPE, INTERRUPTED, give_up_output, one_sentence, say_error
from enkbayes.cli.demo import demo
from enkbayes.cli.evaluate import evaluate
from enkbayes.cli.fit import fit
from enkbayes.cli.predict import predict
from enkbayes.cli.processes import Terminated, ending_on_signals, started
from enkbayes.cli.reproduce import reproduce
from enkbayes.cli.show import show

# typer exports the errors of single options but not their base class
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class OneSentenceGroup(TyperGroup):
    """A group of commands that reports wrong usage like bad input: one sentence and exit code 2."""

    def main(self, args: Any = None, prog_name: Any = None, *, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run a command."""
        try:
            with ending_on_signals():
                code = super().main(args, prog_name, standalone_mode=False, **extra)
        except Terminated as error:
            say_error(str(error))
            code = error.code
        except typer.Abort:  # Ctrl-C outside a command
            say_error("interrupted")
            code = INTERRUPTED
        except OSError as error:  # help or version could not be printed
            code = BROKEN_PIPE if isinstance(error, BrokenPipeError) else BAD_INPUT
            give_up_output()
            say_error(f"standard output: {error.strerror or error}")
        except UsageError as error:
            context: Any = getattr(error, "ctx", None)
            where = context.command_path if context else "enkbayes"
            sentence = error.format_message().rstrip(".?")  # type: ignore[attr-defined]
            if started()[0] == 0:  # all processes get the same arguments; one message is enough
                asks = "Did you mean" in sentence
                say_error(f"{sentence}? See {where} --help" if asks else f"{sentence}; see {where} --help")
            code = 2
        return sys.exit(code or 0) if standalone_mode else code

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C before it begins ends in one sentence, too."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say_error("interrupted")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="enkbayes",
    help="Fit Bayesian classifiers to tables (.csv, .parquet or .npz), predict with uncertainty, and evaluate.",
    cls=OneSentenceGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(__version__ if version else context.get_help())


EXAMPLES: dict[Callable[..., None], str] = {
    demo: "enkbayes demo --out demo",
    fit: "enkbayes fit train.csv --target species --out model.safetensors",
    predict: "enkbayes predict model.safetensors new.csv --out predictions.csv",
    show: "enkbayes show model.safetensors",
    evaluate: "enkbayes evaluate model.safetensors test.csv --target species",
    compare: "enkbayes compare data.csv --target species --repeats 5 --reference hmc --out comparison",
    reproduce: "enkbayes reproduce all --size smoke --out reproduced",
}


def _unwrapped(docstring: str | None) -> str:
    """Return a docstring with one line per paragraph, so that the terminal can wrap it."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (docstring or "").split("\n\n"))


for _command, _example in EXAMPLES.items():
    app.command(help=_unwrapped(_command.__doc__), epilog=f"Example: [bold]{_example}[/bold]")(one_sentence(_command))


def main() -> None:
    """Run the command line."""
    app(prog_name="enkbayes")
