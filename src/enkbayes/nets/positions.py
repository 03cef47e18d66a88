"""Averages over the positions of a sequence or an image, without padding."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

MASK = "attention_mask"  # the argument of Hugging Face's models: (n, T), 1 at a token and 0 at padding


class Padding:
    """The mask (n, T) that a model was last called with; None without one."""

    mask: torch.Tensor | None = None

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Record the mask of every call of the model."""
        with model.register_forward_pre_hook(self._record, with_kwargs=True):
            yield

    def _record(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(kwargs)
        if args:
            given |= dict(zip(inspect.signature(model.forward).parameters, args, strict=False))
        found = given.get(MASK)
        self.mask = found if isinstance(found, torch.Tensor) and found.ndim == 2 else None

    def average(self, x: torch.Tensor) -> torch.Tensor:
        """Return the averages (n, d) over the positions of x (n, ..., d); padding does not count.

        >>> padding = Padding()
        >>> padding.mask = torch.tensor([[1, 1, 0]])
        >>> padding.average(torch.tensor([[[1.0], [3.0], [100.0]]]))
        tensor([[2.]])
        """
        if self.mask is None or x.shape[:-1] != self.mask.shape:
            return x.flatten(1, -2).mean(dim=1)
        weights = self.mask.to(x.dtype)[:, :, None]
        return (weights * x).sum(dim=1) / weights.sum(dim=1).clamp_min(1.0)
