"""Forms of the out-of-distribution score on the development tasks of detectors.py: how the form was chosen.

    python benchmarks/detector_ideas.py       # adds to results/detectors.json; stores every task, so it resumes

The forms are computed from the stored features of detector_tasks.py and from the temperature-scaled network. Outliers
that need no data are made of held-out rows: mixed (the mean of two rows), permuted (columns of different rows) and
noised (two standard deviations of each column); the network computes their features. They serve two forms, which learn
weights from them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detector_tasks import DEVELOPMENT, layers, prepared, stored, stored_forms, tensor_of
from scipy.special import logsumexp, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from useful_methods import best_scale

from enkbayes.engine.arrays import entropy
from enkbayes.evaluation import metrics
from enkbayes.inference.class_distance import ClassScore, with_entropy
from enkbayes.inference.far_field import Extent, second_moment
from enkbayes.inference.feature_far_field import normal_rank

RESULT = Path(__file__).parent / "results" / "detectors.json"
VERSION = 2
WIDEST = 1024
Vector = np.ndarray[Any, Any]
Parts = dict[str, Vector]  # scores (n,) by the name of the rows


def outliers(x: Vector, rng: np.random.Generator) -> Vector:
    """Return three kinds of outliers made of rows (n, ...), (3 n, ...)."""
    other = x[rng.permutation(len(x))]
    flat = x.reshape(len(x), -1).astype(np.float64)
    columns = np.argsort(rng.random(flat.shape), axis=0)
    permuted = np.take_along_axis(flat, columns, axis=0).reshape(x.shape)
    noised = x + 2 * x.std(axis=0) * rng.standard_normal(x.shape)
    mixed = (x.astype(np.float64) + other) / 2
    found = np.concatenate([mixed, permuted, noised])
    return np.clip(found, 0, 255).astype(np.uint8) if x.dtype == np.uint8 else found.astype(x.dtype)


class Task:
    """The arrays of a task, and the signs of trouble that forms combine, each standardised on held-out rows."""

    def __init__(self, name: str, seed: int) -> None:
        arrays = stored(name, seed)
        rows, model = prepared(name, seed)
        self.parts = [p.removesuffix("/z") for p in arrays if p.endswith("/z")]
        self.L = sum(key.startswith("train/a") for key in arrays)
        self.a = {p: [arrays[f"{p}/a{i}"] for i in range(self.L)] for p in self.parts}
        self.z = {p: arrays[f"{p}/z"].astype(np.float64) for p in self.parts}
        self.a["outliers"], z = layers(model, tensor_of(outliers(rows.held_out[0], np.random.default_rng(seed))))
        self.z["outliers"] = z.astype(np.float64)
        self.last = {p: found[-1].astype(np.float64) for p, found in self.a.items()}
        self.W, self.b = arrays["W"].astype(np.float64), arrays["b"].astype(np.float64)
        self.parts = [p for p in (*self.parts, "outliers") if p != "train"]
        for p, found in self.a.items():
            self.a[p] = [x[:, :: -(-x.shape[1] // WIDEST)].astype(np.float64) for x in found]
        self.y = arrays["train/y"]
        self.scale = best_scale(self.z["held_out"], arrays["held_out/y"])
        self.score = ClassScore.fit(self.a["train"], self.y)
        self.distances = {p: self.score.distances(self.a[p]) for p in self.parts}
        self.score = self.score.scaled(self.distances["held_out"])

    def standardised(self, found: Parts) -> Parts:
        known = found["held_out"]
        return {p: (v - known.mean(axis=0)) / np.maximum(known.std(axis=0), 1e-2) for p, v in found.items()}

    def entropies(self) -> Parts:
        raw = {p: entropy(softmax(self.scale * self.z[p], axis=1)) for p in self.parts}
        known = np.sort(raw["held_out"])
        return {p: normal_rank(v, known) for p, v in raw.items()}

    def energies(self) -> Parts:
        raw = {p: -logsumexp(self.scale * self.z[p], axis=1) for p in self.parts}
        known = np.sort(raw["held_out"])
        return {p: normal_rank(v, known) for p, v in raw.items()}

    def by_layer(self, kind: int) -> Parts:
        """Return standardised distances (n, L) of features (0) or directions (1)."""
        return self.standardised({p: v[kind] for p, v in self.distances.items()})

    def averaged(self, found: Parts) -> Parts:
        return self.standardised({p: v.mean(axis=1) for p, v in found.items()})

    def leverage(self) -> Parts:
        extent = Extent.of_moments([second_moment(x) for x in self.a["train"]], 1e-3)
        return self.standardised({p: np.asarray(extent.leverage(self.a[p])) for p in self.parts})

    def relative(self) -> Parts:
        """Return the distance to the nearest class relative to that to all rows, averaged over layers (Ren 2021)."""
        whole = ClassScore.fit(self.a["train"], np.zeros(len(self.y), dtype=int))
        all_rows = {p: whole.distances(self.a[p])[0] for p in self.parts}
        # exp: the squares themselves, of which Ren et al. take the difference
        gaps = {p: np.exp(self.distances[p][0]) - np.exp(all_rows[p]) for p in self.parts}
        return self.averaged(self.standardised(gaps))

    def later(self, *several: Parts) -> list[Parts]:
        """Return distances (n, L) averaged over layers, the l-th with weight l."""
        weights = np.arange(1.0, self.L + 1)
        return [self.standardised({p: v @ weights for p, v in each.items()}) for each in several]

    def virtual_logit(self) -> Parts:
        """Return the score of ViM: the residual outside the principal half of the last features, less the energy."""
        origin = -np.linalg.pinv(self.W) @ self.b
        train = self.last["train"] - origin
        outside = np.linalg.eigh(train.T @ train)[1][:, : train.shape[1] - max(1, train.shape[1] // 2)]
        lengths = {p: np.linalg.norm((x - origin) @ outside, axis=1) for p, x in self.last.items()}
        scale = self.z["train"].max(axis=1).mean() / lengths["train"].mean()
        return self.standardised({p: scale * lengths[p] - logsumexp(self.z[p], axis=1) for p in self.parts})

    def neighbours(self, k: int = 5) -> Parts:
        """Return the log distance to the k-th nearest training row in whitened layers, averaged over layers."""
        found: dict[str, list[Vector]] = {p: [] for p in self.parts}
        for i, each in enumerate(self.score.plain):
            white = (self.a["train"][i] - each.centre) @ each.factor
            rows = white[:: -(-len(white) // 2000)]
            near = NearestNeighbors(n_neighbors=min(k, len(rows))).fit(rows)
            for p in self.parts:
                distance = near.kneighbors((self.a[p][i] - each.centre) @ each.factor)[0][:, -1]
                found[p].append(np.log(distance + 1e-6))
        return self.averaged(self.standardised({p: np.stack(v, axis=1) for p, v in found.items()}))


def forms(task: Task) -> dict[str, Parts]:
    """Return the scores of every form."""
    unsure, energy = task.entropies(), task.energies()
    plain, directions = (task.by_layer(kind) for kind in (0, 1))
    mean, turned = task.averaged(plain), task.averaged(directions)
    leverage, relative, neighbours = task.leverage(), task.relative(), task.neighbours()
    larger = {p: task.score.combined(task.distances[p]) for p in task.parts}

    def added(a: Parts, b: Parts, weight: float = 1.0) -> Parts:
        return {p: a[p] + weight * b[p] for p in task.parts}

    def with_unsure(a: Parts, b: Parts = unsure) -> Parts:
        return {p: with_entropy(a[p], b[p]) for p in task.parts}

    def maximum(*several: Parts) -> Parts:
        return task.standardised({p: np.max([s[p] for s in several], axis=0) for p in task.parts})

    signs = {p: np.stack([plain_p, turned[p], unsure[p], relative[p], leverage[p], neighbours[p]], axis=1)
             for p, plain_p in mean.items()}  # fmt: skip
    return {
        "leverage, and a quarter of the entropy (before)": added(leverage, unsure, 0.25),
        "distance to the nearest class": mean,
        "of directions": turned,
        "the larger of both": larger,
        "the larger of both, and entropy (the score)": with_unsure(larger),
        "the larger of both, and half of the entropy": added(larger, unsure, 0.5),
        "the larger of both, and the energy": with_unsure(larger, energy),
        "the sum of both, and entropy": with_unsure(task.standardised(added(mean, turned))),
        "leverage and relative distance": added(leverage, relative),
        "the score and relative distance": added(with_unsure(larger), relative, 0.5),
        "nearest neighbours in whitened layers": neighbours,
        "the largest of three, and entropy": with_unsure(maximum(mean, turned, neighbours)),
        "the score, later layers weighted more": with_unsure(maximum(*task.later(plain, directions))),
        "the score and half of ViM": with_unsure(task.standardised(added(larger, task.virtual_logit(), 0.5))),
        "the larger of the score and ViM, and entropy": with_unsure(maximum(larger, task.virtual_logit())),
        "the score, layers weighted by outliers": with_unsure(maximum(*_weighted(task, plain, directions))),
        "log odds learned from outliers": _log_odds(signs),
        "log odds, signs without negative weights": _log_odds(signs, signed=True),
        "the score and these log odds": added(
            with_unsure(larger), task.standardised(_log_odds(signs, signed=True)), 0.5
        ),
    }


def _weighted(task: Task, *several: Parts) -> list[Parts]:
    """Weight layers (n, L) by how well they separate outliers made of held-out rows from held-out rows."""
    found = []
    for each in several:
        aurocs = np.array(
            [metrics.ood_separation(each["held_out"][:, i], each["outliers"][:, i]).auroc for i in range(task.L)]
        )
        weights = np.maximum(aurocs - 0.5, 0.02)
        found.append(task.standardised({p: v @ weights for p, v in each.items()}))
    return found


def _log_odds(signs: Parts, *, signed: bool = False) -> Parts:
    """Return the log odds of a logistic regression of outliers against held-out rows."""
    a, b = signs["held_out"], signs["outliers"]
    X, y = np.clip(np.concatenate([a, b]), -10, 10), np.repeat([0, 1], [len(a), len(b)])
    kept = np.ones(X.shape[1], dtype=bool)
    weights = np.zeros(X.shape[1])
    for _ in range(X.shape[1]):  # without signs whose weight is negative
        fitted = LogisticRegression(C=1.0, class_weight="balanced").fit(X[:, kept], y)
        weights[:] = 0
        weights[kept] = fitted.coef_[0]
        if not signed or (weights >= 0).all():
            break
        kept &= weights > 0
    return {p: v @ weights for p, v in signs.items()}


def measured(name: str, seed: int) -> dict[str, list[float]]:
    """Return near and far AUROC of every form."""
    found = {}
    for form, scores in forms(Task(name, seed)).items():
        groups = []
        for group in ("near:", "far:"):
            kinds = [p for p in scores if p.startswith(group)]
            values = [metrics.ood_separation(scores["test"], scores[p]).auroc for p in kinds]
            groups.append(round(float(np.mean(values)), 4))
        found[form] = groups
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", help="names, separated by semicolons")
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names, seeds = options.tasks.split(";") if options.tasks else DEVELOPMENT, map(int, options.seeds.split(","))
    lines = stored_forms(f"ideas-v{VERSION}", measured, names, seeds)
    names = list(dict.fromkeys(line["task"] for line in lines))
    print(f"{len(names)} tasks, {len(lines)} lines")
    for form in lines[0]["forms"]:
        values = [np.mean([line["forms"][form] for line in lines if line["task"] == name], axis=0) for name in names]
        near, far = np.mean(values, axis=0)
        print(f"| {form} | {near:.3f} | {far:.3f} | {(near + far) / 2:.3f} |")


if __name__ == "__main__":
    main()
