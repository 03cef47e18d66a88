"""A posterior on features of pretrained networks, against what people use: few labels, shifted rows, far rows.

    make bench-pretrained                                # both tasks; resumes, half an hour on one core
    python benchmarks/pretrained.py --page               # only the page, from the results so far

CIFAR-10 is classified from 1,280 features of EfficientNet-Lite0, which was trained on ImageNet, with 100 to 1,000
labels; spam from 384 numbers of the sentence network all-MiniLM-L6-v2. Features are computed once and kept in the cache
($ENKBAYES_DATA or ~/.cache/enkbayes, folder pretrained); each result adds a line to a file there, so an interrupted run
continues. laplace-torch runs in the environment .venv-peers (`pretrained_peers.py`), which `make bench` creates.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from environment import environment
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import enkbayes as eb
from enkbayes.evaluation import metrics
from enkbayes.reproduction.datasets.downloads import cache_folder
from enkbayes.storage.files import replacing

HERE = Path(__file__).parent
RESULT = HERE / "results" / "pretrained.json"
FEW_ROWS = HERE / "results" / "few_rows.json"
PAGE = HERE.parent / "docs" / "results" / "pretrained.md"
Vector = np.ndarray[Any, Any]

REPEATS = 3
SIZES = {"CIFAR-10": (100, 200, 500, 1_000), "spam": (100, 300, 1_000)}
SLOW = {"Laplace": 1}  # repetitions at most, of what takes a minute each
POOL, TEST, CORRUPTED, FAR = 3_000, 2_000, 200, 300  # images
STEPS = 1_000  # of L-BFGS at most
HEADS = 5
CORRUPTIONS = ("noise", "blur", "contrast")
STRENGTHS = 5


@dataclass(frozen=True, eq=False)
class Rows:
    """Standardised features and class numbers: `train`, `test`, shifted rows with known classes, far rows."""

    train: tuple[Vector, Vector]
    test: tuple[Vector, Vector]
    shifted: dict[str, tuple[Vector, Vector]]
    far: dict[str, Vector]

    def inputs(self) -> dict[str, Vector]:
        """Return the features of all rows that are predicted, by name."""
        return {"test": self.test[0], **{name: x for name, (x, _) in self.shifted.items()}, **self.far}


def folder() -> Path:
    return cache_folder() / "pretrained"


@cache
def images() -> dict[str, Vector]:
    """Return features of CIFAR-10, of corrupted test images, and of other images; computed once."""
    from detector_tasks import _noise, corrupted, lite0

    from enkbayes.reproduction.datasets.cifar import load_cifar10
    from enkbayes.reproduction.datasets.idx import load_fashion_mnist
    from enkbayes.reproduction.datasets.images import in_colour
    from enkbayes.reproduction.datasets.quickdraw import load_quickdraw

    path = folder() / "images.npz"
    if not path.exists():
        train, test = load_cifar10()
        drawings = in_colour(load_quickdraw()).images
        some = np.random.default_rng(0).permutation(len(drawings))[:FAR]
        pictures = {
            "train": train.images[:POOL],
            "test": test.images[:TEST],
            **{
                f"{kind}-{s}": corrupted(test.images[:CORRUPTED], kind, s, 0)
                for kind in CORRUPTIONS
                for s in range(STRENGTHS)
            },
            "Fashion-MNIST": in_colour(load_fashion_mnist()[1]).images[:FAR],
            "QuickDraw": drawings[some],
            "uniform noise": _noise((FAR, 32, 32, 3), 0),
            "inverted": 255 - test.images[TEST : TEST + FAR],
        }
        arrays = {name: lite0(each) for name, each in pictures.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft, draft.open("wb") as file:
            np.savez(file, **arrays, train_y=train.labels[:POOL], test_y=test.labels[:TEST])
    with np.load(path) as found:
        return dict(found)


def image_rows(labels: int, repeat: int) -> Rows:
    """Return a random choice of labelled images, two of every class at least, and the rows to predict."""
    found = images()
    y, test_y = found["train_y"], found["test_y"]
    chosen = _chosen(y, labels, repeat)
    scale = StandardScaler().fit(found["train"][chosen])

    def of(name: str) -> Vector:
        return np.asarray(scale.transform(found[name]), dtype=np.float64)

    shifted = {
        kind: (
            np.concatenate([of(f"{kind}-{s}") for s in range(STRENGTHS)]),
            np.tile(test_y[:CORRUPTED], STRENGTHS),
        )
        for kind in CORRUPTIONS
    }
    far = {name: of(name) for name in ("Fashion-MNIST", "QuickDraw", "uniform noise", "inverted")}
    return Rows((of("train")[chosen], y[chosen]), (of("test"), test_y), shifted, far)


def mail_rows(labels: int, repeat: int) -> Rows:
    """Return easy ham and spam, of which some are labelled; hard ham is shifted. Spam is class 1."""
    from detector_tasks import mails

    found = mails()
    X, group = found["X"].astype(np.float64), found["group"]
    hard = np.char.find(group, "hard") >= 0
    known, y = X[~hard], (group[~hard] == "spam").astype(int)
    chosen = _chosen(y, labels, repeat)
    others = np.setdiff1d(np.random.default_rng((repeat, 2)).permutation(len(y)), chosen)[-TEST:]
    scale = StandardScaler().fit(known[chosen])
    noise = np.random.default_rng(5).standard_normal((FAR, X.shape[1]))
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    return Rows(
        (scale.transform(known[chosen]), y[chosen]),
        (scale.transform(known[others]), y[others]),
        {"hard ham": (scale.transform(X[hard]), np.zeros(hard.sum(), dtype=int))},
        {"random directions": scale.transform(noise)},
    )


def _chosen(y: Vector, labels: int, repeat: int) -> Vector:
    """Return the numbers of random rows, two of every class among them; more labels contain fewer."""
    order = np.random.default_rng((repeat, 1)).permutation(len(y))
    first = np.concatenate([order[y[order] == k][:2] for k in range(int(y.max()) + 1)])
    return np.concatenate([first, order[~np.isin(order, first)]])[:labels]


TASKS: dict[str, Callable[[int, int], Rows]] = {"CIFAR-10": image_rows, "spam": mail_rows}


class Ours:
    """`EnsembleClassifier`, which also scores unusual rows."""

    def __init__(self, rows: Rows, seed: int, **settings: Any) -> None:
        self.clf = eb.EnsembleClassifier(random_state=seed, **settings).fit(*rows.train)

    def __call__(self, X: Vector) -> Vector:
        return np.asarray(self.clf.predict_proba(X))

    def score(self, X: Vector) -> Vector:
        return np.asarray(self.clf.ood_score(X))


Predict = Callable[[Vector], Vector]


@cache
def _cross_validated(task: str, labels: int, repeat: int) -> Any:
    """Return the estimate whose C three methods share."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LogisticRegressionCV(
            scoring="neg_log_loss", max_iter=STEPS, l1_ratios=(0.0,), use_legacy_attributes=False
        ).fit(*TASKS[task](labels, repeat).train)


