"""Compare every method on breast cancer, digits and the paper's 2-D data, with NUTS as the reference.

    python benchmarks/compare_real.py [--only cancer,moons,digits] [--out benchmarks/results]

Breast cancer and digits have standardised features, one stratified split (70 % / 30 %) and prior variance 1. The
paper's data are the 50 features of its network 2-20-20-50-1, trained on 70 points, with prior variance 2 as in the
paper and 30 test points. Every method has its default settings, for example 200 particles. Digits have 650 parameters.
There the table omits, and lists, methods whose cost or error grows steeply with the dimension.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from sklearn.datasets import load_breast_cancer, load_digits

import enkbayes as eb
from enkbayes.evaluation.baselines import BY_NAME, HMC, Method
from enkbayes.evaluation.compare import Comparison, Split, compare, standardised_splits
from enkbayes.reproduction.datasets import Plane, last_layer_features

ENVIRONMENT = {
    "python": platform.python_version(),
    "numpy": np.__version__,
    "enkbayes": eb.__version__,
    "cores": os.cpu_count(),
}
SLOW_IN_HIGH_DIMENSION = ("hmc", "trotter", "tamed-homotopy", "stochastic", "aldi", "eks", "particle-flow", "svgd")


@dataclass(frozen=True)
class Case:
    """A data set, its prior, the reference run, and the methods to omit."""

    title: str
    split: Callable[[], Split]
    classes: int
    prior_precision: float
    reference: HMC
    left_out: tuple[str, ...] = ()


def standardised(load: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Split:
    features, labels = load(return_X_y=True)
    return next(standardised_splits(features, labels))


def moons() -> Split:
    points = Plane.moons(0)
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
    ),
}


def methods_of(case: Case) -> list[Method]:
    return [make() for name, make in BY_NAME.items() if name not in case.left_out]


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


def facts(case: Case, found: Comparison, seconds: float) -> dict[str, Any]:
    return {
        "title": case.title,
        "seconds": round(seconds, 1),
        "rows": [found.train_rows, found.test_rows],
        "features": found.features,
        "classes": found.classes,
        "prior_precision": case.prior_precision,
        "reference": repr(case.reference),
        "reference_error": found.reference_error.mean,
        "left_out": list(case.left_out),
        "methods": {
            row.method: {name: e.mean for name, e in row.estimates.items()}
            | {"failure": row.failure, "remarks": list(row.remarks)}
            for row in found.rows
        },
    }


def markdown(case: dict[str, Any]) -> str:
    methods = case["methods"]
    ratio = methods["equilibrium"]["distance"] / methods["laplace"]["distance"]
    sentences = (
        f"{case['rows'][0]} training rows, {case['rows'][1]} test rows; {case['features']} features,",
        f"{case['classes']} classes; prior variance {1 / case['prior_precision']:g}. Reference: `{case['reference']}`,",
        f"Monte Carlo error {case['reference_error']:.5f}. Distance of Equilibrium / Laplace: {ratio:.3f}.",
    )
    lines = [
        f"## {case['title']}",
        "",
        *sentences,
        "",
        "| method | accuracy | NLL | Brier | ECE | epistemic share | time / MAP | distance to NUTS |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, m in methods.items():
        if m["failure"]:
            lines.append(f"| {name} | failed: {m['failure']} | | | | | | |")
            continue
        lines.append(
            f"| {name} | {m['accuracy']:.4f} | {m['nll']:.4f} | {m['brier']:.4f} | {m['ece']:.4f} |"
            f" {m['epistemic_share']:.3f} | {m['time_ratio']:.1f} | {m['distance']:.5f} |"
        )
    if case["left_out"]:
        lines += ["", f"Omitted: {', '.join(case['left_out'])}."]
    return "\n".join(lines) + "\n"


def page(cases: dict[str, Any]) -> str:
    """Return the page with the results of all cases."""
    head = "# Every method on real data\n\n`benchmarks/compare_real.py` writes this page.\n\n"
    return head + "\n".join(markdown(cases[name]) for name in CASES if name in cases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES), help="comma-separated: cancer, moons, digits")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    console, path = Console(stderr=True), arguments.out / "compare_real.json"
    cases = json.loads(path.read_text())["cases"] if path.exists() else {}
    for name in arguments.only.split(","):
        cases[name] = facts(CASES[name], *measured(CASES[name], console)) | {"environment": ENVIRONMENT}
        path.write_text(json.dumps({"cases": cases}, indent=2) + "\n")
        print(markdown(cases[name]))
    (arguments.out / "compare_real.md").write_text(page(cases))


if __name__ == "__main__":
    main()
