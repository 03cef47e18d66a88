"""An image network that is trained to what its kind reaches on a processor: posterior, far-field variance and views.

    make bench-images                                    # trains five networks, ten minutes of a core each
    python benchmarks/image_networks.py --members 1      # without the ensemble that views are compared with
    python benchmarks/image_networks.py --page           # only the page, from the results so far

The network (`ten-classes-90` in useful_networks.py) and what it predicts are kept in the cache ($ENKBAYES_DATA or
~/.cache/enkbayes), so an interrupted run continues. image_rows.py has the rows. No choice was made on the evaluation
rows: forms of far-field variance were compared on others (image_forms.py).
"""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from detector_tasks import _stored
from environment import environment
from image_rows import BATCH, CORRUPTED, FAR, TASK, TRAIN, ImageRows, evaluation, loader
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from useful_networks import RECIPES, trained

from enkbayes.core.problem import Problem
from enkbayes.evaluation import metrics
from enkbayes.inference import temperature_scale
from enkbayes.inference.views import choose_views, sharpened
from enkbayes.nets import BayesianHead
from enkbayes.nets.views import Views
from enkbayes.reproduction.image_training import augmented, image_tensor

HERE = Path(__file__).parent
RESULT = HERE / "results" / "image_networks.json"
FORMS = HERE / "results" / "image_forms.json"
OLDER = HERE / "results" / "usefulness.json"
PAGE = HERE.parent / "docs" / "results" / "image_networks.md"
Vector = np.ndarray[Any, Any]

VERSION = 1  # of the stored predictions
COUNTS = (0, 1, 2, 4, 8, 16)
VIEWED = {"held_out": 2_500, "test": 5_000}  # rows whose views are predicted: each costs 17 predictions
METHODS = ("trained network", "temperature scaling", "last-layer posterior", "with far-field variance")


class Evaluation:
    """What the network and its heads predict for all rows; computed once and stored."""

    def __init__(self, rows: ImageRows) -> None:
        self.rows = rows

    @cached_property
    def heads(self) -> tuple[BayesianHead, BayesianHead]:
        """The plain posterior of the last layer, and that with far-field variance."""
        model, train, held_out = self.rows.network(), loader(self.rows.train), loader(self.rows.held_out)
        plain, far = (
            BayesianHead.fit(model, train, calibration=held_out, far_field=on, progress=False) for on in (False, True)
        )
        return plain, far

    @cached_property
    def predictions(self) -> dict[str, Vector]:
        """NAME/z, NAME/plain and NAME/far (n, K) of all rows, and notes about what was chosen."""

        def make() -> dict[str, Vector]:
            model, (plain, far) = self.rows.network(), self.heads
            found: dict[str, Vector] = {}
            for name, images in self.images().items():
                parts: dict[str, list[Vector]] = {"z": [], "plain": [], "far": []}
                for x in image_tensor(images).split(BATCH):
                    with torch.no_grad():
                        parts["z"].append(model(x).double().numpy())
                        features, noise = far.inputs_and_noise(x)
                        parts["far"].append(far.proba_given(features, noise).double().numpy())
                        parts["plain"].append(plain.proba_given(features, None).double().numpy())
                found |= {f"{name}/{part}": np.concatenate(each) for part, each in parts.items()}
            choice = far.far_field_choice
            notes = [far.calibration.message if far.calibration else "", choice.message if choice else ""]
            return found | {"notes": np.array(notes)}

        return _stored(f"images-predictions-v{VERSION}", make)

    def viewed(self, name: str) -> Vector:
        """Return the predictions (17, n, K) of the head for some rows, and for 16 views of each."""

        def make() -> dict[str, Vector]:
            views, found = Views(augmented), []
            for x in image_tensor(self.images()[name][: VIEWED[name]]).split(BATCH):
                with torch.no_grad():
                    found.append(np.stack([self.heads[1](seen).float().numpy() for seen in views(x, max(COUNTS))]))
                print(name, len(found), flush=True)
            return {"proba": np.concatenate(found, axis=1)}

        return _stored(f"images-views-{name}-v{VERSION}", make)["proba"].astype(np.float64)

    def images(self) -> dict[str, Vector]:
        rows = self.rows
        shifted = {f"corrupted:{name}": images for name, (images, _) in rows.corrupted.items()}
        far = {f"far:{name}": images for name, images in rows.far.items()}
        return {"held_out": rows.held_out.images, "test": rows.test.images, **shifted, **far}

    def member(self, number: int) -> dict[str, Vector]:
        """Return the logits of another network of the same kind for held-out and test rows."""

        def make() -> dict[str, Vector]:
            model = trained(TASK, number)[0]
            with torch.no_grad():
                return {
                    name: np.concatenate([model(x).double().numpy() for x in image_tensor(images).split(BATCH)])
                    for name, images in self.images().items()
                    if name in VIEWED
                }

        return _stored(f"images-member-{number}-v{VERSION}", make)

    def probabilities(self) -> dict[str, Callable[[str], Vector]]:
        """Return a function from the name of a set to its probabilities, for every method."""
        found, scale = self.predictions, temperature(self.predictions["held_out/z"], self.rows.held_out.labels)
        return dict(
            zip(
                METHODS,
                (
                    lambda name: softmax(found[f"{name}/z"], axis=1),
                    lambda name: softmax(scale * found[f"{name}/z"], axis=1),
                    lambda name: found[f"{name}/plain"],
                    lambda name: found[f"{name}/far"],
                ),
                strict=True,
            )
        )


