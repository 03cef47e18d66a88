"""Checkpoints: a run that outlives its process, as one `.safetensors` file.

    eb.run(problem, sampler, recorder=eb.CheckpointWriter("run.safetensors"))

The same call starts the run and, after an interruption, resumes it, on any number of processes. A resumed run takes the
steps that the uninterrupted one would have taken, up to round-off when the number of processes changes. Of several
processes the first one writes, and after the loss of one each remaining process: all of them hold the same ensemble.
`snapshot.py` says what the file holds.
"""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes.core.caller import warn
from enkbayes.core.problem import Problem
from enkbayes.engine.processes import ProcessLost
from enkbayes.engine.sharded_rows import errors_of, leads, most_advanced
from enkbayes.samplers import Sampler, State
from enkbayes.samplers.recorder import Entry, Recorder
from enkbayes.samplers.run import iterate
from enkbayes.storage.container import Header
from enkbayes.storage.files import check_writable, destination
from enkbayes.storage.snapshot import KIND, Snapshot, identify


class Stopped(RuntimeError):
    """The process received SIGTERM while a run wrote checkpoints."""


@dataclass(eq=False)
class CheckpointWriter:
    """Write a run to a file every few seconds, and resume it from there.

    The file is also written when the run is interrupted by an error, an interrupt, SIGTERM or the loss of a process,
    and removed when the run ends. A file of another run is refused, and so is, before the run begins, a place where no
    file can be written. A write that fails later is a warning; the run continues.

    Parameters
    ----------
    path : str or Path
        The file. If it exists, the run resumes from it.
    every : float
        Least number of seconds between two writes.
    keep : bool
        Whether to keep the file, with the last state, when the run ends.
    share : float
        Largest share of the run's time that writing may take; where writing is slow, it happens less often.
    clock : callable
        Returns the time in seconds.

    Examples
    --------
    >>> import tempfile
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> steps = []
    >>> def power_cut(state):
    ...     steps.append(state.steps)
    ...     if steps == [0, 1, 2]:
    ...         raise KeyboardInterrupt
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for _ in range(2):
    ...         try:
    ...             writer = eb.CheckpointWriter(f"{folder}/run.safetensors")
    ...             posterior = eb.run(problem, eb.Homotopy(steps=5), callback=power_cut, recorder=writer)
    ...         except KeyboardInterrupt:
    ...             steps.append("cut")
    >>> steps
    [0, 1, 2, 'cut', 2, 3, 4, 5]
    """

    path: str | Path
    every: float = 5.0
    keep: bool = False
    share: float = 0.05
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    trace: list[Entry] = field(default_factory=list, init=False, repr=False)
    _run: tuple[Problem, Sampler, Header] | None = field(default=None, init=False, repr=False)
    _last: State | None = field(default=None, init=False, repr=False)
    _restored: State | None = field(default=None, init=False, repr=False)
    _due: float = field(default=0.0, init=False, repr=False)
    _terminated: bool = field(default=False, init=False, repr=False)
    _handler: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        destination(self.path)
        if not self.every >= 0:
            raise ValueError(f"every is {self.every}; expected a number of seconds, 0 to write after every step")
        if not self.share > 0:
            raise ValueError(f"share is {self.share}; expected a positive share of the time")

    def resume(
        self, problem: Problem, sampler: Sampler, *, seed: Any = None, particles: int | None = None
    ) -> State | None:
        """Return the state in the file, None if there is no file. Several processes resume from the most advanced of
        their files. Raise a ValueError if the file belongs to another run.
        """
        identity = identify(problem)
        self._run, self._last, self._terminated = (problem, sampler, identity), None, False
        self._restored = None
        self._due, self.trace = self.clock() + self.every, []
        mine: Snapshot | None = None
        with errors_of(problem.rows):
            if Path(self.path).exists():
                mine = Snapshot.read(self.path)
            if leads(problem.rows):
                check_writable(self.path)
        found: Snapshot | None = most_advanced(problem.rows, None if mine is None else mine.steps, mine)
        if found is None:
            return None
        try:
            known = int(seed) if isinstance(seed, int | np.integer) else None
            found.check(problem, identity, sampler, known, particles)
        except ValueError as error:
            raise ValueError(
                f"the checkpoint {self.path} belongs to another run, with {error}; {KIND.remedy}"
            ) from None
        try:
            state = self._restored = found.restore(problem, sampler)
            self.trace = found.trace
        except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ValueError(f"the checkpoint {self.path} is damaged: {error}; {KIND.remedy}") from None
        return state

    def __enter__(self) -> CheckpointWriter:
        """Defer SIGTERM, with which schedulers and torchrun end a process, until the step is done."""
        if self._run is None:
            raise RuntimeError("the writer has no run; call resume(problem, sampler) first, as run(recorder=...) does")

        def terminate(*_: Any) -> None:
            self._terminated = True

        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, terminate) or signal.SIG_DFL
        return self

    def __call__(self, state: State) -> None:
        """Write the state if the time has come."""
        self._last = state
        if self._terminated:
            raise Stopped("the process was asked to end")
        if self.clock() >= self._due and leads(self._problem.rows):
            self._try_to_write(state)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Write the last state if the run was interrupted, and say so in the error; otherwise remove the file or keep
        it.
        """
        try:
            if error is None:
                self._finish()
            elif isinstance(error, ProcessLost | Stopped | KeyboardInterrupt):
                raise type(error)(f"{str(error) or 'interrupted'}; {self._rescue()}") from None
            elif self._restored is not None and self._restored.steps == self._steps and _in_a_step(error):
                raise ValueError(
                    f"the run cannot continue from the damaged checkpoint {self.path} ({error}); {KIND.remedy}"
                ) from None
            else:
                self._rescue()
        finally:
            if self._handler is not None:
                signal.signal(signal.SIGTERM, self._handler)
                self._handler = None

    @property
    def resumed_from(self) -> int | None:
        """The step from which the run resumed, None if there was no file."""
        return None if self._restored is None else self._restored.steps

    @property
    def _steps(self) -> int | None:
        """The steps of the last state that was recorded."""
        return None if self._last is None else self._last.steps

    @property
    def _problem(self) -> Problem:
        return self._run[0]  # type: ignore[index]

    def _finish(self) -> None:
        if self.keep and self._last is not None and leads(self._problem.rows):
            self._try_to_write(self._last)
        if not self.keep:
            remove(self.path)

    def _rescue(self) -> str:
        """Write the last state, on every process, and return a clause that says whether that worked."""
        if self._last is None:
            return f"the run had not begun, so there is no new checkpoint {self.path}"
        try:
            self._write(self._last)
        except OSError as error:
            return f"the checkpoint {self.path} could not be written ({error.strerror or error})"
        again = "the same command resumes from there, on any number of processes"
        return f"the checkpoint {self.path} holds step {self._last.steps}: {again}"

    def _try_to_write(self, state: State) -> None:
        """Write the state; a failure is a warning, because the run is worth more than its checkpoint."""
        try:
            self._write(state)
        except OSError as error:
            warn(f"the checkpoint {self.path} could not be written ({error.strerror or error}); the run continues")

    def _write(self, state: State) -> None:
        _, sampler, identity = self._run  # type: ignore[misc]
        begin = self.clock()
        try:
            Snapshot.take(state, sampler, identity, self.trace).write(self.path)
        finally:
            end = self.clock()
            self._due = end + max(self.every, (end - begin) / self.share)


def _in_a_step(error: BaseException) -> bool:
    """Return whether a step raised an error, as it does for a damaged state, and not a callback."""
    if not isinstance(error, ArithmeticError | AttributeError | LookupError | TypeError | ValueError):
        return False
    return any(frame.f_code is iterate.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))


def remove(path: str | Path) -> None:
    """Remove a checkpoint that is no longer needed; a failure is a warning."""
    try:
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        warn(f"the checkpoint {path} is no longer needed and could not be removed ({error.strerror or error})")


def as_recorder(checkpoint: Recorder | str | Path | None) -> Recorder | None:
    """Return the recorder that writes to a path; a recorder, and None, as they are."""
    return CheckpointWriter(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint
