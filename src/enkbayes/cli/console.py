"""How commands speak: tables on standard output, progress and errors on standard error, one JSON object to machines."""

from __future__ import annotations

import functools
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ParamSpec, Protocol, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

P = ParamSpec("P")
R = TypeVar("R")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


class ShowShare(Protocol):
    """A function that shows which share of the work is done and, if it is told, what comes next."""

    def __call__(self, share: float, doing: str | None = None) -> None:
        """Show it."""


@dataclass(frozen=True)
class Speech:
    """What a command may print: a table, one JSON object, or nothing."""

    as_json: bool
    quiet: bool

    @property
    def lively(self) -> bool:
        """Whether a person watches: then progress is shown."""
        return not (self.as_json or self.quiet) and sys.stdout.isatty() and sys.stderr.isatty()

    def result(self, title: str, facts: Mapping[str, Any], shown: Mapping[str, str] | None = None) -> None:
        """Print the facts: all of them as JSON, or `shown` (default: the facts) as a table of two columns."""
        if self.as_json:
            sys.stdout.write(json_text(facts) + "\n")
        elif not self.quiet:
            self.print(Text(title, style="bold"))
            table = RichTable(show_header=False, box=None, pad_edge=False)
            table.add_column(style="dim")
            table.add_column(overflow="fold")
            for name, value in (shown or {name: text(value) for name, value in facts.items()}).items():
                table.add_row(name, value)
            self.print(table)

    def print(self, thing: Any, *, width: int | None = None) -> None:
        """Print a rich table or text for people; in a file or a pipe it may be `width` characters wide."""
        if not (self.as_json or self.quiet):
            Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else width).print(thing)

    def note(self, sentence: str) -> None:
        """Say on standard error what a user should know and did not ask for."""
        if not self.quiet:
            sys.stderr.write(f"note: {sentence}\n")

    @contextmanager
    def progress(self, title: str) -> Iterator[ShowShare]:
        """Yield a function that shows which share of the work is done and, if it is told, what comes next."""
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            disable=not self.lively,
            auto_refresh=self.lively,
            speed_estimate_period=3600,  # seconds; a step of long work may take minutes
        ) as bar:
            task = bar.add_task(title, total=1.0)

            def show(share: float, doing: str | None = None) -> None:
                bar.update(task, completed=share, description=doing)

            yield show

    @contextmanager
    def steps(self, total: int) -> Iterator[Callable[[str], None]]:
        """Yield a function that shows which of `total` pieces of work begins."""
        with self.progress("") as bar:
            begun = 0

            def advance(doing: str) -> None:
                nonlocal begun
                bar(begun / total, doing)
                begun += 1

            yield advance


def text(value: Any) -> str:
    """Return a value for people: few digits, lists with commas.

    >>> text(0.123456), text(("a", "b")), text(True), text(1234567)
    ('0.1235', 'a, b', 'yes', '1,234,567')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def json_text(facts: Mapping[str, Any]) -> str:
    """Return one JSON object.

    >>> json_text({"mean": math.nan, "names": ("a", "b")})
    '{"mean": null, "names": ["a", "b"]}'
    """
    return json.dumps(_plain(facts), allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a value JSON can hold: a number that is not finite becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def one_sentence(command: Callable[P, R]) -> Callable[P, R]:
    """Make a command answer bad input with one sentence on standard error and exit code 2, not with a traceback."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (ValueError, ImportError) as error:
            sentence = str(error)
        except OSError as error:
            sentence = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        sys.stderr.write(f"error: {' '.join(sentence.split())}\n")
        raise typer.Exit(2)

    return guarded


@contextmanager
def warnings_as_notes(speech: Speech) -> Iterator[None]:
    """Show warnings of the library as notes of one line, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for sentence in dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught):
        speech.note(sentence)
