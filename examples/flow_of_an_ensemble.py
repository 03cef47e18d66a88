"""Draw the flow of an ensemble: python examples/flow_of_an_ensemble.py writes docs/images/flow.gif."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter

import enkbayes as eb
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.reproduction.theory import solve_flow

PICTURE = Path(__file__).parents[1] / "docs/images/flow.gif"
FRAMES = 48


def main(path: Path = PICTURE, frames: int = FRAMES) -> None:
    """Solve equation 14 for 60 particles and draw each moment beside the distance to the equilibrium."""
    plt.switch_backend("agg")
    rng = np.random.default_rng(3)
    features = rng.standard_normal((25, 2)) * [1.0, 0.5] + [0.6, 0.3]
    labels = features @ [1.5, -1.0] + 0.5 * rng.logistic(size=25) > 0
    problem = eb.Problem.create(features, labels, 4.0)
    start = eb.Gaussian.isotropic(2, 4.0).whitened(60, np.random.default_rng(0))
    times = np.concatenate([[0.0], np.geomspace(0.02, 8.0, frames - 1)])
    path_of_ensemble = solve_flow(problem, AffineEnsemble.factor(start), list(times))
    end = solve_flow(problem, AffineEnsemble.factor(start), [0.0, 40.0])[-1]
    sd = np.sqrt(np.diag(end.cov))
    far = [np.abs((each.mean - end.mean) / sd).max() for each in path_of_ensemble]
    wide = [np.abs(np.diag(each.cov) / sd**2 - 1).max() for each in path_of_ensemble]

    axis = np.linspace(-5, 7, 120)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    potential = problem.loss(grid) + np.sum(grid**2, 1) / 8
    height = np.exp(potential.min() - potential).reshape(120, 120)

    figure, (plane, curve) = plt.subplots(1, 2, figsize=(7.2, 3.3), dpi=75, layout="constrained")
    plane.contour(axis, axis, height, levels=[0.02, 0.1, 0.3, 0.6, 0.9], colors="0.7", linewidths=1)
    dots = plane.scatter(*start.T, s=10, color="#20639b", zorder=3)
    plane.set(xlim=(-5, 7), ylim=(-5, 5), xlabel="first weight", ylabel="second weight")
    curve.loglog(times[1:], far[1:], color="#20639b", label="mean, in standard deviations")
    curve.loglog(times[1:], wide[1:], color="#ed553b", label="variances, relative")
    curve.set(xlabel="time s", ylim=(1e-4, 100), title="distance to the equilibrium")
    curve.legend(frameon=False, fontsize=8, loc="lower left")
    now = curve.axvline(times[1], color="0.4", linewidth=1)

    def show(k: int) -> None:
        k = min(k, frames - 1)
        dots.set_offsets(path_of_ensemble[k].theta)
        now.set_xdata([max(times[k], times[1])] * 2)
        plane.set_title(f"60 particles at s = {times[k]:.2f}")

    animation = FuncAnimation(figure, show, frames=frames + 12)  # the last picture stays for a while
    path.parent.mkdir(parents=True, exist_ok=True)
    animation.save(path, writer=PillowWriter(fps=10))
    plt.close(figure)


if __name__ == "__main__":
    main(*[Path(name) for name in sys.argv[1:2]])
