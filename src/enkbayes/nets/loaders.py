"""Data loaders: batches taken apart into inputs and labels, and rows of a loader held in memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from enkbayes.engine.arrays import to_numpy

Labels = np.ndarray[Any, Any]

Place: TypeAlias = str | int | Callable[[Any], Any] | None
"""Where something is in a batch: a key of a dict, a position in a tuple, a function of the batch, or None to guess."""

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a model."""

INPUT_KEYS = ("x", "input", "inputs", "image", "images", "img", "pixel_values", "input_ids", "features", "data")
HELD_OUT = {"Calibration": "calibration=", "Views": "calibration=, read a second time for views=,"}
"""What a loader is called in messages, by the title of its progress bar."""
LABEL_KEYS = ("y", "label", "labels", "target", "targets", "class", "classes")


@dataclass(frozen=True)
class Reader:
    """Splits a batch into inputs, on the given device, and labels (n,), a numpy array.

    With `model`, all entries of a dict but the labels are inputs: the keywords that the model takes, or its only
    argument if there is one entry. Without it, the first of the common keys is. With `several`, there are K labels in
    a row, (n, K).
    """

    inputs: Place
    labels: Place
    device: torch.device
    model: Callable[..., Any] | None = None
    several: bool = False

    def __call__(self, batch: Any) -> tuple[Any, Labels]:
        """Return inputs (a tensor, or a tuple or dict of tensors) and labels (n,) of one batch.

        >>> reader = Reader(None, None, torch.device("cpu"))
        >>> reader({"image": torch.zeros(2, 3), "label": torch.tensor([[1.0], [0.0]]), "id": "a"})[1].tolist()
        [1.0, 0.0]
        """
        x = self._inputs_of(batch)
        y = to_numpy(_find(batch, self.labels, 1, LABEL_KEYS, "labels"))
        if y.ndim == 2 and y.shape[1] == 1 and not self.several:
            y = y[:, 0]
        if y.ndim != 1 + self.several:
            raise ValueError(
                f"labels of a batch have shape {y.shape}; expected (n, K), 0 or 1 for each of K labels"
                if self.several
                else f"labels of a batch have shape {y.shape}; expected (n,) or (n, 1) with a class in each row; of "
                "one-hot labels pass y.argmax(1), and for several labels in a row use MultiLabel"
            )
        return to_device(x, self.device), y

    def _inputs_of(self, batch: Any) -> Any:
        if self.inputs is not None or self.model is None or not isinstance(batch, Mapping):
            return _find(batch, self.inputs, 0, INPUT_KEYS, "inputs")
        known = [key for key in LABEL_KEYS if key in batch]
        label = known[0] if self.labels is None and known else self.labels
        return _keywords({key: value for key, value in batch.items() if key != label}, self.model)


def _keywords(entries: dict[Any, Any], model: Callable[..., Any]) -> Any:
    """Return the entries of a batch as a model takes them: as keywords, or the only tensor as its only argument."""
    function = model.forward if isinstance(model, nn.Module) else model
    parameters = inspect.signature(function).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [p.name for p in parameters if p.kind in named]
    taken = {key: value for key, value in entries.items() if key in names}
    others = {key: value for key, value in entries.items() if key not in names and isinstance(value, torch.Tensor)}
    if others and not taken and any(p.kind == inspect.Parameter.VAR_KEYWORD for p in parameters):
        return others  # with some of them named, the model would not notice the rest
    if taken and not others:
        return taken
    if len(others) == 1 and not taken:
        return next(iter(others.values()))
    raise ValueError(
        f"the batch has the entries {list(entries)} besides the labels, and the model takes {names}, not "
        f"{list(others)}; leave those out of the batch, name its only input with inputs='key', or pass inputs=function"
    )


def _find(batch: Any, place: Place, position: int, keys: tuple[str, ...], role: str) -> Any:
    if callable(place):
        try:
            return place(batch)
        except (TypeError, AttributeError, IndexError, KeyError, RuntimeError) as error:
            raise ValueError(
                f"{role}=function raised {type(error).__name__} ({error}) for a {type(batch).__name__}; expected a "
                "function of the batches that the loader yields"
            ) from error
    if isinstance(batch, Mapping):
        found: list[Any] = [key for key in keys if key in batch] if place is None else [place]
        if not found or found[0] not in batch:
            raise ValueError(f"the batch has keys {list(batch)}; name the key of the {role} with {role}='key'")
        return batch[found[0]]
    if isinstance(batch, tuple | list):
        index = position if place is None else place
        if not isinstance(index, int) or not -len(batch) <= index < len(batch):
            raise ValueError(
                f"the batch is a tuple of {len(batch)} without position {index!r}; give the position of the {role} "
                f"with {role}=number"
            )
        return batch[index]
    raise ValueError(
        f"the loader yields {type(batch).__name__}; expected (x, y), a longer tuple or a dict, or pass "
        "inputs=function and labels=function of a batch"
    )


