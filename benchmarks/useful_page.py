"""Write docs/usefulness.md and its chart from results/usefulness.json: tables, and the bars, which the results decide.

python benchmarks/useful_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "usefulness.md"
COLUMNS = (
    ("accuracy", ".4f"),
    ("NLL", ".4f"),
    ("calibrated NLL", ".4f"),
    ("ECE", ".3f"),
    ("Brier", ".4f"),
    ("risk 80 %", ".4f"),
    ("AUROC", ".3f"),
    ("FPR95", ".3f"),
    ("AUROC, recommended", ".3f"),
    ("FPR95, recommended", ".3f"),
    ("cost", ".2f"),
)
OURS, SCALED, LAPLACE, TRAINED = "our default", "temperature", "Laplace, our prior", "trained network"
WHOLE, MANY, PAPER = "our whole network", "five networks", "paper's recipe"
NEEDED = {OURS, SCALED, LAPLACE, TRAINED, WHOLE, MANY, PAPER}  # a task without one of them waits
EQUAL = 5e-5  # figures are given to four places


def bars(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every bar with what was measured and whether it is met."""
    tasks = result["tasks"]

    def figure(task: str, method: str, name: str, beside: str | None = None) -> float:
        methods = tasks[task]["methods"]
        return float((methods[method] if beside is None else same_rows(methods, method, beside))[name]["mean"])

    rows = []
    for task in tasks:
        for words, other, name, slack in (
            ("NLL at most temperature scaling's", SCALED, "NLL", 0.0),
            ("NLL at most Laplace's", LAPLACE, "NLL", 0.0),
            ("ECE at most temperature scaling's + .005", SCALED, "ECE", 0.005),
        ):
            rows.append(_bar(f"default, {task}: {words}", figure(task, OURS, name) - figure(task, other, name), slack))
        drop = figure(task, TRAINED, "accuracy") - figure(task, OURS, "accuracy")
        rows.append(_bar(f"default, {task}: accuracy lost at most .003", drop, 0.003))

    def mean(method: str, name: str) -> float:
        return float(np.mean([figure(task, method, name, beside=WHOLE) for task in tasks]))

    least = {
        "trained network's + .02": mean(TRAINED, "AUROC") + 0.02,
        "five networks' - .01": mean(MANY, "AUROC") - 0.01,
    }
    for score, name in (("strangeness", "AUROC, recommended"), ("confidence", "AUROC")):
        for words, limit in least.items():
            short = limit - mean(WHOLE, name)
            rows.append(_bar(f"whole network, mean AUROC over tasks by {score}: below {words} by", short, 0))
    costs = {task: figure(task, WHOLE, "cost") / figure(task, MANY, "cost") for task in tasks}
    for task, ratio in {"mean over tasks": float(np.mean(list(costs.values()))), **costs}.items():
        rows.append(_bar(f"whole network, {task}: cost over that of five networks", ratio, 0.5))
    return rows


def same_rows(methods: dict[str, Any], method: str, beside: str) -> dict[str, Any]:
    """Return the figures of a method on the rows that another one has seen: all halvings, or the first alone."""
    found: dict[str, Any] = methods[method]
    return found["first"] if "first" in found and "first" not in methods[beside] else found


def _bar(words: str, measured: float, limit: float) -> dict[str, Any]:
    return {"words": words, "measured": measured, "limit": limit, "met": bool(measured <= limit + EQUAL)}


def page(result: dict[str, Any], choices: dict[str, Any], development: dict[str, Any]) -> str:
    """Return the page of the documentation that the results make, with how settings and score were chosen."""
    template = jinja2.Template((HERE / "usefulness.md.jinja").read_text(encoding="utf-8"), keep_trailing_newline=True)
    tables = []
    for task in result["tasks"].values():
        rows = [
            (method, [_cell(figures[name], style) for name, style in COLUMNS])
            for method, figures in task["methods"].items()
        ]
        ours = task["methods"][OURS]
        paired = {
            f"{name} less {words}": _paired(np.subtract(ours[name]["seeds"], task["methods"][other][name]["seeds"]))
            for words, other in (("temperature scaling's", SCALED), ("Laplace's", LAPLACE))
            for name in ("NLL", "ECE")
        }
        notes = [f"seed {seed}: {note}" for seed, note in zip(result["seeds"], ours["note"], strict=True)]
        tables.append({"words": task["words"], "rows": rows, "paired": paired, "notes": notes})
    names = list(dict.fromkeys(n for t in result["tasks"].values() for n in t["methods"][WHOLE]["scores"]))
    scores = [
        (name, [f"{t['methods'][WHOLE]['scores'][name]['mean']:.3f}" for t in result["tasks"].values()])
        for name in names
    ]
    scores.insert(
        0,
        (
            "confidence of the trained network",
            [f"{same_rows(t['methods'], TRAINED, WHOLE)['AUROC']['mean']:.3f}" for t in result["tasks"].values()],
        ),
    )
    scores.append(
        (
            "confidence of five networks",
            [f"{t['methods'][MANY]['AUROC']['mean']:.3f}" for t in result["tasks"].values()],
        )
    )
    return template.render(
        result=result,
        columns=[name for name, _ in COLUMNS],
        tables=tables,
        bars=bars(result),
        scores=scores,
        choices=choices["tasks"],
        development=development | {"order": sorted(development["mean"], key=development["mean"].get, reverse=True)},
        questions=list(next(iter(choices["tasks"].values()))),
    )


def _cell(figure: dict[str, Any], style: str) -> str:
    return f"{figure['mean']:{style}} ± {figure['error']:{style}}"


def _paired(gains: Any) -> str:
    return f"{np.mean(gains):+.4f} ± {np.std(gains, ddof=1) / np.sqrt(len(gains)):.4f}"


def chart(result: dict[str, Any], path: Path) -> None:
    """Draw NLL against temperature scaling's, and the AUROC of the recommended score, for every task."""
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
    left.set(xlabel="NLL against temperature scaling, % (cut at 60)", yticks=range(len(tasks)), yticklabels=list(tasks))
    right.set(xlabel="AUROC of strange rows, recommended score", xlim=(0, 1))
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
