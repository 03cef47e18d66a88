"""Rows of the image networks of image_networks.py and image_forms.py: in distribution, corrupted, and from elsewhere.

Development and evaluation share no rows, no kind of corruption and no other data set. Development: the second half of
the held-out training images, with darker, pixelated and speckled copies, and MNIST; a network for Fashion-MNIST with
all of its rows. Evaluation: the test images of CIFAR-10, with noise, blur and less contrast in five strengths, and
Fashion-MNIST, QuickDraw, uniform noise and inverted images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from detector_tasks import CORRUPTIONS, STRENGTHS, _noise, corrupted
from torch import nn
from useful_networks import RECIPES, most_images, trained

from enkbayes.reproduction.datasets.cifar import load_cifar10
from enkbayes.reproduction.datasets.idx import load_fashion_mnist, load_mnist
from enkbayes.reproduction.datasets.images import Images, in_colour
from enkbayes.reproduction.datasets.quickdraw import load_quickdraw
from enkbayes.reproduction.image_training import image_tensor

Vector = np.ndarray[Any, Any]
TASK = "ten-classes-90"
TRAIN, CHOICE, CORRUPTED, FAR = 10_000, 5_000, 1_000, 1_000  # rows
BATCH = 250


@dataclass(frozen=True, eq=False)
class ImageRows:
    """A trained network, images (n, H, W, C) of bytes and class numbers (n,).

    train, held_out, test : images and class numbers; `train` is a part of what the network was trained on
    corrupted : by kind and strength, images and class numbers
    far : images of other kinds
    """

    network: Callable[[], nn.Module]
    train: Images
    held_out: Images
    test: Images
    corrupted: dict[str, tuple[Vector, Vector]]
    far: dict[str, Vector]


def evaluation() -> ImageRows:
    test = load_cifar10()[1]
    some = _some(test, CORRUPTED, 1)
    shifted = {
        f"{kind} {s + 1}": (corrupted(some.images, kind, s, 0), some.labels)
        for kind in CORRUPTIONS
        for s in range(STRENGTHS)
    }
    far = {
        "Fashion-MNIST": _some(in_colour(load_fashion_mnist()[1]), FAR, 2).images,
        "QuickDraw": _some(in_colour(load_quickdraw()), FAR, 3).images,
        "uniform noise": _noise((FAR, 32, 32, 3), 1),
        "inverted": 255 - _some(test, FAR, 4).images,
    }
    return ImageRows(
        lambda: trained(TASK, 0)[0], most_images(0, TRAIN), most_images(45_000, 50_000), test, shifted, far
    )


def development_cifar() -> ImageRows:
    held_out, test = most_images(45_000, 47_500), most_images(47_500, 50_000)
    far = {"MNIST": _some(in_colour(load_mnist()[1]), FAR, 5).images}
    shifted = {
        f"{kind} {s + 1}": (changed(test.images[:500], kind, s), test.labels[:500])
        for kind in ("darker", "pixelated", "speckled")
        for s in range(STRENGTHS)
    }
    return ImageRows(lambda: trained(TASK, 0)[0], most_images(0, TRAIN), held_out, test, shifted, far)


def development_fashion() -> ImageRows:
    train, rest = RECIPES["fashion"].train(), load_fashion_mnist()[0]
    held_out = Images(rest.images[20_000:22_500], rest.labels[20_000:22_500])
    test = Images(rest.images[22_500:25_000], rest.labels[22_500:25_000])
    shifted = {
        f"{kind} {s + 1}": (corrupted(test.images[:500], kind, s, 0), test.labels[:500])
        for kind in CORRUPTIONS
        for s in range(STRENGTHS)
    }
    far = {
        "MNIST": _some(load_mnist()[1], FAR, 6).images,
        "QuickDraw": _some(load_quickdraw(), FAR, 7).images,
        "uniform noise": _noise((FAR, 28, 28, 1), 2),
        "inverted": 255 - test.images[500 : 500 + FAR],
    }
    some = Images(train.images[:TRAIN], train.labels[:TRAIN])
    return ImageRows(lambda: trained("fashion", 0)[0], some, held_out, test, shifted, far)


DEVELOPMENT = {"CIFAR-10": development_cifar, "Fashion-MNIST": development_fashion}


def _some(data: Images, count: int, seed: int) -> Images:
    rows = np.sort(np.random.default_rng((seed, 31)).permutation(len(data))[:count])
    return Images(data.images[rows], data.labels[rows])


def changed(images: Vector, kind: str, strength: int) -> Vector:
    """Return images (n, H, W, C) of bytes that are darker, pixelated or speckled, of strength 0 ... 4.

    >>> changed(np.full((1, 2, 2, 1), 100, dtype=np.uint8), "darker", 4).max()
    np.uint8(15)
    """
    x = images.astype(np.float32)
    if kind == "darker":
        x = x * (0.7, 0.5, 0.35, 0.25, 0.15)[strength]
    elif kind == "pixelated":
        side = (24, 16, 12, 8, 6)[strength]
        small = nn.functional.interpolate(torch.as_tensor(x).permute(0, 3, 1, 2), size=(side, side), mode="area")
        x = nn.functional.interpolate(small, size=images.shape[1:3]).permute(0, 2, 3, 1).numpy()
    else:
        rng = np.random.default_rng((strength, 32))
        share = (0.01, 0.03, 0.06, 0.1, 0.2)[strength]
        hit = rng.random(images.shape[:3]) < share
        x[hit] = rng.choice([0.0, 255.0], size=(int(hit.sum()), 1))
    return np.clip(x, 0, 255).astype(np.uint8)


def loader(data: Images) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of images and class numbers."""
    x, y = image_tensor(data.images), torch.as_tensor(data.labels)
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


@cache
def accuracy_of(task: str) -> float:
    """Return the accuracy of a network on its held-out rows; for a look before anything else."""
    rows = DEVELOPMENT[task]()
    model = rows.network()
    with torch.inference_mode():
        right = [(model(x).argmax(1) == y).float().mean().item() for x, y in loader(rows.held_out)]
    return float(np.mean(right))
