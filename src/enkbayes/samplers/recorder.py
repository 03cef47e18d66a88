"""What `run` reports its states to, so that they can outlive the process; `run` knows no file format."""

from __future__ import annotations

from typing import Any, Protocol

from enkbayes.core.problem import Problem
from enkbayes.samplers.state import Sampler, State


class Recorder(Protocol):
    """Records one run at a time: `run` calls `resume` first, then enters the recorder as a context and passes it every
    state. The context ends with the run, or with the error that stopped it.
    """

    def resume(self, problem: Problem, sampler: Sampler, *, seed: Any, particles: int | None) -> State | None:
        """Return the recorded state from which this run continues, None if there is no record of it.

        seed : as given to `run`; only a whole number identifies a run
        particles : the size of the ensemble, None if the caller has a state of its own
        """

    def __enter__(self) -> Any:
        """Begin to record."""

    def __call__(self, state: State) -> None:
        """Record a state; called before the first step and after every step."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> Any:
        """End the record: the run has finished, or an error has stopped it."""
