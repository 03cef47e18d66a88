"""Compare ten batches of `partial_fit` with one `fit`: mean absolute difference of predicted probabilities. And, with
--drift, ways to forget: mean log loss of batches that are predicted before they are learned.

python benchmarks/sequential.py [--orders 5]
python benchmarks/sequential.py --drift [--seeds 3] [--out benchmarks/results/drift.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.preprocessing import StandardScaler

import enkbayes as eb


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised features and labels; digits are odd or even, with pixels / 16."""
    if name == "digits, odd or even":
        features, labels = load_digits(return_X_y=True)
        return features / 16, labels % 2
    load = {"breast cancer": load_breast_cancer, "wine": load_wine, "iris": load_iris}[name]
    features, labels = load(return_X_y=True)
    return StandardScaler().fit_transform(features), labels


def difference(name: str, order: np.ndarray) -> float:
    """Return the difference between ten batches in this order of the rows and one fit."""
    features, labels = data(name)
    whole = eb.EnsembleClassifier(random_state=0).fit(features, labels)
    parts = eb.EnsembleClassifier(random_state=0)
    for rows in np.array_split(order, 10):
        parts.partial_fit(features[rows], labels[rows], classes=np.unique(labels))
    return float(np.abs(whole.predict_proba(features) - parts.predict_proba(features)).mean())


Rows = tuple[np.ndarray, np.ndarray]
BATCH, WINDOW, SIZE, FEATURES = 50, 500, 2000, 10
STREAMS = ("no drift", "sudden", "gradual", "rotating", "digits, no drift", "digits, another question")


def stream(name: str, seed: int) -> Rows:
    """Return features and labels in the order in which they arrive; weights of logistic labels move as the name says.

    On digits, the question changes in the middle from "odd?" to "at least five?".
    """
    rng = np.random.default_rng(seed)
    if name.startswith("digits"):
        features, digit = load_digits(return_X_y=True)
        order = rng.permutation(len(digit))
        features, digit = features[order] / 16, digit[order]
        later = (np.arange(len(digit)) >= len(digit) // 2) & (name != "digits, no drift")
        return features, np.where(later, digit >= 5, digit % 2 == 1).astype(int)
    features, (first, second) = rng.standard_normal((SIZE, FEATURES)), rng.standard_normal((2, 1, FEATURES))
    t = np.linspace(0, 1, SIZE)[:, None]
    share = {"no drift": 0 * t, "sudden": 1.0 * (t >= 0.5), "gradual": t, "rotating": 0 * t}[name]
    weights = (1 - share) * first + share * second
    if name == "rotating":
        weights = np.cos(2 * np.pi * t) * first + np.sin(2 * np.pi * t) * second
    return features, (np.sum(features * weights, axis=1) + rng.logistic(size=SIZE) > 0).astype(int)


def batches(features: np.ndarray, labels: np.ndarray) -> Iterator[tuple[Rows, Rows]]:
    """Yield every batch but the first, and the rows before it."""
    for begin in range(BATCH, len(labels), BATCH):
        now = slice(begin, begin + BATCH)
        yield (features[now], labels[now]), (features[:begin], labels[:begin])


def classifier() -> eb.EnsembleClassifier:
    return eb.EnsembleClassifier("mean-field", particles=20, prior_precision=1.0, random_state=0)


def losses(clf: eb.EnsembleClassifier, rows: Rows) -> np.ndarray:
    proba = clf.predict_proba(rows[0])
    return -np.log(proba[np.arange(len(rows[1])), rows[1]])


def by_window(features: np.ndarray, labels: np.ndarray) -> float:
    """Return the log loss of refits to the last rows."""
    found = [losses(classifier().fit(x[-WINDOW:], y[-WINDOW:]), now) for now, (x, y) in batches(features, labels)]
    return float(np.concatenate(found).mean())


def by_batches(forget: float | str) -> Callable[[np.ndarray, np.ndarray], float]:
    """Return the log loss of `partial_fit` with a forgetting factor."""

    def score(features: np.ndarray, labels: np.ndarray) -> float:
        clf, found = classifier().partial_fit(features[:BATCH], labels[:BATCH], classes=[0, 1]), []
        for now, _ in batches(features, labels):
            found.append(losses(clf, now))
            clf.partial_fit(*now, forget=forget)
        return float(np.concatenate(found).mean())

    return score


WAYS = {
    "forget=1": by_batches(1.0),
    "forget=0.95": by_batches(0.95),
    "forget=0.8": by_batches(0.8),
    'forget="auto"': by_batches("auto"),
    f"refit, last {WINDOW} rows": by_window,
}


def drift(seeds: int, out: Path | None) -> None:
    """Print and store the table of ways to forget."""
    found: dict[str, dict[str, float]] = {}
    table = Table(title="mean log loss of the next batch")
    for heading in ("stream", *WAYS):
        table.add_column(heading)
    for name in track(STREAMS):
        data_of = [stream(name, 100 + seed) for seed in range(seeds)]
        found[name] = {way: round(float(np.mean([score(*d) for d in data_of])), 4) for way, score in WAYS.items()}
        table.add_row(name, *(f"{x:.3f}" for x in found[name].values()))
    Console().print(table)
    if out is not None:
        settings = {"seeds": seeds, "batch": BATCH, "window": WINDOW, "rows": SIZE, "features": FEATURES}
        out.write_text(json.dumps({"settings": settings, "log loss": found}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument("--drift", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    drift(arguments.seeds, arguments.out) if arguments.drift else against_one_fit(arguments.orders)


def against_one_fit(orders: int) -> None:
    """Print the table of ten batches against one fit."""
    table = Table(title="ten batches against one fit, mean absolute difference of probabilities")
    for heading in ("data", "mean over random orders", "worst random order", "rows sorted by class"):
        table.add_column(heading)
    for name in track(("breast cancer", "wine", "digits, odd or even", "iris")):
        labels = data(name)[1]
        values = [difference(name, np.random.default_rng(i).permutation(len(labels))) for i in range(orders)]
        by_class = difference(name, np.argsort(labels, kind="stable"))
        table.add_row(name, f"{np.mean(values):.4f}", f"{np.max(values):.4f}", f"{by_class:.4f}")
    Console().print(table)


if __name__ == "__main__":
    main()
