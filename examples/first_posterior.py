"""The paper's toy problem: every sampler on the same posterior, one table, one picture.

python examples/first_posterior.py [--out DIR]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.table import Table

import enkbayes as eb

SAMPLERS = {
    "Equilibrium": eb.Equilibrium(),
    "MeanField": eb.MeanField(),
    "Homotopy": eb.Homotopy(),
    "Algorithm 1, ds = .001": eb.TamedHomotopy(ds=1e-3),
    "Algorithm 2, ds = .1": eb.TrotterSampler(ds=0.1),
}


def toy_problem(seed: int = 0) -> eb.Problem:
    """D = 20, N = 300, theta_ref and features standard normal, prior N(0, I)."""
    rng = np.random.default_rng(seed)
    theta_ref, features = rng.standard_normal(20), rng.standard_normal((300, 20))
    labels = rng.random(300) < 1 / (1 + np.exp(-features @ theta_ref))
    return eb.Problem.create(features, labels, 1.0)


def residuals(problem: eb.Problem, sampler: eb.samplers.Sampler) -> list[float]:
    """The natural-gradient residual of the particles' own averages after every step."""
    return [problem.potential_moments(s.ensemble).residual for s in eb.iterate(problem, sampler, particles=100)]


def main() -> None:
    """Print the table, draw the picture, say where it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    problem = toy_problem()
    limit = eb.run(problem, eb.MeanField(tol=1e-9))
    table = Table(title="The paper's toy problem: D = 20, N = 300, J = 100, prior N(0, I)")
    for heading in ("sampler", "steps", "ms", "mean error (sd)", "variance ratio"):
        table.add_column(heading, justify="left" if heading == "sampler" else "right")
    for name, sampler in SAMPLERS.items():
        posterior = eb.run(problem, sampler, particles=100)
        shift = posterior.mean - limit.mean
        error = np.sqrt(shift @ np.linalg.solve(limit.cov, shift) / problem.dim)
        ratio = np.mean(np.diag(posterior.cov) / np.diag(limit.cov))
        table.add_row(
            name, str(posterior.info.steps), f"{1e3 * posterior.info.seconds:.0f}", f"{error:.4f}", f"{ratio:.4f}"
        )
    Console().print(table)
    figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    ax.semilogy(residuals(problem, SAMPLERS["Equilibrium"]), "o-", color="#0072B2", label="Equilibrium")
    trotter = residuals(problem, SAMPLERS["Algorithm 2, ds = .1"])
    ax.semilogy(trotter, color="#D55E00", label="Algorithm 2, ds = .1: ends at its splitting bias")
    ax.set(xlabel="evaluations of the data", ylabel="natural-gradient residual", title="Distance from equilibrium")
    ax.legend(frameon=False)
    picture = out / "first_posterior.png"
    figure.savefig(picture, dpi=150)
    Console().print(f"picture: {picture.resolve()}")


if __name__ == "__main__":
    main()
