"""How large the experiments are: the paper's numbers, and a quick check of every line of code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from enkbayes._version import __version__


@dataclass(frozen=True)
class Size:
    """Numbers that decide how long a run takes. Settings that the paper gives are the same in both sizes where time
    allows; the report names those that are not.

    Parameters
    ----------
    name : str
        On the command line.
    repetitions : int
        Of tables 1 and 2.
    seeds : int
        Data sets and networks over which the claims on the plane are judged.
    steps : int
        Of training a small network.
    members, member_steps : int
        Networks of a deep ensemble in the plane, and the steps of training each.
    hmc : (int, int)
        Draws and chains of NUTS, as many for warm-up.
    judge : (int, int)
        The same for the run that distances are measured to; if they are equal, it is one run.
    ds : float
        Step of Algorithm 1.
    resolution : int
        Points along a side of a map.
    sweep : int
        Repetitions for each number of particles in figure 5.
    rate_sizes : tuple of int
        Numbers of particles J of the mean-field theorem.
    rate_repeats : int
        Repetitions for each of them.
    images : bool
        CIFAR-10, or small images that come with scikit-learn.
    epochs, image_members : int
        Of training an image network, and how many of them there are.
    image_particles, image_steps : int, int
        J and steps of Algorithm 2 on images, whose ds is 1e-2 in the paper's size.
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
    judge: tuple[int, int]
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
        """Of the networks in the plane: the paper's, or ten times that where time does not allow as many steps."""
        return 3e-4 if self.name == "paper" else 3e-3


PAPER = Size(
    name="paper",
    repetitions=100,
    seeds=5,
    steps=20_000,
    members=5,
    member_steps=20_000,
    hmc=(500, 7),
    judge=(3000, 7),
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
    seeds=3,
    steps=1000,
    members=2,
    member_steps=1000,
    hmc=(250, 4),
    judge=(250, 4),
    ds=1e-2,
    resolution=40,
    sweep=3,
    rate_sizes=(10, 30, 100, 300),
    rate_repeats=10,
    images=False,
    epochs=25,
    image_members=2,
    image_particles=400,
    image_steps=115,
    lengths=(300, 1000),
)

BY_NAME = {size.name: size for size in (SMOKE, PAPER)}

Tell = Callable[[float, str], None]
"""(share of the work that is done, what comes next) -> None."""


@dataclass(frozen=True)
class Run:
    """What an experiment is given: its size, a folder for intermediate results, someone to tell how far it is, and a
    folder with the official files of CIFAR-10, if the user has one.
    """

    size: Size
    keep: Path
    tell: Tell = lambda _share, _doing: None
    data_dir: Path | None = None

    @property
    def key(self) -> str:
        """A name for the settings; results of other settings are not taken for these."""
        return f"enkbayes {__version__} {self.size!r}"

    def part(self, begin: float, end: float) -> Run:
        """Return the same run for a part of the experiment, whose shares lie between the two."""
        return replace(self, tell=lambda share, doing: self.tell(begin + (end - begin) * share, doing))
