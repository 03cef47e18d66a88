"""The claim "they are uncertain there" once more, for the posterior of Algorithm 2 with far-field variance."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

import numpy as np

from enkbayes.evaluation import metrics
from enkbayes.reproduction.findings import Cell, Claim, Estimate, Table, judged
from enkbayes.reproduction.methods import FAR_FIELD, Kind, Predict, Study, study
from enkbayes.reproduction.scores import circle
from enkbayes.reproduction.sizes import Run

PLAIN = "trotter"


@dataclass(frozen=True)
class FarFieldScores:
    """Scores of Algorithm 2 on one data set, without and with far-field variance.

    nll, nll_with : on the test points
    accuracy_change : on the test points, with minus without
    far, far_with : mean confidence on a circle of radius 100 around the data
    """

    nll: float
    nll_with: float
    accuracy_change: float
    far: float
    far_with: float


def far_field_scores(kind: Kind, run: Run) -> list[FarFieldScores]:
    """Return the scores for every seed. Those that an earlier run stored are read from its files."""
    found = []
    for seed in range(run.size.seeds):
        file = f"{kind.name}-{seed}-far-field.json"
        scores = run.stored(file, lambda found: FarFieldScores(**found))
        if scores is None:
            run.progress(seed / run.size.seeds, f"far-field variance, seed {seed}")
            scores = _measured(study(kind, run.size, seed, run.cache))
            run.store(file, asdict(scores))
        found.append(scores)
    return found


def table(scores: list[FarFieldScores]) -> Table:
    """Return the scores of every seed."""
    rows: list[tuple[Cell, ...]] = [(seed, *astuple(each)) for seed, each in enumerate(scores)]
    names = [field.name for field in fields(FarFieldScores)]
    caption = "Algorithm 2 without and with far-field variance, chosen by 300 held-out points."
    return Table("far_field", caption, ("seed", *names), tuple(rows))


def uncertain_with_far_field(scores: list[FarFieldScores], classes: int) -> Claim:
    """Judge whether noise that grows with the distance reaches the desirable confidence at no cost in log loss."""

    def values(name: str) -> Any:
        return np.asarray([getattr(each, name) for each in scores])

    far = Estimate.of(values("far_with"))
    cost = Estimate.of(values("nll_with") - values("nll"))
    return judged(
        f"With far-field variance, they are uncertain there: the desirable confidence is 1/{classes}.",
        f"Far-field confidence of Algorithm 2: {Estimate.of(values('far'))} without and {far} with far-field variance. "
        f"NLL on the test points, with minus without: {cost}.",
        holds=far.mean < 1 / classes + 0.05 and cost.mean <= 0.01,
        partly=far.mean < 1 / classes + 0.1,
        why="The noise is not in the paper. Held-out points choose how much of it there is inside their range.",
    )


def _measured(here: Study) -> FarFieldScores:
    plain, noisy = here.fit(PLAIN).predict, here.fit(FAR_FIELD).predict
    data, at = here.data, circle(here.data.train)

    def far(predict: Predict) -> float:
        return float(np.mean(metrics.confidence(predict(at))))

    scored = [metrics.score(predict(data.test), data.test_labels) for predict in (plain, noisy)]
    change = scored[1].accuracy - scored[0].accuracy
    return FarFieldScores(scored[0].nll, scored[1].nll, change, far(plain), far(noisy))
