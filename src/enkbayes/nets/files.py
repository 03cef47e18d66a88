"""A fitted head or network, or those of several labels, as one `.safetensors` file: the state, and a JSON header with
what no state holds.

The tensors are those of `state_dict`, with the prefix `state.`; numbers of other types are stored as floats that hold
them exactly, and `dtypes` names their own. The header has the fields

    kind       "head", "network" or "labels"
    dtypes     of the tensors of the state
    inputs     shape and dtype of a row of inputs, if these are one tensor
    output     where the logits are in what the model returns: a key, a position, the name of an attribute
    layer      of a head: the name of the last layer; none if the model gives the features
    linear     of a head: LinearLogits
    weights    of a network: the names of the parameters that have a posterior
    vectorise  of a network
    likelihood, classes, info, calibration, far_field_choice, views_choice, trust

written by the codec of `enkbayes.storage`. A file of the kind "labels" has kind, dtypes, inputs, output, classes (the
names of the labels) and views_choice, and these fields of its own:

    members    the fields of the head or network of each label; their states are `members.0.`, `members.1.`, ...
    shared     whether all of them have the same body, which is then kept once, in that of the first

The model comes from the caller: nothing in a file is ever executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.posterior import Info
from enkbayes.engine.arrays import to_numpy
from enkbayes.inference import Calibration
from enkbayes.inference.far_field import FarFieldChoice
from enkbayes.inference.trust import Trust
from enkbayes.inference.views import ViewsChoice
from enkbayes.nets.models import FAILURES
from enkbayes.nets.posterior_module import PosteriorModule
from enkbayes.nets.predictive_module import PredictiveModule
from enkbayes.storage import container
from enkbayes.storage.codec import Decoder, Encoder
from enkbayes.storage.container import Header, Tensors
from enkbayes.storage.stored_types import TYPES, check_ensemble

KIND = container.Kind("enkbayes.nets", "a saved head or network", "save it again")
STATE = "state."
RECORDS: dict[str, Any] = {
    "likelihood": Likelihood,
    "classes": np.ndarray | None,
    "info": Info,
    "calibration": Calibration | None,
    "far_field_choice": FarFieldChoice | None,
    "views_choice": ViewsChoice | None,
    "trust": Trust | None,
}
OF_LABELS: dict[str, Any] = {"classes": np.ndarray, "views_choice": ViewsChoice | None}
LARGEST = 2**53  # of a whole number that a float of double precision holds exactly
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
}


@dataclass(frozen=True)
class Saved:
    """What a file holds of a head or network: header, the records in it, and the state."""

    header: Header
    records: dict[str, Any]
    state: dict[str, torch.Tensor]


def write(module: PosteriorModule, path: str | Path) -> None:
    """Write a head or a network, all or nothing."""
    encoder = Encoder(TYPES)
    header = _of_inputs(module) | _of_posterior(module, encoder)
    _write(path, header, encoder, module.state_dict())


def write_labels(module: PredictiveModule, members: Sequence[PosteriorModule], names: Any, path: str | Path) -> None:
    """Write the heads or networks of several labels with these names, all or nothing."""
    encoder, state = Encoder(TYPES), module.state_dict()
    shared = all(member.body is members[0].body for member in members)
    if shared:
        state = {name: x for name, x in state.items() if not _repeats(name)}
    parts = [_of_posterior(member, encoder, f"members.{k}.") for k, member in enumerate(members)]
    named = {"classes": names, "views_choice": module.views_choice}
    header = {"kind": "labels", "members": parts, "shared": shared, **_of_inputs(module)}
    _write(path, header | {name: encoder(value, name) for name, value in named.items()}, encoder, state)


def read(path: str | Path, kind: str) -> Saved:
    """Return the head or network in a file."""
    header, tensors = _opened(path, kind)
    with _intact(path):
        return Saved(header, _records(header, tensors, RECORDS), _state(header.get("dtypes"), tensors))


def read_labels(path: str | Path) -> tuple[Saved, list[Saved]]:
    """Return what a file of several labels holds of all, and of each."""
    header, tensors = _opened(path, "labels")
    with _intact(path):
        own, state = _records(header, tensors, OF_LABELS), _state(header.get("dtypes"), tensors)
        parts, shared, first = header.get("members"), header.get("shared"), "members.0."
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise ValueError("the field members is no list of heads or networks")
        if own["classes"].shape != (len(parts),) or not parts or not isinstance(shared, bool):
            raise ValueError(f"{len(parts)} members do not fit its classes, or the field shared is missing")
        body = {name.removeprefix(first): x for name, x in state.items() if shared and name.startswith(f"{first}body.")}
        found = []
        for k, part in enumerate(parts):
            names = {name: name.removeprefix(f"members.{k}.") for name in state if name.startswith(f"members.{k}.")}
            mine = body | {short: state.pop(name) for name, short in names.items()}
            found.append(Saved(part, _records(part, tensors, RECORDS), mine))
        return Saved(header, own, state), found


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Raise a ValueError that says what is wrong with a file, or with the model for it."""
    try:
        yield
    except FAILURES as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{path} cannot be loaded: {reason}; pass the model that was fitted, or one like it") from None


