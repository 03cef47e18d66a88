"""Measure heads with many classes: time, peak memory, and accuracy where the full covariance can be computed.

    python benchmarks/big_heads.py                   # all cases; writes benchmarks/results/big_heads.json
    python benchmarks/big_heads.py --case "512 x 100, float32"

The data are synthetic features with a decaying spectrum and labels drawn from the softmax of a true head; the prior is
N(0, 2 I / D). Each case runs in its own process, so that its peak resident memory can be measured. Times depend on the
load of the machine, so the processor time is reported too. BLAS has one thread unless OMP_NUM_THREADS is set.

The case "exact" measures accuracy. It uses the settings of the large cases (rank, number of particles, averages over
classes) on a head of 24 x 32, with `MeanField()` and its full 768 x 768 covariance as the reference. It reports the
mean total variation of the predicted probabilities on new rows, their largest difference, and the ratio of the marginal
standard deviations of the parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from environment import environment

import enkbayes as eb
from enkbayes.evaluation.baselines import MAP

RESULTS = Path(__file__).parent / "results" / "big_heads.json"
PARTICLES = 64
CASES = {  # features, classes, rows, dtype, rank
    "512 x 100, float32": (512, 100, 20_000, "float32", 32),
    "512 x 100, float64": (512, 100, 20_000, "float64", 32),
    "512 x 100, float32, default rank": (512, 100, 20_000, "float32", None),
    "2048 x 1000, float32": (2_048, 1_000, 5_000, "float32", 24),
}
EXACT = (24, 32, 1_500)
RANKS = (8, 24, 32)


def head(D: int, K: int, N: int, dtype: str, seed: int = 0):
    """Return features (N, D) with variances 1/d, scaled to a mean square of 1, and labels of a true head."""
    rng = np.random.default_rng(seed)
    decay = np.arange(1, D + 1, dtype=np.float32) ** -0.5
    features = rng.standard_normal((N, D), dtype=np.float32) * (decay * np.sqrt(D / np.sum(decay**2)))
    truth = np.random.default_rng(12).standard_normal((D, K), dtype=np.float32) * np.float32(1.5 / np.sqrt(D))
    noise = rng.gumbel(size=(N, K)).astype(np.float32)
    return features.astype(dtype), np.argmax(features @ truth + noise, axis=1)


def peak() -> float:
    """Return the peak resident memory so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def fit(D: int, K: int, N: int, dtype: str, rank: int | None) -> dict[str, object]:
    """Fit one head and return time, memory, steps and predictive loss."""
    features, labels = head(D, K, N, dtype)
    problem = eb.Problem.create(features, labels, 2.0 / D, classes=np.arange(K))
    before, started, cpu = peak(), time.perf_counter(), time.process_time()
    sampler = eb.Equilibrium(tol=1e-3) if rank is None else eb.MeanField(tol=1e-3, rank=rank)
    posterior = eb.run(problem, sampler, particles=PARTICLES)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    fitted, started = peak(), time.perf_counter()
    new, truth = head(D, K, 500, dtype, seed=1)
    p = posterior.mean_proba(new)
    return {
        "features": D,
        "classes": K,
        "parameters": problem.dim,
        "rows": N,
        "dtype": dtype,
        "sampler": repr(sampler),
        "rank": posterior.ensemble.rank,
        "particles": PARTICLES,
        "seconds": seconds,
        "processor seconds": cpu,
        "steps": posterior.info.steps,
        "converged": posterior.info.converged,
        "residual": posterior.info.residual,
        "GB before": before,
        "GB peak of the fit": fitted,
        "GB peak with predictions": peak(),
        "seconds of predictions of 500 rows by particles": time.perf_counter() - started,
        "log loss of 500 new rows": float(-np.mean(np.log(p[np.arange(500), truth]))),
        "log loss of guessing": float(np.log(K)),
    }


def exact() -> dict[str, object]:
    """Compare structured covariances with the full one on a small head."""
    D, K, N = EXACT
    features, labels = head(D, K, N, "float64")
    problem = eb.Problem.create(features, labels, 2.0 / D, classes=np.arange(K))
    new, _ = head(D, K, 500, "float64", seed=1)
    full = eb.run(problem, eb.MeanField(), particles=problem.dim + 2)
    truth, sds = full.predict_proba(new), np.sqrt(full.ensemble.variances)
    point = MAP().fit(problem).predict_proba(new)
    rows = {}
    for dtype in ("float64", "float32"):
        single = eb.Problem.create(features.astype(dtype), labels, 2.0 / D, classes=np.arange(K))
        for rank in RANKS:
            posterior = eb.run(single, eb.MeanField(tol=1e-3, rank=rank), particles=PARTICLES)
            error = np.abs(posterior.predict_proba(new.astype(dtype)) - truth)
            ratio = np.sqrt(posterior.ensemble.variances) / sds
            rows[f"rank {rank}, {dtype}"] = {
                "total variation": float(error.sum(axis=1).mean() / 2),
                "largest difference": float(error.max()),
                "sd ratio, mean": float(ratio.mean()),
                "sd ratio, 1 %": float(np.quantile(ratio, 0.01)),
                "sd ratio, 99 %": float(np.quantile(ratio, 0.99)),
                "mean in sds, rms": float(np.sqrt(np.mean(((posterior.mean - full.mean) / sds) ** 2))),
                "steps": posterior.info.steps,
            }
    return {
        "features": D,
        "classes": K,
        "parameters": problem.dim,
        "rows": N,
        "posterior sd over prior sd, mean": float(np.mean(sds) / np.sqrt(2.0 / D)),
        "total variation of the MAP estimate": float(np.abs(point - truth).sum(axis=1).mean() / 2),
        "covariances": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=[*CASES, "exact"], action="append")
    parser.add_argument("--inside", action="store_true", help="run in this process and print the result")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    names = arguments.case or [*CASES, "exact"]
    if arguments.inside:
        print(json.dumps(exact() if names[0] == "exact" else fit(*CASES[names[0]])))
        return
    document = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"cases": {}}
    for name in names:
        command = [sys.executable, __file__, "--inside", "--case", name]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        document["environment"], document["cases"][name] = environment(), json.loads(found.splitlines()[-1])
        print(name, json.dumps(document["cases"][name], indent=1), flush=True)
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
