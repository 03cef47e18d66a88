"""A run that outlives its process: it keeps its state in a file, from which any number of processes go on.

    eb.run(problem, sampler, checkpoint="run.safetensors")     # the same call begins, and after a loss goes on

A run goes on exactly where it was, to round-off when the number of processes changes: the file keeps the whole state,
the history of the acceleration and a structured covariance included. A sampler of your own whose control is more than a
number starts again from the kept ensemble.

Of several processes the first one writes, and after a loss each that is left, for all of them hold the same ensemble.
A file appears in one piece, whoever writes it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes.core.distributed import ShardedLogits, furthest, leads
from enkbayes.core.problem import Problem
from enkbayes.engine.processes import ProcessLost, told
from enkbayes.samplers import Sampler, State
from enkbayes.storage.snapshots import Snapshot, identify

SHARE = 0.05  # of the time of a run that writing may take


class Stopped(RuntimeError):
    """The process was asked to end (SIGTERM) while a run kept checkpoints."""


@dataclass(frozen=True)
class Checkpoint:
    """Where and how a run is kept.

    Parameters
    ----------
    path : str or Path
        The file. When it is there, the run goes on from it.
    every : float
        Least seconds between two writes; more when writing would take over 5 % of the time.
    keep : bool
        Whether the file stays, finished, after the run; by default it is removed.

    Examples
    --------
    >>> import tempfile
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> seen = []
    >>> def power_cut(state):
    ...     seen.append(state.steps)
    ...     if seen == [0, 1, 2]:
    ...         raise KeyboardInterrupt
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for _ in range(2):
    ...         try:
    ...             path = Checkpoint(f"{folder}/run.safetensors")
    ...             posterior = eb.run(problem, eb.Homotopy(steps=5), callback=power_cut, checkpoint=path)
    ...         except KeyboardInterrupt:
    ...             seen.append("cut")
    >>> seen
    [0, 1, 2, 'cut', 2, 3, 4, 5]
    """

    path: str | Path
    every: float = 5.0
    keep: bool = False

    def __post_init__(self) -> None:
        folder = Path(self.path).parent
        if not folder.is_dir():
            raise ValueError(f"the folder {folder} of the checkpoint does not exist; create it first")
        if not self.every >= 0:
            raise ValueError(f"every is {self.every}; expected a number of seconds, 0 to write after every step")


@dataclass(eq=False)
class Keeper:
    """Keeps one run: finds its file, writes the states it is shown, and the last one when the run is cut short."""

    checkpoint: Checkpoint
    problem: Problem
    sampler: Sampler
    identity: dict[str, Any]
    last: State | None = None
    due: float = field(default_factory=time.monotonic)
    asked: bool = False

    @classmethod
    def create(cls, checkpoint: Checkpoint | str | Path, problem: Problem, sampler: Sampler) -> Keeper:
        """Return the keeper of a run; looks at the data once."""
        if isinstance(checkpoint, str | Path):
            checkpoint = Checkpoint(checkpoint)
        keeper = cls(checkpoint, problem, sampler, identify(problem))
        keeper.due += checkpoint.every
        return keeper

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.checkpoint.path)

    def found(self, seed: Any, particles: int | None) -> State | None:
        """Return the state to go on from, None without a file. Processes go on from the file that got furthest."""
        mine: Snapshot | None = None
        shared = isinstance(self.problem.model, ShardedLogits)
        with told(self.problem.model.group) if shared else nullcontext():  # type: ignore[union-attr]
            if self.path.exists():
                mine = Snapshot.read(self.path)
        there: Snapshot | None = furthest(self.problem, None if mine is None else mine.steps, mine)
        if there is None:
            return None
        try:
            known = int(seed) if isinstance(seed, int | np.integer) else None
            there.check(self.problem, self.identity, self.sampler, known, particles)
        except ValueError as error:
            raise ValueError(
                f"the checkpoint {self.path} is that of another run, with {error}; remove the file to begin anew"
            ) from None
        try:
            return there.restore(self.problem, self.sampler)
        except (ValueError, TypeError, IndexError) as error:
            raise ValueError(f"the checkpoint {self.path} is damaged: {error}; remove the file to begin anew") from None

    def __call__(self, state: State) -> None:
        """Take note of a state, and write it when it is time to."""
        self.last = state
        if self.asked:
            raise Stopped("the process was asked to end")
        if time.monotonic() >= self.due and leads(self.problem):
            self._write(state)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Write the last state when the block is cut short, by whatever it is, and say so where a sentence is due."""
        with self._deferring():
            try:
                yield
            except (ProcessLost, Stopped, KeyboardInterrupt) as error:
                raise type(error)(f"{str(error) or 'interrupted'}; {self._rescue()}") from None
            except BaseException:
                self._rescue()
                raise

    def done(self) -> None:
        """Remove the file, or keep the last state in it."""
        if not self.checkpoint.keep:
            self.path.unlink(missing_ok=True)
        elif self.last is not None and leads(self.problem):
            self._write(self.last)

    def _rescue(self) -> str:
        """Write the last state, whichever process this is, and return what became of it."""
        if self.last is None:
            return f"the run had not begun, so there is no new checkpoint {self.path}"
        try:
            self._write(self.last)
        except OSError as error:
            return f"the checkpoint {self.path} could not be written ({error.strerror})"
        again = "the same command goes on from there, on any number of processes"
        return f"the checkpoint {self.path} holds step {self.last.steps}: {again}"

    def _write(self, state: State) -> None:
        begin = time.monotonic()
        Snapshot.take(state, self.sampler, self.identity).write(self.path)
        end = time.monotonic()
        self.due = end + max(self.checkpoint.every, (end - begin) / SHARE)

    @contextmanager
    def _deferring(self) -> Iterator[None]:
        """Let SIGTERM, with which schedulers and torchrun end a process, wait until the step is done."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(*_: Any) -> None:
            self.asked = True

        before = signal.signal(signal.SIGTERM, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
