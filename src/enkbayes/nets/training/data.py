"""Training data of a deep ensemble: arrays in memory, or a loader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import array_api_compat as compat
import numpy as np
import torch

from enkbayes.core.labels import encode, observation_weights
from enkbayes.engine.arrays import all_finite, floating, to_numpy
from enkbayes.nets.loaders import Reader
from enkbayes.storage.fingerprint import fingerprint

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Inputs (B, ...), class numbers (B,) and weights (B,) or None."""


class TrainingData(Protocol):
    """Rows that can be read any number of times, in random order."""

    @property
    def size(self) -> int:
        """The number of rows N."""

    @property
    def classes(self) -> np.ndarray[Any, Any]:
        """The classes (K,)."""

    @property
    def fingerprint(self) -> str:
        """Identifies the data in checkpoints; a loader is not identified."""

    def span(self) -> torch.Tensor:
        """Return the range max - min of each feature, of the shape of one input."""

    def batches(self, seed: tuple[int, ...], device: torch.device) -> Iterator[Batch]:
        """Yield batches without end, in an order that the seed determines."""


@dataclass(frozen=True, eq=False)
class ArrayData:
    """Inputs (N, ...) and class numbers (N,) in memory."""

    inputs: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor | None
    classes: np.ndarray[Any, Any]
    batch_size: int
    fingerprint: str

    @property
    def size(self) -> int:
        """The number of rows N."""
        return int(self.inputs.shape[0])

    def span(self) -> torch.Tensor:
        """Return the range of each feature."""
        return self.inputs.amax(dim=0) - self.inputs.amin(dim=0)

    def batches(self, seed: tuple[int, ...], device: torch.device) -> Iterator[Batch]:
        """Yield batches of nearly equal size, with a new permutation in each epoch."""
        rng, count = np.random.default_rng(seed), -(-self.size // self.batch_size)
        while True:
            for rows in np.array_split(rng.permutation(self.size), count):
                weights = None if self.weights is None else self.weights[rows].to(device)
                yield self.inputs[rows].to(device), self.targets[rows].to(device), weights


@dataclass(frozen=True, eq=False)
class LoaderData:
    """A loader of batches (x, y), read once in advance for its size, classes and ranges."""

    loader: Iterable[Any]
    size: int
    classes: np.ndarray[Any, Any]
    low: torch.Tensor
    high: torch.Tensor
    fingerprint: str = "loader"

    def span(self) -> torch.Tensor:
        """Return the range of each feature."""
        return self.high - self.low

    def batches(self, seed: tuple[int, ...], device: torch.device) -> Iterator[Batch]:
        """Yield the loader's batches in the loader's own order, which depends on torch's random state."""
        reader = Reader(None, None, device)
        while True:
            empty = True
            for batch in self.loader:
                empty = False
                x, y = reader(batch)
                yield x, torch.as_tensor(encode(y, len(y), self.classes)[0], device=device), None
            if empty:
                raise ValueError("the loader yields no batches the second time; expected a DataLoader or a list")


def training_data(X: Any, y: Any, weights: Any, classes: Any, batch_size: int) -> TrainingData:
    """Return arrays, or a loader X without y, as training data; raise an error if they are not valid.

    >>> training_data(np.eye(3), ["a", "b", "a"], None, None, 2).classes.tolist()
    ['a', 'b']
    """
    if y is None:
        if compat.is_array_api_obj(X) or weights is not None:
            raise ValueError("y is missing; expected labels (N,) for an array X, and a loader alone without weights")
        return _loader_data(X, classes)
    inputs = floating(X)
    if inputs.ndim < 2 or 0 in inputs.shape:
        raise ValueError(f"X has shape {tuple(inputs.shape)}; expected (N, ...) with at least one row and one feature")
    if not all_finite(inputs):
        raise ValueError("X contains NaN or infinite values; impute or drop those rows first")
    size = int(inputs.shape[0])
    numbers, names = encode(y, size, classes)
    counts = None if weights is None else observation_weights(weights, size)
    return ArrayData(
        torch.as_tensor(to_numpy(inputs)),
        torch.as_tensor(numbers),
        None if counts is None else torch.as_tensor(counts),
        names,
        batch_size,
        fingerprint(to_numpy(inputs), numbers, counts),
    )


def _loader_data(loader: Any, classes: Any) -> LoaderData:
    reader = Reader(None, None, torch.device("cpu"))
    labels: list[np.ndarray[Any, Any]] = []
    low = high = torch.empty(0)
    for x, y in map(reader, loader):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            raise ValueError(
                f"inputs of a batch are {getattr(x, 'dtype', type(x).__name__)}; expected one floating-point tensor"
            )
        bounds = x.amin(dim=0), x.amax(dim=0)
        low, high = bounds if not labels else (torch.minimum(low, bounds[0]), torch.maximum(high, bounds[1]))
        labels.append(y)
    if not labels:
        raise ValueError("the loader yields no batches; expected the training data")
    values = np.concatenate(labels)
    return LoaderData(loader, len(values), encode(values, len(values), classes)[1], low, high)
