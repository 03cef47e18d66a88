"""Which rows to label? `acquire` against random rows, margin sampling and epistemic uncertainty.

    python benchmarks/acquisition.py --development   # prints a table: how the method was chosen
    python benchmarks/acquisition.py                 # results/acquisition.json and docs/results/acquisition.md

with OMP_NUM_THREADS=1, as `make bench-acquisition` sets it.

A pool has 600 unlabelled rows, 20 rows are labelled, and six times the method chooses ten more. Accuracy and NLL are
those of test rows, averaged over the seven fits. Every curve adds a line to a file in the cache ($ENKBAYES_DATA or
~/.cache/enkbayes, folder defaults), so an interrupted run continues. `--minutes` limits the time.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from default_sets import DEVELOPMENT, EVALUATION, load, sizes, split
from environment import environment
from threadpoolctl import threadpool_limits

import enkbayes as eb
from enkbayes.evaluation import metrics
from enkbayes.inference.acquisition import informative_rows
from enkbayes.reproduction.datasets.downloads import cache_folder

HERE = Path(__file__).parent
RESULT = HERE / "results" / "acquisition.json"
PAGE = HERE.parent / "docs" / "results" / "acquisition.md"

POOL, FIRST, BATCH, ROUNDS = 600, 20, 10, 6
REPEATS = 10
LOGIT_VARIANCE = 3.0  # of a typical row under the prior, which does not depend on the labels
SETS = ("adult", "Shuttle", "Vehicle", "Satellite", "digits")
"""The first five sets of the evaluation half, in the order of the hashes of their names, with at least 500 rows for
the pool, at most 200 columns and ten classes, and no class with more than 90 % of the rows."""
CHOSEN_ON = ("spam", "PimaIndiansDiabetes2", "segmentationData", "GermanCredit", "Ionosphere", "BreastCancer")
FIGURES = ("accuracy", "nll", "leverage", "confidence")
RANKINGS = ("confidence", "total uncertainty", "epistemic uncertainty")

Choice = Callable[[Any, Any, int, np.random.Generator], Any]


def _margin(clf: Any, pool: Any, n: int, rng: np.random.Generator) -> Any:
    proba = np.sort(clf.predict_proba(pool), axis=1)
    return np.argsort(proba[:, -1] - proba[:, -2], kind="stable")[:n]


def _random(clf: Any, pool: Any, n: int, rng: np.random.Generator) -> Any:
    return rng.permutation(len(pool))[:n]


def _epistemic(clf: Any, pool: Any, n: int, rng: np.random.Generator) -> Any:
    return np.argsort(-clf.predict_uncertainty(pool).epistemic, kind="stable")[:n]


def _believing(clf: Any, pool: Any, n: int, rng: np.random.Generator) -> Any:
    return informative_rows(clf.sample_proba(pool), n, far_noise=0.0)


def _acquire(clf: Any, pool: Any, n: int, rng: np.random.Generator) -> Any:
    return eb.acquire(clf, pool, n)


METHODS: dict[str, tuple[Choice, int]] = {  # and the number of repetitions
    "random": (_random, REPEATS),
    "margin": (_margin, REPEATS),
    "acquire": (_acquire, REPEATS),
    "epistemic": (_epistemic, REPEATS // 5),
    "acquire, no noise in far logits": (_believing, REPEATS // 5),
}


def fitted(X: Any, y: Any, seed: int) -> Any:
    precision = float(np.mean(np.sum(X**2, axis=1))) / LOGIT_VARIANCE
    return eb.EnsembleClassifier(random_state=seed, prior_precision=precision).fit(X, y)


def curve(name: str, repeat: int, method: str) -> dict[str, Any]:
    """Return mean figures over the rounds, and the areas under the risk-coverage curves of random rows at the end."""
    data = split(name, min(POOL, sizes(name)[-1]), repeat)
    rng = np.random.default_rng((repeat, 1))
    labelled = _first(data.y, rng)
    scale = np.mean(np.sum(data.X**2, axis=1))
    rows: list[dict[str, float]] = []
    begun = time.process_time()
    for number in range(ROUNDS + 1):
        clf = fitted(data.X[labelled], data.y[labelled], repeat)
        score = metrics.score(clf.predict_proba(data.X_test), data.y_test)
        row = {"accuracy": score.accuracy, "nll": score.nll}
        if number < ROUNDS:
            others = np.setdiff1d(np.arange(len(data.y)), labelled)
            new = others[METHODS[method][0](clf, data.X[others], BATCH, rng)]
            row["leverage"] = float(np.median(np.sum(data.X[new] ** 2, axis=1)) / scale)
            row["confidence"] = float(np.mean(clf.predict_proba(data.X[new]).max(axis=1)))
            labelled = np.concatenate([labelled, new])
        rows.append(row)
    seconds = time.process_time() - begun
    found: dict[str, Any] = {"set": name, "repeat": repeat, "method": method, "seconds": round(seconds, 3)}
    found |= {figure: float(np.mean([row[figure] for row in rows if figure in row])) for figure in FIGURES}
    if method == "random":
        found["areas"] = risk_coverage(clf, data.X_test, data.y_test)
    return found


def _first(y: Any, rng: np.random.Generator) -> Any:
    """Return FIRST random rows, two of every class among them."""
    order = rng.permutation(len(y))
    pairs = np.concatenate([order[y[order] == k][:2] for k in range(int(y.max()) + 1)])
    return np.concatenate([pairs, order[~np.isin(order, pairs)]])[:FIRST]


def risk_coverage(clf: Any, X: Any, y: Any) -> dict[str, float]:
    """Return the mean error rate over all coverages when the most uncertain rows are rejected first."""
    uncertainty = clf.predict_uncertainty(X)
    wrong = clf.predict(X) != y
    scores = (-uncertainty.confidence, uncertainty.total, uncertainty.epistemic)
    accepted = np.arange(1, len(y) + 1)
    return {
        name: float(np.mean(np.cumsum(wrong[np.argsort(score, kind="stable")]) / accepted))
        for name, score in zip(RANKINGS, scores, strict=True)
    }


def jobs(names: tuple[str, ...]) -> Iterator[tuple[str, int, str]]:
    for repeat in range(REPEATS):
        for name in names:
            for method, (_, repeats) in METHODS.items():
                if repeat < repeats:
                    yield name, repeat, method


def stored(path: Path) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Return the complete lines of the file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {(row["set"], row["repeat"], row["method"]): row for row in rows}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return, for every method, means over sets and repetitions, and paired differences to random and margin."""
    found = {(row["set"], row["repeat"], row["method"]): row for row in rows}
    methods = {}
    for method in METHODS:
        own = [row for row in rows if row["method"] == method]
        if not own:
            continue
        figures = {figure: float(np.mean([row[figure] for row in own])) for figure in (*FIGURES, "seconds")}
        for other in ("random", "margin"):
            for figure in ("accuracy", "nll"):
                figures[f"{figure} minus {other}'s"] = _paired(found, method, other, figure)
        methods[method] = figures | {"curves": len(own)}
    return methods


