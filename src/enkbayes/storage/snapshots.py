"""The state of a run as one `.safetensors` file, and back.

A state is a tree of small frozen dataclasses, numbers and arrays: the ensemble, the counters, and the sampler's control
with the history of its acceleration. The header keeps the tree as JSON, with the names of its arrays, and beside it
what tells problem and sampler from others: numbers of parameters and rows, the likelihood, and the log prior density
and the loss of two fixed random parameters, which hardly any other prior or data have. Nothing says how many processes
held the data.

The metadata entry `enkbayes.checkpoint` is the header, `sha256` a checksum of header and tensors. Only the dataclasses
of `TYPES` are made again when a file is read; nothing in it is executed.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes.core.complement import Complement, Frame
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.moments import Moments
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, epsilon, like, to_numpy
from enkbayes.samplers import FROM_PRIOR, Sampler, State, equilibrium, mean_field
from enkbayes.solvers import curvature, newton, relaxation, structured
from enkbayes.storage import containers
from enkbayes.storage.records import typed

KIND, FORMAT = "enkbayes.checkpoint", 1
PROBES = 2  # parameters at which prior and data are looked at
UNKNOWN = "unknown"  # stands for the control of a sampler that this file does not know
TYPES: dict[str, Any] = {
    "samplers.state.State": State,
    "ensemble.AffineEnsemble": AffineEnsemble,
    "complement.Complement": Complement,
    "complement.Frame": Frame,
    "moments.Moments": Moments,
    "samplers.relaxation.Natural": relaxation.Natural,
    "samplers.relaxation.Relaxation": relaxation.Relaxation,
    "samplers.newton.Newton": newton.Newton,
    "samplers.equilibrium.Control": equilibrium.Control,
    "samplers.meanfield.Control": mean_field.Control,
    "samplers.curvature.Law": curvature.Law,
    "samplers.structured.Move": structured.Move,
    "samplers.structured.Point": structured.Point,
}
NAMES = {kind: name for name, kind in TYPES.items()}
"""What a state is made of, by name."""


def identify(problem: Problem) -> dict[str, Any]:
    """Return what tells a problem from others, the same for any number of processes; reads the data once.

    >>> identify(Problem.create([[1.0], [-1.0]], [1, 0]))["rows"]
    2
    """
    z = np.random.default_rng(0).standard_normal((PROBES, problem.dim)) / math.sqrt(problem.dim)
    theta = like(z, problem.prior.mean)
    with np.errstate(all="ignore"):
        looks = {"prior": problem.prior.log_density(theta), "data": problem.loss(theta)}
    numbers = {what: [_finite(float(x)) for x in to_numpy(found)] for what, found in looks.items()}
    return {
        "parameters": problem.dim,
        "rows": problem.size,
        "likelihood": repr(problem.likelihood),
        **numbers,
    }


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A state in a form that a file can hold."""

    header: dict[str, Any]
    tensors: containers.Tensors

    @classmethod
    def take(cls, state: State, sampler: Sampler, identity: dict[str, Any]) -> Snapshot:
        """Return that of a state; `identity` is that of its problem."""
        from enkbayes._version import __version__

        shelf, bare = Shelf(), replace(state, owner=None)
        try:
            kept = shelf.put(bare)
        except TypeError:
            shelf = Shelf()
            kept = shelf.put(replace(bare, control=UNKNOWN))
        header = {
            "format": FORMAT,
            "library": __version__,
            "sampler": repr(sampler),
            "kind": _kind(sampler),
            "problem": identity,
            "particles": state.ensemble.size,
            "seed": state.seed,
            "steps": state.steps,
            "state": kept,
        }
        return cls(header, shelf.tensors)

    def write(self, path: str | Path) -> None:
        """Write the file in one piece."""
        containers.write(path, KIND, self.header, self.tensors)

    @classmethod
    def read(cls, path: str | Path) -> Snapshot:
        """Return what a file holds; a ValueError says what is wrong with one that is not in order."""
        text, tensors, intact = containers.read(path, KIND, "the checkpoint of a run")
        try:
            header = json.loads(text)
            version = typed(header, "format", int)
            typed(header, "steps", int)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: its header is not readable ({error}); remove it to begin") from None
        if version != FORMAT:
            raise ValueError(f"{path} has format {version}; expected {FORMAT}: go on with the enkbayes that wrote it")
        if not intact:
            raise ValueError(f"{path} is damaged: its checksum does not fit its contents; remove it to begin anew")
        return cls(header, tensors)

    @property
    def steps(self) -> int:
        """How far the run had come."""
        return typed(self.header, "steps", int)

    def check(
        self, problem: Problem, identity: dict[str, Any], sampler: Sampler, seed: int | None, particles: int | None
    ) -> None:
        """Raise a ValueError that says how this run differs, in words after "with"; None for what may be anything."""
        header, of = self.header, typed(self.header, "problem", dict)
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
        """Return the state from which the run goes on. One that had finished stays so under the very same settings."""
        state = Shelf(self.tensors).get(self.header.get("state"), problem.prior.mean)
        shapes = [x.shape for x in (state.ensemble.mean, state.ensemble.basis, state.ensemble.points)]
        if shapes[0] != (problem.dim,) or shapes[1] != (problem.dim, *shapes[2][1:]):
            raise ValueError("its tensors do not fit the problem")
        state = replace(state, owner=sampler)
        if state.finished and self.header.get("sampler") != repr(sampler) and state.steps < sampler.horizon:
            state = replace(state, finished=False, converged=False, message="")
        return rebuilt(problem, sampler, state) if state.control == UNKNOWN else state


