"""Measure the package against other libraries and against its own matrix products, with a target for every ratio.

    make bench-speed               # creates .venv-peers, runs this, writes benchmarks/results/speed.json and .png
    python benchmarks/speed.py --peers PYTHON [--only step,predict]

On a shared machine a time alone means little. So all results are ratios of medians of alternating repetitions (see
sides.py). The other libraries run in their own environment (see speed_peers.py).
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from sides import PRIOR, Peers, bar, fit, logistic, network, seconds, side_by_side, white
from sklearn.datasets import make_moons
from speed_itself import one_step, predict, rows_scaling
from threadpoolctl import threadpool_limits

import enkbayes as eb
from enkbayes.reproduction.datasets.plane import Plane, last_layer_features

RESULTS = Path(__file__).parent / "results"
PARTS = ("image", "paper", "toy", "step", "rows", "predict")


def saved(folder: Path, name: str, features, labels, test) -> Path:
    path = folder / f"{name}.npz"
    np.savez(path, features=features, labels=labels, test=test)
    return path


def image_scale(peers: Peers, folder: Path, repetitions: int) -> list[dict[str, Any]]:
    """N 10,000, D 256, J = 600 against laplace-torch and scikit-learn."""
    rows = []
    for kind, make in (("network", network), ("white", white)):
        features = make(10_000, 256)
        labels = logistic(features, 0)
        data = saved(folder, kind, features, labels, features[:200])
        problem = eb.Problem.create(features, labels, PRIOR)
        sides: dict[str, Callable[[int], float]] = {
            "lbfgs": lambda threads, data=data: peers.ask("lbfgs", data, threads=threads)["seconds"],
            "Equilibrium": lambda threads, problem=problem: seconds(
                lambda: fit(problem, eb.Equilibrium(tol=1e-3), 600), threads
            ),
            "MeanField": lambda threads, problem=problem: seconds(
                lambda: fit(problem, eb.MeanField(tol=1e-3), 600), threads
            ),
        }
        times = side_by_side(sides, repetitions)
        again = side_by_side(
            {
                f"laplace-torch, batches of {b or 'all'}": lambda threads, b=b, data=data: peers.ask(
                    "laplace", data, batch=b, threads=threads
                )["seconds"]
                for b in (128, 512, 1024, 0)
            },
            3,
        )
        first = first_fits(peers.python, data)
        ours, laplace = times["Equilibrium"]["seconds"], min(side["seconds"] for side in again.values())
        rows += [
            bar(f"first fit of a process: Equilibrium / laplace-torch ({kind} features)", first["ratio"], 0.1, first),
            bar(f"later fits: Equilibrium / laplace-torch ({kind} features)", ours / laplace, 0.1, times | again),
            bar(f"Equilibrium / scikit-learn lbfgs ({kind} features)", ours / times["lbfgs"]["seconds"], 12, times),
            bar(
                f"MeanField / scikit-learn lbfgs ({kind} features)",
                times["MeanField"]["seconds"] / times["lbfgs"]["seconds"],
                6,
                times,
            ),
        ]
    return rows


def first_fits(python: str, data: Path) -> dict[str, Any]:
    """Return the median seconds of the first fit of fresh processes, not counting imports."""
    ours, theirs = [], []
    for _ in range(3):
        output = subprocess.run(
            [sys.executable, __file__, "--first", str(data)], check=True, capture_output=True
        ).stdout
        ours.append(float(output))
        theirs.append(Peers(python).ask("laplace", data, batch=512, threads=2)["seconds"])
    medians = {"Equilibrium": float(np.median(ours)), "laplace-torch": float(np.median(theirs))}
    return medians | {"ratio": medians["Equilibrium"] / medians["laplace-torch"]}


def first(data: str) -> None:
    """Print the seconds of one fit in this process."""
    with np.load(data) as file:
        problem = eb.Problem.create(file["features"], file["labels"], PRIOR)
    print(seconds(lambda: fit(problem, eb.Equilibrium(tol=1e-3), 600), 2))


def paper_scheme(peers: Peers, folder: Path, repetitions: int) -> list[dict[str, Any]]:
    """N 10,000, D 256, J = 600 against the paper's scheme; a long NUTS run is the reference for both."""
    features, test = network(10_000, 256), network(500, 256, seed=9)
    labels = logistic(features, 0)
    data = saved(folder, "paper", features, labels, test)
    problem = eb.Problem.create(features, labels, PRIOR)
    times = side_by_side(
        {"Equilibrium": lambda threads: seconds(lambda: fit(problem, eb.Equilibrium(tol=1e-3), 600), threads)},
        repetitions,
    )
    threads = times["Equilibrium"]["threads"]
    with threadpool_limits(threads):
        started = time.perf_counter()
        slow = fit(problem, eb.TrotterSampler(ds=1e-2, max_steps=2_300, tol=0.0), 600)
        trotter = time.perf_counter() - started
    fast = fit(problem, eb.Equilibrium(tol=1e-3), 600)
    truth = peers.ask("nuts", data, warmup=500, draws=20_000, chains=1, method="sequential", whitened=True)
    figures = {"NUTS": {"seconds": truth["seconds"], "draws": truth["draws"]}}
    for name, posterior in (("Equilibrium", fast), ("Trotter", slow)):
        variance = np.sum((test @ posterior.ensemble.basis) ** 2, axis=1)
        figures[name] = {
            "mean distance of probabilities to NUTS": float(
                np.abs(posterior.predict_proba(test)[:, 1] - truth["proba"]).mean()
            ),
            "mean ratio of logit variances to NUTS": float(np.mean(variance / np.asarray(truth["logit variance"]))),
        }
    ratio = trotter / times["Equilibrium"]["seconds"]
    off = {name: abs(figures[name]["mean ratio of logit variances to NUTS"] - 1) for name in ("Equilibrium", "Trotter")}
    return [
        bar(
            "paper's scheme, 2,300 steps / Equilibrium",
            ratio,
            100,
            times | {"Trotter": {"seconds": trotter}},
            atleast=True,
        ),
        bar("error of logit variances: Equilibrium / paper's scheme", off["Equilibrium"] / off["Trotter"], 1, figures),
    ]


