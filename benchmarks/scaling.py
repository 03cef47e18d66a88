"""Measure the cost of a step on one and two processes, and extrapolate to a cluster.

    python benchmarks/scaling.py        # writes benchmarks/results/scaling.json and docs/results/cluster.md

Strong scaling keeps the total number of rows, weak scaling the number of rows per process. Every process has one BLAS
thread. A step has three parts: sums over the rows of a process, the all-reduce, and the small dense algebra that every
process repeats (an eigendecomposition and small products). Figures are medians over repetitions on the slowest process.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scaling.json"
PAGE = HERE.parent / "docs" / "results" / "cluster.md"
SIZES = {"D 256, J 600": (256, 600, 20_000), "D 64, J 200": (64, 200, 200_000)}
REPETITIONS = 9
CLUSTER = (1, 8, 64, 512)
ROWS = 100_000_000
NETWORK = 1.25e9  # bytes per second: ten gigabit Ethernet
LATENCY = 5e-5  # seconds per message


def worker(D: int, J: int, rows: int, path: str) -> None:
    """Time the parts of a step on the rows of this process."""
    import enkbayes as eb
    from enkbayes.core.expectations import Expectation
    from enkbayes.engine.processes import all_sum, connect
    from enkbayes.samplers.equilibrium import frozen_flow
    from enkbayes.solvers.step_control import evaluate

    number, count = connect()
    rng = np.random.default_rng(number)
    features = rng.standard_normal((rows, D))
    labels = (rng.random(rows) < 0.5 + 0.5 * np.tanh(features[:, 0])).astype(int)
    mine = eb.Problem.create(features, labels, 2.0, classes=[0, 1])
    problem = mine.shard() if count > 1 else mine
    ensemble = eb.run(mine, eb.Equilibrium(tol=1e-2, float32=False), particles=J).ensemble
    point = evaluate(mine, ensemble, Expectation(energy=False))
    moments = mine.moments(ensemble, Expectation(energy=False))

    def timed(work: Any) -> float:
        times = []
        for _ in range(REPETITIONS):
            if count > 1:
                all_sum((np.zeros(1),))  # synchronise the processes
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
        return float(np.median(times))

    found = {
        "step": timed(lambda: problem.moments(ensemble, Expectation(energy=False))),
        "sums": timed(lambda: mine.moments(ensemble, Expectation(energy=False))),
        "all-reduce": timed(lambda: all_sum((moments.loss, moments.g, moments.S))) if count > 1 else 0.0,
        "dense algebra": timed(lambda: frozen_flow(point.moments, 1.0, 1e-3)),
    }
    Path(f"{path}-{number}.json").write_text(json.dumps(found))


def measure(D: int, J: int, rows: int, count: int) -> dict[str, float]:
    """Return the seconds of each part of a step with `rows` rows per process, for the slowest of `count` processes."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(HERE / "scaling.py"), "--worker", str(D), str(J), str(rows), f"{folder}/part"]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)] if count > 1 else []
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *launch, *arguments], check=True, env=environment, capture_output=True)
        parts = [json.loads(path.read_text()) for path in Path(folder).glob("part-*.json")]
    return {name: max(part[name] for part in parts) for name in parts[0]}


def predicted(one: dict[str, float], rows: int, D: int, processes: int, total: int) -> dict[str, float]:
    """Return the seconds of each part of a step with `total` rows on `processes` processes of a cluster.

    A ring all-reduce sends every number twice, in 2 (p - 1) messages.
    """
    traffic = 8 * (1 + D + D * D)
    rounds = 2 * (processes - 1)
    return {
        "sums": one["sums"] * total / rows / processes,
        "all-reduce": rounds * (LATENCY + traffic / processes / NETWORK),
        "dense algebra": one["dense algebra"],
    }


def page(results: dict[str, Any]) -> str:
    """Return docs/results/cluster.md, rendered from the results."""

    def ms(*seconds: float) -> list[str]:
        return [f"{1e3 * s:,.1f}" for s in seconds]

    measured, scaling, extrapolated = [], [], []
    for name, case in results["cases"].items():
        for label, run in case["runs"].items():
            parts = ms(run["sums"], run["all-reduce"], run["dense algebra"], run["step"] + run["dense algebra"])
            measured.append([name, label, f"{run['rows']:,}", *parts])
        s = case["scaling"]
        speeds = [f"{s[key]:.2f}" for key in ("strong", "weak", "machine")]
        scaling.append([name, *speeds, f"{s['weak'] / s['machine']:.2f}"])
        D, _, rows = SIZES[name]
        for p in CLUSTER:
            parts = predicted(case["runs"]["1"], rows, D, p, ROWS)
            whole = sum(parts.values())
            extrapolated.append([name, p, *ms(*parts.values(), whole), f"{parts['sums'] / whole:.2f}"])
    template = jinja2.Template((HERE / "cluster.md.jinja").read_text(encoding="utf-8"), keep_trailing_newline=True)
    tables = {"measured": measured, "scaling": scaling, "extrapolated": extrapolated}
    constants = {"total": ROWS, "network": f"{NETWORK / 1e9:g}", "latency": f"{LATENCY * 1e6:g}"}
    return template.render(environment=results["environment"], **tables, **constants)


def main() -> None:
    cases = {}
    for name, (D, J, rows) in SIZES.items():
        runs = {}
        for label, count, each in (("1", 1, rows), ("2, strong", 2, rows // 2), ("2, weak", 2, rows)):
            runs[label] = measure(D, J, each, count) | {"rows": each}
            print(
                name,
                label,
                {key: round(1e3 * value, 1) for key, value in runs[label].items() if key != "rows"},
                flush=True,
            )
        apart = runs["2, weak"]["sums"]  # both processes compute at the same time without communicating
        whole = {label: run["step"] + run["dense algebra"] for label, run in runs.items()}
        scaling = {  # rows per second, relative to one process
            "strong": whole["1"] / whole["2, strong"],
            "weak": 2 * whole["1"] / whole["2, weak"],
            "machine": 2 * runs["1"]["sums"] / apart,
        }
        cases[name] = {"runs": runs, "scaling": scaling}
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in cpu if "model name" in line), platform.processor())
    environment = {"processor": model, "cores": os.cpu_count(), "python": platform.python_version()}
    results = {"environment": environment | {"numpy": np.__version__}, "cases": cases}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*map(int, sys.argv[2:5]), sys.argv[5])
    else:
        main()
