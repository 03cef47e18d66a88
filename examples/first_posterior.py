"""The toy problem of the paper: every sampler on the same posterior, with a table and a figure.

python examples/first_posterior.py [--out DIR]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import enkbayes as eb
from enkbayes.evaluation import plots

SAMPLERS = {
    "Equilibrium": eb.Equilibrium(),
    "MeanField": eb.MeanField(),
    "Homotopy": eb.Homotopy(),
    "Algorithm 1, ds = .001": eb.TamedHomotopy(ds=1e-3),
    "Algorithm 2, ds = .1": eb.TrotterSampler(ds=0.1),
}


def toy_problem(seed: int = 0) -> eb.Problem:
    """Return the problem: D = 20, N = 300, theta_ref and features standard normal, prior N(0, I)."""
    rng = np.random.default_rng(seed)
    theta_ref, features = rng.standard_normal(20), rng.standard_normal((300, 20))
    labels = rng.random(300) < 1 / (1 + np.exp(-features @ theta_ref))
    return eb.Problem.create(features, labels, 1.0)


def draw(problem: eb.Problem) -> Figure:
    """Draw the residual of two samplers after every step, computed from averages over the particles."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    ax = figure.subplots()
    drawn = {
        "Equilibrium": ("equilibrium", ""),
        "Algorithm 2, ds = .1": ("trotter", ": splitting error remains"),
    }
    for sampler, (name, remark) in drawn.items():
        states = eb.iterate(problem, SAMPLERS[sampler], particles=100)
        plots.residual_trace(ax, plots.Trace.of(states, problem), name=name, label=sampler + remark)
    ax.set_title("Distance from equilibrium")
    ax.legend(frameon=False)
    return figure


def main() -> None:
    """Print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    problem = toy_problem()
    limit = eb.run(problem, eb.MeanField(tol=1e-9))
    table = Table(title="The toy problem of the paper: D = 20, N = 300, J = 100, prior N(0, I)")
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
    path = out / "first_posterior.png"
    draw(problem).savefig(path, dpi=150)
    Console().print(f"figure: {path.resolve()}")


if __name__ == "__main__":
    main()
