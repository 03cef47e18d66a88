"""Which distance makes an image network unsure where it should be? Forms of far-field variance on development rows.

    python benchmarks/image_forms.py                     # both development tasks of image_rows.py; writes the results

The noise is added to the temperature-scaled network itself, so that forms are compared without a posterior, and its
size is chosen on held-out rows by the product's own rule. What the layers compute is stored in the cache
($ENKBAYES_DATA or ~/.cache/enkbayes, folder image_forms).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detector_tasks import _stored
from image_rows import BATCH, DEVELOPMENT, ImageRows, loader
from torch import nn

from enkbayes.core.likelihoods import Categorical
from enkbayes.core.logit_noise import noisy_predictive
from enkbayes.core.problem import Problem
from enkbayes.evaluation import metrics
from enkbayes.inference import temperature_scale
from enkbayes.inference.class_distance import ClassScore
from enkbayes.inference.far_field import Extent, choose, rise
from enkbayes.nets.far_field import Moments, recorded_outputs
from enkbayes.reproduction.datasets.images import Images
from enkbayes.reproduction.image_training import image_tensor

RESULT = Path(__file__).parent / "results" / "image_forms.json"
Vector = np.ndarray[Any, Any]
Parts = dict[str, Vector]  # NAME/z (n, K), NAME/leverage (n, L), NAME/distance (2, n, L), NAME/y (n,)


def parts_of(task: str, rows: ImageRows) -> Parts:
    """Return the logits of all rows, and their log leverages and class distances at every layer; computed once."""

    def make() -> Parts:
        model = rows.network()
        moments = Moments(model)
        kept: list[dict[int, Vector]] = []
        with torch.no_grad():
            for x, _ in loader(rows.train):
                with moments.watching():
                    model(x)
                kept.append({k: v.numpy() for k, v in passed(model, x, moments.places)[1].items()})
            places = moments.places[:-1]  # the last layer gives the logits
            extent = Extent.of_moments([moments.sums[place] / moments.count for place in places])
            train = [np.concatenate([each[place] for each in kept]) for place in places]
            classes = ClassScore.fit(train, rows.train.labels)
            found: Parts = {}
            for name, images, y in named(rows):
                z, outputs = [], []
                for x in image_tensor(images).split(BATCH):
                    logits, recorded = passed(model, x, places)
                    z.append(logits.double().numpy())
                    outputs.append([recorded[place].double() for place in places])
                layers = [torch.cat([each[i] for each in outputs]) for i in range(len(places))]
                each = [Extent((F,), extent.scale).leverage([h]) for h, F in zip(layers, extent.factors, strict=True)]
                found[f"{name}/z"] = np.concatenate(z)
                found[f"{name}/leverage"] = torch.stack(each, dim=1).numpy()
                found[f"{name}/distance"] = np.asarray(classes.distances([h.numpy() for h in layers]))
                if y is not None:
                    found[f"{name}/y"] = y
        return found

    return _stored(f"forms-{task}", make)


def passed(model: nn.Module, x: torch.Tensor, places: tuple[int, ...]) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    with torch.no_grad(), recorded_outputs(model, places) as outputs:
        return model(x), outputs


def named(rows: ImageRows) -> list[tuple[str, Vector, Vector | None]]:
    """Return name, images and class numbers of all rows to predict."""
    sets: list[tuple[str, Images]] = [("held_out", rows.held_out), ("test", rows.test)]
    return [
        *((name, data.images, data.labels) for name, data in sets),
        *((f"corrupted:{name}", images, y) for name, (images, y) in rows.corrupted.items()),
        *((f"far:{name}", images, None) for name, images in rows.far.items()),
    ]


Score = Callable[[Parts], Callable[[str], Vector]]
"""What a form learns from the held-out rows: a function from the name of a set to its scores (n,)."""


def standardised(values: Callable[[str], Vector], widest: float = 2 / 3) -> Callable[[str], Vector]:
    """Return scores with mean 0 on held-out rows and a standard deviation of 1, or more if they vary by less."""
    known = values("held_out")
    centre, width = known.mean(), min(max(known.std(), 1e-2), widest)
    return lambda name: (values(name) - centre) / width


def each_layer(parts: Parts, what: str = "leverage") -> Callable[[str], Vector]:
    """Return log leverages (n, L), every layer standardised on held-out rows."""
    known = parts[f"held_out/{what}"]
    return lambda name: (parts[f"{name}/{what}"] - known.mean(axis=0)) / known.std(axis=0)


def mean_leverage(parts: Parts) -> Callable[[str], Vector]:
    return standardised(lambda name: parts[f"{name}/leverage"].mean(axis=1))


def largest_leverage(parts: Parts) -> Callable[[str], Vector]:
    layers = each_layer(parts)
    return standardised(lambda name: layers(name).max(axis=1), np.inf)


def two_sided(parts: Parts) -> Callable[[str], Vector]:
    layers = each_layer(parts)
    return standardised(lambda name: np.sqrt((layers(name) ** 2).mean(axis=1)), np.inf)


def joint(parts: Parts) -> Callable[[str], Vector]:
    """Return the Mahalanobis distance of the vector of log leverages."""
    known = parts["held_out/leverage"]
    centre, factor = known.mean(axis=0), np.linalg.cholesky(np.linalg.inv(np.cov(known.T)))
    return standardised(
        lambda name: np.sqrt(np.sum(((parts[f"{name}/leverage"] - centre) @ factor) ** 2, axis=1)), np.inf
    )


def class_distance(parts: Parts, kinds: tuple[int, ...] = (0, 1)) -> Callable[[str], Vector]:
    """Return the larger mean distance to the classes, of features and of directions, as in `OODScore`."""
    each = []
    for kind in kinds:
        known = parts["held_out/distance"][kind]

        def mean(name: str, kind: int = kind, known: Vector = known) -> Vector:
            return ((parts[f"{name}/distance"][kind] - known.mean(axis=0)) / known.std(axis=0)).mean(axis=1)

        each.append(standardised(mean, np.inf))
    return standardised(lambda name: np.max([part(name) for part in each], axis=0), np.inf)


def largest(*forms: Score) -> Score:
    def fit(parts: Parts) -> Callable[[str], Vector]:
        each = [form(parts) for form in forms]
        return standardised(lambda name: np.max([part(name) for part in each], axis=0), np.inf)

    return fit


def steeper(form: Score, power: float) -> Score:
    def fit(parts: Parts) -> Callable[[str], Vector]:
        score = form(parts)
        return lambda name: power * score(name)

    return fit


FORMS: dict[str, Score] = {
    "mean log leverage": mean_leverage,
    "mean log leverage, squared": steeper(mean_leverage, 2.0),
    "largest log leverage of a layer": largest_leverage,
    "log leverages of all layers, two-sided": two_sided,
    "log leverages of all layers, jointly": joint,
    "distance to the classes": class_distance,
    "distance to the classes, features": lambda parts: class_distance(parts, (0,)),
    "distance to the classes, squared": steeper(class_distance, 2.0),
    "the larger of leverage and joint": largest(mean_leverage, joint),
    "the larger of class distance and joint": largest(class_distance, joint),
}


def predictions(parts: Parts, form: Score | None) -> tuple[Callable[[str], Vector], str]:
    """Return the probabilities of a set by name, with the noise of a form, or of temperature scaling; and a note."""
    z, y = parts["held_out/z"], parts["held_out/y"]
    K = z.shape[1]
    scale = temperature_scale(Problem.create(z, y, classes=np.arange(K)), np.eye(K).reshape(-1))
    likelihood = Categorical(K)
    if form is None:
        return lambda name: np.asarray(likelihood.mean(scale * parts[f"{name}/z"])), ""
    score = form(parts)
    known = score("held_out")
    low, high = min(known.min(), -3.0), max(known.max(), 3.0)
    some = np.random.default_rng(8).permutation(len(y))[:2000]
    found = choose(likelihood, scale * z[some], np.zeros((len(some), K, 1)), y[some], known[some])

    def predict(name: str) -> Vector:
        s = score(name)
        noise = found.strength * rise(s) + found.reach * np.exp(np.clip(s, 0, 20)) * rise(np.maximum(s - high, low - s))
        z = scale * (found.scale if found.strength else 1.0) * parts[f"{name}/z"]
        return noisy_predictive(likelihood, z, np.zeros((*z.shape, 1)), noise)

    return predict, f"strength {found.strength:.3g}, scale {found.scale:g}"


def figures(parts: Parts, form: Score | None) -> dict[str, Any]:
    """Return NLL and ECE of test rows, the NLL of every corruption, and confidence on far rows."""
    predict, note = predictions(parts, form)
    inside = predict("test")
    corrupted = [name for name in names(parts) if name.startswith("corrupted:")]
    far = [name for name in names(parts) if name.startswith("far:")]
    outside = {name: predict(name) for name in far}
    score = metrics.score(inside, parts["test/y"])
    return {
        "note": note,
        "accuracy": score.accuracy,
        "NLL": score.nll,
        "ECE": score.ece,
        "corrupted": {name[10:]: metrics.nll(predict(name), parts[f"{name}/y"]) for name in corrupted},
        "confidence": {name[4:]: float(p.max(axis=1).mean()) for name, p in outside.items()},
        "AUROC": {name[4:]: metrics.ood_score(inside, p).auroc for name, p in outside.items()},
    }


def names(parts: Parts) -> list[str]:
    return [key.removesuffix("/z") for key in parts if key.endswith("/z")]


def summary(found: dict[str, Any], base: dict[str, Any]) -> dict[str, float]:
    """Return figures relative to temperature scaling's: the targets of image networks."""
    ratios = [found["corrupted"][name] / base["corrupted"][name] for name in base["corrupted"]]
    chance = 1 / 10
    kept = [(found["confidence"][k] - chance) / (base["confidence"][k] - chance) for k in base["confidence"]]
    return {
        "NLL, minus": found["NLL"] - base["NLL"],
        "ECE, minus": found["ECE"] - base["ECE"],
        "corrupted, mean ratio": float(np.mean(ratios)),
        "corrupted, largest ratio": float(np.max(ratios)),
        "confidence kept": float(np.mean(kept)),
        "AUROC": float(np.mean(list(found["AUROC"].values()))),
    }


def main() -> None:
    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    for task, rows in DEVELOPMENT.items():
        parts = parts_of(task, rows())
        base = figures(parts, None)
        found = {"temperature scaling": base} | {name: figures(parts, form) for name, form in FORMS.items()}
        result[task] = {name: each | {"summary": summary(each, base)} for name, each in found.items()}
        print(task, {k: round(v, 4) for k, v in base.items() if isinstance(v, float)})
        for name, each in result[task].items():
            print(f"{name:42s}", " ".join(f"{v:8.4f}" for v in each["summary"].values()), each["note"], flush=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
