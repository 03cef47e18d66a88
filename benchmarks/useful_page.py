"""Write docs/results/usefulness.md and its chart from results/usefulness.json: tables, and targets with their outcome.

python benchmarks/useful_page.py
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results" / "usefulness.md"
PREDICTIONS = {"accuracy": ".4f", "NLL": ".4f", "calibrated NLL": ".4f", "ECE": ".3f", "Brier": ".4f"}
SEPARATION = {
    "error at 80 % coverage": ".4f",
    "AUROC": ".3f",
    "FPR95": ".3f",
    "AUROC, recommended": ".3f",
    "FPR95, recommended": ".3f",
    "cost": ".2f",
}
OURS, SCALED, LAPLACE, TRAINED = "our default", "temperature scaling", "Laplace, our prior", "trained network"
WHOLE, MANY, PAPER = "our whole network", "five networks", "paper's recipe"
NEEDED = {OURS, SCALED, LAPLACE, TRAINED, WHOLE, MANY, PAPER}  # tasks without figures of all of these are left out
ALL_SPLITS = {TRAINED, SCALED, LAPLACE, OURS}  # measured on all splits of image tasks, the others on the first alone
SHORT_NAMES = {  # columns of the tasks on which the score was chosen
    "deer and horses": "deer",
    "ten classes, MNIST": "ten-classes",
    "Fashion-MNIST, drawings": "fashion",
    "digits, other pairs": "digits",
    "breast cancer, second component": "cancer",
    "wine, second component": "wine",
    "diabetes, second component": "diabetes",
}


@dataclass(frozen=True)
class Target:
    """A statement about a figure, the measured value, and the limit that it must not exceed, or not fall below."""

    statement: str
    measured: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        excess = self.limit - self.measured if self.at_least else self.measured - self.limit
        return bool(excess <= 5e-5)  # figures are given to four places


def default_targets(result: dict[str, Any]) -> dict[str, list[Target]]:
    """Return the targets of the default posterior of the last layer, for each task."""
    return {name: _default_targets(task["methods"]) for name, task in result["tasks"].items()}


def _default_targets(methods: dict[str, Any]) -> list[Target]:
    def difference(name: str, one: str, other: str) -> float:
        return float(methods[one][name]["mean"] - methods[other][name]["mean"])

    return [
        Target("NLL minus temperature scaling's", difference("NLL", OURS, SCALED), 0.0),
        Target("NLL minus Laplace's", difference("NLL", OURS, LAPLACE), 0.0),
        Target("ECE minus temperature scaling's", difference("ECE", OURS, SCALED), 0.005),
        Target("accuracy lost", difference("accuracy", TRAINED, OURS), 0.003),
    ]


def network_targets(result: dict[str, Any]) -> list[Target]:
    """Return the targets of the posterior of the whole network."""
    tasks = {name: task["methods"] for name, task in result["tasks"].items()}

    def mean(method: str, name: str) -> float:
        return float(np.mean([same_rows(methods, method, WHOLE)[name]["mean"] for methods in tasks.values()]))

    targets = []
    for score, name in (("OOD score", "AUROC, recommended"), ("confidence", "AUROC")):
        for statement, limit in (
            ("at least 0.02 above the trained network's", mean(TRAINED, "AUROC") + 0.02),
            ("at most 0.01 below five networks'", mean(MANY, "AUROC") - 0.01),
        ):
            targets.append(Target(f"mean AUROC of the {score} {statement}", mean(WHOLE, name), limit, at_least=True))
    costs = {task: methods[WHOLE]["cost"]["mean"] / methods[MANY]["cost"]["mean"] for task, methods in tasks.items()}
    for task, ratio in {"mean over tasks": float(np.mean(list(costs.values()))), **costs}.items():
        targets.append(Target(f"cost at most half that of five networks, {task}", ratio, 0.5))
    return targets


def same_rows(methods: dict[str, Any], method: str, beside: str) -> dict[str, Any]:
    """Return the figures of a method on the rows on which another one was measured: all splits, or the first alone."""
    found: dict[str, Any] = methods[method]
    return found if beside in ALL_SPLITS else found.get("first", found)


def page(result: dict[str, Any], choices: dict[str, Any], development: dict[str, Any]) -> str:
    """Return the page of the documentation: results, and how settings and score were chosen."""
    template = jinja2.Template((HERE / "usefulness.md.jinja").read_text(encoding="utf-8"), keep_trailing_newline=True)
    defaults, tasks = default_targets(result), result["tasks"].values()
    scores = dict.fromkeys(name for task in tasks for name in task["methods"][WHOLE]["scores"])
    score_rows = {
        "confidence of the trained network": [same_rows(t["methods"], TRAINED, WHOLE)["AUROC"] for t in tasks],
        **{name: [t["methods"][WHOLE]["scores"][name] for t in tasks] for name in scores},
        "confidence of five networks": [t["methods"][MANY]["AUROC"] for t in tasks],
    }
    return template.render(
        result=result,
        default_targets=defaults,
        default_columns=next(iter(defaults.values())),
        network_targets=network_targets(result),
        tables=[_task(task, result["seeds"]) for task in tasks],
        scores={name: [f"{figure['mean']:.3f}" for figure in row] for name, row in score_rows.items()},
        choices=choices["tasks"],
        questions=list(next(iter(choices["tasks"].values()))),
        development=development,
        development_columns=[SHORT_NAMES[name] for name in development["tasks"]],
        best_first=sorted(development["mean"], key=development["mean"].get, reverse=True),
    )


def _task(task: dict[str, Any], seeds: list[int]) -> dict[str, Any]:
    methods = task["methods"]
    paired = {
        other: ", ".join(f"{name} {_paired(methods, name, method)}" for name in ("NLL", "ECE"))
        for other, method in (("temperature scaling", SCALED), ("Laplace", LAPLACE))
    }
    notes = zip(seeds, methods[OURS]["note"], strict=True)
    return {
        "description": task["description"],
        "tables": [
            (columns, {name: [_cell(row[c], style) for c, style in columns.items()] for name, row in methods.items()})
            for columns in (PREDICTIONS, SEPARATION)
        ],
        "paired": paired,
        "chosen": "; ".join(f"seed {seed}: {chosen_spreads(note)}" for seed, note in notes),
    }


def _cell(figure: dict[str, Any], style: str) -> str:
    return f"{figure['mean']:{style}} ± {figure['error']:{style}}"


def _paired(methods: dict[str, Any], name: str, other: str) -> str:
    gains = np.subtract(methods[OURS][name]["seeds"], methods[other][name]["seeds"])
    return f"{np.mean(gains):+.4f} ± {np.std(gains, ddof=1) / np.sqrt(len(gains)):.4f}"


def chosen_spreads(note: str) -> str:
    """Return the prior spreads of a note that joins the reports of several splits; T is temperature scaling.

    >>> chosen_spreads("a posterior of prior spread 0.3: log loss ... rows; temperature scaling: no posterior ...")
    '0.3, T'
    """
    spreads = (re.search(r"prior spread ([\d.]+\d|\d)", report) for report in note.split("; "))
    return ", ".join("T" if spread is None else spread[1] for spread in spreads)


def chart(result: dict[str, Any], path: Path) -> None:
    """Draw the NLL relative to temperature scaling, and the AUROC of the recommended score, for every task."""
    import matplotlib.pyplot as plt

    tasks = result["tasks"]
    methods = [PAPER, OURS, WHOLE, MANY]
    colours = dict(zip(methods, ("#999999", "#0072B2", "#009E73", "#D55E00"), strict=True))
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained", sharey=True)
    for i, method in enumerate(methods):
        places = np.arange(len(tasks)) + (i - 1.5) * 0.2
        rows = [task["methods"][method] for task in tasks.values()]
        scaled = [same_rows(task["methods"], SCALED, method)["NLL"]["mean"] for task in tasks.values()]
        gains = [row["NLL"]["mean"] / base - 1 for row, base in zip(rows, scaled, strict=True)]
        left.barh(places, np.clip(np.multiply(gains, 100), -60, 60), height=0.19, color=colours[method], label=method)
        right.barh(places, [row["AUROC, recommended"]["mean"] for row in rows], height=0.19, color=colours[method])
    right.plot(
        [same_rows(task["methods"], TRAINED, WHOLE)["AUROC"]["mean"] for task in tasks.values()],
        np.arange(len(tasks)),
        "k|",
        markersize=26,
        label="trained network",
    )
    left.axvline(0, color="#222222", linewidth=1)
    left.set(
        xlabel="NLL relative to temperature scaling, % (cut at 60)", yticks=range(len(tasks)), yticklabels=list(tasks)
    )
    right.set(xlabel="AUROC of out-of-distribution rows, recommended score", xlim=(0, 1))
    left.invert_yaxis()
    left.legend(fontsize=8, frameon=False, loc="lower left")
    right.legend(fontsize=8, frameon=False, loc="lower right")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def write_page(result: dict[str, Any], folder: Path) -> None:
    chart(result, folder / "usefulness.png")
    chosen = [
        json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("useful_choices", "useful_scores")
    ]
    PAGE.write_text(page(result, *chosen), encoding="utf-8")


if __name__ == "__main__":
    results = HERE / "results"
    write_page(json.loads((results / "usefulness.json").read_text(encoding="utf-8")), results)
