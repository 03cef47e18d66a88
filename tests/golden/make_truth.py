"""Regenerate the reference results on the test problems T1 to T6 by long runs of Hamiltonian Monte Carlo.

    python tests/golden/make_truth.py          some minutes

Each file holds mean and covariance of the posterior and its predictive probabilities at the `inputs` of the problem,
with Monte Carlo errors from the chains, which are independent. The fitted Gaussian gives starts and mass matrix only:
chains move in its whitened coordinates z, and Metropolis tests make them exact. Nothing here is the package's own
sampling code, which is tested against these files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

import enkbayes as eb
from oracles.problems import method_problem

FOLDER = Path(__file__).parent
NAMES = ("T1", "T2", "T3", "T4", "T5", "T6")
CHAINS, BURN_IN, KEPT = 1000, 300, 1000
TRAJECTORY = {"T4": (0.07, 22), "T5": (0.15, 10)}  # step and leaps, where (0.2, 8) is too long for narrow corners
Vector = np.ndarray[Any, Any]


def inputs(name: str) -> Vector:
    """Return 200 new inputs: half from the distribution of the features, half three times as far from 0."""
    rng = np.random.default_rng(100)
    if name == "T5":
        features = np.maximum(rng.standard_normal((200, 8)) @ rng.standard_normal((8, 50)) * 2, 0)
    else:
        features = rng.standard_normal((200, method_problem(name).dim)) * (3 if name == "T6" else 1)
    features[100:] *= 3
    return np.asarray(features)


class Potential:
    """Minus the log posterior and its gradient at z (J, r), theta = mean + basis z."""

    def __init__(self, problem: eb.Problem, fitted: eb.AffineEnsemble) -> None:
        self.problem, self.fitted = problem, fitted
        self.features, self.targets = problem.features, np.asarray(problem.targets)

    def theta(self, z: Vector) -> Vector:
        return np.asarray(self.fitted.mean + z @ self.fitted.basis.T)

    def value(self, z: Vector) -> Vector:
        return np.asarray(self.problem.loss(self.theta(z)) - self.problem.prior.log_density(self.theta(z)))

    def gradient(self, z: Vector) -> Vector:
        theta, prior = self.theta(z), self.problem.prior
        g = (expit(theta @ self.features.T) - self.targets) @ self.features + (theta - prior.mean) / prior.cov
        return np.asarray(g @ self.fitted.basis)


def hmc(potential: Potential, z: Vector, size: float, leaps: int, rng: np.random.Generator) -> tuple[Vector, float]:
    """Return z (J, r) after one trajectory of every chain, and the share accepted."""
    step = size * rng.uniform(0.8, 1.2, size=(len(z), 1))
    momentum = rng.standard_normal(z.shape)
    before = potential.value(z) + np.sum(momentum**2, axis=1) / 2
    new, p = z, momentum - step / 2 * potential.gradient(z)
    for leap in range(leaps):
        new = new + step * p
        p = p - (step if leap + 1 < leaps else step / 2) * potential.gradient(new)
    after = potential.value(new) + np.sum(p**2, axis=1) / 2
    accept = rng.standard_exponential(len(z)) > after - before
    return np.where(accept[:, None], new, z), float(accept.mean())


def sample(name: str) -> dict[str, Vector]:
    """Return moments and predictive probabilities."""
    problem = method_problem(name)
    potential = Potential(problem, eb.run(problem, eb.MeanField()).ensemble)
    rng = np.random.default_rng(11)
    z = rng.standard_normal((CHAINS, potential.fitted.rank))
    first, square, second, proba, accepted = 0.0, 0.0, 0.0, 0.0, 0.0
    for trajectory in range(BURN_IN + KEPT):
        z, share = hmc(potential, z, *TRAJECTORY.get(name, (0.2, 8)), rng)
        if trajectory >= BURN_IN:
            first, square, second = first + z / KEPT, square + z**2 / KEPT, second + z.T @ z / (CHAINS * KEPT)
            proba = proba + expit(inputs(name) @ potential.theta(z).T) / KEPT
            accepted += share / KEPT
    centre, basis = first.mean(axis=0), potential.fitted.basis
    cov = basis @ (second - np.outer(centre, centre)) @ basis.T
    return {
        "mean": potential.theta(centre),
        "cov": cov,
        "proba": proba.mean(axis=1),
        "mean_error": np.max(first.std(axis=0) / np.sqrt(np.diag(second))) / CHAINS**0.5,  # in posterior sds
        "variance_error": np.max(square.std(axis=0) / np.diag(second)) / CHAINS**0.5,
        "proba_error": np.mean(proba.std(axis=1)) / CHAINS**0.5,
        "accepted": np.asarray(accepted),
    }


def main() -> None:
    for name in sys.argv[1:] or NAMES:
        golden = sample(name)
        np.savez_compressed(FOLDER / f"truth_{name}.npz", **golden)
        quality = (f"{key} {float(golden[key]):.5f}" for key in golden if golden[key].ndim == 0)
        sys.stdout.write(f"{name}: {', '.join(quality)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
