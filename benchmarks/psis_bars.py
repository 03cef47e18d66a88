"""Error bars of the evidence by importance sampling: their constants are chosen on some problems, and judged on others.

Importance sampling draws a share of its points from a Gaussian that is wider than the fitted one. Share and width are
the pair whose intervals of 1.96 errors hold the true evidence nearest to 95 % of the time, on average over the problems
of `CHOICE`; those in use stay unless another pair is nearer by more than noise. The problems of `JUDGEMENT` and `PAIRS`
have other sizes, priors and seeds. A grid gives the true evidence.
`python benchmarks/psis_bars.py` prints both tables and writes results/psis_bars.json, in a few minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import math
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import log_expit, logsumexp

import enkbayes as eb
from enkbayes.inference.evidence import importance_sampling

RESULTS = Path(__file__).parent / "results" / "psis_bars.json"
OPTIONS = tuple(product((1.5, 2.0, 3.0), (0.25, 0.5)))  # width of the wider Gaussian, share of the draws
IN_USE = (2.0, 0.25)
CHOICE = ((3, 4.0, 1), (5, 25.0, 5), (3, 100.0, 2), (10, 4.0, 10))  # rows for each parameter, prior variance, dimension
JUDGEMENT = ((2, 9.0, 1), (8, 50.0, 3), (4, 16.0, 8), (1, 200.0, 2), (20, 4.0, 5), (6, 9.0, 15))
PAIRS = ((6, 4.0, 0), (6, 25.0, 1), (12, 25.0, 2), (12, 100.0, 3))  # rows, prior variance, seed of the data


def separable(rows: int, variance: float, dim: int) -> tuple[eb.Problem, float]:
    """Return a product of `dim` equal problems with one parameter and `rows` successes, and its log evidence."""
    theta = np.linspace(-8, 12, 200_001) * math.sqrt(variance)
    heights = rows * log_expit(theta) - theta**2 / 2 / variance - math.log(2 * math.pi * variance) / 2
    alone = logsumexp(heights) + math.log(theta[1] - theta[0])
    features = np.repeat(np.eye(dim), rows, axis=0)
    return eb.Problem.create(features, np.ones(rows * dim), variance, classes=[0, 1]), dim * alone


def correlated(rows: int, variance: float, seed: int) -> tuple[eb.Problem, float]:
    """Return a problem with two correlated features and random labels, and its log evidence."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((rows, 2)) @ [[1.0, 0.7], [0.0, 0.7]]
    labels = (rng.random(rows) < 1 / (1 + np.exp(-2 * features[:, 0]))).astype(int)
    labels[:2] = 0, 1
    axis = np.linspace(-8, 8, 1001) * math.sqrt(variance)
    heights = -(axis[:, None] ** 2 + axis**2) / 2 / variance - math.log(2 * math.pi * variance)
    for x, label in zip(features, labels, strict=True):
        heights += log_expit((2 * label - 1) * (x[0] * axis[:, None] + x[1] * axis))
    return eb.Problem.create(features, labels, variance), float(logsumexp(heights) + 2 * math.log(axis[1] - axis[0]))


def scores(problem: eb.Problem, truth: float, seeds: range, wider: float, share: float) -> list[float]:
    """Return the errors of the evidence, in standard errors, one for each seed."""
    posterior = eb.run(problem, eb.MeanField(), particles=2)
    found = [importance_sampling(problem, posterior, seed=seed, wider=wider, share=share) for seed in seeds]
    return [(evidence.value - truth) / evidence.error for evidence in found]


def coverage(values: list[float]) -> float:
    """Return the share of intervals of 1.96 errors that hold the truth."""
    return float(np.mean(np.abs(values) < 1.96))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="runs of each problem")
    parser.add_argument("--out", type=Path, default=RESULTS)
    settings = parser.parse_args()
    seeds = settings.seeds
    known = [separable(*case) for case in CHOICE]
    chosen = {}
    for wider, share in OPTIONS:
        chosen[wider, share] = [coverage(scores(*case, range(seeds), wider, share)) for case in known]
        print(f"choice   wider {wider:g}, share {share:g}:", *(f"{x:.3f}" for x in chosen[wider, share]), flush=True)
    away = {option: abs(float(np.mean(found)) - 0.95) for option, found in chosen.items()}
    best = min(away, key=lambda option: away[option])
    if away[IN_USE] < away[best] + 2 * math.sqrt(0.05 * 0.95 / (seeds * len(known))):
        best = IN_USE
    others = [(f"separable {case}", *separable(*case)) for case in JUDGEMENT]
    others += [(f"correlated {case}", *correlated(*case)) for case in PAIRS]
    judged = {}
    for option in dict.fromkeys((best, IN_USE)):
        rows = {name: coverage(scores(*case, range(10_000, 10_000 + seeds), *option)) for name, *case in others}
        judged[option] = rows
        for name, value in rows.items():
            print(f"judgement {option} {name}: {value:.3f}", flush=True)
        print(f"judgement {option} mean {np.mean(list(rows.values())):.3f}", flush=True)
    result = {
        "seeds": seeds,
        "choice": [{"wider": w, "share": s, "coverage": c, "mean": float(np.mean(c))} for (w, s), c in chosen.items()],
        "chosen": {"wider": best[0], "share": best[1]},
        "judgement": [
            {"wider": w, "share": s, "coverage": rows, "mean": float(np.mean(list(rows.values())))}
            for (w, s), rows in judged.items()
        ],
    }
    settings.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
