"""The data of the files in format 1, and the runs whose checkpoints are among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import enkbayes as eb

FEW = 12  # particles
rng = np.random.default_rng(16)
X = rng.standard_normal((60, 3))
SCORE = X @ [1.0, -1.0, 0.5] + 0.7 * rng.standard_normal(60)
LABELS, GRADES = (SCORE > 0).astype(int), np.digitize(SCORE, [-0.6, 0.6])
NEW = rng.standard_normal((8, 3))


def logits(theta: Any) -> Any:
    """Return nonlinear logits (n, J) of the rows `NEW`."""
    return np.tanh(NEW @ theta.T)


NONLINEAR = eb.Problem.nonlinear(lambda theta: np.tanh(X @ theta.T), LABELS, eb.Gaussian.isotropic(3))


def linear(labels: Any, features: Any = X) -> Callable[[], eb.Problem]:
    """Return a function that makes the problem of some labels."""
    return lambda: eb.Problem.create(features, labels, 2.0, intercept=10.0)


def wide(labels: Any) -> Callable[[], eb.Problem]:
    """Return a function that makes a problem of separable classes under a wide prior, where runs are long."""
    return lambda: eb.Problem.create(3 * X, labels, 1000.0, intercept=1000.0)


@dataclass(frozen=True)
class Case:
    """A run that was stopped after a number of steps."""

    problem: Callable[[], eb.Problem]
    sampler: Any
    stop: int
    particles: int = FEW


CHECKPOINTS = {
    "newton": Case(linear(LABELS), eb.Equilibrium(), 0),
    "warm": Case(linear(LABELS), eb.Equilibrium(), 3),
    "own_averages": Case(linear(LABELS), eb.Equilibrium(), 6),
    "softmax": Case(linear(GRADES), eb.Equilibrium(), 8, particles=30),
    "blended": Case(wide((X[:, 0] > 0).astype(int)), eb.Equilibrium(), 65, particles=8),
    "few": Case(linear(LABELS), eb.Equilibrium(), 3, particles=4),
    "few_softmax": Case(linear(GRADES), eb.Equilibrium(), 4, particles=5),
    "float32": Case(linear(LABELS, X.astype(np.float32)), eb.Equilibrium(), 5),
    "nonlinear": Case(lambda: NONLINEAR, eb.Equilibrium(), 30),
    "tau": Case(linear(LABELS), eb.Equilibrium(tau=0.3), 5),
    "batch": Case(linear(LABELS), eb.Equilibrium(batch=20, max_steps=12), 5),
    "mean_field_newton": Case(linear(GRADES), eb.MeanField(), 1),
    "mean_field": Case(linear(LABELS), eb.MeanField(), 5),
    "mean_field_refined": Case(wide(np.digitize(X[:, 0], [-0.6, 0.6])), eb.MeanField(), 70),
    "mean_field_few": Case(linear(GRADES), eb.MeanField(), 3, particles=4),
    "structured": Case(linear(GRADES), eb.MeanField(rank=2, tol=1e-3), 3, particles=8),
    "structured_second_search": Case(linear(LABELS), eb.MeanField(rank=2), 4, particles=8),
    "homotopy": Case(linear(GRADES), eb.Homotopy(steps=8), 3, particles=20),
    "homotopy_batch": Case(linear(LABELS), eb.Homotopy(steps=5, batch=30), 2),
    "tamed_homotopy": Case(linear(LABELS), eb.TamedHomotopy(ds=0.1), 4),
    "tamed_diagonal": Case(linear(LABELS), eb.TamedHomotopy(ds=0.1, diagonal=True), 4),
    "trotter": Case(linear(LABELS), eb.TrotterSampler(ds=0.1), 10),
    "stochastic": Case(linear(LABELS), eb.StochasticSampler(max_steps=20), 7),
}
"""By name: one for every kind of control, and for every part of a run."""
