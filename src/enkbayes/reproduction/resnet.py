"""ResNet10 for 32 x 32 images: ten layers with weights, 256 features, one logit or K."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):  # type: ignore[misc]
    """Two 3 x 3 convolutions and a shortcut; the shortcut is a 1 x 1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's features."""
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet10(nn.Module):  # type: ignore[misc]
    """A stem, four blocks of `widths` channels, the average over the image, a Linear layer.

    The first block works at full resolution, where channels are expensive: with 16 of them instead of 32, a step takes
    about half the time. `head` has no bias, so one logit has the paper's D = 256 parameters.

    Examples
    --------
    >>> model = ResNet10(outputs=1)
    >>> model(torch.zeros(2, 3, 32, 32)).shape, model.head.in_features
    (torch.Size([2, 1]), 256)
    """

    def __init__(self, outputs: int, widths: tuple[int, int, int, int] = (16, 64, 128, 256), channels: int = 3) -> None:
        super().__init__()
        first = widths[0]
        self.stem = nn.Sequential(
            nn.Conv2d(channels, first, 3, padding=1, bias=False), nn.BatchNorm2d(first), nn.ReLU()
        )
        inputs = (first, *widths[:-1])
        self.blocks = nn.Sequential(*map(Block, inputs, widths, (1, 2, 2, 2)))
        self.head = nn.Linear(widths[-1], outputs, bias=False)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features (n, widths[-1]) of images (n, channels, H, W)."""
        return self.blocks(self.stem(x)).mean(dim=(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, outputs)."""
        return self.head(self.features(x))
