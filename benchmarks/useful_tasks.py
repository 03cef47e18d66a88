"""The tasks of usefulness.py: disjoint rows for training, calibration and evaluation, and out-of-distribution rows.

Image tasks use the same training rows for all seeds and split the official test rows into two random halves, several
times per seed. The networks of a seed are members seed ... seed + 4 of seven, so ensembles of different seeds share
members, but not their first one. Small tasks are split and trained again for every seed, several times. The figures of
a seed are means over its splits: on 89 or 1,000 rows, the ECE of a single split is as noisy as the differences that
the benchmark measures.

Out-of-distribution rows: for images, other data sets or classes (the first half served to choose the score, the second
half is used for evaluation); for digits, two classes that are held out; for tables, a covariate shift (the fifth of all
rows with the largest first principal component is never used for training).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch import nn
from useful_networks import RECIPES, trained

from enkbayes.reproduction.datasets.cifar import dogs_and_cats, load_cifar10, neither_dogs_nor_cats
from enkbayes.reproduction.datasets.idx import load_fashion_mnist, load_mnist
from enkbayes.reproduction.datasets.images import Images, in_colour
from enkbayes.reproduction.datasets.quickdraw import load_quickdraw
from enkbayes.reproduction.image_training import image_tensor

VERSION = 3  # of tasks, networks and names: stored results of other versions are ignored
MEMBERS = 5  # networks of a deep ensemble
SPLITS = 10  # of a seed, for small tasks
HALVINGS = 3  # of the test rows of a seed, for image tasks
CALIBRATION_ROWS = 2_000  # at most, of the half for calibration
OOD_ROWS = 1_000  # at most, of each kind
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
    """One run of a task: disjoint data, trained networks and the seconds that each training took."""

    train: Data
    calibration: Data
    evaluation: Data
    ood: dict[str, torch.Tensor]
    networks: list[nn.Module]
    seconds: list[float]


@dataclass(frozen=True)
class Task:
    """A name, a description for the page, and the splits of a seed, with some number of trained networks each."""

    name: str
    description: str
    splits: Callable[..., Iterator[Split]]  # (seed, members=MEMBERS)
    rank: int = 10  # of the whole network's posterior
    rows: int = 500  # for the whole network's posterior
    images: bool = False  # the same network for all splits of a seed, test rows halved


def _images(task: str, test: Images, ood: dict[str, Images], seed: int, members: int) -> Iterator[Split]:
    networks = [trained(task, member) for member in range(seed, seed + members)]
    whole = Data(image_tensor(test.images), test.labels)
    images = RECIPES[task].train()
    train = Data(image_tensor(images.images), images.labels)
    ood_rows = {name: _second_half(data, seed) for name, data in ood.items()}
    half = len(test) // 2
    rng = np.random.default_rng((seed, 8))
    for _ in range(HALVINGS):
        order = rng.permutation(len(test))
        calibration, evaluation = whole.rows(order[:half][:CALIBRATION_ROWS]), whole.rows(order[half:])
        yield Split(train, calibration, evaluation, ood_rows, *map(list, zip(*networks, strict=True)))


def _second_half(data: Images, seed: int) -> torch.Tensor:
    rows = np.arange(len(data) // 2, len(data))
    kept = np.random.default_rng((seed, 9)).permutation(rows)[:OOD_ROWS]
    return image_tensor(data.images[np.sort(kept)])


def dogs_cats(seed: int, members: int = MEMBERS) -> Iterator[Split]:
    test = load_cifar10()[1]
    others = _shuffled(neither_dogs_nor_cats(test))
    return _images("dogs-cats", dogs_and_cats(test), {"other classes": others}, seed, members)


def ten_classes(seed: int, members: int = MEMBERS) -> Iterator[Split]:
    fashion, drawings = load_fashion_mnist()[1], _shuffled(load_quickdraw())
    ood = {"Fashion-MNIST": in_colour(fashion), "QuickDraw": in_colour(drawings)}
    return _images("ten-classes", load_cifar10()[1], ood, seed, members)


def fashion(seed: int, members: int = MEMBERS) -> Iterator[Split]:
    return _images("fashion", load_fashion_mnist()[1], {"MNIST": load_mnist()[1]}, seed, members)


def _shuffled(data: Images) -> Images:
    """Return images that are stored class by class in random order."""
    order = np.random.default_rng(7).permutation(len(data))
    return Images(data.images[order], data.labels[order])


def digits(seed: int, members: int = MEMBERS) -> Iterator[Split]:
    X, y = load_digits(return_X_y=True)
    inside = y < 8
    return small(X[inside] / 16, y[inside], X[~inside] / 16, "digits 8 and 9", seed, members)


def shifted(load: Callable[[], tuple[Any, Any]], seed: int, members: int = MEMBERS) -> Iterator[Split]:
    X, y = load()
    far = far_rows(X, component=0)
    return small(X[~far], y[~far], X[far], "shifted rows", seed, members)


def far_rows(X: Any, component: int) -> Any:
    """Return which rows (n,) are among the fifth with the largest values of a principal component."""
    along = PCA(component + 1).fit_transform(StandardScaler().fit_transform(X))[:, component]
    return along > np.quantile(along, 0.8)


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


def small(
    X: Any, y: Any, ood: Any, name: str, seed: int, members: int = MEMBERS, splits: int = SPLITS
) -> Iterator[Split]:
    """Yield random splits, half for training, a quarter each for calibration and evaluation, with trained networks."""
    _perceptron(Data(torch.zeros(2, 1), np.arange(2)), 2, 0)  # loads what the first training of a process needs
    for split in range(splits):
        order = np.random.default_rng((seed, split)).permutation(len(y))
        first, second = (np.cumsum((0.5, 0.25)) * len(y)).astype(int)
        scaler = StandardScaler().fit(X[order[:first]])

        def inputs(rows: Any, scaler: Any = scaler) -> torch.Tensor:
            return torch.as_tensor(scaler.transform(rows), dtype=torch.float32)

        def data(rows: Any, inputs: Any = inputs) -> Data:
            return Data(inputs(X[rows]), y[rows].astype(np.int64))

        train, calibration, evaluation = map(data, (order[:first], order[first:second], order[second:]))
        networks = [_perceptron(train, int(y.max()) + 1, 1000 * seed + 10 * split + m) for m in range(members)]
        yield Split(train, calibration, evaluation, {name: inputs(ood)}, *map(list, zip(*networks, strict=True)))


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
    Task("dogs-cats", "CIFAR-10 dogs and cats; OOD: the other eight classes", dogs_cats, images=True),
    Task(
        "ten-classes",
        "CIFAR-10, ten classes; OOD: Fashion-MNIST and QuickDraw as colour images",
        ten_classes,
        images=True,
    ),
    Task("fashion", "Fashion-MNIST; OOD: MNIST", fashion, rows=1_000, images=True),
    Task("digits", "Handwritten digits 0 to 7; OOD: 8 and 9", digits),
    Task("breast-cancer", "Breast cancer; OOD: shifted rows", partial(shifted, _breast_cancer)),
    Task("wine", "Wine; OOD: shifted rows", partial(shifted, _wine)),
    Task("diabetes", "Diabetes above the median; OOD: shifted rows", partial(shifted, _diabetes)),
)
