"""The scores of the methods on 2-D data, over several data sets and networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes.evaluation import metrics, plots
from enkbayes.reproduction.findings import Cell, Estimate, Table
from enkbayes.reproduction.methods import TITLES, Fitted, Kind, Predict, Study, study
from enkbayes.reproduction.sizes import Run, Size

Vector = np.ndarray[Any, Any]

FAR = 100.0
"""Radius of the circle on which far-field confidence is measured; the data are a few units wide."""


@dataclass(frozen=True)
class PlaneScores:
    """Scores of one method on one data set.

    accuracy, nll : on the test points
    near : mean confidence at the training points
    far : mean confidence on a circle of radius 100 around the data
    distance : mean difference between its probabilities and those of a long NUTS run, on a grid around the data
    ratio : time of the fit divided by that of HMC
    steps : number of steps
    """

    accuracy: float
    nll: float
    near: float
    far: float
    distance: float
    ratio: float
    steps: int


def circle(points: Vector, radius: float = FAR) -> Vector:
    """Return 360 points on a circle around the mean of the points (n, 2).

    >>> circle(np.zeros((3, 2)), 2.0)[0].tolist()
    [2.0, 0.0]
    """
    angle = np.linspace(0, 2 * np.pi, 360, endpoint=False)
    return np.asarray(points.mean(axis=0) + radius * np.stack([np.cos(angle), np.sin(angle)], axis=1))


def near_grid(points: Vector, resolution: int = 40) -> Vector:
    """Return the points of a grid over the area that maps near the data show."""
    return plots.data_grid(points, resolution=resolution)[0]


def distance(one: Predict, other: Predict, at: Vector) -> float:
    """Return the mean over points of the total variation distance between two predictions."""
    return float(np.mean(np.sum(np.abs(one(at) - other(at)), axis=1) / 2))


def plane_scores(here: Study, fitted: Fitted) -> PlaneScores:
    """Return the scores of a fitted method."""
    data, predict = here.data, fitted.predict
    scored = metrics.score(predict(data.test), data.test_labels)
    return PlaneScores(
        scored.accuracy,
        scored.nll,
        float(np.mean(metrics.confidence(predict(data.train)))),
        float(np.mean(metrics.confidence(predict(circle(data.train))))),
        distance(predict, here.fit("reference").predict, near_grid(data.train)),
        fitted.seconds / here.fit("hmc").seconds,
        fitted.steps,
    )


@dataclass(frozen=True)
class Scoreboard:
    """Scores by method and seed."""

    scores: dict[str, list[PlaneScores]]

    def values(self, name: str, what: str) -> Vector:
        """Return one score of a method for every seed, (seeds,)."""
        return np.asarray([getattr(scores, what) for scores in self.scores[name]])

    def mean(self, name: str, what: str) -> Estimate:
        """Return the mean of a score over the seeds."""
        return Estimate.of(self.values(name, what))

    def gap(self, one: str, other: str, what: str) -> Estimate:
        """Return the mean difference, one minus other, over the seeds. Differences are paired by seed."""
        return Estimate.of(self.values(one, what) - self.values(other, what))

    def each_seed(self) -> Table:
        """Return the scores of every method on every seed."""
        names = [field.name for field in fields(PlaneScores)]
        rows: list[tuple[Cell, ...]] = [
            (name, seed, *astuple(scores)) for name, each in self.scores.items() for seed, scores in enumerate(each)
        ]
        return Table("seeds", "Every method on every seed.", ("method", "seed", *names), tuple(rows))

    def summary(self, name: str, caption: str, columns: dict[str, str]) -> Table:
        """Return a table of means with standard errors; `columns` maps scores to headings."""
        rows = tuple((TITLES[method], *(str(self.mean(method, what)) for what in columns)) for method in self.scores)
        return Table(name, caption, ("method", *columns.values()), rows)


def scoreboard(
    kind: Kind,
    run: Run,
    names: Sequence[str],
    *,
    studies: Callable[[Kind, Size, int, Path | None], Study] = study,
    measure: Callable[[Study, Fitted], PlaneScores] = plane_scores,
) -> Scoreboard:
    """Return the scores of the methods over all seeds. Scores that an earlier run stored are read from its files.

    `studies` and `measure` make a study and the scores of one of its methods.
    """
    scores: dict[str, list[PlaneScores]] = {name: [] for name in names}
    for seed in range(run.size.seeds):
        file = f"{kind.name}-{seed}.json"
        known = run.stored(file, lambda found: {name: PlaneScores(**each) for name, each in found.items()}) or {}
        missing = [name for name in names if name not in known]
        here = studies(kind, run.size, seed, run.cache)
        for i, name in enumerate(missing):
            run.progress((seed + i / len(missing)) / run.size.seeds, f"{TITLES[name]}, seed {seed}")
            known[name] = measure(here, here.fit(name))
        if missing:
            run.store(file, {name: asdict(each) for name, each in known.items()})
        for name in names:
            scores[name].append(known[name])
    return Scoreboard(scores)
