"""Measure the peak memory of a fit that streams rows from a file, and compare its result with a fit in memory.

    python benchmarks/streaming.py       # 1e7 rows x 64 features, 2.4 GB in float32; writes results/streaming.json
    python benchmarks/streaming.py --rows 1000000 --format npz

The script generates the rows in chunks into a temporary folder. Each fit runs in its own process, so that its peak
resident memory can be measured. The difference of the results is that of means and standard deviations, in posterior
standard deviations. BLAS has one thread unless OMP_NUM_THREADS is set.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from environment import environment
from numpy.lib.format import write_array_header_1_0

import enkbayes as eb
from enkbayes.engine import NpyRows, NpzRows

RESULTS = Path(__file__).parent / "results" / "streaming.json"
CHUNK = 65_536
SAMPLERS = {"mean-field": eb.MeanField(), "equilibrium": eb.Equilibrium()}


def generate(folder: Path, rows: int, features: int, form: str) -> None:
    """Write X (rows, features) in float32 and labels y in chunks."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal(features) / np.sqrt(features) * 2
    labels = np.empty(rows, dtype=np.int8)
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, features)}

    def write(file) -> None:
        write_array_header_1_0(file, header)
        for begin in range(0, rows, CHUNK):
            x = rng.standard_normal((min(CHUNK, rows - begin), features), dtype=np.float32)
            labels[begin : begin + len(x)] = rng.random(len(x)) < 1 / (1 + np.exp(-(x @ truth)))
            file.write(x.tobytes())

    if form == "npz":
        with zipfile.ZipFile(folder / "rows.npz", "w") as archive, archive.open("X.npy", "w", force_zip64=True) as file:
            write(file)
    else:
        with (folder / "X.npy").open("wb") as file:
            write(file)
    np.save(folder / "y.npy", labels)


def fit(folder: Path, form: str, where: str, sampler: str) -> dict[str, object]:
    """Fit from the file or from memory, save the result, and return memory, time and steps."""
    started, cpu = time.perf_counter(), time.process_time()
    if where == "memory":
        if form == "npz":
            with np.load(folder / "rows.npz") as arrays:
                X = arrays["X"]
        else:
            X = np.load(folder / "X.npy")
        problem = eb.Problem.create(X, np.load(folder / "y.npy"), 1.0)
    elif form == "npz":
        problem = eb.Problem.stream(NpzRows(folder / "rows.npz", labels=np.load(folder / "y.npy")), 1.0)
    else:
        problem = eb.Problem.stream(NpyRows(folder / "X.npy", folder / "y.npy"), 1.0)
    posterior = eb.run(problem, SAMPLERS[sampler], particles=200)
    np.savez(folder / f"{where}.npz", mean=posterior.mean, sds=np.sqrt(posterior.ensemble.variances))
    return {
        "GB peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "seconds": time.perf_counter() - started,
        "processor seconds": time.process_time() - cpu,
        "steps": posterior.info.steps,
        "converged": posterior.info.converged,
        "residual": posterior.info.residual,
    }


def study(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Generate the rows, fit from the file and from memory, and compare."""
    generate(folder, arguments.rows, arguments.features, arguments.format)
    found: dict[str, object] = {
        "rows": arguments.rows,
        "features": arguments.features,
        "format": arguments.format,
        "sampler": arguments.sampler,
        "GB of features": arguments.rows * arguments.features * 4 / 2**30,
    }
    for where in ("stream", "memory"):
        command = [sys.executable, __file__, "--inside", where, "--folder", str(folder), "--format", arguments.format]
        command += ["--sampler", arguments.sampler]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found[where] = json.loads(output.splitlines()[-1])
        print(where, found[where], flush=True)
    one, two = (np.load(folder / f"{where}.npz") for where in ("stream", "memory"))
    sds = two["sds"].astype(np.float64)
    found["difference of means, in sds"] = float(np.max(np.abs(one["mean"].astype(np.float64) - two["mean"]) / sds))
    found["difference of sds, relative"] = float(np.max(np.abs(one["sds"].astype(np.float64) / sds - 1)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--format", choices=["npy", "npz"], default="npy")
    parser.add_argument("--sampler", choices=list(SAMPLERS), default="mean-field")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--inside", choices=["stream", "memory"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(fit(arguments.folder, arguments.format, arguments.inside, arguments.sampler)))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = study(arguments, Path(folder))
    document = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"cases": {}}
    name = f"{arguments.rows} x {arguments.features}, {arguments.format}, {arguments.sampler}"
    document["environment"], document["cases"][name] = environment(), found
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
