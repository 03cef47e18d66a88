"""The paper's 2-D data: two moons, and the small network whose last hidden layer gives the 50 features of its logistic
regression.

The paper's part: 20 hidden units, 50 features, SGD with learning rate 3e-4 and momentum 0.9, 30 test points. What it
leaves open is our choice: layers 2-20-20-50-1 with ReLU, weight decay 5e-4, 5000 full-batch steps, and make_moons with
noise 0.2, 70 points to train on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

Vector = np.ndarray[Any, Any]

TRAIN, TEST = 70, 30


@dataclass(frozen=True, eq=False)
class Moons:
    """Two interleaved half circles with noise: 70 points to train on, 30 to test."""

    train: Vector
    train_labels: Vector
    test: Vector
    test_labels: Vector

    @classmethod
    def make(cls, seed: int) -> Moons:
        """Return the points of a seed.

        >>> Moons.make(0).train.shape, Moons.make(0).test.shape
        ((70, 2), (30, 2))
        """
        from sklearn.datasets import make_moons

        points, labels = make_moons(TRAIN + TEST, noise=0.2, random_state=seed)
        return cls(points[:TRAIN], labels[:TRAIN], points[TRAIN:], labels[TRAIN:])


def train_network(moons: Moons, seed: int, steps: int, progress: Callable[[float], None]) -> Any:
    """Return the paper's small network, trained."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = (2, 20, 20, 50)
        layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(50, 1))
    x, d = tensor(moons.train), tensor(moons.train_labels)[:, None]
    optimiser = torch.optim.SGD(model.parameters(), lr=3e-4, momentum=0.9, weight_decay=5e-4)
    loss = nn.BCEWithLogitsLoss()
    for step in range(steps):
        optimiser.zero_grad()
        loss(model(x), d).backward()
        optimiser.step()
        if step % 50 == 49:
            progress((step + 1) / steps)
    return model


def last_layer_features(
    moons: Moons, seed: int = 0, *, steps: int = 5000, progress: Callable[[float], None] = lambda _: None
) -> tuple[Vector, Vector]:
    """Return the 50 features (70, 50) and (30, 50) that the network, trained on the 70 points, gives to the points to
    train on and to test on.

    >>> train, test = last_layer_features(Moons.make(0), steps=3)
    >>> train.shape, test.shape, bool(train.min() >= 0)
    ((70, 50), (30, 50), True)
    """
    torch = require_torch()
    with one_thread():
        model = train_network(moons, seed, steps, progress)
        with torch.no_grad():
            train, test = (np.asarray(model[:-1](tensor(points)).double()) for points in (moons.train, moons.test))
    return train, test


def require_torch() -> Any:
    """Return torch, or say how to install it."""
    try:
        import torch
    except ImportError:
        raise ImportError("the network needs torch; install it with pip install 'enkbayes[torch]'") from None
    return torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: for so small a network more of them only wait for each other."""
    torch = require_torch()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tensor(x: Vector) -> Any:
    """Return a numpy array as a float32 tensor."""
    import torch

    return torch.as_tensor(x, dtype=torch.float32)
