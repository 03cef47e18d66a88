"""What the file of a checkpoint holds: the state of a run, and what identifies the run.

The state consists of the ensemble, the counters, and the sampler's control with the history of its acceleration. A
control that this version does not know, of a sampler of your own or from an older file, is not restored: the sampler
starts again from the stored ensemble and counts its steps on.

A run is identified by the numbers of parameters, rows and particles, the likelihood, the sampler and the seed, and by
the log prior density and the loss of two fixed random parameters, which hardly any other prior or data share. None of
them depends on the number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import epsilon, like, to_numpy
from enkbayes.samplers import FROM_PRIOR, Sampler, State
from enkbayes.samplers.recorder import Entry, thinned
from enkbayes.samplers.start import mean_field_of
from enkbayes.storage import container
from enkbayes.storage.codec import Decoder, Encoder, UnknownType
from enkbayes.storage.container import Header, Tensors
from enkbayes.storage.format_1 import upgraded_checkpoint
from enkbayes.storage.stored_types import TYPES, check_ensemble

KIND = container.Kind(
    "enkbayes.checkpoint", "the checkpoint of a run", "remove the file to start again", 2, {1: upgraded_checkpoint}
)
PROBES = 2  # parameters at which the densities of prior and data identify a problem
UNKNOWN = {"type": "unknown", "fields": {}}  # stands for a control that cannot be stored


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
