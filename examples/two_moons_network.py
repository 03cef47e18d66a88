"""Two moons: the confidence of a trained network, of its last-layer posterior, and of its whole-network posterior.

The paper's small network (2-20-20-50-1, ReLU) trains on 70 of 100 points of make_moons(noise=.2); the other 30 are the
test set. The optimiser is full-batch SGD with momentum .9 and weight decay 5e-4. Its learning rate is .05 instead of
the paper's 3e-4, so 2000 steps, a few seconds, bring the mean training loss below .002. Run it with

    python examples/two_moons_network.py --out two_moons

It draws confidence maps near the data and zoomed out by ten, and prints the accuracy and the mean confidence far away.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import make_moons
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from enkbayes.evaluation import plots
from enkbayes.nets import BayesianHead, BayesianNetwork

Predict = Callable[[torch.Tensor], torch.Tensor]
WIDTHS = (2, 20, 20, 50, 1)
FAR = 30.0


def train(x: torch.Tensor, y: torch.Tensor, steps: int) -> nn.Module:
    """Return the trained network."""
    torch.manual_seed(0)
    parts = [part for a, b in pairwise(WIDTHS) for part in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*parts[:-1]).to(x.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.to(x.dtype)).backward()
        optimizer.step()
    return model.eval()


def circle(radius: float, size: int = 360) -> torch.Tensor:
    """Return points (size, 2) on a circle around the moons."""
    angle = torch.linspace(0, 2 * torch.pi, size + 1, dtype=torch.float64)[:-1]
    return torch.tensor([0.5, 0.25]) + radius * torch.stack([torch.cos(angle), torch.sin(angle)], dim=1)


def draw(methods: dict[str, Predict], x: torch.Tensor, y: torch.Tensor, path: Path) -> None:
    """Draw the confidence of every method: near the data above, zoomed out below."""

    def of_arrays(predict: Predict) -> Callable[[np.ndarray], torch.Tensor]:
        return lambda points: predict(torch.as_tensor(points))

    maps = {name: of_arrays(predict) for name, predict in methods.items()}
    plots.confidence_figure(maps, x, y, zoom=10.0).savefig(path, dpi=130)


def main() -> None:
    """Train, fit, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("two_moons"), help="folder for the picture")
    parser.add_argument("--steps", type=int, default=2000, help="number of training steps")
    parser.add_argument("--rank", type=int, default=20, help="number of directions of the whole-network posterior")
    parser.add_argument("--particles", type=int, default=100, help="number of particles of the whole-network posterior")
    parser.add_argument(
        "--prior-precision", type=float, default=1.0, help="prior precision of every weight, for both posteriors"
    )
    options = parser.parse_args()
    split = train_test_split(*make_moons(100, noise=0.2, random_state=0), test_size=30, random_state=0)
    x, x_test, y, y_test = (torch.as_tensor(part) for part in split)
    model = train(x, y, options.steps)
    loader = DataLoader(TensorDataset(x, y), batch_size=70)
    precision = options.prior_precision
    head = BayesianHead.fit(model, loader, prior_precision=precision)
    network = BayesianNetwork.fit(
        model, loader, rank=options.rank, particles=options.particles, prior_precision=precision
    )

    def point(inputs: torch.Tensor) -> torch.Tensor:
        z = model(inputs)
        return torch.sigmoid(torch.cat([-z, z], dim=1))

    methods: dict[str, Predict] = {"MLE": point, "last-layer posterior": head, "whole-network posterior": network}
    options.out.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        print(f"{'':26}accuracy   confidence on test data   at distance {FAR:g}")
        for name, predict in methods.items():
            p = predict(x_test)
            accuracy = (p.argmax(dim=1) == y_test).double().mean()
            near, far = (q.max(dim=1).values.mean() for q in (p, predict(circle(FAR))))
            print(f"{name:26}{accuracy:8.3f}{near:26.3f}{far:17.3f}")
        draw(methods, x, y, options.out / "two_moons_network.png")
    info = network.posterior.info
    print(f"whole network: {info.steps} steps, residual {info.residual:.1e}, nonlinearity {info.nonlinearity:.2f}")
    print(f"picture: {options.out / 'two_moons_network.png'}")


if __name__ == "__main__":
    main()
