"""Compare two ways to predict: the closed-form integral over the fitted Gaussian, and the average over the particles,
before and after polish.

python benchmarks/predictive.py [--seeds 5]

Figures are mean absolute errors of predicted probabilities, averaged over seeds. The reference on breast cancer and
wine is a long NUTS run at the training rows. The reference on the test problems T1 to T6
(docs/understand/trust.md) is a long HMC run at 200 new inputs. Both are stored in
tests/golden. The script writes benchmarks/results/predictive.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import enkbayes as eb
from enkbayes.samplers import Sampler

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from golden.make_nuts import real_problem  # noqa: E402
from golden.make_truth import NAMES, inputs  # noqa: E402
from oracles.problems import method_problem  # noqa: E402

SIZES = (20, 50, 200, 1000)
SWEEPS = 20
SAMPLERS = {"equilibrium": eb.Equilibrium(), "mean-field": eb.MeanField()}
REAL = {"breast cancer": "breast_cancer", "wine": "wine"}


def case(name: str) -> tuple[eb.Problem, np.ndarray, np.ndarray]:
    """Return the problem, inputs (n, D) and the true probabilities of classes 1, 2, ... there, (n, K - 1)."""
    if name in REAL:
        problem = real_problem(REAL[name])
        truth = np.load(ROOT / f"tests/golden/nuts_{REAL[name]}.npz")["proba"]
        return problem, np.asarray(problem.features), truth[:, 1:]
    return method_problem(name), inputs(name), np.load(ROOT / f"tests/golden/truth_{name}.npz")["proba"][:, None]


def errors(name: str, sampler: Sampler, particles: int, seed: int) -> dict[str, float]:
    """Return the mean absolute error of each way to predict."""
    problem, features, truth = case(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small ensembles may not converge
        posterior = eb.run(problem, sampler, particles=particles, seed=seed)
    polished = eb.polish(problem, posterior, SWEEPS, seed=seed)
    ways = {
        "closed form": posterior.predict_proba(features),
        "particle average": posterior.mean_proba(features),
        "polished particle average": polished.mean_proba(features),
        "polished, predict_proba": polished.predict_proba(features),
    }
    return {way: float(np.abs(p[:, 1:] - truth).mean()) for way, p in ways.items()}


def study(seeds: int) -> list[dict[str, Any]]:
    cases = [(n, s, J) for n in (*REAL, *NAMES) for s in SAMPLERS for J in SIZES]
    rows = []
    for name, sampler, particles in track(cases):
        found = [errors(name, SAMPLERS[sampler], particles, seed) for seed in range(seeds)]
        mean = {way: round(float(np.mean([row[way] for row in found])), 5) for way in found[0]}
        rows.append({"data": name, "sampler": sampler, "particles": particles, "parameters": case(name)[0].dim, **mean})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    rows = study(seeds)
    table = Table(title="mean absolute error of predicted probabilities")
    for heading in rows[0]:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=160).print(table)
    result = {"python": platform.python_version(), "seeds": seeds, "sweeps": SWEEPS, "errors": rows}
    (ROOT / "benchmarks/results/predictive.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
