"""Training an image classifier on the CPU. A run that was interrupted continues from its last epoch.

SGD with Nesterov momentum and weight decay; the learning rate rises over the first tenth of the steps and falls along a
cosine. Images are flipped and shifted at random, by up to an eighth of their side. Each epoch has random numbers of its
own, so an interrupted run and an uninterrupted one end with the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from enkbayes.nets.layers import logits_of
from enkbayes.storage.files import replacing
from enkbayes.storage.fingerprint import fingerprint

Vector = np.ndarray[Any, Any]
ShowEpoch = Callable[[int, float], None]
"""(finished epochs, mean loss of the last one) -> None."""


@dataclass(frozen=True)
class ImageTraining:
    """Settings of the training.

    Examples
    --------
    >>> [round(ImageTraining().rate(share), 6) for share in (0.0, 0.1, 0.55, 1.0)]
    [0.01, 0.1, 0.05, 0.0]
    """

    epochs: int = 24
    batch_size: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    seed: int = 0
    label_smoothing: float = 0.0  # of several classes
    bfloat16: bool = False  # convolutions in half precision, twice as fast on processors that have it

    def rate(self, share: float) -> float:
        """Return the learning rate after this fraction of all steps."""
        rise = 0.1
        if share < rise:
            return self.learning_rate * (0.1 + 0.9 * share / rise)
        return self.learning_rate * (1 + math.cos(math.pi * (share - rise) / (1 - rise))) / 2


def train_on_images(
    model: nn.Module,
    images: Vector,
    labels: Vector,
    training: ImageTraining,
    *,
    checkpoint: Path | None = None,
    progress: ShowEpoch = lambda *_: None,
) -> nn.Module:
    """Train the model in place on images (N, H, W, C) of bytes and class numbers (N,), and return it in eval mode.

    The file `checkpoint` is written after each epoch. If it exists and belongs to the same data and settings, training
    continues from it. torch's random state, which Dropout uses, does not change.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    >>> images = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 3)).astype(np.uint8)
    >>> train_on_images(model, images, np.arange(20) % 2, ImageTraining(epochs=1)).training
    False
    """
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        nesterov=training.momentum > 0,
    )
    shapes = [(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()]
    settings = repr(training).replace(", label_smoothing=0.0, bfloat16=False", "")  # stored networks stay valid
    name = f"{settings} {shapes!r} {fingerprint(images.reshape(len(images), -1), labels)}"
    begun = _restore(model, optimiser, checkpoint, name)
    x, targets = image_tensor(images), torch.as_tensor(labels)
    model.to(memory_format=torch.channels_last)
    for epoch in range(begun, training.epochs):
        with torch.random.fork_rng(devices=[]):
            loss = _epoch(model, optimiser, x, targets, training, epoch)
        _store(model, optimiser, checkpoint, name, epoch + 1)
        progress(epoch + 1, loss)
    return model.eval()


def image_tensor(images: Vector) -> torch.Tensor:
    """Return bytes (N, H, W, C) as numbers from -2 to 2, (N, C, H, W).

    >>> image_tensor(np.full((1, 2, 2, 3), 255, dtype=np.uint8)).amax().item()
    2.0
    """
    x = torch.as_tensor(images).permute(0, 3, 1, 2).float() * (4 / 255) - 2
    return x.contiguous(memory_format=torch.channels_last)


def augmented(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Return images (B, C, H, W), half of them flipped, each shifted at random; edges are padded by reflection.

    >>> augmented(torch.zeros(2, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """
    count, _, height, width = x.shape
    flipped = torch.rand(count, generator=random) < 0.5
    x = torch.where(flipped[:, None, None, None], x.flip(3), x)
    reach = max(height // 8, 1)
    padded = functional.pad(x, (reach,) * 4, mode="reflect")
    down, right = torch.randint(0, 2 * reach + 1, (2, count), generator=random)
    rows = (down[:, None] + torch.arange(height))[:, :, None]
    columns = (right[:, None] + torch.arange(width))[:, None, :]
    shifted = padded.permute(0, 2, 3, 1)[torch.arange(count)[:, None, None], rows, columns]
    return shifted.permute(0, 3, 1, 2)


def _epoch(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    x: torch.Tensor,
    targets: torch.Tensor,
    training: ImageTraining,
    epoch: int,
) -> float:
    """Train for one epoch and return the mean loss. Layers use torch's random state, all else uses `random`."""
    seeds = np.random.SeedSequence((training.seed, epoch)).generate_state(2).tolist()
    random = torch.Generator().manual_seed(seeds[0])
    torch.manual_seed(seeds[1])
    batches = list(torch.randperm(len(x), generator=random).split(training.batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:  # BatchNorm cannot normalise a single image
        batches[-2:] = [torch.cat(batches[-2:])]
    model.train()
    total = 0.0
    for step, rows in enumerate(batches):
        for group in optimiser.param_groups:
            group["lr"] = training.rate((epoch + step / len(batches)) / training.epochs)
        with torch.autocast("cpu", torch.bfloat16, enabled=training.bfloat16):
            logits = logits_of(model(augmented(x[rows], random)))
        logits = logits.float()
        loss = (
            functional.binary_cross_entropy_with_logits(logits, targets[rows].to(logits.dtype))
            if logits.ndim == 1
            else functional.cross_entropy(logits, targets[rows], label_smoothing=training.label_smoothing)
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.item() * len(rows)
    return total / len(x)


def _store(model: nn.Module, optimiser: torch.optim.Optimizer, path: Path | None, name: str, epochs: int) -> None:
    """Write weights, buffers and momenta, all or nothing."""
    if path is None:
        return
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
    for i, parameter in enumerate(model.parameters()):
        if (momentum := optimiser.state[parameter].get("momentum_buffer")) is not None:
            tensors[f"momentum.{i}"] = momentum
    # safetensors does not accept tensors that share memory, as tied weights do
    apart = {key: tensor.clone(memory_format=torch.contiguous_format) for key, tensor in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        save_file(apart, draft, metadata={"recipe": name, "epochs": str(epochs)})


def _restore(model: nn.Module, optimiser: torch.optim.Optimizer, path: Path | None, name: str) -> int:
    """Load model and optimiser from the file, if it exists, and return the number of finished epochs."""
    if path is None or not path.exists():
        return 0
    try:
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
            if about.get("recipe") != name:
                raise ValueError(
                    f"{path} was trained on other data or with other settings; remove it, or use another file"
                )
            model.load_state_dict({key: file.get_tensor(f"model.{key}") for key in model.state_dict()})
            names = set(file.keys())
            for i, parameter in enumerate(model.parameters()):
                if f"momentum.{i}" in names:
                    optimiser.state[parameter]["momentum_buffer"] = file.get_tensor(f"momentum.{i}")
            return int(about["epochs"])
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it to train again") from None
