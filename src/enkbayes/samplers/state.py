"""What every sampler shares: the state of a run, and the protocol of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.problem import Problem


@dataclass(frozen=True, eq=False)
class State:
    """A run between two steps. It holds everything needed to continue, including the seed of the noise, so a run can
    be resumed anywhere.

    steps counts evaluations of the moments that were followed by a decision (rejected trial steps included); time is
    the artificial time s; residual is the natural-gradient norm where the sampler knows it, otherwise NaN; blend is the
    weight of the Gaussian closure in the expectations; gaussian tells whether the particles are an affine image of
    Gaussian points; control belongs to the sampler, and owner is the
    sampler that made the state.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> *_, last = eb.iterate(problem, eb.Homotopy(steps=5))
    >>> last.steps, last.finished
    (5, True)
    """

    ensemble: AffineEnsemble
    seed: int
    steps: int = 0
    time: float = 0.0
    residual: float = math.nan
    blend: float = 0.0
    finished: bool = False
    converged: bool = False
    message: str = ""
    gaussian: bool = True
    control: Any = None
    owner: Any = None


class Sampler(Protocol):
    """A sampler: a frozen dataclass with a first state and a step. A new sampler is one file with these two methods."""

    def init(self, problem: Problem, ensemble: AffineEnsemble, seed: int) -> State:
        """Return the state before the first step."""

    def step(self, problem: Problem, state: State) -> State:
        """Return the state after one step; called until `finished`."""

    @property
    def horizon(self) -> int:
        """The largest number of steps the sampler can take, for progress bars."""
