"""A small convolutional network that learns CIFAR-10 in a quarter of an hour on one core.

Its first layer is not trained. It has the principal axes of patches of 2 x 2 pixels, scaled to variance one, with both
signs, as Page (2019) and Jordan (2024) have it: later layers start from decorrelated inputs, which saves epochs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from enkbayes.reproduction.image_training import image_tensor

Vector = np.ndarray[Any, Any]


def whitening(images: Vector, ridge: float = 1e-2) -> torch.Tensor:
    """Return filters (2 d, C, 2, 2), d = 4 C, of the patches of images (n, H, W, C) of bytes."""
    x = image_tensor(images).contiguous()
    patches = nn.functional.unfold(x, 2).transpose(1, 2).reshape(-1, 4 * x.shape[1]).double()
    values, axes = torch.linalg.eigh(torch.cov(patches.T))
    filters = (axes / torch.sqrt(values + ridge)).T.reshape(-1, x.shape[1], 2, 2)
    return torch.cat([filters, -filters]).float()


def _stage(inputs: int, outputs: int) -> nn.Sequential:
    """Return two 3 x 3 convolutions, with the maximum over 2 x 2 positions after the first."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class WhitenedNetwork(nn.Module):  # type: ignore[misc]
    """A whitened first layer, three stages of two convolutions, the maximum over the image, a Linear layer."""

    def __init__(self, outputs: int, images: Vector, widths: tuple[int, int, int] = (32, 128, 128)) -> None:
        super().__init__()
        filters = whitening(images)
        self.stem = nn.Conv2d(images.shape[3], len(filters), 2, bias=False)
        self.stem.weight = nn.Parameter(filters, requires_grad=False)
        self.stages = nn.Sequential(*map(_stage, (len(filters), *widths[:-1]), widths))
        self.head = nn.Linear(widths[-1], outputs)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features (n, widths[-1]) of images (n, C, 32, 32)."""
        return self.stages(nn.functional.relu(self.stem(x))).amax(dim=(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, outputs)."""
        return self.head(self.features(x))
