"""Measure what a posterior costs in deployment: predictions of a head against those of the plain network.

    python benchmarks/head_speed.py    # writes benchmarks/results/head_speed.json; two minutes on an idle core

Two cases, both with far-field variance, which is the dearer one. "one row": a network of two layers with ten classes,
one input at a time. "1,000 rows": a residual network with the four stages of ResNet-18, with one block in each, on
images of 16 x 16. Weights are random, and labels are drawn from a softmax of the network's logits. Calls alternate, and
the figures are the smallest processor times of a call, in milliseconds, with one thread: other work on the machine
changes them little.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from environment import environment
from torch import nn

from enkbayes.nets import BayesianHead

RESULTS = Path(__file__).parent / "results" / "head_speed.json"


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = outputs // inputs
        self.first = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.short(x))


def small() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10)), torch.randn(1500, 20)


def residual() -> tuple[nn.Module, torch.Tensor]:
    blocks = (Block(64, 64), Block(64, 128), Block(128, 256), Block(256, 512))
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1), *blocks, *ends), torch.randn(1000, 3, 16, 16)


def fastest(calls: dict, repeats: int) -> dict[str, float]:
    """Return the smallest processor time of each call, in milliseconds."""
    times = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(1e3 * (time.process_time() - start))
    return {name: round(min(found), 3) for name, found in times.items()}


def case(made: tuple[nn.Module, torch.Tensor], rows: int, repeats: int) -> dict[str, float]:
    (model, x), half = made, len(made[1]) // 2
    with torch.no_grad():
        logits = model.eval()(x)
        noise = -torch.empty_like(logits).exponential_().log()
        labels = (3 * (logits - logits.mean(0)) / logits.std(0) + noise).argmax(dim=1)
    head = BayesianHead.fit(model, [(x[:half], labels[:half])], calibration=[(x[half:], labels[half:])], progress=False)
    new = x[:rows]
    calls = {
        "network": lambda: model(new),
        "head": lambda: head(new),
        "predict_uncertainty": lambda: head.predict_uncertainty(new),
    }
    with torch.no_grad():
        return {"far_field": head.far_field.active, **fastest(calls, repeats)}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = {"one row": case(small(), 1, 500), "1,000 rows": case(residual(), 1000, 7)}
    RESULTS.write_text(json.dumps({"environment": environment(), "milliseconds": found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
