"""Measure how reliably the samplers converge from the prior, on 1,000 random problems and a skewed one.

    python benchmarks/step_control.py [--problems 1000] [--out benchmarks/results/step_control.json]

Problems have D 1-30, N 1-500, feature scale 10^U(-2, 1.5) and prior variance 10^U(-2, 3); 30 % are separable, and
J = D+2 ... D+60. The sampler with fixed tau = 0.8 (no acceleration, no blending) shows what step control contributes.
"""

from __future__ import annotations

import argparse
import json
import platform
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.special import expit

import enkbayes as eb
from enkbayes.samplers import Sampler

SAMPLERS = {
    "MeanField": eb.MeanField(tol=1e-5, max_steps=200),
    "Equilibrium": eb.Equilibrium(tol=1e-5, max_steps=200, enough=1.0),  # own averages, the harder case
    "Equilibrium, tau = 0.8": eb.Equilibrium(tau=0.8, tol=1e-5, max_steps=200),
}


def random_problem(seed: int) -> tuple[eb.Problem, int]:
    """Return the seed-th problem of the study and its number of particles."""
    rng = np.random.default_rng((2026, seed))
    D, N = int(rng.integers(1, 31)), int(rng.integers(1, 501))
    scale, variance = 10 ** rng.uniform(-2, 1.5), 10 ** rng.uniform(-2, 3)
    separable, J = rng.random() < 0.3, D + int(rng.integers(2, 61))
    features = scale * rng.standard_normal((N, D))
    logits = features @ rng.standard_normal(D)
    labels = logits > 0 if separable else rng.random(N) < expit(logits)
    return eb.Problem.create(features, labels.astype(int), variance, classes=[0, 1]), J


def random_softmax_problem(seed: int) -> tuple[eb.Problem, int]:
    """Return the seed-th softmax problem: K 3-7, D 1-6, scales and priors as above, and its number of particles."""
    rng = np.random.default_rng((2027, seed))
    K, D, N = int(rng.integers(3, 8)), int(rng.integers(1, 7)), int(rng.integers(5, 201))
    scale, variance = 10 ** rng.uniform(-2, 1.5), 10 ** rng.uniform(-2, 3)
    separable, J = rng.random() < 0.3, D * K + int(rng.integers(2, 61))
    features = scale * rng.standard_normal((N, D))
    logits = features @ rng.standard_normal((D, K)) + (0 if separable else rng.gumbel(size=(N, K)))
    return eb.Problem.create(features, np.argmax(logits, axis=1), variance, classes=range(K)), J


def skewed_problem() -> tuple[eb.Problem, int]:
    """58 heavy-tailed, mostly zero features and 3,000 rows, as in word counts: 200 particles cycle at any fixed tau."""
    rng = np.random.default_rng(58)
    counts = rng.lognormal(0.0, 2.5, (3000, 58)) * (rng.random((3000, 58)) < 0.1)
    features = (counts - counts.mean(axis=0)) / counts.std(axis=0)
    labels = (rng.random(3000) < expit(features @ (3 * rng.standard_normal(58)))).astype(int)
    return eb.Problem.create(features, labels, 100.0, intercept=100.0), 200


def outcome(problem: eb.Problem, J: int, sampler: Sampler) -> dict[str, float]:
    """Run a sampler from the prior without warnings; convergence is part of the outcome."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = eb.run(problem, sampler, particles=J)
    info = posterior.info
    return {
        "finite": float(np.all(np.isfinite(posterior.theta))),
        "converged": float(info.converged),
        "steps": info.steps,
        "blend": info.blend,
        "residual": info.residual,
        "explained": float(info.converged or bool(info.message)),
    }


def summary(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the figures of the table."""
    steps = np.asarray([row["steps"] for row in rows])
    blend = np.asarray([row["blend"] for row in rows])
    return {
        "problems": len(rows),
        "finite": float(np.mean([row["finite"] for row in rows])),
        "converged": float(np.mean([row["converged"] for row in rows])),
        "explained": float(np.mean([row["explained"] for row in rows])),
        "own averages": float(np.mean(blend == 0)),
        "steps, median": float(np.median(steps)),
        "steps, 99 %": float(np.percentile(steps, 99)),
        "steps, most": float(steps.max()),
    }


def study(
    console: Console, title: str, make: Callable[[int], tuple[eb.Problem, int]], size: int
) -> dict[str, dict[str, float]]:
    """Run every sampler on `size` problems, print the table, return its figures."""
    results: dict[str, dict[str, float]] = {}
    for name, sampler in SAMPLERS.items():
        seeds = track(range(size), description=name, console=console)
        results[name] = summary([outcome(*make(seed), sampler) for seed in seeds])
    table = Table(title=f"{size} random problems, {title}, from the prior, to residual 1e-5")
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right")
    for row in next(iter(results.values())):
        table.add_row(row, *(f"{figures[row]:g}" for figures in results.values()))
    console.print(table)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--softmax-problems", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "step_control.json")
    arguments = parser.parse_args()
    console = Console()
    results = study(console, "two classes", random_problem, arguments.problems)
    softmax = study(console, "3 to 7 classes", random_softmax_problem, arguments.softmax_problems)
    skewed = {name: outcome(*skewed_problem(), sampler) for name, sampler in SAMPLERS.items()}
    console.print("58 skewed features, 3,000 rows, J = 200:", skewed)
    environment = {"python": platform.python_version(), "numpy": np.__version__, "enkbayes": eb.__version__}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    document = {"environment": environment, "two classes": results, "softmax": softmax, "skewed features": skewed}
    arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
