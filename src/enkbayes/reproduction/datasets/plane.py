"""The 2-D data sets of the paper, and the small networks whose last hidden layer computes the features.

The paper specifies two or more classes in 2-D, generated with scikit-learn; 20 hidden units and 50 features (50 and 50
for several classes); SGD with learning rate 3e-4 and momentum 0.9; 30 test points. It leaves open what we chose: two
moons with noise 0.2 and 70 training points; four blobs with 400 training and 100 test points; layers 2-20-20-50-1 with
ReLU, weight decay 5e-4, 5000 full-batch steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Plane:
    """Training and test points (n, 2) with class numbers (n,)."""

    train: Vector
    train_labels: Vector
    test: Vector
    test_labels: Vector

    @classmethod
    def moons(cls, seed: int) -> Plane:
        """Return two interleaved half circles with noise: 70 training and 30 test points.

        >>> Plane.moons(0).train.shape, Plane.moons(0).test.shape
        ((70, 2), (30, 2))
        """
        from sklearn.datasets import make_moons

        points, labels = make_moons(100, noise=0.2, random_state=seed)
        return cls._split(points, labels, train=70)

    @classmethod
    def blobs(cls, seed: int) -> Plane:
        """Return four round clusters in the square from -10 to 10: 400 training and 100 test points.

        >>> Plane.blobs(0).train.shape, Plane.blobs(0).classes
        ((400, 2), 4)
        """
        from sklearn.datasets import make_blobs

        points, labels = make_blobs(500, centers=4, cluster_std=1.2, center_box=(-10, 10), random_state=seed)[:2]
        return cls._split(points, labels, train=400)

    @staticmethod
    def held_out_moons(seed: int, count: int = 300) -> tuple[Vector, Vector]:
        """Return more points of the same two half circles, and their class numbers."""
        from sklearn.datasets import make_moons

        points, labels = make_moons(count, noise=0.2, random_state=10_000 + seed)
        return points, labels

    @staticmethod
    def held_out_blobs(seed: int, count: int = 300) -> tuple[Vector, Vector]:
        """Return more points of the same four clusters, and their class numbers.

        >>> points, labels = Plane.held_out_blobs(0)
        >>> near = [np.linalg.norm(Plane.blobs(0).train - point, axis=1).argmin() for point in points]
        >>> bool((Plane.blobs(0).train_labels[near] == labels).mean() > 0.8)
        True
        """
        from sklearn.datasets import make_blobs

        settings = {"cluster_std": 1.2, "random_state": seed}
        centres = make_blobs(500, centers=4, center_box=(-10, 10), return_centers=True, **settings)[2]
        points, labels = make_blobs(count, centers=centres, cluster_std=1.2, random_state=10_000 + seed)
        return points, labels

    @classmethod
    def _split(cls, points: Vector, labels: Vector, train: int) -> Plane:
        return cls(points[:train], labels[:train], points[train:], labels[train:])

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.train_labels.max()) + 1


def plane_network(hidden: tuple[int, ...], outputs: int, seed: int, *, bias: bool = True) -> Any:
    """Return an untrained network from 2-D points to logits; `bias` says whether its last layer has a bias.

    >>> [tuple(p.shape) for p in plane_network((20, 50), 1, seed=0, bias=False).parameters()]
    [(20, 2), (20,), (50, 20), (50,), (1, 50)]
    """
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [part for a, b in itertools.pairwise((2, *hidden)) for part in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(hidden[-1], outputs, bias=bias))


def sgd(parameters: Any, learning_rate: float = 3e-4) -> Any:
    """Return the optimiser of the paper, with our weight decay."""
    import torch

    return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9, weight_decay=5e-4)


def train_network(
    data: Plane,
    seed: int,
    steps: int,
    progress: Callable[[float], None] = lambda _: None,
    *,
    hidden: tuple[int, ...] = (20, 20, 50),
    bias: bool = True,
    learning_rate: float = 3e-4,
    optimiser: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the small network of the paper, trained. It has one logit for two classes and K logits for K > 2.

    `optimiser` makes a torch optimiser from parameters; by default it is the paper's, `sgd`, with this learning rate.
    """
    from torch import nn
    from torch.nn import functional

    binary = data.classes == 2
    model = plane_network(hidden, 1 if binary else data.classes, seed, bias=bias)
    x = tensor(data.train)
    stepper = sgd(model.parameters(), learning_rate) if optimiser is None else optimiser(model.parameters())
    loss: Any = nn.BCEWithLogitsLoss() if binary else functional.cross_entropy
    targets = tensor(data.train_labels)[:, None] if binary else tensor(data.train_labels).long()
    for step in range(steps):
        stepper.zero_grad()
        loss(model(x), targets).backward()
        stepper.step()
        if step % 50 == 49:
            progress((step + 1) / steps)
    return model


def last_layer_features(
    data: Plane, seed: int = 0, *, steps: int = 5000, progress: Callable[[float], None] = lambda _: None
) -> tuple[Vector, Vector]:
    """Return the 50 last-layer features of training and test points from a network trained on the training points.

    >>> train, test = last_layer_features(Plane.moons(0), steps=3)
    >>> train.shape, test.shape, bool(train.min() >= 0)
    ((70, 50), (30, 50), True)
    """
    torch = require_torch()
    with one_thread():
        model = train_network(data, seed, steps, progress)
        with torch.no_grad():
            train, test = (np.asarray(model[:-1](tensor(points)).double()) for points in (data.train, data.test))
    return train, test


def require_torch() -> Any:
    """Return torch; raise an ImportError that says how to install it if it is missing."""
    try:
        import torch
    except ImportError:
        raise ImportError("the network needs PyTorch; install it with: pip install 'enkbayes[torch]'") from None
    return torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Restrict torch to one thread, which is faster for networks this small."""
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