def _scaled(C: float, rows: Rows) -> Predict:
    """Return temperature scaling by cross-fitting: all rows train, and each is held out once for the temperature."""
    folds = min(5, int(np.bincount(rows.train[1]).min()))
    base = LogisticRegression(C=C, max_iter=STEPS)
    found = CalibratedClassifierCV(base, method="temperature", cv=folds, ensemble=False).fit(*rows.train)
    return lambda X: np.asarray(found.predict_proba(X))


def _bootstrapped(C: float, rows: Rows, seed: int) -> Predict:
    """Return the mean of five heads, each fitted to rows drawn with replacement (until every class is there)."""
    (X, y), rng, heads = rows.train, np.random.default_rng((seed, 3)), []
    while len(heads) < HEADS:
        drawn = rng.integers(0, len(y), len(y))
        if len(np.unique(y[drawn])) == len(np.unique(y)):
            heads.append(LogisticRegression(C=C, max_iter=STEPS).fit(X[drawn], y[drawn]))
    return lambda X: np.asarray(np.mean([head.predict_proba(X) for head in heads], axis=0))


def laplace(rows: Rows, C: float, python: str) -> dict[str, Vector]:
    """Return the predictions of laplace-torch around the same estimate, for all rows, in the peers' environment."""
    head = LogisticRegression(C=C, max_iter=STEPS).fit(*rows.train)
    with tempfile.TemporaryDirectory() as place:
        given, answer = Path(place) / "given.npz", Path(place) / "answer.npz"
        X, y = rows.train
        names = {f"predict/{name}": x for name, x in rows.inputs().items()}
        np.savez(given, X=X, y=y, W=head.coef_, b=head.intercept_, precision=1 / C, **names)
        command = [python, str(HERE / "pretrained_peers.py"), str(given), str(answer)]
        subprocess.run(command, check=True)
        with np.load(answer) as found:
            return dict(found)


