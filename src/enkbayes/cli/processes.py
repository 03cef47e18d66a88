"""A command that torchrun has started in several processes: who does what, who speaks, and how all of them end."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import typer

if TYPE_CHECKING:
    from enkbayes.cli.tables import Preprocessing, Table

TURNS = itertools.count()  # commands of this process so far
BAD_INPUT, LOST, INTERRUPTED, ENDED = 2, 4, 130, 143


@dataclass(frozen=True)
class Processes:
    """The number of this process, and how many there are. The first one prints and writes files.

    >>> [Processes(number, 4).share(10) for number in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """

    number: int
    count: int

    @property
    def leads(self) -> bool:
        """Whether this is the first process, or the only one."""
        return self.number == 0

    def share(self, rows: int) -> slice:
        """Return this process's part of so many rows; it may be empty."""
        return slice(rows * self.number // self.count, rows * (self.number + 1) // self.count)


def started() -> tuple[int, int]:
    """Return number and count of processes as torchrun tells them, before they have met.

    >>> started()
    (0, 1)
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    return (int(os.environ.get("RANK", "0")), count) if count > 1 else (0, 1)


@contextmanager
def together(checkpoint: Path | None = None) -> Iterator[Processes]:
    """Join the processes of a command. An error is printed by one of them and ends all: bad input with code 2, a lost
    process with 4, an interrupt with 130, SIGTERM with 143. The words of the last three name the checkpoint if it is
    there.
    """
    if started()[1] == 1:
        with _ending(checkpoint):
            yield Processes(0, 1)
        return
    from torch import distributed

    from enkbayes.engine.processes import connect, connected

    with _ending(checkpoint):
        joined = not connected()
        processes = Processes(*connect())
        signal.signal(signal.SIGTERM, _stop)  # not before: a process that waits for the others cannot answer it
        yield processes
        if joined:
            distributed.destroy_process_group()


@contextmanager
def _ending(checkpoint: Path | None) -> Iterator[None]:
    """Turn what ends a command into one sentence of one process and an exit code of each."""
    from enkbayes.engine.processes import ProcessLost, connected, first_word
    from enkbayes.storage.checkpoint import Stopped

    turn = f"in command {next(TURNS)}"
    try:
        yield
    except (ValueError, ImportError, OSError):
        if first_word(turn):
            raise
        raise typer.Exit(BAD_INPUT) from None
    except (ProcessLost, Stopped, KeyboardInterrupt) as error:
        if connected():  # torchrun ends the others when one has ended, and this one has something to say
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sentence = str(error) or "interrupted"
        if checkpoint is not None and checkpoint.exists() and str(checkpoint) not in sentence:
            sentence += f"; the same command resumes from {checkpoint}"
        if first_word(turn):
            sys.stderr.write(f"error: {' '.join(sentence.split())}\n")
            sys.stderr.flush()
        code = LOST if isinstance(error, ProcessLost) else ENDED if isinstance(error, Stopped) else INTERRUPTED
        raise typer.Exit(code) from None


def _stop(*_: Any) -> None:
    """End because torchrun says so: another process has ended, or the job is cancelled."""
    from enkbayes.storage.checkpoint import Stopped

    raise Stopped("the process was asked to end")


def part_of(table: Table, rows: slice) -> Table:
    """Return some rows of a table.

    >>> from enkbayes.cli.tables import Table
    >>> part_of(Table({"age": np.array([31.0, 44.0, 27.0])}), slice(1, 3)).columns["age"].tolist()
    [44.0, 27.0]
    """
    from enkbayes.cli.tables import Table

    return Table({name: values[rows] for name, values in table.columns.items()}, table.start + rows.start)


@dataclass(frozen=True, eq=False)
class LazyFeatures:
    """The features (N, D) of a table, made when rows are asked for."""

    table: Table
    preprocessing: Preprocessing
    dtype: ClassVar[Any] = np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return self.table.rows, len(self.preprocessing.features)

    def __getitem__(self, rows: slice) -> np.ndarray[Any, Any]:
        return self.preprocessing.transform(part_of(self.table, rows))