def toy(peers: Peers, folder: Path, repetitions: int) -> list[dict[str, Any]]:
    """N 300, D 50, J = 200 against NUTS, on two problems.

    The paper's toy problem is the last layer of a small network on points of the plane. With independent normal
    features the posterior is much further from Gaussian.
    """
    points, classes = make_moons(400, noise=0.2, random_state=0)
    plane = Plane(points[:300], classes[:300], points[300:], classes[300:])
    moons, test = (np.asarray(x, dtype=np.float64) for x in last_layer_features(plane))
    independent = white(300, 50)
    cases = {
        "the paper's toy": (moons, plane.train_labels, test),
        "white features": (independent, logistic(independent, 0), white(100, 50, seed=1)),
    }
    rows = []
    for name, (features, labels, new) in cases.items():
        data = saved(folder, "toy", features, labels, new)
        problem = eb.Problem.create(features, labels, PRIOR)
        mcmc = min(
            peers.ask("nuts", data, warmup=500, draws=500, chains=7, method=method, whitened=False)["seconds"]
            for method in ("vectorized", "sequential")
        )

        def work(threads: int, problem=problem) -> float:
            return seconds(lambda: fit(problem, eb.Equilibrium(), 200), threads)

        times = side_by_side({"Equilibrium": work}, 5 * repetitions)
        truth = peers.ask("nuts", data, warmup=1_000, draws=20_000, chains=1, method="sequential", whitened=True)
        distance = float(np.abs(fit(problem, eb.Equilibrium(), 200).predict_proba(new)[:, 1] - truth["proba"]).mean())
        ratio = mcmc / times["Equilibrium"]["seconds"]
        times["NUTS"] = {"seconds": mcmc}
        rows += [
            bar(f"NUTS 500 x 7 / Equilibrium, N 300, D 50 ({name})", ratio, 200, times, atleast=True),
            bar(f"mean predictive distance to NUTS ({name})", distance, 0.001, {"NUTS draws": truth["draws"]}),
        ]
    return rows


def environment(peers: Peers) -> dict[str, Any]:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "processor": model,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "enkbayes": eb.__version__,
        "peers": peers.ask("versions"),
    }


def chart(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw every ratio in units of its target; bars left of the line meet it."""
    share = [
        row["limit"] / row["measured"] if row["bar"].startswith("at least") else row["measured"] / row["limit"]
        for row in rows
    ]
    figure, ax = plt.subplots(figsize=(9, 0.32 * len(rows) + 1.2), layout="constrained")
    colours = ["#0072B2" if row["met"] else "#D55E00" for row in rows]
    ax.barh(range(len(rows)), share, color=colours)
    ax.axvline(1, color="#222222", linewidth=1)
    ax.set(xscale="log", xlabel="measured / target (left of the line: met)", yticks=range(len(rows)))
    ax.set_yticklabels([f"{row['work']}: {row['measured']:.3g} ({row['bar']})" for row in rows], fontsize=7)
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers", default=".venv-peers/bin/python", help="Python of the environment with the other libraries"
    )
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated parts to run")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first:
        first(options.first)
        return
    against_peers = {"image": image_scale, "paper": paper_scheme, "toy": toy}
    against_itself = {"step": one_step, "rows": rows_scaling, "predict": predict}
    peers = Peers(options.peers)
    path = options.out / "speed.json"
    known = json.loads(path.read_text())["bars"] if path.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for part in options.only.split(","):
            if part in against_itself:
                known[part] = against_itself[part](options.repetitions)
            else:
                known[part] = against_peers[part](peers, Path(folder), options.repetitions)
            result = {"environment": environment(peers), "bars": {name: known[name] for name in PARTS if name in known}}
            path.write_text(json.dumps(result, indent=1) + "\n")
    chart([row for name in PARTS for row in known.get(name, [])], options.out / "speed.png")


if __name__ == "__main__":
    main()