@dataclass(eq=False)
class Shelf:
    """Arrays by name, and values that refer to them as JSON. An array that is met twice is kept once."""

    tensors: containers.Tensors = field(default_factory=dict)
    names: dict[int, tuple[str, Any]] = field(default_factory=dict)

    def put(self, value: Any) -> Any:
        """Return a value as JSON: a number, text, a list, the name of an array, or one of `TYPES` with its fields."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, np.bool_ | np.integer):
            return value.item()
        if isinstance(value, float):
            return value if math.isfinite(value) else {"number": str(value)}
        if isinstance(value, tuple):
            return [self.put(part) for part in value]
        if type(value) in NAMES:
            parts = {f.name: self.put(getattr(value, f.name)) for f in fields(value)}
            return {"type": NAMES[type(value)], "fields": parts}
        if not hasattr(value, "dtype"):
            raise TypeError(f"a {type(value).__name__} is none of the types that a file keeps")
        if id(value) not in self.names:
            self.names[id(value)] = str(len(self.names)), value  # with the value itself its id stays its own
            self.tensors[self.names[id(value)][0]] = np.ascontiguousarray(to_numpy(value))
        return {"tensor": self.names[id(value)][0]}

    def get(self, value: Any, reference: Array) -> Any:
        """Return what `put` was given, arrays in the library of `reference`; a ValueError says what does not fit."""
        if isinstance(value, list):
            return tuple(self.get(part, reference) for part in value)
        if not isinstance(value, dict):
            return value
        if "number" in value:
            return float(value["number"])
        if "tensor" in value:
            array = self.tensors.get(value["tensor"])
            if array is None or not np.all(np.isfinite(array)):
                raise ValueError(f"its tensor {value['tensor']} is missing or not finite")
            return like(array, reference)
        kind, parts = TYPES.get(str(value.get("type"))), value.get("fields")
        if kind is None or not isinstance(parts, dict) or parts.keys() != {f.name for f in fields(kind)}:
            raise ValueError(f"it holds a {value.get('type')} with other fields than expected")
        return kind(**{name: self.get(part, reference) for name, part in parts.items()})


def rebuilt(problem: Problem, sampler: Sampler, state: State) -> State:
    """Return the state with a control of the sampler's own making, for samplers whose control is not among `TYPES`: it
    looks at the data from the kept ensemble, and goes on counting.
    """
    begun = sampler.init(problem, state.ensemble, state.seed)
    if state.finished:
        return replace(state, control=begun.control)
    return replace(begun, steps=begun.steps + state.steps, time=state.time, owner=sampler)


def _kind(sampler: Sampler) -> list[str]:
    """Return type and mode: which optional settings are in use decides how a run goes."""
    optional: Any = fields(sampler) if is_dataclass(sampler) else ()
    return [type(sampler).__name__, *(f.name for f in optional if f.default is None and getattr(sampler, f.name))]


def _finite(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def _close(found: Any, expected: list[float | None], precision: float) -> bool:
    """Tell whether numbers agree up to the round-off of sums in another order."""
    if not isinstance(found, list) or len(found) != len(expected):
        return False
    pairs = [(math.nan if a is None else a, math.nan if b is None else b) for a, b in zip(found, expected, strict=True)]
    return all(np.allclose(a, b, rtol=precision, atol=precision, equal_nan=True) for a, b in pairs)


def _words(x: Any) -> str:
    return " with ".join([x[0], " and ".join(x[1:])] if len(x) > 1 else x) if isinstance(x, list) and x else str(x)
