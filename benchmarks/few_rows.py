"""The score of unusual rows with fewer rows than features: forms of the distance to the classes on development rows.

    python benchmarks/few_rows.py       # a table; stores the features in the cache, two minutes on one core

Features of EfficientNet-Lite0 for drawings, Fashion-MNIST, and training images of CIFAR-10 that pretrained.py does not
use. A quarter of the classes is unseen (near rows). Far rows: for drawings MNIST and noise; for Fashion-MNIST also
drawings and inverted images; for CIFAR-10 MNIST, and images of CIFAR-10 with shuffled pixels, with random phases, with
a fifth of the brightness, and smooth noise. The entropy is that of scikit-learn's LogisticRegression.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from detector_tasks import _stored, lite0, others
from environment import environment
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from enkbayes.engine.arrays import entropy
from enkbayes.evaluation import metrics
from enkbayes.inference.class_distance import ClassDistance, direction, with_entropy
from enkbayes.inference.feature_far_field import normal_rank
from enkbayes.reproduction.datasets.cifar import load_cifar10
from enkbayes.reproduction.datasets.idx import load_fashion_mnist
from enkbayes.reproduction.datasets.images import in_colour

RESULT = Path(__file__).parent / "results" / "few_rows.json"
LABELS = (100, 200, 600)
SEEDS = 2
Vector = np.ndarray[Any, Any]
Form = Callable[[dict[str, Vector]], Vector]
"""Distances (n,) of rows by kind -> scores (n,)."""


def fashion() -> dict[str, Vector]:
    data = in_colour(load_fashion_mnist()[0])
    inverted = 255 - data.images[1200:1400]
    return {"X": lite0(data.images[:1200]), "y": data.labels[:1200], "far:inverted": lite0(inverted)}


def cifar() -> dict[str, Vector]:
    data, rng = load_cifar10()[0], np.random.default_rng(3)
    some = data.images[42_000:42_150]
    n, height, width, colours = some.shape
    pixels = [x.reshape(-1, colours)[rng.permutation(height * width)] for x in some]
    phase = np.angle(np.fft.fft2(rng.standard_normal((n, height, width, 1)), axes=(1, 2)))
    size = np.abs(np.fft.fft2(some.astype(float), axes=(1, 2)))
    far = {
        "shuffled": np.stack(pixels).reshape(some.shape),
        "phases": np.real(np.fft.ifft2(size * np.exp(1j * phase), axes=(1, 2))),
        "smooth noise": np.kron(128 + 64 * rng.standard_normal((n, 8, 8, colours)), np.ones((1, 4, 4, 1))),
        "dark": 0.2 * some,
    }
    found = {f"far:{name}": lite0(np.clip(x, 0, 255).astype(np.uint8)) for name, x in far.items()}
    return {"X": lite0(data.images[40_000:41_300]), "y": data.labels[40_000:41_300], **found}


def tasks() -> dict[str, tuple[Vector, Vector, dict[str, Vector]]]:
    """Return features, class numbers, and far rows by name."""
    known = others()
    mnist, noise, drawings = (known[name] for name in ("MNIST", "noise", "drawings"))
    result = {"drawings": (drawings, known["drawings_y"], {"MNIST": mnist, "noise": noise})}
    for name, make, more in (
        ("Fashion-MNIST", fashion, {"MNIST": mnist, "noise": noise, "drawings": drawings[::5]}),
        ("CIFAR-10", cifar, {"MNIST": mnist}),
    ):
        found = _stored(f"few-rows-{name}", make)
        far = {key.removeprefix("far:"): x for key, x in found.items() if key.startswith("far:")}
        result[name] = found["X"], found["y"], more | far
    return result


class Distances:
    """Distances of rows, standardised on a fifth of the training rows: of features and of directions with covariances,
    and of directions without.
    """

    KINDS = ("features", "directions", "angles")

    def __init__(self, X: Vector, y: Vector) -> None:
        out = np.random.default_rng(12).permutation(len(y)) % 5 == 0
        known, self.fits = self._raw(self._fit(X[~out], y[~out]), X[out]), self._fit(X, y)
        self.scale = {kind: (v.mean(), max(float(v.std()), 1e-2)) for kind, v in known.items()}

    def __call__(self, X: Vector) -> dict[str, Vector]:
        found = self._raw(self.fits, X)
        return {kind: (found[kind] - centre) / width for kind, (centre, width) in self.scale.items()}

    def _fit(self, X: Vector, y: Vector) -> tuple[ClassDistance, ...]:
        both = ClassDistance.fit(X, y), ClassDistance.fit(direction(X), y)
        return *both, ClassDistance.of_few_directions(X, y)

    def _raw(self, fits: tuple[ClassDistance, ...], X: Vector) -> dict[str, Vector]:
        rows = X, direction(X), direction(X)
        return {k: np.asarray(fit.distance(x)) for k, fit, x in zip(self.KINDS, fits, rows, strict=True)}


def larger(*kinds: str, margin: float = 0.0) -> Form:
    return lambda d: np.max([d[kinds[0]] - margin, *(d[kind] for kind in kinds[1:])], axis=0)


SCORE = "angles, and half of the absolute distance of features (the score)"
FORMS: dict[str, Form] = {
    "features or directions, the larger (before)": larger("features", "directions"),
    "features": larger("features"),
    "directions": larger("directions"),
    "angles": larger("angles"),
    "features or angles, the larger": larger("features", "angles"),
    "features - 1, or angles, the larger": larger("features", "angles", margin=1.0),
    "features - 2, or angles, the larger": larger("features", "angles", margin=2.0),
    "mean of features and angles": lambda d: (d["features"] + d["angles"]) / 2,
    "absolute distance of features, or angles, the larger": lambda d: np.maximum(np.abs(d["features"]), d["angles"]),
    SCORE: lambda d: d["angles"] + np.abs(d["features"]) / 2,
}


def measured(X: Vector, y: Vector, far: dict[str, Vector], labels: int, seed: int) -> dict[str, list[float]]:
    """Return the AUROC of near and far rows of every form."""
    rng = np.random.default_rng((seed, 7))
    K = int(y.max()) + 1
    unseen = np.isin(y, rng.permutation(K)[: max(1, K // 4)])
    order = rng.permutation(np.flatnonzero(~unseen))
    first = np.concatenate([order[y[order] == k][:2] for k in np.unique(y[~unseen])])
    order = np.concatenate([first, order[~np.isin(order, first)]])
    train, test = order[:labels], order[labels : labels + 600]
    scale = StandardScaler().fit(X[train])
    known, numbers = scale.transform(X[train]), np.unique(y[train], return_inverse=True)[1]
    rows = {"test": X[test], "near": X[unseen][:400], **{f"far:{name}": x for name, x in far.items()}}
    rows = {name: scale.transform(x) for name, x in rows.items()}
    model = LogisticRegression(C=0.01, max_iter=300)
    doubt = np.sort(entropy(cross_val_predict(model, known, numbers, cv=2, method="predict_proba")))
    proba = {name: model.fit(known, numbers).predict_proba(x) for name, x in rows.items()}
    found = {"confidence": separated({name: -p.max(axis=1) for name, p in proba.items()})}
    distances = Distances(known, numbers)
    standard = {name: distances(x) for name, x in rows.items()}
    for form, score in FORMS.items():
        scores = {
            name: with_entropy(score(d), normal_rank(entropy(proba[name]), doubt)) for name, d in standard.items()
        }
        found[form] = separated(scores)
    return found


def separated(scores: dict[str, Vector]) -> list[float]:
    values = {name: metrics.ood_separation(scores["test"], s).auroc for name, s in scores.items() if name != "test"}
    return [values.pop("near"), float(np.mean(list(values.values())))]


def main() -> None:
    lines = []
    with threadpool_limits(1):
        for task, (X, y, far) in tasks().items():
            for labels in LABELS:
                for seed in range(SEEDS):
                    found = measured(X.astype(np.float64), y, far, labels, seed)
                    lines.append({"task": task, "labels": labels, "seed": seed, "forms": found})
                    print(task, labels, seed, {k: np.round(v, 3).tolist() for k, v in found.items()}, flush=True)
    RESULT.write_text(json.dumps({"environment": environment(), "lines": lines}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
