"""The networks of the paper's image experiment: trained once, kept in the cache, continued when stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from enkbayes.datasets.cifar import Images
from enkbayes.datasets.downloads import cache_folder


def image_network(
    name: str, data: Images, *, epochs: int, seed: int, progress: Callable[[int, float], None] = lambda *_: None
) -> Any:
    """Return a ResNet10 with one logit, trained on images of two classes; the cache keeps its checkpoint as `name`."""
    import torch

    from enkbayes.nets.image_training import ImageTraining, train_on_images
    from enkbayes.nets.resnet import ResNet10

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ResNet10(outputs=1)
    return train_on_images(
        model,
        data.images,
        data.labels,
        ImageTraining(epochs=epochs, seed=seed),
        checkpoint=cache_folder() / "networks" / f"{name}-{epochs}-{seed}.safetensors",
        progress=progress,
    )
