"""Checkpoints: a run that outlives its process, as one `.safetensors` file.

    eb.run(problem, sampler, recorder=eb.CheckpointWriter("run.safetensors"))

The same call starts the run and, after an interruption, resumes it, on any number of processes. The file holds the
whole state: the ensemble, the counters, and the sampler's control with the history of its acceleration. A resumed run
takes the steps that the uninterrupted one would have taken, up to round-off when the number of processes changes. A
control that this version does not know, of a sampler of your own or from an older file, is not restored: the sampler
starts again from the stored ensemble and counts its steps on.

Beside the state the file holds what identifies the run: the numbers of parameters, rows and particles, the likelihood,
the sampler and the seed, and the log prior density and the loss of two fixed random parameters, which hardly any other
prior or data share. Nothing depends on the number of processes. Of several processes the first one writes, and after
the loss of one each remaining process: all of them hold the same ensemble.
"""

from __future__ import annotations

import math
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes.core.caller import warn
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import epsilon, like, to_numpy
from enkbayes.engine.processes import ProcessLost
from enkbayes.engine.sharded_rows import errors_of, leads, most_advanced
from enkbayes.samplers import FROM_PRIOR, Sampler, State
from enkbayes.samplers.recorder import Entry, Recorder, thinned
from enkbayes.samplers.run import iterate
from enkbayes.samplers.start import mean_field_of
from enkbayes.storage import container
from enkbayes.storage.codec import Decoder, Encoder, UnknownType
from enkbayes.storage.container import Header, Tensors
from enkbayes.storage.files import check_writable, destination
from enkbayes.storage.format_1 import upgraded_checkpoint
from enkbayes.storage.stored_types import TYPES, check_ensemble

KIND = container.Kind(
    "enkbayes.checkpoint", "the checkpoint of a run", "remove the file to start again", 2, {1: upgraded_checkpoint}
)
PROBES = 2  # parameters at which the densities of prior and data identify a problem
UNKNOWN = {"type": "unknown", "fields": {}}  # stands for a control that cannot be stored


class Stopped(RuntimeError):
    """The process received SIGTERM while a run wrote checkpoints."""


@dataclass(eq=False)
class CheckpointWriter:
    """Write a run to a file every few seconds, and resume it from there.

    The file is also written when the run is interrupted by an error, an interrupt, SIGTERM or the loss of a process,
    and removed when the run ends. A file of another run is refused, and so is, before the run begins, a place where no
    file can be written. A write that fails later is a warning; the run goes on.

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
                    f"the run cannot go on from the checkpoint {self.path}, which is damaged ({error}); {KIND.remedy}"
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
            warn(f"the checkpoint {self.path} could not be written ({error.strerror or error}); the run goes on")

    def _write(self, state: State) -> None:
        _, sampler, identity = self._run  # type: ignore[misc]
        begin = self.clock()
        try:
            Snapshot.take(state, sampler, identity, self.trace).write(self.path)
        finally:
            end = self.clock()
            self._due = end + max(self.every, (end - begin) / self.share)


def _in_a_step(error: BaseException) -> bool:
    """Return whether an error is what a step raises for a state that does not fit, and not one of a callback."""
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


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A state in the form that a file holds."""

    header: Header
    tensors: Tensors

    @classmethod
    def take(cls, state: State, sampler: Sampler, identity: Header, trace: Sequence[Entry] = ()) -> Snapshot:
        """Return the snapshot of a state; `identity` is that of its problem, and `trace` that of its run."""
        encoder = Encoder(TYPES)
        header = {
            "sampler": repr(sampler),
            "kind": _kind(sampler),
            "problem": identity,
            "particles": state.ensemble.size,
            "seed": state.seed,
            "steps": state.steps,
            "trace": encoder(thinned(trace), "trace"),
            "state": encoder(replace(state, control=None, owner=None), ""),
        }
        tensors = dict(encoder.tensors)
        try:
            return cls(header | {"control": encoder(state.control, "control")}, encoder.tensors)
        except TypeError:
            return cls(header | {"control": UNKNOWN}, tensors)

    def write(self, path: str | Path) -> None:
        """Write the file, all or nothing."""
        container.write(path, KIND, self.header, self.tensors)

    @classmethod
    def read(cls, path: str | Path) -> Snapshot:
        """Return what a file holds; raise a ValueError that says what is wrong with a file that cannot be read."""
        header, tensors = container.read(path, KIND)
        if type(header.get("steps")) is not int:
            raise ValueError(f"{path} is damaged: its header is not readable (no number of steps); {KIND.remedy}")
        return cls(header, tensors)

    @property
    def steps(self) -> int:
        """The number of steps that the run had taken."""
        return int(self.header["steps"])

    @property
    def trace(self) -> list[Entry]:
        """The trace of the run, as in `Info`; a file of an older version has none."""
        return list(Decoder({}, {})(self.header.get("trace", []), "trace", tuple[Entry, ...]))

    def check(
        self, problem: Problem, identity: Header, sampler: Sampler, seed: int | None, particles: int | None
    ) -> None:
        """Raise a ValueError that says how this run differs, in words that follow "with"; seed and particles may be
        None, for any.
        """
        header, of = self.header, self.header.get("problem")
        of = of if isinstance(of, dict) else {}
        pairs = [(what, of.get(what), identity[what]) for what in ("parameters", "rows", "likelihood")]
        pairs.append(("sampler", header.get("kind"), _kind(sampler)))
        if isinstance(sampler, FROM_PRIOR):  # their grid of artificial times is part of them
            pairs.append(("sampler", header.get("sampler"), repr(sampler)))
        pairs += [
            (what, header.get(what), x) for what, x in (("particles", particles), ("seed", seed)) if x is not None
        ]
        for what, found, expected in pairs:
            if found != expected:
                raise ValueError(f"{what} {_words(found)}; expected {_words(expected)}")
        for what, other in (("prior", "another prior"), ("data", "other data")):
            if not _close(of.get(what), identity[what], 1e6 * epsilon(problem.prior.mean)):
                raise ValueError(f"{other}; expected those of this run")

    def restore(self, problem: Problem, sampler: Sampler) -> State:
        """Return the state from which the run continues. A finished run stays finished under the same settings."""
        decoder = Decoder(TYPES, self.tensors, problem.prior.mean)
        state: State = decoder(self.header.get("state"), "state", State)
        check_ensemble(state.ensemble, problem.dim)
        state = replace(state, owner=sampler)
        if state.finished and self.header.get("sampler") != repr(sampler) and state.steps < sampler.horizon:
            state = replace(state, finished=False, converged=False, message="")
        try:
            return replace(state, control=decoder(self.header.get("control"), "control"))
        except UnknownType:
            return restarted(problem, sampler, state)


