"""Random views of the inputs of a network, made by the user's augmentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Augment = Callable[..., Any]
"""A function of a batch of inputs and a torch.Generator, or of a batch alone, that returns a batch like it."""


@dataclass(frozen=True)
class Views:
    """Batches and random views of them: the batch itself first, then `count` times what `augment` returns.

    A function of a batch alone, such as a transform, draws from torch's own generator, which is put back afterwards.
    So the same batch always has the same views.

    >>> views = Views(lambda x, generator: x + torch.randn(x.shape, generator=generator))
    >>> first, second = (list(views(torch.zeros(2), 3)) for _ in range(2))
    >>> len(first), bool(torch.equal(first[1], second[1])), bool(torch.equal(first[1], first[2]))
    (4, True, False)
    """

    augment: Augment
    seed: int = 0

    def __call__(self, x: Any, count: int) -> Iterator[Any]:
        """Yield the batch and its views."""
        yield x
        generator = torch.Generator().manual_seed(self.seed)
        for i in range(count):
            if takes_generator(self.augment):
                yield self.augment(x, generator)
                continue
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed + 1000 * (i + 1))
                seen = self.augment(x)
            yield seen


def takes_generator(augment: Augment) -> bool:
    """Return whether a function takes a generator after the batch.

    >>> takes_generator(lambda x, generator: x), takes_generator(lambda x: x), takes_generator(lambda x, scale=1: x)
    (True, False, False)
    """
    if isinstance(augment, torch.nn.Module):
        augment = augment.forward
    try:
        parameters = list(inspect.signature(augment).parameters.values())
    except (TypeError, ValueError):
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) >= 2 or any(p.name == "generator" for p in parameters)