METHODS = (
    "our default",
    "ours, with far-field variance",
    "LogisticRegressionCV",
    "temperature scaling",
    "Laplace",
    "five bootstrapped heads",
)


def predicted(method: str, task: str, labels: int, repeat: int, python: str) -> tuple[Rows, dict[str, Vector], Any]:
    """Return rows, the probabilities of all rows to predict by name, and what scores unusual rows, if anything."""
    rows = TASKS[task](labels, repeat)
    if method in METHODS[:2]:
        clf = Ours(rows, repeat, far_field=method != "our default")
        return rows, {name: clf(x) for name, x in rows.inputs().items()}, clf.score
    chosen = _cross_validated(task, labels, repeat)
    C = float(chosen.C_)
    if method == "Laplace":
        return rows, laplace(rows, C, python), None
    predict: Predict = {
        "LogisticRegressionCV": lambda: lambda X: np.asarray(chosen.predict_proba(X)),
        "temperature scaling": lambda: _scaled(C, rows),
        "five bootstrapped heads": lambda: _bootstrapped(C, rows, repeat),
    }[method]()
    return rows, {name: predict(x) for name, x in rows.inputs().items()}, None


def measured(method: str, task: str, labels: int, repeat: int, python: str) -> dict[str, Any]:
    """Return the figures of a method in one repetition."""
    begun = time.process_time()
    rows, proba, score = predicted(method, task, labels, repeat, python)
    inside = metrics.score(proba["test"], rows.test[1])
    confidence = {name: p.max(axis=1) for name, p in proba.items()}
    unusual = {name: score(x) for name, x in rows.inputs().items()} if score else None
    separated = unusual or {name: -c for name, c in confidence.items()}
    elsewhere = [*rows.far, *(("hard ham",) if task == "spam" else ())]
    return {
        "task": task,
        "labels": labels,
        "repeat": repeat,
        "method": method,
        "seconds": round(time.process_time() - begun, 2),
        "accuracy": inside.accuracy,
        "NLL": inside.nll,
        "ECE": inside.ece,
        "NLL of shifted rows": float(np.mean([metrics.nll(proba[name], y) for name, (_, y) in rows.shifted.items()])),
        "accuracy on shifted rows": float(
            np.mean([np.mean(proba[name].argmax(axis=1) == y) for name, (_, y) in rows.shifted.items()])
        ),
        "confidence on far rows": float(np.mean([confidence[name].mean() for name in rows.far])),
        "AUROC by confidence": _auroc({name: -c for name, c in confidence.items()}, elsewhere),
        "AUROC by the recommended score": _auroc(separated, elsewhere),
    }


def _auroc(scores: dict[str, Vector], elsewhere: list[str]) -> float:
    return float(np.mean([metrics.ood_separation(scores["test"], scores[name]).auroc for name in elsewhere]))


