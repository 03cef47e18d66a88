"""How the settings of `enkbayes.calibration` were chosen: on splits of the small tasks that usefulness.py does not use.

    python benchmarks/useful_choices.py      # a few minutes; writes results/useful_choices.json

Two questions, each answered by the mean NLL of evaluation rows over seeds 100 to 114: how wide a prior log T should
have, below zero (sharper) and above (softer), and how many standard errors a posterior must gain on temperature
scaling.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import useful_tasks
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from useful_methods import LastLayer, logits, temperature
from useful_tasks import TASKS, Split

from enkbayes import metrics
from enkbayes.calibration import calibrate
from enkbayes.nets.layers import Layer
from enkbayes.nets.start import trained_weights
from enkbayes.run import run
from enkbayes.samplers import MeanField

SEEDS = range(100, 115)
SHARPER, SOFTER = (100.0, 1.0, 0.5, 0.2, 0.1), (1.0, 2.0, 3.0, 10.0)
MARGINS = (1.0, 1.5, 2.0, 3.0, 100.0)  # the last is temperature scaling always
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
    held, new = (logits(split.networks[0], part.x) for part in (split.calibration, split.evaluation))
    y = split.calibration.y
    widths = [(sharper, 1.0) for sharper in SHARPER] + [(0.2, softer) for softer in SOFTER]
    found = {"none": float(log_loss(new, split.evaluation.y).mean())}
    for sharper, softer in widths:
        nll = log_loss(scale(held, y, sharper, softer) * new, split.evaluation.y).mean()
        found[f"sharper {sharper:g}, softer {softer:g}"] = float(nll)
    return found


def of_margins(split: Split, seed: int) -> dict[str, float]:
    """Return the NLL of the answer less temperature scaling's, for every margin."""
    last, y = LastLayer(split, seed), split.evaluation.y
    linear = [m for m in split.networks[0].modules() if isinstance(m, torch.nn.Linear)][-1]
    held, theta = last.problem(split.calibration), trained_weights(Layer.of(linear))
    new, base = last.features(split.evaluation.x), metrics.nll(temperature(split, TASKS[0], 0).evaluation.proba, y)
    known: dict[Any, float] = {}
    found = {}
    for margin in MARGINS:
        best = max(last.report.scores, key=lambda score, m=margin: score.bound(m), default=None)
        chosen = None if best is None else best.candidate
        if chosen not in known:
            problem, _ = calibrate(held, theta, last.train, margin=margin, seed=seed)
            known[chosen] = metrics.nll(np.asarray(run(problem, MeanField(tol=1e-2)).predict_proba(new)), y)
        found[f"{margin:g}"] = known[chosen] - base
    return found


def summary(rows: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "mean": float(np.mean([row[name] for row in rows])),
            "error": float(np.std([row[name] for row in rows], ddof=1) / np.sqrt(len(rows))),
        }
        for name in rows[0]
    }


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    useful_tasks.MEMBERS, useful_tasks.SPLITS = 1, 1
    found = {}
    for task in TASKS[3:]:
        splits = [(seed, next(task.splits(seed))) for seed in SEEDS]
        found[task.name] = {
            "NLL by the prior of log T": summary([of_temperature(split) for _, split in splits]),
            "NLL less temperature scaling's, by margin": summary([of_margins(split, seed) for seed, split in splits]),
        }
        print(task.name, json.dumps(found[task.name], indent=1), flush=True)
    RESULT.write_text(json.dumps({"seeds": [SEEDS.start, SEEDS.stop - 1], "tasks": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
