"""What a loader yields: inputs and labels, found in pairs, longer tuples or dicts, and moved to the model's device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from enkbayes.engine.arrays import to_numpy

Place: TypeAlias = str | int | Callable[[Any], Any] | None
"""Where something is in a batch: a key of a dict, a position of a tuple, a function of the batch, or None to guess."""

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

INPUT_KEYS = ("x", "input", "inputs", "image", "images", "img", "pixel_values", "input_ids", "features", "data")
LABEL_KEYS = ("y", "label", "labels", "target", "targets", "class", "classes")


@dataclass(frozen=True)
class Reader:
    """Takes batches apart into inputs, on the given device, and labels (n,) as numpy."""

    inputs: Place
    labels: Place
    device: torch.device

    def __call__(self, batch: Any) -> tuple[Any, np.ndarray[Any, Any]]:
        """Return inputs (a tensor, or a tuple or dict of tensors) and labels (n,) of one batch.

        >>> reader = Reader(None, None, torch.device("cpu"))
        >>> reader({"image": torch.zeros(2, 3), "label": torch.tensor([[1.0], [0.0]]), "id": "a"})[1].tolist()
        [1.0, 0.0]
        """
        x = _find(batch, self.inputs, 0, INPUT_KEYS, "inputs")
        y = to_numpy(_find(batch, self.labels, 1, LABEL_KEYS, "labels"))
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim != 1:
            raise ValueError(
                f"labels of a batch have shape {y.shape}; expected (n,) or (n, 1) with a class in each row"
            )
        return to_device(x, self.device), y


def _find(batch: Any, place: Place, position: int, keys: tuple[str, ...], role: str) -> Any:
    if callable(place):
        return place(batch)
    if isinstance(batch, Mapping):
        found = [key for key in keys if key in batch] if place is None else [place]
        if not found or found[0] not in batch:
            raise ValueError(f"the batch has keys {list(batch)}; say which one holds the {role} with {role}='key'")
        return batch[found[0]]
    if isinstance(batch, tuple | list):
        index = position if place is None else place
        if not isinstance(index, int) or index >= len(batch):
            raise ValueError(
                f"the batch is a tuple of {len(batch)} without place {index!r}; say where the {role} are with "
                f"{role}=number"
            )
        return batch[index]
    raise ValueError(
        f"the loader yields {type(batch).__name__}; expected (x, y), a longer tuple or a dict, or pass "
        "inputs=function and labels=function of a batch"
    )


def to_device(x: Any, device: torch.device) -> Any:
    """Return a tensor, or a tuple, list or dict of tensors, on the device; anything else as it is."""
    if isinstance(x, torch.Tensor):
        return x.to(device)
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
    """Return where the model lives."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def shown(loader: Iterable[Any], title: str, *, enabled: bool) -> Iterator[Any]:
    """Yield the batches of a loader under a progress bar; raise when there are none."""
    empty = True
    try:
        total = len(loader)  # type: ignore[arg-type]
    except TypeError:
        total = None
    from rich.progress import track

    for batch in track(loader, description=title, total=total, disable=not enabled):
        empty = False
        yield batch
    if empty:
        raise ValueError("the loader yields no batches; expected the training data (a generator can be read only once)")
