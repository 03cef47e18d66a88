"""The networks of the paper's image experiment: trained once, kept in the cache, continued when stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes.reproduction.datasets.cifar import dogs_and_cats, load_cifar10, neither_dogs_nor_cats
from enkbayes.reproduction.datasets.downloads import cache_folder
from enkbayes.reproduction.datasets.images import Images

Vector = np.ndarray[Any, Any]
BATCH = 500


@dataclass(frozen=True, eq=False)
class ImageTask:
    """Two classes to tell apart, to train on and to test, and images of other classes."""

    name: str
    train: Images
    test: Images
    others: Images
    checkpoints: Path | None


def cifar_task(data_dir: Path | None) -> ImageTask:
    """Return dogs (class 0) against cats (class 1) of CIFAR-10; others are the test images of the other classes."""
    train, test = load_cifar10(data_dir)
    folder = cache_folder() / "networks"
    return ImageTask("dogs-cats", dogs_and_cats(train), dogs_and_cats(test), neither_dogs_nor_cats(test), folder)


def digits_task() -> ImageTask:
    """Return handwritten threes against fives, 8 x 8 pixels, that come with scikit-learn: a stand-in that needs no
    download. Others are the other digits.

    >>> task = digits_task()
    >>> task.train.images.shape, len(task.test), len(task.others)
    ((245, 8, 8, 3), 120, 1432)
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
    data = Images(np.repeat(grey[..., None], 3, axis=3), digits.target.astype(np.int64))
    known = data.only(3, 5)
    order = np.random.default_rng(0).permutation(len(known))
    train, test = (Images(known.images[rows], known.labels[rows]) for rows in (order[:245], order[245:]))
    return ImageTask("digits", train, test, data.only(0, 1, 2, 4, 6, 7, 8, 9), None)


def image_network(
    task: ImageTask, *, epochs: int, seed: int, progress: Callable[[int, float], None] = lambda *_: None
) -> Any:
    """Return a ResNet10 with one logit, trained on the task; a task with a folder keeps a checkpoint of each epoch."""
    import torch

    from enkbayes.nets.training.images import ImageTraining, train_on_images
    from enkbayes.nets.training.resnet import ResNet10

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ResNet10(outputs=1)
    file = None if task.checkpoints is None else task.checkpoints / f"{task.name}-{epochs}-{seed}.safetensors"
    return train_on_images(
        model,
        task.train.images,
        task.train.labels,
        ImageTraining(epochs=epochs, batch_size=min(128, max(len(task.train) // 4, 2)), seed=seed),
        checkpoint=file,
        progress=progress,
    )


def seen(model: Any, images: Images) -> tuple[Vector, Vector]:
    """Return the features (n, 256) of images and the probability of class 1, (n,)."""
    import torch

    from enkbayes.nets.training.images import image_tensor

    with torch.no_grad():
        parts = [model.features(batch) for batch in image_tensor(images.images).split(BATCH)]
        features = torch.cat(parts).double()
        proba = torch.sigmoid((features @ model.head.weight.double().T)[:, 0])
    return np.asarray(features), np.asarray(proba)
