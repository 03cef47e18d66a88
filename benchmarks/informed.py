"""Measure predictions of ensembles that are much smaller than the model against the mean-field solution of full rank.

    python benchmarks/informed.py        # prints the tables and writes benchmarks/results/informed.json

"tasks" contains the mean absolute error of predicted probabilities on held-out rows, median over 5 seeds:
- random: J particles of the prior, which stay in J - 1 directions (the paper's ensemble, exact flow);
- default: `run(problem, particles=J)`;
- rank J - 1: `MeanField(rank=J - 1)`, a structured covariance with as many free directions as the particles span;
- Laplace: MAP estimate, full Hessian, exact Gaussian predictive.

"advice" contains the error that `advise` expects of the particles' average, and the measured error.

"pairs" contains the distance of the mean of `Equilibrium` with J = 4 P particles from the mean-field limit, in
posterior standard deviations (root mean square over directions, mean over seeds). It compares whitened independent
draws with pairs mean +- x.
"""

from __future__ import annotations

import json
import platform
import sys
import warnings
from pathlib import Path

import numpy as np
from sides import PRIOR, logistic, network
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import scale

import enkbayes as eb
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.inference.advice import Spectrum
from enkbayes.solvers.laplace import laplace
from enkbayes.solvers.map_estimate import map_estimate

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracles.problems import method_problem

SEEDS = range(5)
RESULTS = Path(__file__).parent / "results" / "informed.json"


def trained_layer(width: int, classes: int, seed: int = 0):
    """Return digits as features of the hidden layer of a network trained on them; two classes are odd and even."""
    X, y = load_digits(return_X_y=True)
    X, y = X / 16, y % 2 if classes == 2 else y
    train, test, y_train, _ = train_test_split(X, y, test_size=0.33, random_state=seed, stratify=y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 60 epochs are enough here
        net = MLPClassifier((width,), alpha=1e-4, random_state=seed, max_iter=60).fit(train, y_train)
    hidden = [np.maximum(x @ net.coefs_[0] + net.intercepts_[0], 0) for x in (train, test)]
    return hidden[0], y_train, hidden[1]


def random_layer(width: int, classes: int, seed: int = 0):
    """Return digits as random ReLU features."""
    X, y = load_digits(return_X_y=True)
    X, y = (X - X.mean(axis=0)) / 16, y % 2 if classes == 2 else y
    features = np.maximum(X @ np.random.default_rng(seed).standard_normal((64, width)), 0)
    train, test, y_train, _ = train_test_split(features, y, test_size=0.33, random_state=seed, stratify=y)
    return train, y_train, test


def errors(problem, test, sizes, ranks):
    """Return the error of every method, for each number of particles or rank."""
    full = eb.run(problem, eb.MeanField(), particles=problem.dim + 2)
    truth = full.predict_proba(test)

    def median(fit, seeds=SEEDS):
        return float(np.median([np.abs(fit(seed).predict_proba(test) - truth).mean() for seed in seeds]))

    def structured(rank):
        return lambda seed: eb.run(problem, eb.MeanField(rank=rank), particles=10, seed=seed)

    rows = {}
    for J in sizes:
        rows[J] = {
            "random": median(
                lambda seed, J=J: eb.run(problem, theta=problem.prior.whitened(J, np.random.default_rng(seed)))
            ),
            "default": median(lambda seed, J=J: eb.run(problem, particles=J, seed=seed), SEEDS[:1]),
            "rank J - 1": median(structured(J - 1)),
        }
        print("  J", J, {name: round(value, 5) for name, value in rows[J].items()}, flush=True)
    mean_logits, V = problem.model.gaussian_logits(test, laplace(problem, map_estimate(problem).theta))
    result = {
        "parameters": problem.dim,
        "informed directions": Spectrum.of(problem).informed,
        "Laplace": float(np.abs(problem.likelihood.predictive(mean_logits, V=V) - truth).mean()),
        "particles": rows,
    }
    if ranks:
        result["rank"] = {rank: median(structured(rank), SEEDS[:3]) for rank in ranks}
    print("  Laplace", round(result["Laplace"], 5), "rank", result.get("rank"), flush=True)
    return result


def advice():
    """Return the expected and the measured error of the particles' average."""
    cancer, wine = load_breast_cancer(return_X_y=True), load_wine(return_X_y=True)
    layer, labels, _ = trained_layer(256, 2)
    sets = {
        "breast cancer": (scale(cancer[0]), cancer[1]),
        "wine": (scale(wine[0]), wine[1]),
        "digits": (layer, labels),
    }
    result = {}
    for name, (X, y) in sets.items():
        problem = eb.Problem.create(X, y, 1.0, intercept=100.0)
        spectrum = Spectrum.of(problem)
        result[name] = {}
        for J in (5, 20, 60, 200):
            fits = [eb.run(problem, particles=J, seed=seed) for seed in SEEDS]
            measured = [np.abs(f.sample_proba(X).mean(axis=0) - f.predict_proba(X)).mean() for f in fits]
            result[name][J] = {"expected": spectrum.error(J), "measured": float(np.median(measured))}
        print(name, result[name], flush=True)
    return result


def pairs():
    """Return the distances to the mean-field limit."""
    cancer, wine = load_breast_cancer(return_X_y=True), load_wine(return_X_y=True)
    layer = network(1_000, 64)
    problems = {
        "network features": eb.Problem.create(layer, logistic(layer, 0), PRIOR),
        "breast cancer": eb.Problem.create(scale(cancer[0]), cancer[1], 1.0, intercept=100.0),
        "wine": eb.Problem.create(scale(wine[0]), wine[1], 1.0, intercept=100.0),
        **{name: method_problem(name) for name in ("T1", "T2", "T3")},
    }
    result = {}
    for name, problem in problems.items():
        prior, J = problem.prior, 4 * problem.dim
        limit = eb.run(problem, eb.MeanField(tol=1e-8), particles=problem.dim + 2).ensemble

        def distance(seed, problem=problem, limit=limit, **start):
            mean = eb.run(problem, eb.Equilibrium(), seed=seed, **start).ensemble.mean
            return float(np.sqrt(np.mean(np.linalg.solve(limit.basis, mean - limit.mean) ** 2)))

        def independent(seed, shape=(J, problem.dim)):
            return AffineEnsemble.factor(np.random.default_rng(seed).standard_normal(shape)).points

        result[name] = {
            "rows": problem.size,
            "parameters": problem.dim,
            "particles": J,
            "independent": float(
                np.mean([distance(s, theta=prior.mean + prior.unwhiten(independent(s))) for s in SEEDS])
            ),
            "pairs": float(np.mean([distance(s, particles=J) for s in SEEDS])),
        }
        print(name, result[name], flush=True)
    return result


def main() -> None:
    tasks = {
        "digits, trained layer of 256": (trained_layer(256, 2), (5, 20, 80), ()),
        "digits, 400 random ReLU features": (random_layer(400, 2), (5, 20, 80), ()),
        "digits, ten classes, trained layer of 30": (trained_layer(30, 10), (20, 80), (10, 40, 160)),
    }
    results = {}
    for name, ((train, labels, test), sizes, ranks) in tasks.items():
        print(name, flush=True)
        results[name] = errors(eb.Problem.create(train, labels, 2.0), test, sizes, ranks)
    environment = {"python": platform.python_version(), "numpy": np.__version__, "enkbayes": eb.__version__}
    found = {"environment": environment, "tasks": results, "advice": advice(), "pairs": pairs()}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
