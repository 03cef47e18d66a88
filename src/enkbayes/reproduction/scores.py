"""What the methods score on data in the plane, over several data sets and networks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes.evaluation import metrics, plots
from enkbayes.reproduction.estimates import Estimate
from enkbayes.reproduction.findings import Cell, Table
from enkbayes.reproduction.methods import TITLES, Fitted, Kind, Predict, Study, study
from enkbayes.reproduction.sizes import Run
from enkbayes.storage.files import replacing

Vector = np.ndarray[Any, Any]

FAR = 100.0
"""Radius of the circle on which far-field confidence is measured; the data are a few units wide."""


@dataclass(frozen=True)
class PlaneScores:
    """Scores of one method on one data set.

    accuracy and nll on the test points; near, the mean confidence at the training points; far, the mean confidence on a
    circle of radius 100; distance, the mean difference of predicted probabilities to a long NUTS run on a grid around
    the data; ratio, the time of the fit over that of HMC's.
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
    """Return a grid over the part of the plane that maps near the data show."""
    centre = (points.min(axis=0) + points.max(axis=0)) / 2
    return plots.grid(centre, 1.15 * float(np.max(points.max(axis=0) - centre)), resolution)[0]


def distance(one: Predict, other: Predict, at: Vector) -> float:
    """Return the mean over points of the total variation distance between two predictions."""
    return float(np.mean(np.sum(np.abs(one(at) - other(at)), axis=1) / 2))


def plane_scores(here: Study, fitted: Fitted, judge: Predict) -> PlaneScores:
    """Return the scores of one method."""
    data, predict = here.data, fitted.predict
    scored = metrics.score(predict(data.test), data.test_labels)
    return PlaneScores(
        scored.accuracy,
        scored.nll,
        float(np.mean(metrics.confidence(predict(data.train)))),
        float(np.mean(metrics.confidence(predict(circle(data.train))))),
        distance(predict, judge, near_grid(data.train)),
        fitted.seconds / here.fit("hmc").seconds,
        fitted.steps,
    )


class Scoreboard:
    """Scores by method and seed."""

    def __init__(self, scores: dict[str, list[PlaneScores]]) -> None:
        self.scores = scores

    def values(self, name: str, what: str) -> Vector:
        """Return one score of a method, (seeds,)."""
        return np.asarray([getattr(scores, what) for scores in self.scores[name]])

    def mean(self, name: str, what: str) -> Estimate:
        """Return its mean over the seeds."""
        return Estimate.of(self.values(name, what))

    def gap(self, one: str, other: str, what: str) -> Estimate:
        """Return the mean difference, one minus other, over the seeds: paired, so that data sets cancel."""
        return Estimate.of(self.values(one, what) - self.values(other, what))

    def each_seed(self) -> Table:
        """Return every number."""
        names = [field.name for field in fields(PlaneScores)]
        rows: list[tuple[Cell, ...]] = [
            (name, seed, *astuple(scores)) for name, each in self.scores.items() for seed, scores in enumerate(each)
        ]
        return Table("seeds", "Every method on every seed.", ("method", "seed", *names), tuple(rows))

    def summary(self, name: str, caption: str, columns: dict[str, str]) -> Table:
        """Return means with standard errors; columns are score to heading."""
        rows = tuple((TITLES[method], *(str(self.mean(method, what)) for what in columns)) for method in self.scores)
        return Table(name, caption, ("method", *columns.values()), rows)


def scoreboard(kind: Kind, run: Run, names: Sequence[str]) -> Scoreboard:
    """Return the scores of the methods over the first seeds; those that an earlier run kept are read from its files."""
    scores: dict[str, list[PlaneScores]] = {name: [] for name in names}
    for seed in range(run.size.seeds):
        file = run.keep / f"{kind.name}-{seed}.json"
        kept = _kept(file, run.key)
        missing = [name for name in names if name not in kept]
        here = study(kind, run.size, seed, run.keep)
        for i, name in enumerate(missing):
            run.tell((seed + i / len(missing)) / run.size.seeds, f"{TITLES[name]}, seed {seed}")
            kept[name] = plane_scores(here, here.fit(name), here.fit("judge").predict)
        if missing:
            _keep(file, run.key, kept)
        for name in names:
            scores[name].append(kept[name])
    return Scoreboard(scores)


def _kept(file: Path, key: str) -> dict[str, PlaneScores]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {name: PlaneScores(**scores) for name, scores in found[key].items()}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _keep(file: Path, key: str, scores: dict[str, PlaneScores]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as draft:
        draft.write_text(json.dumps({key: {name: asdict(each) for name, each in scores.items()}}), encoding="utf-8")
