"""Compare ten batches of `partial_fit` with one `fit`: mean absolute difference of predicted probabilities.

python benchmarks/sequential.py [--orders 5]
"""

from __future__ import annotations

import argparse

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=5)
    orders = parser.parse_args().orders
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
