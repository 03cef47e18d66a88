"""Random views of the inputs of a network, made by the user's augmentation."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from enkbayes.nets.models import FAILURES, described

Augment = Callable[..., Any]
"""A function of a batch of inputs and a torch.Generator, or of a batch alone, that returns a batch like it."""


@dataclass(frozen=True)
class Views:
    """Batches and random views of them: the batch itself first, then `count` times what `augment` returns.

    A function of a batch alone, such as a transform, draws from the generators of torch, numpy and Python, which are
    put back afterwards. So the same batch always has the same views. It gets a copy, which it may change.

    >>> views = Views(lambda x, generator: x + torch.randn(x.shape, generator=generator))
    >>> first, second = (list(views(torch.zeros(2), 3)) for _ in range(2))
    >>> len(first), bool(torch.equal(first[1], second[1])), bool(torch.equal(first[1], first[2]))
    (4, True, False)
    """

    augment: Augment
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is not a function."""
        if not callable(self.augment):
            raise ValueError(f"views= is a {type(self.augment).__name__}; expected a function of a batch of inputs")

    def __call__(self, x: Any, count: int) -> Iterator[Any]:
        """Yield the batch and its views."""
        yield x
        generator = torch.Generator().manual_seed(self.seed)
        for i in range(count):
            with _seeded(self.seed + 1000 * (i + 1)):
                seen = self._view(_copied(x), generator)
            if not _alike(seen, x):
                raise ValueError(
                    f"views= returned {described(seen)} for {described(x)}; expected inputs of the same kind, dtype "
                    "and number of rows"
                )
            yield seen

    def _view(self, x: Any, generator: torch.Generator) -> Any:
        place = generator_place(self.augment)
        try:
            if isinstance(place, str):
                return self.augment(x, **{place: generator})
            return self.augment(x) if place is None else self.augment(x, generator)
        except FAILURES as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"views= failed with {type(error).__name__} ({reason}) for {described(x)}; expected a function of a "
                "batch of inputs, as the loader yields them"
            ) from error


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators that functions draw from, and put them back."""
    python, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - what transforms draw from
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)  # noqa: NPY002


def _copied(x: Any) -> Any:
    """Return inputs whose tensors may be changed."""
    if isinstance(x, torch.Tensor):
        return x.clone()
    if isinstance(x, Mapping):
        return {key: _copied(value) for key, value in x.items()}
    return tuple(map(_copied, x)) if isinstance(x, tuple | list) else x


def _alike(seen: Any, x: Any) -> bool:
    """Return whether a view can replace inputs."""
    if isinstance(x, torch.Tensor):
        return isinstance(seen, torch.Tensor) and seen.dtype == x.dtype and seen.shape[:1] == x.shape[:1]
    if isinstance(x, Mapping):
        return isinstance(seen, Mapping) and seen.keys() == x.keys() and all(_alike(seen[key], x[key]) for key in x)
    if isinstance(x, tuple | list):
        return isinstance(seen, tuple | list) and len(seen) == len(x) and all(map(_alike, seen, x))
    return True


def generator_place(augment: Augment) -> int | str | None:
    """Return where a function takes a generator: 1 after the batch, its name as a keyword, None nowhere.

    >>> generator_place(lambda x, generator: x), generator_place(lambda x, *, generator=None: x)
    (1, 'generator')
    >>> generator_place(lambda x: x), generator_place(lambda x, scale=1: x)
    (None, None)
    """
    if isinstance(augment, torch.nn.Module):
        augment = augment.forward
    try:
        parameters = list(inspect.signature(augment).parameters.values())
    except (TypeError, ValueError):
        return None
    named = any(p.name == "generator" for p in parameters)
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if named and all(p.name != "generator" for p in placed[:2]):
        return "generator"
    return 1 if named or len([p for p in placed if p.default is p.empty]) >= 2 else None
