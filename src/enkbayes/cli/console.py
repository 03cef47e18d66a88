"""What commands print: tables or one JSON object on standard output, progress and errors on standard error."""

from __future__ import annotations

import errno
import functools
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, ParamSpec, Protocol, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
P = ParamSpec("P")
R = TypeVar("R")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


class ShowShare(Protocol):
    """A function that displays the share of the work that is done and, optionally, what comes next."""

    def __call__(self, share: float, doing: str | None = None) -> None:
        """Update the display."""


@dataclass(frozen=True)
class Output:
    """The output of a command: a table, one JSON object, or nothing."""

    as_json: bool
    quiet: bool

    @property
    def interactive(self) -> bool:
        """Whether to show progress: only on a terminal, and neither with --json nor with --quiet."""
        streams = (sys.stdout, sys.stderr)
        return not (self.as_json or self.quiet) and all(stream is not None and stream.isatty() for stream in streams)

    def result(self, title: str, facts: Mapping[str, Any], shown: Mapping[str, str] | None = None) -> None:
        """Print all facts as JSON, or `shown` (default: the facts) as a table with two columns."""
        if self.as_json:
            emit(json_text(facts) + "\n")
        elif not self.quiet:
            self.print(Text(title, style="bold"))
            table = RichTable(show_header=False, box=None, pad_edge=False)
            table.add_column(style="dim")
            table.add_column(overflow="fold")
            for name, value in (shown or {name: text(value) for name, value in facts.items()}).items():
                table.add_row(name, value)
            self.print(table)

    def print(self, thing: Any, *, width: int | None = None) -> None:
        """Print a rich table or text, unless --json or --quiet is given. `width` applies when output goes to a file."""
        if not (self.as_json or self.quiet):
            terminal = sys.stdout is not None and sys.stdout.isatty()
            printed = io.StringIO()
            console = Console(
                file=printed, force_terminal=terminal, highlight=False, markup=False, width=None if terminal else width
            )
            console.print(thing)
            emit(printed.getvalue())

    def note(self, sentence: str) -> None:
        """Print a remark on standard error."""
        if not self.quiet and sys.stderr is not None:
            sys.stderr.write(f"note: {sentence}\n")

    @contextmanager
    def progress(self, title: str) -> Iterator[ShowShare]:
        """Show a progress bar and yield the function that updates it; without a terminal nothing is shown."""
        if not self.interactive:  # a disabled bar of an older rich ends in an empty line
            yield lambda *_: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            speed_estimate_period=3600,  # seconds; a single step may take minutes
        ) as bar:
            task = bar.add_task(title, total=1.0)

            def show(share: float, doing: str | None = None) -> None:
                bar.update(task, completed=share, description=doing)

            yield show

    @contextmanager
    def steps(self, total: int) -> Iterator[Callable[[str], None]]:
        """Show a progress bar for `total` tasks and yield a function to call at the start of each."""
        with self.progress("") as bar:
            started = 0

            def advance(doing: str) -> None:
                nonlocal started
                bar(started / total, doing)
                started += 1

            yield advance


def give_up_output() -> None:
    """Let nothing more reach standard output: what is left in the buffer must not fail again at exit."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def emit(words: str) -> None:
    """Write to standard output now; raise an OSError that says so if it cannot be written."""
    try:
        if sys.stdout is None:  # closed before the program began
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # noqa: TRY301
        sys.stdout.write(words)
        sys.stdout.flush()
    except OSError as error:
        give_up_output()
        raise type(error)(error.errno, error.strerror, "standard output") from None


def text(value: Any) -> str:
    """Return a value as readable text: few digits, lists with commas.

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
    from enkbayes.core.numerics import for_json

    return json.dumps(for_json(facts), allow_nan=False)


def one_sentence(command: Callable[P, R]) -> Callable[P, R]:
    """Turn errors about bad input into one sentence on standard error and exit code 2, without a traceback."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            sentence, code = "interrupted", INTERRUPTED
        except BrokenPipeError as error:  # whoever reads the output has seen enough
            if error.filename == "standard output":
                raise typer.Exit(BROKEN_PIPE) from None
            sentence, code = sentence_of(error), BAD_INPUT
        except EXPECTED as error:
            sentence, code = sentence_of(error), BAD_INPUT
        say_error(sentence)
        raise typer.Exit(code)

    return guarded


EXPECTED = (ValueError, ImportError, OSError, MemoryError)
"""Errors that are about the input or the machine, and not about the program."""


def sentence_of(error: BaseException) -> str:
    """Return what an error says, on one line.

    >>> sentence_of(FileNotFoundError(2, "No such file or directory", "a.csv"))
    'a.csv: No such file or directory'
    """
    sentence = str(error)
    if isinstance(error, OSError) and error.filename:
        sentence = f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        sentence = f"the memory is exhausted ({sentence or 'no more was said'}); take fewer rows or particles"
    return " ".join(sentence.split())


def say_error(sentence: str) -> None:
    """Print an error on standard error, if there is one."""
    with suppress(OSError, AttributeError):
        sys.stderr.write(f"error: {' '.join(sentence.split())}\n")
        sys.stderr.flush()


@contextmanager
def written_already(what: str | None) -> Iterator[None]:
    """Add to an error what had been written before it.

    >>> with written_already("the model is in m.safetensors"):
    ...     raise OSError(28, "No space left on device", "r.html")
    Traceback (most recent call last):
        ...
    ValueError: r.html: No space left on device; the model is in m.safetensors
    """
    try:
        yield
    except EXPECTED as error:
        if what is None:
            raise
        raise ValueError(f"{sentence_of(error)}; {what}") from None


@contextmanager
def warnings_as_notes(output: Output) -> Iterator[None]:
    """Print each warning of the library once, as a note on one line."""
    from enkbayes.inference.trust import COMMAND, PYTHON

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for sentence in dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught):
        what, _, _ = sentence.partition(";")  # the advice after it is about arguments in Python
        said = f"{what}; {COMMAND.steps}" if "did not converge: residual" in what else sentence
        output.note(said.replace(PYTHON.number, COMMAND.number))
