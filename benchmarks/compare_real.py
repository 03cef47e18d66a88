"""Every method on breast cancer, digits and the paper's 2-D set, with the distance of its predictions to NUTS.

    python benchmarks/compare_real.py [--only cancer,moons,digits] [--out benchmarks/results]

Breast cancer and digits: standardised pixels or measurements, one stratified split (70 % / 30 %), prior variance 1. The
paper's set: the 50 features of its network 2-20-20-50-1, trained on 70 points, prior variance 2 as in the paper, 30
test points. Digits have 650 parameters, so methods of particles get 1,300 of them there, and those whose cost or error
grows steeply with the dimension are left out: the table says which.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from sklearn.datasets import load_breast_cancer, load_digits

import enkbayes as eb
from enkbayes.baselines import BY_NAME, HMC, Ensemble, Method
from enkbayes.compare import Comparison, Split, compare, standardised_splits
from enkbayes.datasets import Moons, last_layer_features

SLOW_IN_HIGH_DIMENSION = ("hmc", "trotter", "tamed-homotopy", "stochastic", "aldi", "eks", "particle-flow", "svgd")


@dataclass(frozen=True)
class Case:
    """A data set, its prior, and how much work it is worth."""

    title: str
    split: Callable[[], Split]
    classes: int
    prior_precision: float
    reference: HMC
    left_out: tuple[str, ...] = ()
    particles: int | None = None


def standardised(load: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Split:
    features, labels = load(return_X_y=True)
    return next(standardised_splits(features, labels))


def moons() -> Split:
    points = Moons.make(0)
    train, test = last_layer_features(points)
    return Split(train, points.train_labels, test, points.test_labels)


CASES = {
    "cancer": Case("breast cancer", lambda: standardised(load_breast_cancer), 2, 1.0, HMC(samples=2000)),
    "moons": Case("two moons, 50 features of the paper's network", moons, 2, 0.5, HMC(samples=2000)),
    "digits": Case(
        "digits, K = 10",
        lambda: standardised(load_digits),
        10,
        1.0,
        HMC(samples=500, chains=4, warmup=200),
        SLOW_IN_HIGH_DIMENSION,
        1300,
    ),
}


def methods_of(case: Case) -> list[Method]:
    made = [make() for name, make in BY_NAME.items() if name not in case.left_out]
    return [replace(m, particles=case.particles) if case.particles and isinstance(m, Ensemble) else m for m in made]


def measured(case: Case, console: Console) -> tuple[Comparison, float]:
    started = time.perf_counter()
    with console.status(case.title) as status:
        found = compare(
            [case.split()],
            methods_of(case),
            classes=case.classes,
            yardstick=BY_NAME["map"](),
            reference=case.reference,
            prior_precision=case.prior_precision,
            progress=lambda doing: status.update(f"{case.title}: {doing}"),
        )
    return found, time.perf_counter() - started


def markdown(case: Case, found: Comparison) -> str:
    ratio = found.row("equilibrium").distance.mean / found.row("laplace").distance.mean
    lines = [
        f"## {case.title}",
        "",
        f"{found.train_rows} rows to train on, {found.test_rows} to test on; {found.features} features, {found.classes}"
        f" classes; prior variance {1 / found.prior_precision:g}. Reference: {case.reference}, Monte Carlo error"
        f" {found.reference_error.mean:.5f}. Equilibrium's distance is {ratio:.3f} of Laplace's.",
        "",
        "| method | accuracy | NLL | Brier | ECE | epistemic share | time / MAP | distance to NUTS |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found.rows:
        if row.failures:
            lines.append(f"| {row.method} | failed: {row.failure} | | | | | | |")
            continue
        e = {name: estimate.mean for name, estimate in row.estimates.items()}
        lines.append(
            f"| {row.method} | {e['accuracy']:.4f} | {e['nll']:.4f} | {e['brier']:.4f} | {e['ece']:.4f} |"
            f" {e['epistemic_share']:.3f} | {e['time_ratio']:.1f} | {e['distance']:.5f} |"
        )
    if case.left_out:
        lines += ["", f"Left out: {', '.join(case.left_out)}."]
    return "\n".join(lines) + "\n"


def facts(case: Case, found: Comparison, seconds: float) -> dict[str, object]:
    return {
        "title": case.title,
        "seconds": round(seconds, 1),
        "prior_precision": case.prior_precision,
        "reference": repr(case.reference),
        "reference_error": found.reference_error.mean,
        "left_out": list(case.left_out),
        "particles": case.particles,
        "methods": {
            row.method: {name: e.mean for name, e in row.estimates.items()}
            | {"failure": row.failure, "remarks": list(row.remarks)}
            for row in found.rows
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES), help="some of cancer, moons, digits")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    path = arguments.out / "compare_real.json"
    before = json.loads(path.read_text()) if path.exists() else {"cases": {}, "tables": {}}
    document = {
        "environment": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "enkbayes": eb.__version__,
            "cores": os.cpu_count(),
        },
        "cases": before["cases"],
        "tables": before["tables"],
    }
    for name in arguments.only.split(","):
        found, seconds = measured(CASES[name], console)
        document["cases"][name] = facts(CASES[name], found, seconds)
        document["tables"][name] = markdown(CASES[name], found)
        print(document["tables"][name])
        path.write_text(json.dumps(document, indent=2) + "\n")
    text = "# Every method on real data\n\nWritten by `benchmarks/compare_real.py`.\n\n"
    tables = "\n".join(document["tables"][name] for name in CASES if name in document["tables"])
    (arguments.out / "compare_real.md").write_text(text + tables)


if __name__ == "__main__":
    main()
