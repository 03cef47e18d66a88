"""The test problems T0 to T6 of docs/understand/trust.md, and small problems for tests/laws."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

import enkbayes as eb


def logistic_data(D, N, seed):
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(D)
    features = rng.standard_normal((N, D))
    return features, (rng.random(N) < expit(features @ theta)).astype(int)


def relu_data():
    rng = np.random.default_rng(4)
    features = np.maximum(rng.standard_normal((50, 8)) @ rng.standard_normal((8, 70)) * 2, 0).T.copy()
    return features, (features[:, 0] > features[:, 1]).astype(int)


def method_problem(name):
    """Return one of the test problems T0 to T6 (docs/understand/trust.md)."""
    if name == "T5":
        return eb.Problem.create(*relu_data(), 2.0)
    D, N, seed, scale, variance = {
        "T0": (2, 20, 3, 1.0, 1.0),
        "T1": (20, 300, 0, 1.0, 1.0),
        "T2": (20, 300, 0, 1.0, 100.0),
        "T3": (50, 30, 1, 1.0, 2.0),
        "T4": (50, 30, 1, 1.0, 100.0),
        "T6": (2, 5, 2, 3.0, 1000.0),
    }[name]
    features, labels = logistic_data(D, N, seed)
    return eb.Problem.create(scale * features, labels, variance)


NEGATIVE_ELBO = {
    "T1": 125.074003,
    "T2": 159.967025,
    "T3": 21.062470,
    "T4": 26.725570,
    "T5": 32.805508,
    "T6": 4.721525,
}


def weighted_problem(kind, N=400, D=5, seed=0):
    """Binary labels, three classes or real targets, with weights, an intercept and several chunks."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((N, D))
    score = features @ rng.standard_normal(D) + rng.logistic(size=N)
    labels = {"binary": score > 0, "softmax": np.digitize(score, [-1.0, 1.0]), "normal": score}[kind]
    likelihood = eb.Normal(0.7) if kind == "normal" else None
    weights = rng.uniform(0.5, 2, N)
    return eb.Problem.create(features, labels, 2.0, likelihood=likelihood, weights=weights, intercept=10.0, chunk=150)
