"""How the settings of `enkbayes.inference.calibration` were chosen: on rows that usefulness.py does not evaluate.

    python benchmarks/useful_choices.py      # ten minutes; writes results/useful_choices.json

The data are splits 100 to 114 of the small tasks, and deer and horses (useful_development.py), whose test rows are
halved four times for each of two networks. There are two questions. How wide should the prior of log T be below zero
(sharper) and above zero (softer)? How do other rules for the default compare with temperature scaling in NLL and ECE:
other margins that a posterior must gain, and three ideas that aim at the ECE?
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from threadpoolctl import threadpool_limits
from useful_development import deer_horses
from useful_methods import LastLayer, best_scale, last_layer, logits
from useful_tasks import TASKS, Data, Split, Task

from enkbayes.core.posterior import Posterior
from enkbayes.evaluation import metrics
from enkbayes.inference.calibration import calibrate
from enkbayes.inference.held_out import Score
from enkbayes.inference.leave_one_out import leave_one_out_proba
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run

SEEDS = range(100, 115)
HALVINGS = 4
WIDTHS = [(sharper, 1e3) for sharper in (1e3, 1.0, 0.5, 0.2, 0.1)] + [(0.2, softer) for softer in (1.0, 2.0, 10.0)]
MARGINS = (1.0, 1.5, 2.0, 3.0, 100.0)  # the last one always gives temperature scaling
RESULT = Path(__file__).parent / "results" / "useful_choices.json"


def log_loss(z: Any, y: Any) -> Any:
    return -log_softmax(z, axis=1)[np.arange(len(y)), y]


def scale(z: Any, y: Any, sharper: float, softer: float) -> float:
    """Return 1 / T under the prior."""

    def energy(log_scale: float) -> float:
        width = sharper if log_scale > 0 else softer
        return float(log_loss(np.exp(log_scale) * z, y).sum()) + (log_scale / width) ** 2 / 2

    return float(np.exp(minimize_scalar(energy, bounds=(-4, 4), method="bounded").x))


def of_temperature(split: Split) -> dict[str, float]:
    """Return the NLL of temperature scaling for every prior of log T."""
    held, new = (logits(split.networks[0], data.x) for data in (split.calibration, split.evaluation))
    y = split.calibration.y
    found = {"no scaling": float(log_loss(new, split.evaluation.y).mean())}
    for sharper, softer in WIDTHS:
        nll = log_loss(scale(held, y, sharper, softer) * new, split.evaluation.y).mean()
        found[f"sharper {sharper:g}, softer {softer:g}"] = float(nll)
    return found


class Posteriors:
    """Posteriors of a split for any spread of the prior, and their predictions for its evaluation rows."""

    def __init__(self, split: Split, seed: int) -> None:
        self.last, self.seed = LastLayer(split, seed), seed
        self.theta = last_layer(split.networks[0]).theta
        self.held = self.last.problem(self.last.features(split.calibration.x), split.calibration.y)
        self.new = self.last.features(split.evaluation.x)
        self.posteriors: dict[float, tuple[Posterior, Any]] = {}

    def best(self, margin: float) -> Score:
        return max(self.last.report.scores, key=lambda score: score.bound(margin))

    def narrowest(self, share: float) -> Score:
        """Return the narrowest candidate with this fraction of the largest safe gain."""
        least = share * self.best(1.0).bound(1.0)
        return next(score for score in self.last.report.scores if score.bound(1.0) >= least)

    def of(self, score: Score) -> tuple[Posterior, Any]:
        spread = score.candidate.spread
        if spread not in self.posteriors:
            chosen = score.gain != 0 or score.error != 0  # else it is temperature scaling
            spreads, margin = ((spread,), -1e9) if chosen else ((), 1.0)
            problem, _ = calibrate(
                self.held, self.theta, self.last.train, spreads=spreads, margin=margin, seed=self.seed
            )
            posterior = run(problem, MeanField(tol=1e-2))
            self.posteriors[spread] = posterior, leave_one_out_proba(problem, posterior.fitted)
        return self.posteriors[spread]

    def proba(self, score: Score) -> Any:
        return np.asarray(self.of(score)[0].predict_proba(self.new))


def of_rules(split: Split, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return NLL and ECE of each rule, minus those of temperature scaling."""
    y, posteriors = split.evaluation.y, Posteriors(split, seed)
    proba = {f"margin {margin:g}": posteriors.proba(posteriors.best(margin)) for margin in MARGINS}
    ours, scaled = proba["margin 1"], proba[f"margin {MARGINS[-1]:g}"]
    held = np.log(np.maximum(posteriors.of(posteriors.best(1.0))[1], 1e-300))
    again = best_scale(held, split.calibration.y)
    proba["leave-one-out T"] = softmax(again * np.log(np.maximum(ours, 1e-300)), axis=1)
    proba["mixture"] = (ours + scaled) / 2
    for share in (0.75, 0.5):
        proba[f"{share:.0%} of the gain"] = posteriors.proba(posteriors.narrowest(share))
    z, new = (logits(split.networks[0], data.x) for data in (split.calibration, split.evaluation))
    base = softmax(best_scale(z, split.calibration.y) * new, axis=1)
    return tuple(  # type: ignore[return-value]
        {name: float(figure(p, y) - figure(base, y)) for name, p in proba.items()}
        for figure in (metrics.nll, metrics.ece)
    )


def splits(task: Task) -> Iterator[Split]:
    """Yield the first split of every seed."""
    for seed in SEEDS:
        yield next(task.splits(seed, members=1))


def halvings(split: Split, count: int) -> Iterator[Split]:
    """Yield a split with its in-distribution rows split into two other halves."""
    rows = Data(torch.cat([split.calibration.x, split.evaluation.x]), np.r_[split.calibration.y, split.evaluation.y])
    half = len(split.calibration.y)
    for number in range(count):
        order = np.random.default_rng((number, 77)).permutation(len(rows.y))
        yield replace(split, calibration=rows.rows(order[:half]), evaluation=rows.rows(order[half:]))


def summary(rows: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "mean": float(np.mean([row[name] for row in rows])),
            "error": float(np.std([row[name] for row in rows], ddof=1) / np.sqrt(len(rows))),
            "largest": float(np.max([row[name] for row in rows])),
        }
        for name in rows[0]
    }


def main() -> None:
    torch.set_num_threads(1)
    threadpool_limits(1)
    warnings.simplefilter("ignore")
    tasks = {task.name: splits(task) for task in TASKS if not task.images}
    tasks["deer-horses"] = (half for member in (0, 1) for half in halvings(deer_horses(member), HALVINGS))
    found = {}
    for name, each in tasks.items():
        figures = [(of_temperature(split), *of_rules(split, seed)) for seed, split in enumerate(each, SEEDS.start)]
        temperature, nll, ece = (summary(list(rows)) for rows in zip(*figures, strict=True))
        found[name] = {
            "NLL by prior of log T": temperature,
            "NLL minus that of temperature scaling": nll,
            "ECE minus that of temperature scaling": ece,
        }
        print(name, json.dumps(found[name], indent=1), flush=True)
    RESULT.write_text(json.dumps({"seeds": [SEEDS.start, SEEDS.stop - 1], "tasks": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
