"""The tasks of usefulness.py: rows to train on, to calibrate with and to measure on, which never touch, strange rows.

Image tasks keep their training rows for all seeds and halve the official test rows at random, several times a seed; a
seed's networks are members seed ... seed + 4 of seven, so that ensembles of different seeds share members but not their
first. Small tasks are split anew and trained anew for every seed, several times. The figures of a seed are means over
its halvings or splits: on 89 or 1,000 rows the ECE of one is noise of the size of the differences that are measured.

Strange rows: for images, other data sets or classes, of which the first half was used to choose the score and the
second half is measured on; for digits, two classes that are held out; for tables, a covariate shift: the fifth of all
rows that lies furthest along the first principal component is never trained on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch import nn
from useful_networks import RECIPES, trained

from enkbayes.nets.training.images import image_tensor
from enkbayes.reproduction.datasets.cifar import dogs_and_cats, load_cifar10, neither_dogs_nor_cats
from enkbayes.reproduction.datasets.idx import load_fashion_mnist, load_mnist
from enkbayes.reproduction.datasets.images import Images, in_colour
from enkbayes.reproduction.datasets.quickdraw import load_quickdraw

VERSION = 2  # of tasks and networks: results of another one do not count
MEMBERS = 5
SPLITS = 10  # of a seed, for small tasks
HALVINGS = 3  # of the test rows of a seed, for image tasks
CALIBRATION = 2_000  # at most, of the half that calibrates
STRANGE = 1_000  # at most, of each kind
BATCH = 250


@dataclass(frozen=True, eq=False)
class Data:
    """Inputs and class numbers (n,)."""

    x: torch.Tensor
    y: np.ndarray[Any, Any]

    def loader(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(self.x.split(BATCH), torch.as_tensor(self.y).split(BATCH), strict=True))

    def rows(self, keep: Any) -> Data:
        return Data(self.x[torch.as_tensor(keep)], self.y[keep])


@dataclass(frozen=True, eq=False)
class Split:
    """One run of a task: data that never touch, trained networks and the seconds that each training took."""

    train: Data
    calibration: Data
    evaluation: Data
    strange: dict[str, torch.Tensor]
    networks: list[nn.Module]
    seconds: list[float]


@dataclass(frozen=True)
class Task:
    """A name, the words of the page, and the splits of a seed."""

    name: str
    words: str
    splits: Callable[[int], Iterator[Split]]
    rank: int = 10  # of the whole network's posterior
    rows: int = 500  # that it reads
    images: bool = False  # one network a seed, halved test rows


def _images(task: str, test: Images, strange: dict[str, Images], seed: int) -> Iterator[Split]:
    members = [trained(task, member) for member in range(seed, seed + MEMBERS)]
    whole = Data(image_tensor(test.images), test.labels)
    images = RECIPES[task].train()
    train = Data(image_tensor(images.images), images.labels)
    strange_rows = {name: _second_half(data, seed) for name, data in strange.items()}
    half = len(test) // 2
    mixed = np.random.default_rng((seed, 8))
    for _ in range(HALVINGS):
        order = mixed.permutation(len(test))
        yield Split(
            train,
            whole.rows(order[:half][:CALIBRATION]),
            whole.rows(order[half:]),
            strange_rows,
            [network for network, _ in members],
            [seconds for _, seconds in members],
        )


def _second_half(data: Images, seed: int) -> torch.Tensor:
    rows = np.arange(len(data) // 2, len(data))
    kept = np.random.default_rng((seed, 9)).permutation(rows)[:STRANGE]
    return image_tensor(data.images[np.sort(kept)])


def dogs_cats(seed: int) -> Iterator[Split]:
    test = load_cifar10()[1]
    others = neither_dogs_nor_cats(test)
    mixed = np.random.default_rng(7).permutation(len(others))  # they come class by class
    return _images(
        "dogs-cats", dogs_and_cats(test), {"other classes": Images(others.images[mixed], others.labels[mixed])}, seed
    )


def ten_classes(seed: int) -> Iterator[Split]:
    fashion, drawings = load_fashion_mnist()[1], load_quickdraw()
    mixed = np.random.default_rng(7).permutation(len(drawings))
    drawings = Images(drawings.images[mixed], drawings.labels[mixed])
    strange = {"Fashion-MNIST": in_colour(fashion), "QuickDraw": in_colour(drawings)}
    return _images("ten-classes", load_cifar10()[1], strange, seed)


def fashion(seed: int) -> Iterator[Split]:
    return _images("fashion", load_fashion_mnist()[1], {"MNIST": load_mnist()[1]}, seed)


def digits(seed: int) -> Iterator[Split]:
    X, y = load_digits(return_X_y=True)
    known = y < 8
    return small(X[known] / 16, y[known], X[~known] / 16, "digits 8 and 9", seed, (0.5, 0.25))


def shifted(load: Callable[[], tuple[Any, Any]], seed: int) -> Iterator[Split]:
    X, y = load()
    along = PCA(1).fit_transform(StandardScaler().fit_transform(X))[:, 0]
    far = along > np.quantile(along, 0.8)
    return small(X[~far], y[~far], X[far], "shifted rows", seed, (0.5, 0.25))


@cache
def _breast_cancer() -> tuple[Any, Any]:
    return load_breast_cancer(return_X_y=True)


@cache
def _wine() -> tuple[Any, Any]:
    return load_wine(return_X_y=True)


@cache
def _diabetes() -> tuple[Any, Any]:
    X, y = load_diabetes(return_X_y=True)
    return X, (y > np.median(y)).astype(int)


def small(X: Any, y: Any, strange: Any, name: str, seed: int, shares: tuple[float, float]) -> Iterator[Split]:
    _perceptron(Data(torch.zeros(2, 1), np.arange(2)), 2, 0)  # what the first training of a process loads is no cost
    for split in range(SPLITS):
        order = np.random.default_rng((seed, split)).permutation(len(y))
        first, second = (np.cumsum(shares) * len(y)).astype(int)
        scaler = StandardScaler().fit(X[order[:first]])

        def data(rows: Any, scaler: Any = scaler) -> Data:
            return Data(torch.as_tensor(scaler.transform(X[rows]), dtype=torch.float32), y[rows].astype(np.int64))

        train = data(order[:first])
        members = [_perceptron(train, int(y.max()) + 1, 1000 * seed + 10 * split + m) for m in range(MEMBERS)]
        yield Split(
            train,
            data(order[first:second]),
            data(order[second:]),
            {name: torch.as_tensor(scaler.transform(strange), dtype=torch.float32)},
            [network for network, _ in members],
            [seconds for _, seconds in members],
        )


def _perceptron(train: Data, classes: int, seed: int) -> tuple[nn.Module, float]:
    """Return a network of two layers of 50 units, trained by Adam on all rows at once."""
    begun = time.process_time()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        outputs = 1 if classes == 2 else classes
        model = nn.Sequential(
            nn.Linear(train.x.shape[1], 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, outputs)
        )
    y = torch.as_tensor(train.y)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
    for _ in range(300):
        z = model(train.x)
        loss = (
            nn.functional.binary_cross_entropy_with_logits(z[:, 0], y.float())
            if outputs == 1
            else nn.functional.cross_entropy(z, y)
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval(), time.process_time() - begun


TASKS = (
    Task("dogs-cats", "CIFAR-10 dogs and cats; strange: the other eight classes", dogs_cats, images=True),
    Task(
        "ten-classes",
        "CIFAR-10, ten classes; strange: Fashion-MNIST and QuickDraw as colour images",
        ten_classes,
        images=True,
    ),
    Task("fashion", "Fashion-MNIST; strange: MNIST", fashion, rows=1_000, images=True),
    Task("digits", "handwritten digits 0 to 7; strange: 8 and 9", digits),
    Task("breast-cancer", "breast cancer; strange: shifted rows", lambda seed: shifted(_breast_cancer, seed)),
    Task("wine", "wine; strange: shifted rows", lambda seed: shifted(_wine, seed)),
    Task("diabetes", "diabetes above the median; strange: shifted rows", lambda seed: shifted(_diabetes, seed)),
)