def restarted(problem: Problem, sampler: Sampler, state: State) -> State:
    """Return the state with a new control: the sampler starts from the ensemble and counts its steps on. A run with
    fewer particles than parameters that had started from the data does so again.
    """
    ensemble = state.ensemble
    from_data = ensemble.size <= problem.dim == ensemble.freedom
    limit = mean_field_of(sampler)
    if from_data and limit is not None:
        begun = limit.init_few(problem, ensemble.size, state.seed)
    else:
        begun = sampler.init(problem, ensemble, state.seed)
    if state.finished:
        return replace(state, control=begun.control)
    return replace(begun, steps=begun.steps + state.steps, time=state.time, owner=sampler)


def identify(problem: Problem) -> Header:
    """Return what distinguishes a problem from others, the same for any number of processes; reads the data once.

    >>> identify(Problem.create([[1.0], [-1.0]], [1, 0]))["rows"]
    2
    """
    z = np.random.default_rng(0).standard_normal((PROBES, problem.dim)) / math.sqrt(problem.dim)
    theta = like(z, problem.prior.mean)
    with np.errstate(all="ignore"):
        densities = {"prior": problem.prior.log_density(theta), "data": problem.loss(theta)}
    numbers = {what: [_finite(float(x)) for x in to_numpy(found)] for what, found in densities.items()}
    return {
        "parameters": problem.dim,
        "rows": problem.size,
        "likelihood": repr(problem.likelihood),
        **numbers,
    }


def _kind(sampler: Sampler) -> list[str]:
    """Return the name of a sampler's type, and which of its optional settings are in use."""
    optional: Any = fields(sampler) if is_dataclass(sampler) else ()
    return [type(sampler).__name__, *(f.name for f in optional if f.default is None and getattr(sampler, f.name))]


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _close(found: Any, expected: list[float | None], precision: float) -> bool:
    """Return whether numbers agree up to the round-off of sums in another order."""
    if not isinstance(found, list) or len(found) != len(expected):
        return False
    if not all(x is None or isinstance(x, int | float) for x in found):
        return False
    pairs = [(math.nan if a is None else a, math.nan if b is None else b) for a, b in zip(found, expected, strict=True)]
    return all(np.allclose(a, b, rtol=precision, atol=precision, equal_nan=True) for a, b in pairs)


def _words(x: Any) -> str:
    if not isinstance(x, list) or not all(isinstance(word, str) for word in x):
        return str(x)
    return " with ".join([x[0], " and ".join(x[1:])] if len(x) > 1 else x)
