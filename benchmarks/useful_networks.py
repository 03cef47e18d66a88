"""The image networks of usefulness.py: trained once and kept in the cache. An interrupted training continues.

    python benchmarks/useful_networks.py dogs-cats 0 1 2    # members of a task, one after the other, on one core

usefulness.py trains the networks that are missing; with this command several cores can share the work beforehand.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from whitened_network import WhitenedNetwork

from enkbayes.reproduction.datasets.cifar import dogs_and_cats, load_cifar10
from enkbayes.reproduction.datasets.downloads import cache_folder
from enkbayes.reproduction.datasets.images import Images
from enkbayes.reproduction.image_training import ImageTraining, train_on_images
from enkbayes.reproduction.resnet import ResNet10


@dataclass(frozen=True)
class ImageRecipe:
    """Data, architecture and settings of a training; members differ only in their seed."""

    train: Callable[[], Images]
    network: Callable[[], torch.nn.Module]
    training: ImageTraining


def deer_and_horses(data: Images) -> Images:
    return data.only(4, 7)


def _ten_classes() -> Images:
    train, _ = load_cifar10()
    return Images(train.images[:20_000], train.labels[:20_000])  # the official order is random


def _fashion() -> Images:
    from enkbayes.reproduction.datasets.idx import load_fashion_mnist

    train, _ = load_fashion_mnist()
    return Images(train.images[:20_000], train.labels[:20_000])


def most_images(first: int = 0, last: int = 45_000) -> Images:
    """Return training images of CIFAR-10; the 5,000 that are left are for calibration."""
    train, _ = load_cifar10()
    return Images(train.images[first:last], train.labels[first:last])


RECIPES = {
    "deer-horses": ImageRecipe(  # only for choices of settings, see useful_development.py
        lambda: deer_and_horses(load_cifar10()[0]), lambda: ResNet10(1), ImageTraining(epochs=10)
    ),
    "dogs-cats": ImageRecipe(lambda: dogs_and_cats(load_cifar10()[0]), lambda: ResNet10(1), ImageTraining(epochs=24)),
    "ten-classes": ImageRecipe(_ten_classes, lambda: ResNet10(10, widths=(16, 32, 64, 128)), ImageTraining(epochs=12)),
    "ten-classes-90": ImageRecipe(  # what such networks reach on a processor: see image_networks.py
        most_images,
        lambda: WhitenedNetwork(10, most_images(0, 5000).images, (48, 160, 160)),
        ImageTraining(epochs=12, batch_size=256, learning_rate=0.25, label_smoothing=0.1, bfloat16=True),
    ),
    "fashion": ImageRecipe(_fashion, lambda: ResNet10(10, widths=(8, 16, 32, 64), channels=1), ImageTraining(epochs=6)),
}


def trained(task: str, member: int) -> tuple[torch.nn.Module, float]:
    """Return a member of a task in eval mode, and the seconds of processor time that its training took."""
    recipe = RECIPES[task]
    file = cache_folder() / "usefulness" / f"{task}-{member}.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(member)
        model = recipe.network()
    data = recipe.train()
    begun, epochs = time.process_time(), 0

    def progress(epoch: int, loss: float) -> None:
        nonlocal epochs
        epochs += 1
        print(f"{task} {member}: epoch {epoch} of {recipe.training.epochs}, loss {loss:.3f}", flush=True)

    settings = replace(recipe.training, seed=member)
    train_on_images(model, data.images, data.labels, settings, checkpoint=file, progress=progress)
    return model, _cost(file, (time.process_time() - begun) * settings.epochs / epochs if epochs else None)


def _cost(file: Path, seconds: float | None) -> float:
    """Return the seconds of a training, stored beside its checkpoint; interruptions do not count."""
    note = file.with_suffix(".json")
    if seconds is not None:
        note.write_text(json.dumps({"seconds": seconds}))
    return float(json.loads(note.read_text())["seconds"])


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for number in map(int, sys.argv[2:]):
        trained(sys.argv[1], number)