def stored(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of the file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


NOT_FIGURES = ("task", "labels", "repeat", "method")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over repetitions by task, labels and method, and log losses minus LogisticRegressionCV's, paired."""
    tasks: dict[str, Any] = {}
    for task, sizes in SIZES.items():
        for labels in sizes:
            own = [row for row in rows if row["task"] == task and row["labels"] == labels]
            base = {row["repeat"]: row for row in own if row["method"] == "LogisticRegressionCV"}
            for method in METHODS:
                found = [row for row in own if row["method"] == method]
                if not found:
                    continue
                figures = {name: float(np.mean([row[name] for row in found])) for name in found[0]
                           if name not in NOT_FIGURES}  # fmt: skip
                for name in ("NLL", "NLL of shifted rows"):
                    gaps = [row[name] - base[row["repeat"]][name] for row in found if row["repeat"] in base]
                    figures[f"{name}, minus"] = float(np.mean(gaps)) if gaps else float("nan")
                    spread = np.std(gaps, ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else None
                    figures[f"{name}, error"] = None if spread is None else float(spread)
                figures["repetitions"] = len(found)
                tasks.setdefault(task, {}).setdefault(str(labels), {})[method] = figures
    return tasks


def few_rows(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return near and far AUROC of every form of the score, means over development tasks and seeds by labels."""
    found = []
    for form in lines[0]["forms"]:
        row: dict[str, Any] = {"form": form}
        for labels in dict.fromkeys(line["labels"] for line in lines):
            row[labels] = np.mean([line["forms"][form] for line in lines if line["labels"] == labels], axis=0).tolist()
        found.append(row)
    return found


def with_earlier(tasks: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Return a summary with the figures of an earlier one where the cache has none; these are marked."""
    found: dict[str, Any] = {}
    for task, sizes in SIZES.items():
        for labels in map(str, sizes):
            new, old = (part.get(task, {}).get(labels, {}) for part in (tasks, before))
            rows = {m: new[m] if m in new else old[m] | {"earlier": True} for m in METHODS if m in new or m in old}
            if rows:
                found.setdefault(task, {})[labels] = rows
    return found


def page(result: dict[str, Any]) -> str:
    template = jinja2.Template((HERE / "pretrained.md.jinja").read_text(encoding="utf-8"), keep_trailing_newline=True)

    def difference(row: dict[str, Any], name: str) -> str:
        error = row[f"{name}, error"]
        return f"{row[f'{name}, minus']:+.3f}" + (f" ± {error:.3f}" if error is not None else "")

    return template.render(
        difference=difference,
        result=result,
        few_rows=few_rows(json.loads(FEW_ROWS.read_text(encoding="utf-8"))["lines"]),
        earlier=any(
            row.get("earlier") for sizes in result["tasks"].values() for m in sizes.values() for row in m.values()
        ),
        pool=POOL,
        test=TEST,
        corrupted=CORRUPTED,
        far=FAR,
        repeats=REPEATS,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write results and page only")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", help="names, separated by ';'", default=";".join(METHODS))
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--peers", default=".venv-peers/bin/python", help="Python with laplace-torch")
    options = parser.parse_args()
    path = folder() / "results.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = stored(path)
    done = {tuple(row[name] for name in NOT_FIGURES) for row in rows}
    if not options.page:
        with threadpool_limits(1), warnings.catch_warnings(), path.open("a", encoding="utf-8") as file:
            warnings.simplefilter("ignore")
            file.write("\n")  # an interrupted run may have left half a line
            for repeat in range(options.repeats):
                for task in options.tasks.split(","):
                    for labels in SIZES[task]:
                        for method in options.methods.split(";"):
                            if (task, labels, repeat, method) in done or repeat >= SLOW.get(method, REPEATS):
                                continue
                            row = measured(method, task, labels, repeat, options.peers)
                            rows.append(row)
                            file.write(json.dumps(row) + "\n")
                            file.flush()
                            print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    before = json.loads(RESULT.read_text(encoding="utf-8"))["tasks"] if RESULT.exists() else {}
    result = {"environment": environment(), "tasks": with_earlier(summary(rows), before)}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(result), encoding="utf-8")


if __name__ == "__main__":
    main()
