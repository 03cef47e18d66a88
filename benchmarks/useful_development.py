"""Tasks for choosing settings, which usefulness.py does not evaluate: other classes, other networks, other OOD rows.

Deer and horses instead of dogs and cats. Members 3 and 4 of the networks for ten classes and for Fashion-MNIST, with
training images that they were not trained on as in-distribution rows, and MNIST or drawings as out-of-distribution
rows. Digits with other pairs of classes held out. Tables shifted along the second principal component instead of the
first. Members 3 and 4 are not the first network of an evaluated seed (0, 1 and 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from useful_networks import RECIPES, deer_and_horses, trained
from useful_tasks import CALIBRATION_ROWS, OOD_ROWS, Data, Split, far_rows, small

from enkbayes.reproduction.datasets.cifar import load_cifar10
from enkbayes.reproduction.datasets.idx import load_fashion_mnist, load_mnist
from enkbayes.reproduction.datasets.images import Images, in_colour
from enkbayes.reproduction.datasets.quickdraw import load_quickdraw
from enkbayes.reproduction.image_training import image_tensor

TRAINING_IMAGES = 20_000  # of the networks for ten classes and Fashion-MNIST
UNSEEN = slice(TRAINING_IMAGES, TRAINING_IMAGES + 6_000)
SEEDS = range(100, 105)  # of tables


def _some(data: Images, count: int, seed: int) -> Images:
    rows = np.random.default_rng((seed, 10)).permutation(len(data))[:count]
    return Images(data.images[rows], data.labels[rows])


def _images(task: str, member: int, unseen: Images, ood: Images) -> Split:
    network, seconds = trained(task, member)
    train, mixed = RECIPES[task].train(), _some(unseen, len(unseen), member)
    inside = Data(image_tensor(mixed.images), mixed.labels)
    half = min(CALIBRATION_ROWS, len(unseen) // 2)
    return Split(
        Data(image_tensor(train.images), train.labels),
        inside.rows(np.arange(half)),
        inside.rows(np.arange(half, len(unseen))),
        {"OOD": image_tensor(_some(ood, OOD_ROWS, member).images)},
        [network],
        [seconds],
    )


def deer_horses(member: int) -> Split:
    train, test = load_cifar10()
    others = train.only(0, 1, 2, 3, 5, 6, 8, 9)
    return _images("deer-horses", member, deer_and_horses(test), others)


def ten_classes(member: int) -> Split:
    train, _ = load_cifar10()
    unseen = Images(train.images[UNSEEN], train.labels[UNSEEN])
    return _images("ten-classes", member, unseen, in_colour(load_mnist()[0]))


def fashion(member: int) -> Split:
    train, _ = load_fashion_mnist()
    unseen = Images(train.images[UNSEEN], train.labels[UNSEEN])
    return _images("fashion", member, unseen, load_quickdraw())


def digits() -> Iterator[Split]:
    X, y = load_digits(return_X_y=True)
    for held in ((0, 1), (2, 3), (4, 5), (6, 7)):
        inside = ~np.isin(y, held)
        numbers = np.unique(y[inside], return_inverse=True)[1]
        yield from small(X[inside] / 16, numbers, X[~inside] / 16, "other digits", 100 + held[0], members=1, splits=1)


def shifted(load: Callable[..., Any]) -> Iterator[Split]:
    X, y = load(return_X_y=True)
    y = y if load is not load_diabetes else (y > np.median(y)).astype(int)
    far = far_rows(X, component=1)
    for seed in SEEDS:
        yield from small(X[~far], y[~far], X[far], "shifted rows", seed, members=1, splits=1)


DEVELOPMENT: dict[str, Callable[[], Iterator[Split]]] = {
    "deer and horses": lambda: map(deer_horses, (0, 1)),
    "ten classes, MNIST": lambda: map(ten_classes, (3, 4)),
    "Fashion-MNIST, drawings": lambda: map(fashion, (3, 4)),
    "digits, other pairs": digits,
    "breast cancer, second component": lambda: shifted(load_breast_cancer),
    "wine, second component": lambda: shifted(load_wine),
    "diabetes, second component": lambda: shifted(load_diabetes),
}