@contextmanager
def _intact(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from None


def restore(module: PosteriorModule, saved: Saved) -> None:
    """Give a module of the right shape the state and the records of a file."""
    records, state = saved.records, saved.state
    classes, likelihood = records["classes"], module.likelihood
    if (None if classes is None else classes.shape) != (
        None if likelihood.n_classes is None else (likelihood.n_classes,)
    ):
        raise ValueError(f"its classes do not fit {likelihood}")
    if module.map is not None and module.map.outputs != likelihood.outputs:
        raise ValueError(f"{module.map} does not fit {likelihood}")
    _check_numbers((name, x) for name, x in state.items() if not name.startswith("body."))
    module.load_state_dict(state)
    _check_numbers(module.body.named_parameters())  # its buffers may be infinite, as masks are
    check_ensemble(module.posterior.ensemble, None if module.map is None else module.map.dim, module.map)
    module.far_field.check(module.body)
    for name in RECORDS:
        setattr(module, "known_trust" if name == "trust" else name, records[name])
    _restore_inputs(module, saved.header)


def restore_labels(module: PredictiveModule, saved: Saved) -> None:
    """Give the module of several labels what a file says of all of them."""
    check_shape(saved.state, "view_settings", (2,))
    _check_numbers(saved.state.items())
    module.set_views(saved.state["view_settings"])
    module.classes, module.views_choice = saved.records["classes"], saved.records["views_choice"]
    _restore_inputs(module, saved.header)


def _restore_inputs(module: PredictiveModule, header: Header) -> None:
    """Give a module what a file says of its inputs, and of the place of the logits."""
    module.output, inputs = place_in(header), header.get("inputs")
    if inputs is not None:
        shape, dtype = inputs
        module.input_kind = tuple(int(n) for n in shape), DTYPES[dtype]


def _opened(path: str | Path, kind: str) -> tuple[Header, Tensors]:
    header, tensors = container.read(path, KIND)
    if header.get("kind") != kind:
        raise ValueError(f"{path} holds a {header.get('kind')}; expected a {kind}")
    return header, tensors


def _records(header: Header, tensors: Tensors, expected: dict[str, Any]) -> dict[str, Any]:
    decoder = Decoder(TYPES, {name: x for name, x in tensors.items() if not name.startswith(STATE)})
    return {name: decoder(header.get(name), name, kind) for name, kind in expected.items()}


def _of_inputs(module: PredictiveModule) -> Header:
    """Return the fields on inputs and outputs of the network."""
    if module.output is not None and not isinstance(module.output, int | str):
        raise ValueError(
            "output= is a function, which no file holds; fit with the place of the logits, a key or a position"
        )
    inputs = None
    if module.input_kind is not None:
        shape, dtype = module.input_kind
        inputs = [[int(n) for n in shape], _name(dtype)]
    return {"inputs": inputs, "output": module.output}


def _of_posterior(module: PosteriorModule, encoder: Encoder, prefix: str = "") -> Header:
    """Return the fields on a posterior, and those of its kind."""
    values = {name: getattr(module, "known_trust" if name == "trust" else name) for name in RECORDS}
    return {name: encoder(value, prefix + name) for name, value in (values | module.saved_fields).items()}


def _write(path: str | Path, header: Header, encoder: Encoder, state: dict[str, torch.Tensor]) -> None:
    header["dtypes"] = {name: _name(tensor.dtype) for name, tensor in state.items()}
    stored = {STATE + name: _stored(name, x.detach()) for name, x in state.items()}
    container.write(path, KIND, header, encoder.tensors | stored)


def _repeats(name: str) -> bool:
    """Return whether a tensor belongs to the body of another label than the first."""
    _, member, part, *_ = name.split(".") + [""] * 3
    return part == "body" and member != "0"


def _check_numbers(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise a ValueError unless squares of the numbers are finite."""
    for name, x in tensors:
        largest = float(torch.finfo(x.dtype).max) ** 0.5 if x.is_floating_point() else None
        if largest and x.numel() and not float(x.detach().abs().max()) <= largest:  # not even NaN
            raise ValueError(f"the tensor {name} has numbers above {largest:.2g}, or NaN; expected smaller ones")


def linear_in(header: Header, state: dict[str, torch.Tensor]) -> LinearLogits:
    """Return how parameters become logits."""
    found: LinearLogits = Decoder(TYPES, {})(header.get("linear"), "linear", LinearLogits)
    check_shape(state, "mean", (found.dim,))
    return found


def check_shape(state: dict[str, torch.Tensor], name: str, shape: tuple[int, ...]) -> None:
    """Raise a ValueError unless a tensor of the state has this shape."""
    if name not in state or state[name].shape != shape:
        got = "missing" if name not in state else f"of shape {tuple(state[name].shape)}"
        raise ValueError(f"the tensor {name} is {got}; expected {shape}")


def place_in(header: Header) -> int | str | None:
    """Return the place of the logits in what the model returns."""
    output = header.get("output")
    if not isinstance(output, int | str | None) or isinstance(output, bool):
        raise ValueError(f"the field output is {output!r}; expected a key, a position or nothing")
    return output


def _name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"the model has tensors of type {name}, which no file holds; expected one of {list(DTYPES)}")
    return name


def _stored(name: str, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as floats that hold its numbers exactly."""
    if tensor.dtype in (torch.float32, torch.float64):
        return np.ascontiguousarray(to_numpy(tensor)).reshape(tuple(tensor.shape))
    if tensor.is_floating_point():
        return np.ascontiguousarray(to_numpy(tensor.float())).reshape(tuple(tensor.shape))
    if tensor.numel() and int(tensor.long().abs().max()) > LARGEST:
        raise ValueError(f"the tensor {name} has whole numbers above 2**53, which no file holds; expected smaller ones")
    return np.ascontiguousarray(to_numpy(tensor.cpu().double())).reshape(tuple(tensor.shape))


def _state(dtypes: Any, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the state of a file."""
    found = {name.removeprefix(STATE): x for name, x in tensors.items() if name.startswith(STATE)}
    if not isinstance(dtypes, dict) or dtypes.keys() != found.keys() or not all(d in DTYPES for d in dtypes.values()):
        raise ValueError("the types of its tensors are missing or unknown")
    return {name: torch.as_tensor(x).to(DTYPES[dtypes[name]]) for name, x in found.items()}


def parameters_in(header: Header, model: nn.Module) -> list[str]:
    """Return the names of the parameters that have a posterior."""
    names, known = header.get("weights"), {name for name, _ in model.named_parameters()}
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name in known for name in names):
        raise ValueError("the file names parameters that the model does not have")
    return list(names)
