"""Does the uncertainty help? Every method on seven tasks: decisions, calibration, out-of-distribution rows, and cost.

    make bench-usefulness                                # all; an hour or two on two cores, most of it training
    python benchmarks/usefulness.py --tasks digits,wine --seeds 0,1,2 --methods "temperature scaling;our default"
    python benchmarks/usefulness.py --page               # only the page, from the results so far

The figures of a method, a task and a seed are kept in the cache ($ENKBAYES_DATA or ~/.cache/enkbayes, folder
usefulness), together with the networks and their checkpoints, so an interrupted run continues. The table is written to
results/usefulness.json, the chart to results/usefulness.png, the page to docs/results/usefulness.md, which explains the
columns.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from threadpoolctl import threadpool_limits
from useful_methods import METHODS, Method, Outcome, best_scale
from useful_page import ALL_SPLITS, NEEDED, write_page
from useful_tasks import TASKS, VERSION, Split, Task

import enkbayes as eb
from enkbayes.evaluation import metrics
from enkbayes.reproduction.datasets.downloads import cache_folder

RESULTS = Path(__file__).parent / "results"
SEEDS = (0, 1, 2)
COVERAGE = 0.8


def measured(found: Outcome, split: Split) -> dict[str, Any]:
    """Return the figures of one method on one split."""
    proba, labels = found.evaluation.proba, split.evaluation.y
    scores = metrics.score(proba, labels)
    scale = best_scale(_log(found.calibration.proba), split.calibration.y)
    sure = np.argsort(-metrics.confidence(proba), kind="stable")[: round(COVERAGE * len(labels))]
    return {
        "accuracy": scores.accuracy,
        "NLL": scores.nll,
        "calibrated NLL": metrics.nll(softmax(scale * _log(proba), axis=1), labels),
        "ECE": scores.ece,
        "Brier": scores.brier,
        "AUROC": _separation(found, "confidence").auroc,
        "FPR95": _separation(found, "confidence").fpr95,
        "AUROC, recommended": _separation(found, found.recommended).auroc,
        "FPR95, recommended": _separation(found, found.recommended).fpr95,
        "error at 80 % coverage": float(np.mean(np.argmax(proba[sure], axis=1) != labels[sure])),
        "cost": found.seconds / split.seconds[0],
        "scores": {name: _separation(found, name).auroc for name in found.evaluation.scores},
        "AUROC by kind": {
            kind: metrics.ood_separation(
                found.evaluation.scores[found.recommended], outside.scores[found.recommended]
            ).auroc
            for kind, outside in found.ood.items()
        },
        "note": found.note,
    }


def _log(proba: Any) -> Any:
    return np.log(np.maximum(proba, 1e-300))


def _separation(found: Outcome, name: str) -> Any:
    """Return how well a score separates OOD rows from evaluation rows, averaged over the kinds of OOD rows."""
    inside = found.evaluation.scores[name]
    kinds = [metrics.ood_separation(inside, outside.scores[name]) for outside in found.ood.values()]
    return metrics.OodScores(
        sum(kind.rows for kind in kinds),
        *(float(np.mean([getattr(kind, figure) for kind in kinds])) for figure in ("auroc", "aupr", "fpr95")),
    )


def averaged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of the figures of several splits; notes are joined."""
    first = rows[0]
    result: dict[str, Any] = {}
    for name, value in first.items():
        if isinstance(value, dict):
            result[name] = averaged([row[name] for row in rows])
        elif isinstance(value, str):
            result[name] = "; ".join(dict.fromkeys(row[name] for row in rows))
        else:
            result[name] = float(np.mean([row[name] for row in rows]))
    return result


def kept(task: Task, seed: int, method: str) -> Path:
    """Return the file with the figures of a method on a task and a seed."""
    name = method.replace(" ", "-").replace("'", "").replace(",", "")
    return cache_folder() / "usefulness" / "figures" / f"{task.name}-{seed}-{name}-{VERSION}.json"


def run_task(task: Task, seed: int, methods: dict[str, Method], *, again: bool) -> None:
    """Measure the methods that have not been measured yet."""
    missing = [method for method in methods if again or not kept(task, seed, method).exists()]
    if not missing:
        return
    found: dict[str, list[dict[str, Any]]] = {method: [] for method in missing}
    for number, split in enumerate(task.splits(seed)):
        for method in missing:
            if task.images and number and method not in ALL_SPLITS:
                continue
            row = measured(methods[method](split, task, seed), split)
            found[method].append(row)
            print(
                f"{task.name} {seed} {method:20s} NLL {row['NLL']:.4f} ECE {row['ECE']:.3f} accuracy "
                f"{row['accuracy']:.4f} AUROC {row['AUROC']:.3f} {row['AUROC, recommended']:.3f} "
                f"cost {row['cost']:.2f}  {row['note']}",
                flush=True,
            )
            if task.images and method not in ALL_SPLITS:
                keep(task, seed, method, found[method])
        if task.images and not ALL_SPLITS & set(missing):
            break
    for method, rows in found.items():
        keep(task, seed, method, rows)


def keep(task: Task, seed: int, method: str, rows: list[dict[str, Any]]) -> None:
    """Store the mean figures over splits; for images also those of the first split, the only one of slow methods."""
    path = kept(task, seed, method)
    path.parent.mkdir(parents=True, exist_ok=True)
    first = {"first": rows[0]} if task.images and len(rows) > 1 else {}
    path.write_text(json.dumps(averaged(rows) | first))


def collected() -> dict[str, Any]:
    """Return the figures that are there for all seeds: mean and standard error over seeds, by task and method."""
    tasks: dict[str, Any] = {}
    for task in TASKS:
        for method in METHODS:
            files = [kept(task, seed, method) for seed in SEEDS]
            if all(file.exists() for file in files):
                rows = [json.loads(file.read_text()) for file in files]
                found = tasks.setdefault(task.name, {"description": task.description, "methods": {}})
                found["methods"][method] = _summary(rows)
    return {
        "environment": {
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "enkbayes": eb.__version__,
        },
        "seeds": list(SEEDS),
        "tasks": {name: task for name, task in tasks.items() if task["methods"].keys() >= NEEDED},
    }


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: [row[name] for row in rows]
        if isinstance(value, str)
        else _summary([row[name] for row in rows])
        if isinstance(value, dict)
        else {
            "mean": float(np.mean([row[name] for row in rows])),
            "error": float(np.std([row[name] for row in rows], ddof=1) / np.sqrt(len(rows))),
            "seeds": [row[name] for row in rows],
        }
        for name, value in rows[0].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(task.name for task in TASKS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--methods", help="names, separated by ';'", default=";".join(METHODS))
    parser.add_argument("--again", action="store_true", help="measure again what has been measured")
    parser.add_argument("--page", action="store_true", help="write results and page only")
    parser.add_argument("--no-page", action="store_true", help="measure only, for several processes at a time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    threadpool_limits(1)  # cost is processor time, which waiting BLAS threads would use
    if not options.page:
        methods = {name: METHODS[name] for name in options.methods.split(";")}
        for seed in map(int, options.seeds.split(",")):
            for task in TASKS:
                if task.name in options.tasks.split(","):
                    run_task(task, seed, methods, again=options.again)
    if not options.no_page:
        result = collected()
        if not result["tasks"]:
            raise SystemExit("no task has figures of all methods and seeds yet; results and page are not written")
        (RESULTS / "usefulness.json").write_text(json.dumps(result, indent=1) + "\n")
        write_page(result, RESULTS)


if __name__ == "__main__":
    main()
