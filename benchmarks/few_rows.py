"""The score of unusual rows with fewer rows than features: how directions are compared, on development rows.

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
from enkbayes.inference.class_distance import ClassDistance, ClassScore, direction, with_entropy
from enkbayes.inference.feature_far_field import normal_rank
from enkbayes.reproduction.datasets.cifar import load_cifar10
from enkbayes.reproduction.datasets.idx import load_fashion_mnist
from enkbayes.reproduction.datasets.images import in_colour

RESULT = Path(__file__).parent / "results" / "few_rows.json"
LABELS = (100, 200, 600)
SEEDS = 2
Vector = np.ndarray[Any, Any]
Score = Callable[[Vector], Vector]


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


def with_fifth(fit: Callable[[Vector, Vector], ClassScore], X: Vector, y: Vector) -> Score:
    """Return the score, whose scale a fifth of the rows sets, as in `FeatureScore`."""
    out = np.random.default_rng(12).permutation(len(y)) % 5 == 0
    score = fit(X, y).scaled(fit(X[~out], y[~out]).distances([X[out]]))
    return lambda rows: np.asarray(score([rows]))


def alone(make: Callable[[Vector, Vector], ClassDistance], *, turned: bool, X: Vector, y: Vector) -> Score:
    """Return one distance alone."""
    out = np.random.default_rng(12).permutation(len(y)) % 5 == 0

    def of(rows: Vector) -> Vector:
        return direction(rows) if turned else rows

    known = make(X[~out], y[~out]).distance(of(X[out]))
    found, centre, width = make(X, y), known.mean(), max(float(known.std()), 1e-2)
    return lambda rows: np.asarray((found.distance(of(rows)) - centre) / width)


FORMS: dict[str, Callable[[Vector, Vector], Score]] = {
    "features or directions, both with covariances (before)": lambda X, y: with_fifth(
        lambda X, y: ClassScore.fit([X], y), X, y
    ),
    "features alone": lambda X, y: alone(ClassDistance.fit, turned=False, X=X, y=y),
    "directions alone, with a covariance": lambda X, y: alone(
        lambda X, y: ClassDistance.fit(direction(X), y), turned=True, X=X, y=y
    ),
    "directions alone, without": lambda X, y: alone(ClassDistance.of_few_directions, turned=True, X=X, y=y),
    "features, or directions without a covariance (the score)": lambda X, y: with_fifth(
        lambda X, y: ClassScore.fit([X], y, few=True), X, y
    ),
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
    for form, fit in FORMS.items():
        score = fit(known, numbers)
        scores = {name: with_entropy(score(x), normal_rank(entropy(proba[name]), doubt)) for name, x in rows.items()}
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