def _paired(found: dict[Any, Any], method: str, other: str, figure: str) -> dict[str, Any]:
    """Return the mean difference over sets, its standard error over repetitions, and the differences of the sets."""
    by_set: dict[str, list[float]] = {}
    for (name, repeat, own), row in found.items():
        if own == method and (name, repeat, other) in found:
            by_set.setdefault(name, []).append(row[figure] - found[name, repeat, other][figure])
    means = {name: float(np.mean(values)) for name, values in by_set.items()}
    spread = [np.var(values, ddof=1) / len(values) if len(values) > 1 else np.nan for values in by_set.values()]
    return {
        "mean": float(np.mean(list(means.values()))),
        "error": float(np.sqrt(np.sum(spread)) / max(len(spread), 1)),
        "sets": means,
    }


def areas(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the area under the risk-coverage curve by ranking, and its difference to that of confidence."""
    found = [row["areas"] for row in rows if "areas" in row]
    values = {name: np.array([row[name] for row in found]) for name in RANKINGS}
    least = values["confidence"]
    return {
        name: {
            "area": float(value.mean()),
            "difference": float(np.mean(value - least)),
            "error": float(np.std(value - least, ddof=1) / np.sqrt(len(value))),
        }
        for name, value in values.items()
    }


def page(result: dict[str, Any]) -> str:
    template = jinja2.Template((HERE / "acquisition.md.jinja").read_text(encoding="utf-8"), keep_trailing_newline=True)
    return template.render(result=result, chosen_on=CHOSEN_ON, pool=POOL, first=FIRST, batch=BATCH, rounds=ROUNDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--development", action="store_true", help="on the sets on which the method was chosen")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    options = parser.parse_args()
    names, half = (CHOSEN_ON, DEVELOPMENT) if options.development else (SETS, EVALUATION)
    path = cache_folder() / "defaults" / f"acquisition-{'development' if options.development else 'evaluation'}.jsonl"
    until = time.time() + 60 * options.minutes
    done = stored(path)
    load(names[0])  # creates the folder
    with threadpool_limits(1), warnings.catch_warnings(), path.open("a", encoding="utf-8") as file:
        warnings.simplefilter("ignore")
        file.write("\n")  # an interrupted run may have left half a line
        for key in jobs(names):
            if key not in done and time.time() < until:
                done[key] = curve(*key)
                file.write(json.dumps(done[key]) + "\n")
                file.flush()
    rows = [row for row in done.values() if row["set"] in half]
    methods = summary(rows)
    for method, figures in methods.items():
        print(method, json.dumps(figures, indent=1))
    print(json.dumps(areas(rows), indent=1))
    if not options.development:
        result = {"environment": environment(), "sets": list(names), "methods": methods, "areas": areas(rows)}
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(result), encoding="utf-8")


if __name__ == "__main__":
    main()
