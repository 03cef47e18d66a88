"""Forms of far-field variance on the development tasks of detectors.py: what they do to the probabilities.

    python benchmarks/far_field_scores.py       # a table; stores every task in the cache, so it resumes

Every form has one or more scores, computed from the outputs of the layers and standardised on held-out rows, and gets
the terms and the choice of `enkbayes.inference.far_field`. The noise is added to the temperature-scaled network; two
logits count as their difference, as in heads. Synthetic rows are held-out rows with noise in their inputs, which keep
their labels.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from detector_tasks import DEVELOPMENT, parts, prepared, stored_forms, tensor_of
from far_field import likelihood_of
from useful_methods import best_scale

from enkbayes.core.logit_noise import noisy_predictive
from enkbayes.evaluation import metrics
from enkbayes.inference.class_distance import ClassScore, direction
from enkbayes.inference.far_field import STRENGTHS, Extent, choose, rise
from enkbayes.nets.far_field import REACH, SLOPE, Moments, recorded_outputs, watched

VERSION = 6
MOST = 400  # rows of a kind
SYNTHETIC = (0.25, 0.5, 1.0)  # standard deviations of the noise in held-out rows, relative to that of a column
Vector = np.ndarray[Any, Any]
Scores = dict[str, Vector]  # (n,) by part


class Outputs:
    """Logits and the outputs of all layers but the last for the rows of a task, and the scores of them."""

    def __init__(self, name: str, seed: int) -> None:
        rows, model = prepared(name, seed)
        self.moments = Moments(model)
        x, self.y = rows.train
        with torch.no_grad():
            watched(model, [((tensor_of(x),), {})], self.moments)
        self.places = self.moments.places[:-1] or self.moments.places
        self.K = int(self.y.max()) + 1
        self.h, self.z, self.labels = {}, {}, {}
        for part, x, y in [*parts(rows), *synthetic(*rows.held_out)]:
            kept = slice(None) if part in ("train", "held_out") else slice(None, None, -(-len(x) // MOST))
            with torch.no_grad(), recorded_outputs(model, self.places) as outputs:
                z = model(tensor_of(x[kept])).double().numpy()
            self.z[part] = z[:, 1] - z[:, 0] if self.K == 2 else z
            self.h[part] = [outputs[place].double().numpy() for place in self.places]
            self.labels[part] = None if y is None else y[kept]

    def leverage(self, *, turned: bool = False) -> Scores:
        """Return the mean log leverage of the outputs, or of their directions."""
        sums = self.moments.turned if turned else self.moments.sums
        extent = Extent.of_moments([sums[place] / self.moments.count for place in self.places])
        rows = {p: [torch.as_tensor(direction(h) if turned else h) for h in each] for p, each in self.h.items()}
        return {p: extent.leverage(each).numpy() for p, each in rows.items()}

    def classes(self) -> tuple[Scores, Scores]:
        """Return the log distance to the nearest class, averaged over layers: of outputs, and of their directions."""
        score = ClassScore.fit(self.h["train"], self.y)
        found = {p: score.distances(each).mean(axis=2) for p, each in self.h.items()}
        return {p: v[0] for p, v in found.items()}, {p: v[1] for p, v in found.items()}


def synthetic(x: Vector, y: Vector) -> list[tuple[str, Vector, Vector]]:
    """Return held-out rows with noise in their inputs."""
    rng, width = np.random.default_rng(9), x.astype(float).std(axis=0)
    noisy = [(s, x + s * width * rng.standard_normal(x.shape)) for s in SYNTHETIC]
    if x.dtype == np.uint8:
        noisy = [(s, np.clip(rows, 0, 255)) for s, rows in noisy]
    return [(f"synthetic:{s}", rows.astype(x.dtype), y) for s, rows in noisy]


@dataclass(frozen=True)
class Form:
    """Scores whose noises add up, their standard deviation, B as a share of the mean square of the logits, and whether
    a cost of at most .005 nats suffices, or synthetic rows choose a smaller B. `cap` is the score from which on the
    first term stays the same, `scales` are the factors that the choice may put on the logits.
    """

    scores: tuple[Scores, ...]
    slope: float = 1.0
    reach: float = 1.0
    no_error: bool = False
    synthetic: bool = False
    cap: float = np.inf
    scales: tuple[float, ...] = (1.0, 1.05, 1.1)


def forms(task: Outputs) -> dict[str, Form]:
    """Return the forms that are compared; all are unbounded along rays, because leverage or distance is."""
    leverage, turned, (near, near_turned) = task.leverage(), task.leverage(turned=True), task.classes()

    def unit(found: Scores) -> Scores:
        centre, width = found["held_out"].mean(), max(float(found["held_out"].std()), 1e-2)
        return {p: (v - centre) / width for p, v in found.items()}

    width = float(leverage["held_out"].std())
    summed = {p: leverage[p] + width * (unit(near)[p] + unit(near_turned)[p]) for p in near}
    both = leverage, turned
    return {
        "leverage of outputs (before)": Form((leverage,)),
        "slope 2": Form((leverage,), 2.0),
        "slope 3": Form((leverage,), 3.0),
        "B / 32": Form((leverage,), 1.0, 1 / 32),
        "at most .005 nats, no standard error": Form((leverage,), no_error=True),
        "distance to the nearest class": Form((near,)),
        "one score: leverage + distance + distance of directions": Form((summed,)),
        "leverage, and distance of directions": Form((leverage, near_turned)),
        "leverage, and distances of both kinds": Form((leverage, near, near_turned)),
        "leverage of outputs and of directions": Form(both),
        "the same, slope 2": Form(both, 2.0),
        "the same, slope 2, B / 32 (the default)": Form(both, SLOPE, REACH),
        "the same, slope 1, B / 32": Form(both, 1.0, REACH),
        "the default, logits up to 1.5 times as large (before)": Form(
            both, SLOPE, REACH, scales=(1.0, 1.05, 1.1, 1.2, 1.3, 1.5)
        ),
        "distances of both kinds, slope 1, B / 32": Form((near, near_turned), 1.0, REACH),
        "the same, slope 2, B / 256": Form(both, SLOPE, 1 / 256),
        "the same, slope 3, B / 32": Form(both, 3.0, REACH),
        "the same, slope 2, synthetic rows choose B": Form(both, SLOPE, synthetic=True),
        "the default, first term constant from 6 on": Form(both, SLOPE, REACH, cap=6.0),
        "the default, no standard error": Form(both, SLOPE, REACH, no_error=True),
        "the default, and distance of directions": Form((*both, near_turned), SLOPE, REACH),
    }


def predictions(task: Outputs, form: Form | None) -> dict[str, Vector]:
    """Return the probabilities (n, K) of all parts but the training rows."""
    z, y = task.z["held_out"], task.labels["held_out"]
    likelihood = likelihood_of(z)
    scale = best_scale(np.stack([0 * z, z], axis=1) if z.ndim == 1 else z, y)
    wanted = [p for p in task.z if p != "train"]
    if form is None:
        return {p: likelihood.mean(scale * task.z[p]) for p in wanted}
    extents, scores = [], []
    for raw in form.scores:
        known = torch.as_tensor(raw["held_out"])
        empty = Extent((torch.zeros(1, 1),), torch.zeros(4))
        extent = empty.calibrated((), leverage=known, classes=task.K, slope=form.slope)
        extents.append(replace(extent, scale=extent.scale.double().numpy()))
        scores.append({p: extents[-1].standardised(raw[p]) for p in wanted})
    inside = np.stack([np.minimum(score["held_out"], form.cap) for score in scores], axis=1)

    def noisy(part: str, strength: float, reach: float, factor: float) -> Vector:
        pairs = list(zip(extents, scores, strict=True))
        noise = sum(e.variance(s[part], 0.0, reach) + strength * rise(np.minimum(s[part], form.cap)) for e, s in pairs)
        logits = factor * task.z[part]
        return noisy_predictive(likelihood, logits, np.zeros((*logits.shape, 1)), noise)

    choice = choose(likelihood, scale * z, np.zeros((*z.shape, 1)), y, inside, reach=form.reach, scales=form.scales)
    strength, reach, factor = choice.strength, choice.reach, scale * choice.scale
    if form.no_error:
        lowest = metrics.nll(noisy("held_out", 0.0, 0.0, factor), y)
        passed = [s for s in STRENGTHS if metrics.nll(noisy("held_out", s, 0.0, factor), y) <= lowest + 0.005]
        strength = max([strength, *passed])
    if form.synthetic:
        shifted = [p for p in wanted if p.startswith("synthetic:")]

        def cost(part: str, share: float) -> float:
            pair = noisy(part, strength, share * reach, factor), likelihood.mean(scale * task.z[part])
            with_noise, without = (metrics.nll(proba, task.labels[part]) for proba in pair)
            return with_noise - without

        shares = 10.0 ** -np.arange(0, 3.1, 0.5)
        reach *= next((share for share in shares if sum(cost(p, share) for p in shifted) <= 0), shares[-1])
    return {p: noisy(p, strength, reach, factor) for p in wanted}


def measured(name: str, seed: int) -> dict[str, dict[str, float]]:
    """Return figures by form: the NLL of test rows minus that without noise, AUROC and mean of confidence, NLL."""
    task = Outputs(name, seed)
    plain = figures(predictions(task, None), task.labels)
    found = {"none": plain} | {
        label: figures(predictions(task, form), task.labels) for label, form in forms(task).items()
    }
    return {label: relative(row, plain) for label, row in found.items()}


def relative(row: dict[str, float], plain: dict[str, float]) -> dict[str, float]:
    return row | {"nll": row["nll"] - plain["nll"], "ratio": row["shifted"] / plain["shifted"]}


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
