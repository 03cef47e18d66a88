"""What `run` reports its states to, so that they can outlive the process; `run` knows no file format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from enkbayes.core.problem import Problem
from enkbayes.samplers.state import Sampler, State

Entry = tuple[int, float, float]
"""A step of a trace: steps, residual, trace of P."""
TRACE = 400  # entries of a trace that are kept


class Recorder(Protocol):
    """Records one run at a time: `run` calls `resume` first, then enters the recorder as a context and passes it every
    state. The context ends with the run, or with the error that stopped it.

    A recorder may have a list `trace`: the steps before the resumed state. `run` extends it.
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


def thinned(trace: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return at most TRACE entries, evenly spaced, the last among them.

    >>> len(thinned([(step, 0.0, 1.0) for step in range(1000)]))
    400
    """
    if len(trace) <= TRACE:
        return tuple(trace)
    return tuple(trace[i] for i in np.unique(np.linspace(0, len(trace) - 1, TRACE).astype(int)))
