"""Scores for far-field variance on the development tasks of detectors.py: what exp(score) does to the probabilities.

    python benchmarks/far_field_scores.py       # a table; stores every task in the cache, so it resumes

Every score is computed from the outputs of the layers, standardised on held-out rows with the width of `Extent`, and
gets the terms and the choice of `enkbayes.inference.far_field`, added to the temperature-scaled network.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from detector_tasks import DEVELOPMENT, parts, prepared, stored_forms, tensor_of
from far_field import fitted_scale, likelihood_of

from enkbayes.core.logit_noise import noisy_predictive
from enkbayes.evaluation import metrics
from enkbayes.inference.class_distance import ClassScore
from enkbayes.inference.far_field import Extent, choose
from enkbayes.nets.far_field import Moments, recorded_outputs, watched

VERSION = 3
MOST = 400  # rows of a kind
Vector = np.ndarray[Any, Any]


class Outputs:
    """Logits and the outputs of all layers but the last for the rows of a task, and the scores of them."""

    def __init__(self, name: str, seed: int) -> None:
        rows, model = prepared(name, seed)
        self.model, moments = model, Moments(model)
        x, self.y = rows.train
        with torch.no_grad():
            watched(model, [((tensor_of(x),), {})], moments)
        self.places = moments.places[:-1] or moments.places
        self.extent = Extent.of_moments([moments.sums[place] / moments.count for place in self.places])
        self.h, self.z, self.labels = {}, {}, {}
        for part, x, y in parts(rows):
            kept = slice(None) if part in ("train", "held_out") else slice(None, None, -(-len(x) // MOST))
            with torch.no_grad(), recorded_outputs(model, self.places) as outputs:
                self.z[part] = model(tensor_of(x[kept])).double().numpy()
            self.h[part] = [outputs[place].double().numpy() for place in self.places]
            self.labels[part] = None if y is None else y[kept]

    def leverage(self) -> dict[str, Vector]:
        return {p: np.asarray(self.extent.leverage([torch.as_tensor(h) for h in each])) for p, each in self.h.items()}

    def classes(self, *, one: bool = False) -> dict[str, Vector]:
        """Return the log distance to the nearest class, or with `one` to all rows, averaged over layers."""
        score = ClassScore.fit(self.h["train"], np.zeros(len(self.y)) if one else self.y)
        return {p: score.distances(each)[0].mean(axis=1) for p, each in self.h.items()}

    def turned(self) -> dict[str, Vector]:
        score = ClassScore.fit(self.h["train"], self.y)
        return {p: score.distances(each)[1].mean(axis=1) for p, each in self.h.items()}


def scores(task: Outputs) -> dict[str, dict[str, Vector]]:
    """Return scores (n,) by form and part; all are unbounded along rays, because leverage or distance is."""
    leverage, near, whole, turned = task.leverage(), task.classes(), task.classes(one=True), task.turned()

    def unit(found: dict[str, Vector]) -> dict[str, Vector]:
        centre, width = found["held_out"].mean(), max(float(found["held_out"].std()), 1e-2)
        return {p: (v - centre) / width for p, v in found.items()}

    width = float(leverage["held_out"].std())
    relative = unit({p: near[p] - whole[p] for p in near})
    larger = {p: np.maximum(unit(near)[p], unit(turned)[p]) for p in near}
    return {
        "leverage of outputs (the default)": leverage,
        "distance to the nearest class": near,
        "leverage and distance to the nearest class": {p: leverage[p] + width * unit(near)[p] for p in near},
        "leverage and relative distance": {p: leverage[p] + width * relative[p] for p in near},
        **{f"{k} x leverage": {p: k * leverage[p] for p in near} for k in (1.5, 2, 3, 4)},
        "leverage, distance and directions": {p: leverage[p] + width * (unit(near)[p] + unit(turned)[p]) for p in near},
        "the larger of leverage and distance": {p: width * np.maximum(unit(leverage)[p], unit(near)[p]) for p in near},
        "the larger of both distances": {p: width * larger[p] for p in near},
    }


def measured(name: str, seed: int) -> dict[str, dict[str, float]]:
    """Return figures by form: the NLL of test rows minus that without noise, AUROC and mean of confidence, NLL."""
    task = Outputs(name, seed)
    z, y = task.z["held_out"], task.labels["held_out"]
    scale, likelihood = fitted_scale(z, y), likelihood_of(z)
    found = {}
    for form, raw in {"none": None, **scores(task)}.items():
        proba = {}
        if raw is None:
            proba = {p: likelihood.mean(scale * v) for p, v in task.z.items() if p not in ("train", "held_out")}
        else:
            extent = task.extent.calibrated((), leverage=torch.as_tensor(raw["held_out"]), classes=z.shape[1])
            extent = replace(extent, scale=np.asarray(extent.scale))
            centre, width = extent.scale[:2]
            choice = choose(likelihood, scale * z, np.zeros((*z.shape, 1)), y, (raw["held_out"] - centre) / width)
            for p, v in task.z.items():
                if p not in ("train", "held_out"):
                    noise = extent.variance((raw[p] - centre) / width, choice.strength, choice.reach)
                    factor = scale * (choice.scale if choice.strength else 1.0)
                    proba[p] = noisy_predictive(likelihood, factor * v, np.zeros((*v.shape, 1)), noise)
        found[form] = figures(proba, task.labels)
    plain = found["none"]["nll"]
    return {form: row | {"nll": row["nll"] - plain} for form, row in found.items()}


def figures(proba: dict[str, Vector], labels: dict[str, Vector]) -> dict[str, float]:
    inside = proba["test"]
    row = {"nll": metrics.nll(inside, labels["test"])}
    for group in ("near", "far"):
        away = [p for part, p in proba.items() if part.startswith(f"{group}:")]
        row[f"{group} auroc"] = float(np.mean([metrics.ood_score(inside, p).auroc for p in away]))
        row[f"{group} confidence"] = float(np.mean([p.max(axis=1).mean() for p in away]))
    moved = [metrics.nll(p, labels[part]) for part, p in proba.items() if part.startswith("shifted:")]
    row["shifted"] = float(np.mean(moved)) if moved else np.nan
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", help="names, separated by semicolons")
    parser.add_argument("--seeds", default="0")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names, seeds = options.tasks.split(";") if options.tasks else DEVELOPMENT, map(int, options.seeds.split(","))
    lines = stored_forms(f"far-field-scores-v{VERSION}", measured, names, seeds)
    keys = list(lines[0]["forms"]["none"])
    print(f"{len(lines)} networks: {', '.join(line['task'] for line in lines)}")
    print("| score | NLL, minus | " + " | ".join(keys[1:]) + " |")
    print("|---" * (len(keys) + 1) + "|")
    for form in lines[0]["forms"]:
        means = [np.nanmean([line["forms"][form][key] for line in lines]) for key in keys]
        print(f"| {form} | {means[0]:+.4f} | " + " | ".join(f"{value:.3f}" for value in means[1:]) + " |")


if __name__ == "__main__":
    main()
