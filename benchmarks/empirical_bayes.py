"""Compare the held-out log loss of prior_precision="auto" with the best of a grid of nine precisions.

    python benchmarks/empirical_bayes.py [SET ...] [--repeats 4]

For each data set and each fold of a stratified cross-validation, the script standardises the features, fits the default
classifier with "auto" and with precisions 1e-4 ... 1e4, and averages the held-out log loss over folds. It reports the
ratio of "auto" to the best of the grid, which is chosen on the test data. It reports the same ratio when the prior of
the intercept is chosen too, and when the ELBO replaces the evidence of expectation propagation. Results are written to
benchmarks/results/empirical_bayes.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification, make_moons
from sklearn.metrics import log_loss
from sklearn.model_selection import RepeatedStratifiedKFold
from sklearn.preprocessing import StandardScaler

import enkbayes as eb
from enkbayes.inference.empirical_bayes import PriorSearch, tune_prior

GRID = 10.0 ** np.arange(-4, 5)
RESULTS = Path(__file__).parent / "results" / "empirical_bayes.json"


def digits(first, second):
    X, y = load_digits(return_X_y=True)
    chosen = (y == first) | (y == second)
    return X[chosen], y[chosen]


SETS = {
    "digits 3-8": lambda: digits(3, 8),
    "digits 4-9": lambda: digits(4, 9),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "two moons": lambda: make_moons(200, noise=0.3, random_state=0),
    "sparse signal": lambda: make_classification(
        300, 60, n_informative=5, n_redundant=0, class_sep=1.0, flip_y=0.05, random_state=1
    ),
}


def by_elbo(X, y):
    """Return the precision that maximises the ELBO of the mean-field solution."""
    problem = eb.Problem.create(X, y, 1.0, intercept=100.0)
    _, tuning = tune_prior(problem, search=PriorSearch(most_parameters=0))
    return float(tuning.precisions[0])


def folds(X, y, repeats, splits=5):
    for train, test in RepeatedStratifiedKFold(n_splits=splits, n_repeats=repeats, random_state=0).split(X, y):
        scaler = StandardScaler().fit(X[train])
        yield scaler.transform(X[train]), y[train], scaler.transform(X[test]), y[test]


def study(X, y, *, repeats=1, splits=5, grid=GRID, variants=True, sampler="equilibrium"):
    """Return the log losses, ratios and cost for one data set."""
    auto, both, bound, losses, tunings, seconds = [], [], [], [], [], []
    for train, labels, test, truth in folds(X, y, repeats, splits):

        def loss(precision, train=train, labels=labels, test=test, truth=truth, **kwargs):
            clf = eb.EnsembleClassifier(sampler, prior_precision=precision, random_state=0, **kwargs).fit(train, labels)
            return log_loss(truth, clf.predict_proba(test), labels=clf.classes_), clf

        started = time.perf_counter()
        found = tune_prior(eb.Problem.create(train, labels, 1.0, intercept=100.0))[1]
        seconds.append(time.perf_counter() - started)
        tunings.append(found)
        auto.append(loss(float(found.precisions[0]))[0])
        losses.append([loss(precision)[0] for precision in grid])
        if variants:
            both.append(loss("auto", intercept_precision="auto")[0])
            bound.append(loss(by_elbo(train, labels))[0])
    mean = np.mean(losses, axis=0)
    result = {
        "rows": len(y),
        "features": X.shape[1],
        "classes": len(np.unique(y)),
        "folds": len(auto),
        "log loss of the grid": mean.tolist(),
        "best of the grid": float(mean.min()),
        "at precision": float(grid[int(mean.argmin())]),
        "log loss of auto": float(np.mean(auto)),
        "ratio": float(np.mean(auto) / mean.min()),
        "precisions": [float(t.precisions[0]) for t in tunings],
        "fits, median": float(np.median([t.fits for t in tunings])),
        "converged": float(np.mean([t.converged for t in tunings])),
        "seconds of tuning, median": float(np.median(seconds)),
    }
    if variants:
        result["ratio, intercept chosen too"] = float(np.mean(both) / mean.min())
        result["ratio by ELBO"] = float(np.mean(bound) / mean.min())
    return result


def show(name, result):
    low, high = min(result["precisions"]), max(result["precisions"])
    extra = "".join(f"  {key} {result[key]:.3f}" for key in result if key.startswith("ratio") and key != "ratio")
    print(
        f"{name:14s} ratio {result['ratio']:.3f}  auto {result['log loss of auto']:.4f} at {low:.2g} to {high:.2g}"
        f"  best {result['best of the grid']:.4f} at {result['at precision']:g}"
        f"  {result['fits, median']:g} fits, {result['seconds of tuning, median']:.1f} s{extra}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("sets", nargs="*", choices=[*SETS, []], help="default: all")
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # with wide priors on separable data the sampler misses its tolerance
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in arguments.sets or SETS:
        results[name] = study(*SETS[name](), repeats=arguments.repeats)
        show(name, results[name])
        results["environment"] = {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "cpu": platform.machine(),
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