def temperature(z: Vector, y: Vector) -> float:
    """Return 1 / T."""
    return temperature_scale(Problem.create(z, y, classes=np.arange(z.shape[1])), np.eye(z.shape[1]).reshape(-1))


def losses(proba: Vector, y: Vector) -> Vector:
    return np.asarray(-np.log(np.maximum(proba[np.arange(len(y)), y], 1e-300)))


def measured(found: Evaluation) -> dict[str, Any]:
    """Return the figures of every method: in distribution, on corrupted rows, on rows from elsewhere."""
    rows, y = found.rows, found.rows.test.labels
    methods = found.probabilities()
    base = losses(methods["temperature scaling"]("test"), y)
    result = {}
    for name, proba in methods.items():
        inside = proba("test")
        score = metrics.score(inside, y)
        gap = losses(inside, y) - base
        outside = {k: proba(f"far:{k}") for k in rows.far}
        result[name] = {
            "accuracy": score.accuracy,
            "NLL": score.nll,
            "NLL, minus": float(gap.mean()),
            "NLL, error": float(gap.std() / math.sqrt(len(gap))),
            "ECE": score.ece,
            "corrupted": {k: metrics.nll(proba(f"corrupted:{k}"), labels) for k, (_, labels) in rows.corrupted.items()},
            "accuracy on corrupted": {
                k: float(np.mean(proba(f"corrupted:{k}").argmax(axis=1) == labels))
                for k, (_, labels) in rows.corrupted.items()
            },
            "confidence": {k: float(p.max(axis=1).mean()) for k, p in outside.items()},
            "AUROC": {k: metrics.ood_score(inside, p).auroc for k, p in outside.items()},
        }
    return result


def own_temperatures(found: Evaluation) -> dict[str, float]:
    """Return the NLL of every kind of corrupted rows with the temperature that their own labels choose: what no method
    knows, and a bound for those that change the confidence of all rows of a kind alike.
    """
    result = {}
    for name, (_, y) in found.rows.corrupted.items():
        proba = softmax(found.predictions[f"corrupted:{name}/z"], axis=1)
        result[name] = float(losses(sharpened(proba, fitted_power(proba, y)), y).mean())
    return result


def with_views(found: Evaluation) -> dict[str, Any]:
    """Return accuracy, NLL and ECE by the number of views, with the power that held-out rows choose for each, and the
    number that they choose.
    """
    known, new = (found.viewed(name) for name in VIEWED)
    known_y, y = found.rows.held_out.labels[: known.shape[1]], found.rows.test.labels[: new.shape[1]]
    counts = {}
    for count in COUNTS:
        power = fitted_power(known[: count + 1].mean(axis=0), known_y) if count else 1.0
        proba = sharpened(new[: count + 1].mean(axis=0), power)
        score = metrics.score(proba, y)
        counts[str(count)] = {"accuracy": score.accuracy, "NLL": score.nll, "ECE": score.ece, "power": power}
    choice = choose_views(known, known_y)
    return {"counts": counts, "chosen": choice.count, "message": choice.message, "rows": len(y)}


def fitted_power(proba: Vector, y: Vector) -> float:
    found = minimize_scalar(lambda t: losses(sharpened(proba, math.exp(t)), y).mean(), bounds=(-4, 2), method="bounded")
    return math.exp(found.x)


def ensemble(found: Evaluation, members: int) -> dict[str, Any]:
    """Return the figures of the first m networks for every m, calibrated on held-out rows, on the rows with views."""
    count = VIEWED["test"]
    y, known_y = found.rows.test.labels[:count], found.rows.held_out.labels
    known, new = ([found.member(m)[name] for m in range(members)] for name in ("held_out", "test"))
    result = {}
    for m in range(1, members + 1):
        before, after = (np.mean([softmax(z, axis=1) for z in zs[:m]], axis=0) for zs in (known, new))
        calibrated = sharpened(after[:count], fitted_power(before, known_y))
        plain, score = metrics.score(after[:count], y), metrics.score(calibrated, y)
        result[str(m)] = {
            "accuracy": score.accuracy,
            "NLL": score.nll,
            "ECE": score.ece,
            "NLL, not calibrated": plain.nll,
            "accuracy of the last": float(np.mean(new[m - 1].argmax(axis=1) == found.rows.test.labels)),
        }
    return result