def to_device(x: Any, device: torch.device) -> Any:
    """Return a tensor, or a tuple, list or dict of tensors, on the device; anything else unchanged."""
    if isinstance(x, torch.Tensor):
        if x.is_meta:
            raise ValueError(
                "the inputs of a batch are on the meta device, which holds no numbers; pass them with values"
            )
        return (x.clone() if x.is_inference() else x).to(device)
    if isinstance(x, Mapping):
        return {key: to_device(value, device) for key, value in x.items()}
    if isinstance(x, tuple | list):
        return tuple(to_device(value, device) for value in x)
    return x


def arguments(x: Any) -> Arguments:
    """Return inputs as arguments: one tensor, the entries of a tuple, or the keywords of a dict."""
    if isinstance(x, Mapping):
        return (), dict(x)
    return (x if isinstance(x, tuple) else (x,)), {}


def call(function: Callable[..., Any], x: Any) -> Any:
    """Call a function with inputs as its arguments."""
    args, kwargs = arguments(x)
    return function(*args, **kwargs)


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first parameter or buffer; the CPU if it has none."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def shown(loader: Iterable[Any], title: str, *, enabled: bool) -> Iterator[Any]:
    """Yield the batches of a loader under a progress bar; raise an error if there are none."""
    empty = True
    if not isinstance(loader, Iterable) or isinstance(loader, str | torch.Tensor):
        raise ValueError(f"the loader is a {type(loader).__name__}; expected a DataLoader or a list of batches (x, y)")
    try:
        total = len(loader)  # type: ignore[arg-type]
    except TypeError:
        total = None
    from rich.progress import track

    for batch in track(loader, description=title, total=total, disable=not enabled):
        empty = False
        yield batch
    if empty:
        raise ValueError(
            f"{HELD_OUT.get(title, 'the loader')} yields no batches; expected rows (a generator can be read only once: "
            "pass a DataLoader or a list)"
        )


@dataclass(frozen=True, eq=False)
class Rows:
    """Batches of inputs, as arguments of a model, with their labels (n,); each row counts `weight` times."""

    batches: list[Arguments]
    labels: list[Labels]
    weight: float = 1.0

    @property
    def pairs(self) -> Iterator[tuple[Arguments, Labels]]:
        """The batches with their labels."""
        return zip(self.batches, self.labels, strict=True)


def sample_rows(pairs: Iterable[tuple[Any, Labels]], most: int, seed: int) -> Rows:
    """Return the rows of batches (x, labels). If there are more than `most`, return a random sample of that size,
    weighted to represent all of them.

    >>> batches = [(torch.arange(4.0), np.zeros(4)), (torch.arange(6.0), np.ones(6))]
    >>> rows = sample_rows(batches, 5, seed=0)
    >>> sum(map(len, rows.labels)), rows.weight
    (5, 2.0)
    """
    found = list(pairs)
    sizes = [len(y) for _, y in found]
    total = sum(sizes)
    if total <= most:
        return Rows([arguments(x) for x, _ in found], [y for _, y in found])
    kept = np.sort(np.random.default_rng((seed, 7)).choice(total, most, replace=False))
    each = [kept[(kept >= a) & (kept < b)] - a for a, b in pairwise(np.cumsum([0, *sizes]))]
    chosen = [(_rows(x, keep, len(y)), y[keep]) for (x, y), keep in zip(found, each, strict=True) if len(keep)]
    return Rows([arguments(x) for x, _ in chosen], [y for _, y in chosen], total / most)


def _rows(x: Any, keep: Labels, size: int) -> Any:
    """Return some rows of a tensor, or of each tensor of a tuple or dict that has a row for each label."""
    if isinstance(x, torch.Tensor):
        return x[torch.as_tensor(keep, device=x.device)] if x.ndim and len(x) == size else x
    if isinstance(x, Mapping):
        return {key: _rows(value, keep, size) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple(_rows(value, keep, size) for value in x)
    return x
