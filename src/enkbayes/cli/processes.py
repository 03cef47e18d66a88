"""Commands under torchrun: the share of each process, and how all processes end after an error in one of them."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

COMMANDS = itertools.count()  # numbers the commands of this process
BAD_INPUT, LOST, INTERRUPTED, ENDED = 2, 4, 130, 143


class Terminated(SystemExit):
    """The process received SIGTERM, or the terminal was closed. It is no `Exception`, so no handler of errors stops
    it.
    """

    def __str__(self) -> str:
        return "the process was asked to end"


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that temporary files are removed on the way out. Several processes
    set their own handlers when they are connected.
    """
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if started()[1] > 1 or threading.current_thread() is not threading.main_thread():
        names = []

    def end(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough
        raise Terminated(128 + number)

    before = {}
    for number in (getattr(signal, name) for name in names):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Processes:
    """The number of this process and of all processes. The first process prints and writes files.

    >>> [Processes(number, 4).share(10) for number in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """

    number: int
    count: int

    @property
    def leads(self) -> bool:
        """Whether this is the first process or the only one."""
        return self.number == 0

    def share(self, rows: int) -> slice:
        """Return the rows of this process out of `rows` rows; there may be none."""
        return slice(rows * self.number // self.count, rows * (self.number + 1) // self.count)


def started() -> tuple[int, int]:
    """Return the number of this process and the count of all, as torchrun sets them before they are connected.

    >>> started()
    (0, 1)
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    return (int(os.environ.get("RANK", "0")), count) if count > 1 else (0, 1)


@contextmanager
def together(checkpoint: Path | None = None) -> Iterator[Processes]:
    """Connect the processes of a command and handle its errors. One process prints the error, and all processes end.

    Exit codes: 2 for bad input, 4 for a lost process, 130 for an interrupt, 143 for SIGTERM. The messages of the last
    three name the checkpoint if there is one.
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
        signal.signal(signal.SIGTERM, _stop)  # not earlier: a process that waits in connect cannot handle it
        yield processes
        if joined:
            distributed.destroy_process_group()


@contextmanager
def _ending(checkpoint: Path | None) -> Iterator[None]:
    """Turn the end of a command by an error into one message of one process and an exit code of every process."""
    from enkbayes.engine.processes import ProcessLost, connected, first_word
    from enkbayes.storage.checkpoint import Stopped

    command = f"in command {next(COMMANDS)}"
    try:
        yield
    except (ValueError, ImportError, OSError):
        if first_word(command):
            raise
        raise typer.Exit(BAD_INPUT) from None
    except (ProcessLost, Stopped, Terminated, KeyboardInterrupt) as error:
        if connected():  # torchrun sends SIGTERM when another process has ended, but the message must still be printed
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sentence = str(error) or "interrupted"
        if checkpoint is not None and checkpoint.exists() and str(checkpoint) not in sentence:
            sentence += f"; the same command resumes from {checkpoint}"
        if first_word(command):
            sys.stderr.write(f"error: {' '.join(sentence.split())}\n")
            sys.stderr.flush()
        codes: dict[Any, int] = {ProcessLost: LOST, Stopped | Terminated: ENDED, KeyboardInterrupt: INTERRUPTED}
        raise typer.Exit(next(code for kind, code in codes.items() if isinstance(error, kind))) from None


def _stop(*_: Any) -> None:
    """Handle SIGTERM, which torchrun sends when another process has ended or the job is cancelled."""
    from enkbayes.storage.checkpoint import Stopped

    raise Stopped("the process was asked to end")