def targets(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return statements with a measured value, a limit, and whether it is met."""
    ours, base = result["methods"]["with far-field variance"], result["methods"]["temperature scaling"]
    ratios = [ours["corrupted"][k] / base["corrupted"][k] for k in base["corrupted"]]
    K = 10

    def half(k: str) -> float:
        return (1 / K + base["confidence"][k]) / 2

    far = list(base["confidence"])
    found = [
        ("NLL minus temperature scaling's, at most one standard error", ours["NLL, minus"], ours["NLL, error"]),
        ("accuracy lost against temperature scaling, at most", base["accuracy"] - ours["accuracy"], 0.003),
        ("ECE minus temperature scaling's, at most", ours["ECE"] - base["ECE"], 0.005),
        (
            "mean confidence on far rows, at most half-way from 1/K to temperature scaling's",
            float(np.mean([ours["confidence"][k] for k in far])),
            float(np.mean([half(k) for k in far])),
        ),
        *((f"the same for {k}", ours["confidence"][k], half(k)) for k in far),
        ("NLL of corrupted rows over temperature scaling's, mean of 15, at most", float(np.mean(ratios)), 0.7),
        ("their mean NLL over temperature scaling's mean NLL, at most", _mean(ours) / _mean(base), 0.7),
        ("the largest of the 15 ratios, at most", float(np.max(ratios)), 1.0),
    ]
    rows = [{"statement": s, "measured": v, "limit": w, "met": v <= w} for s, v, w in found]
    if "views" in result:
        views, networks = result["views"]["counts"][str(result["views"]["chosen"])]["NLL"], result["ensemble"]
        if "5" in networks:
            share = (networks["1"]["NLL"] - views) / (networks["1"]["NLL"] - networks["5"]["NLL"])
            statement = "share of the gap from temperature scaling to five networks that views close, at least"
            return [*rows, {"statement": statement, "measured": share, "limit": 0.5, "met": share >= 0.5}]
        gain, gap = 1 - views / networks["1"]["NLL"], older_gap()
        statement = "share by which views lower the NLL, at least half of that by five older networks"
        rows.append({"statement": statement, "measured": gain, "limit": gap / 2, "met": gain >= gap / 2})
    return rows


def older_gap() -> float:
    """Return by which share five networks of the usefulness benchmark, of the same task, lower the NLL of one."""
    methods = json.loads(OLDER.read_text(encoding="utf-8"))["tasks"]["ten-classes"]["methods"]
    return float(1 - methods["five networks"]["NLL"]["mean"] / methods["temperature scaling"]["NLL"]["mean"])


def _mean(row: dict[str, Any]) -> float:
    return float(np.mean(list(row["corrupted"].values())))


def page(result: dict[str, Any], forms: dict[str, Any]) -> str:
    name = "image_networks.md.jinja"
    template = jinja2.Template((HERE / name).read_text(encoding="utf-8"), keep_trailing_newline=True)
    recipe, base = RECIPES[TASK].training, result["methods"]["temperature scaling"]["corrupted"]
    best = float(np.mean([result["own temperatures"][k] / base[k] for k in base]))
    lowest = min(row["summary"]["corrupted, mean ratio"] for row in forms["CIFAR-10"].values())

    def wrapped(text: str, indent: int) -> str:
        return textwrap.fill(text, 116, subsequent_indent=" " * indent, break_long_words=False)

    text = template.render(
        wrapped=wrapped,
        result=result, forms=forms, targets=targets(result), recipe=recipe, train=TRAIN, corrupted=CORRUPTED, far=FAR,
        viewed=VIEWED, older_gap=older_gap(), best=best, lowest=lowest, kinds=("noise", "blur", "contrast"),
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in text.split("\n"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=5, help="networks of the ensemble that views are compared with")
    parser.add_argument("--no-views", action="store_true", help="leave out views, which take longest")
    parser.add_argument("--page", action="store_true", help="write the page only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.page:
        found = Evaluation(evaluation())
        result: dict[str, Any] = {"environment": environment() | {"torch": torch.__version__}}
        result["seconds of the training"] = trained(TASK, 0)[1]
        result["methods"] = measured(found)
        result["own temperatures"] = own_temperatures(found)
        result["notes"] = found.predictions["notes"].tolist()
        result["ensemble"] = ensemble(found, options.members)
        if not options.no_views:
            result["views"] = with_views(found)
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        for target in targets(result):
            print(target)
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    if FORMS.exists():
        PAGE.write_text(page(result, json.loads(FORMS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
