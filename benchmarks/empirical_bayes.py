"""prior_precision="auto" against the best of nine fixed precisions, by negative log-likelihood on held-out rows.

    python benchmarks/empirical_bayes.py [--splits 3]      # writes benchmarks/results/empirical_bayes.json

The best of nine is chosen on the test rows themselves, so it is a bar that no honest choice is expected to beat.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification, make_moons
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import enkbayes as eb

GRID = tuple(float(p) for p in np.logspace(-4, 4, 9))
RESULTS = Path(__file__).parent / "results" / "empirical_bayes.json"


def digits_pair(a: int, b: int):
    X, y = load_digits(return_X_y=True)
    rows = (y == a) | (y == b)
    return X[rows] / 16, y[rows]


def moons():
    """Two moons in a cubic polynomial's features."""
    X, y = make_moons(200, noise=0.25, random_state=0)
    columns = [X[:, 0] ** i * X[:, 1] ** j for i in range(4) for j in range(4 - i) if i + j > 0]
    return np.column_stack(columns), y


DATA = {
    "digits 3 and 8": lambda: digits_pair(3, 8),
    "digits 4 and 9": lambda: digits_pair(4, 9),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "two moons, cubic": moons,
    "sparse signal": lambda: make_classification(300, 40, n_informative=4, n_redundant=0, flip_y=0.1, random_state=0),
}


def losses(name: str, seed: int) -> dict[str, float]:
    """Held-out loss of every precision of the grid and of the chosen one."""
    X, y = DATA[name]()
    train, test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=seed, stratify=y)
    if not name.startswith("digits"):
        scaler = StandardScaler().fit(train)
        train, test = scaler.transform(train), scaler.transform(test)

    def loss(precision):
        clf = eb.EnsembleClassifier("mean-field", prior_precision=precision, random_state=0).fit(train, y_train)
        return float(log_loss(y_test, clf.predict_proba(test))), clf

    grid = {f"{p:g}": loss(p)[0] for p in GRID}
    auto, clf = loss("auto")
    return {
        "best": min(grid.values()),
        "auto": auto,
        "precision": clf.prior_precision_,
        "fits": clf.tuning_.fits,
    } | grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=3)
    splits = parser.parse_args().splits
    results = {}
    for name in DATA:
        runs = [losses(name, seed) for seed in range(splits)]
        mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        mean["best"] = min(mean[f"{p:g}"] for p in GRID)
        results[name] = mean
        worse = mean["auto"] / mean["best"] - 1
        print(
            f"{name}: auto {mean['auto']:.4f} best {mean['best']:.4f} ({worse:+.1%}), {mean['fits']:.0f} fits",
            flush=True,
        )
    environment = {"python": platform.python_version(), "numpy": np.__version__, "enkbayes": eb.__version__}
    RESULTS.write_text(json.dumps({"environment": environment, "splits": splits, "data": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
