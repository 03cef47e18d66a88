"""Compare the speed of this version with that of another checkout, for example of the last release.

    git worktree add ../before v0.1.0
    python benchmarks/against.py ../before/src [--only predict]

Both sides run alternately in processes of their own, on one thread, and are compared by processor time, so that other
work on the machine does not favour one of them. The table has the median of the ratios new / old; above 1 this version
is slower. Ratios within 5 % are noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
FITS = {  # kind of features, rows, features, classes, sampler, particles
    "Equilibrium, network 10,000 x 256": ("network", 10_000, 256, 2, "Equilibrium", 600),
    "MeanField, network 10,000 x 256": ("network", 10_000, 256, 2, "MeanField", 600),
    "Equilibrium, white 10,000 x 256": ("white", 10_000, 256, 2, "Equilibrium", 600),
    "20 particles, white 10,000 x 256": ("white", 10_000, 256, 2, "Equilibrium", 20),
    "Equilibrium, white 100,000 x 64": ("white", 100_000, 64, 2, "Equilibrium", 200),
    "Equilibrium, white 200,000 x 20": ("white", 200_000, 20, 2, "Equilibrium", 100),
    "MeanField, white 200,000 x 20": ("white", 200_000, 20, 2, "MeanField", 100),
    "Equilibrium, white 2,000 x 200": ("white", 2_000, 200, 2, "Equilibrium", 300),
    "Equilibrium, white 300 x 50": ("white", 300, 50, 2, "Equilibrium", 200),
    "Equilibrium, three classes 5,000 x 40": ("white", 5_000, 40, 3, "Equilibrium", 400),
    "MeanField, three classes 5,000 x 40": ("white", 5_000, 40, 3, "MeanField", 400),
    "Equilibrium, five classes 4,000 x 40": ("network", 4_000, 40, 5, "Equilibrium", 700),
}
CASES = (*FITS, "predict_proba, 200,000 rows", "mean_proba, 200,000 rows")


@cache
def problem(kind: str, N: int, D: int, K: int) -> Any:
    """Return the problem of a case."""
    import sides

    import enkbayes as eb

    features = {"white": sides.white, "network": sides.network}[kind](N, D)
    if K == 2:
        return eb.Problem.create(features, sides.logistic(features, 0), sides.PRIOR)
    rng = np.random.default_rng((0, 2))
    logits = (features - features.mean(axis=0)) @ rng.standard_normal((D, K)) * 3 / np.sqrt(D)
    return eb.Problem.create(features, np.argmax(logits + rng.gumbel(size=(N, K)), axis=1), sides.PRIOR)


@cache
def posterior() -> Any:
    """Return the posterior whose predictions are timed."""
    import enkbayes as eb

    return eb.run(problem("white", 2_000, 64, 2), eb.Equilibrium(tol=1e-3), particles=200, seed=0)


@cache
def rows() -> Any:
    import sides

    return sides.white(200_000, 64, 5)


def work(case: str) -> Callable[[], Any]:
    """Return what is timed, with its data prepared."""
    import enkbayes as eb

    if case not in FITS:
        predict, new = getattr(posterior(), case.partition(",")[0]), rows()
        return lambda: predict(new)
    kind, N, D, K, sampler, particles = FITS[case]
    data = problem(kind, N, D, K)
    return lambda: eb.run(data, getattr(eb, sampler)(tol=1e-3), particles=particles, seed=0)


def serve() -> None:
    """Time the cases that standard input names."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        timed = work(line.strip())
        started = time.process_time()
        timed()
        print(json.dumps(time.process_time() - started), flush=True)


class Side:
    """A process that imports the package from one folder."""

    def __init__(self, source: Path) -> None:
        single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        paths = os.pathsep.join([str(source), str(HERE.parent)])
        self.process = subprocess.Popen(
            [sys.executable, str(HERE), "--serve", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **single, "PYTHONPATH": paths},
        )

    def seconds(self, case: str) -> float:
        """Return the processor time of a case."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="the folder src of the other version")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    before, now = Side(Path(options.before).resolve()), Side(HERE.parents[1] / "src")
    for case in (case for case in CASES if options.only in case):
        before.seconds(case), now.seconds(case)  # warm both up
        pairs = [(before.seconds(case), now.seconds(case)) for _ in range(options.repetitions)]
        old, new = (median(side) for side in zip(*pairs, strict=True))
        ratio = median(new / old for old, new in pairs)
        print(f"{case:40s} {old:8.3f} s {new:8.3f} s   new / old {ratio:.2f}", flush=True)
    return None


if __name__ == "__main__":
    main()
