"""How large the experiments are: the numbers of the paper, or smaller ones that check every line of code quickly."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from enkbayes._version import __version__
from enkbayes.storage.files import replacing

T = TypeVar("T")


@dataclass(frozen=True)
class Size:
    """The numbers that decide how long a run takes.

    Both sizes use the settings of the paper where time allows; the report marks those that differ.

    Parameters
    ----------
    name : str
        The value of --size on the command line.
    repetitions : int
        Repetitions of tables 1 and 2.
    seeds : int
        Number of data sets and networks that the claims about the 2-D experiments rest on.
    steps : int
        Training steps of a small network.
    members, member_steps : int
        Networks of a deep ensemble on 2-D data, and the training steps of each.
    hmc : (int, int)
        Draws of each NUTS chain, and chains. Warm-up takes as many draws again.
    reference : (int, int)
        The same for the NUTS run that distances are measured to. If it equals `hmc`, there is only one run.
    ds : float
        Step size of Algorithm 1.
    resolution : int
        Grid points along each side of a confidence map.
    sweep : int
        Repetitions for each number of particles in figure 5.
    rate_sizes : tuple of int
        Numbers of particles J for the rate of the mean-field theorem.
    rate_repeats : int
        Repetitions for each of them.
    images : bool
        Whether to use CIFAR-10; otherwise small images that come with scikit-learn.
    epochs, image_members : int
        Training epochs of an image network, and the number of image networks.
    image_particles, image_steps : int, int
        J and steps of Algorithm 2 on images; ds is 1e-2 at paper size.
    lengths : tuple of int
        Training steps of the networks whose far-field confidence is compared.
    """

    name: str
    repetitions: int
    seeds: int
    steps: int
    members: int
    member_steps: int
    hmc: tuple[int, int]
    reference: tuple[int, int]
    ds: float
    resolution: int
    sweep: int
    rate_sizes: tuple[int, ...]
    rate_repeats: int
    images: bool
    epochs: int
    image_members: int
    image_particles: int
    image_steps: int
    lengths: tuple[int, ...]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the 2-D networks: that of the paper, or ten times as much with few steps."""
        return 3e-4 if self.name == "paper" else 3e-3


PAPER = Size(
    name="paper",
    repetitions=100,
    seeds=5,
    steps=20_000,
    members=5,
    member_steps=20_000,
    hmc=(500, 7),
    reference=(3000, 7),
    ds=1e-3,
    resolution=120,
    sweep=20,
    rate_sizes=(10, 30, 100, 300, 1000, 3000),
    rate_repeats=20,
    images=True,
    epochs=24,
    image_members=3,
    image_particles=600,
    image_steps=2300,
    lengths=(5000, 20_000, 60_000),
)

SMOKE = Size(
    name="smoke",
    repetitions=4,
    seeds=2,
    steps=1000,
    members=2,
    member_steps=600,
    hmc=(150, 4),
    reference=(150, 4),
    ds=1e-2,
    resolution=24,
    sweep=2,
    rate_sizes=(10, 30, 100, 300),
    rate_repeats=6,
    images=False,
    epochs=15,
    image_members=2,
    image_particles=400,
    image_steps=115,
    lengths=(300, 1000),
)

BY_NAME = {size.name: size for size in (SMOKE, PAPER)}

Progress = Callable[[float, str], None]
"""Called with the share of the work that is done and a description of what comes next."""


@dataclass(frozen=True)
class Run:
    """The arguments of an experiment: its size, a folder for intermediate results, a progress callback, and the folder
    of the official CIFAR-10 files if the user has one.
    """

    size: Size
    cache: Path
    progress: Progress = lambda _share, _doing: None
    data_dir: Path | None = None

    @property
    def key(self) -> str:
        """A name for the settings. A result with another key belongs to other settings and is not reused."""
        return f"enkbayes {__version__} {self.size!r}"

    def stored(self, file: str, made: Callable[[Any], T]) -> T | None:
        """Return the content of a file in the cache, converted by `made`; None unless a run with these settings has
        stored it.
        """
        try:
            return made(json.loads((self.cache / file).read_text(encoding="utf-8"))[self.key])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def store(self, file: str, content: Any) -> None:
        """Write a content to a file in the cache, from where `stored` reads it."""
        self.cache.mkdir(parents=True, exist_ok=True)
        with replacing(self.cache / file) as draft:
            draft.write_text(json.dumps({self.key: content}), encoding="utf-8")

    def part(self, begin: float, end: float) -> Run:
        """Return the same run for one part of the experiment; its progress goes from `begin` to `end`."""
        return replace(self, progress=lambda share, doing: self.progress(begin + (end - begin) * share, doing))
