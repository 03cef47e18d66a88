"""Write docs/results/detectors.md from results/detectors.json: our score against the detectors of pytorch-ood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results" / "detectors.md"
RESULT = HERE / "results" / "detectors.json"
OURS = "OODScore"
CONFIDENCE = "temperature scaling"  # confidence of the network itself, no detector of the package
GROUPS = ("near", "far")
FORM = "the larger of both, and entropy (the score)"
SHOWN = {"auroc": "AUROC of confidence", "far": "mean confidence on far rows", "shifted": "NLL of shifted rows"}


def by_task(lines: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return {method: {task: mean near and far AUROC over its seeds}}."""
    found: dict[str, dict[str, list[list[float]]]] = {}
    for line in lines:
        for method, values in line["methods"].items():
            found.setdefault(method, {}).setdefault(line["task"], []).append(values)
    return {m: {t: np.mean(v, axis=0).tolist() for t, v in tasks.items()} for m, tasks in found.items()}


def ranking(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every method with its mean AUROC over tasks, near and far, and its mean rank, the best mean first."""
    methods = by_task(lines)
    names, tasks = list(methods), list(next(iter(methods.values())))
    values = np.array([[methods[name][task] for task in tasks] for name in names])  # (methods, tasks, 2)
    ranks = (-values).argsort(axis=0).argsort(axis=0).mean(axis=(1, 2)) + 1
    means = values.mean(axis=1)
    rows = [
        {"method": name, "near": near, "far": far, "mean": (near + far) / 2, "rank": rank}
        for name, (near, far), rank in zip(names, means.tolist(), ranks.tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: -row["mean"])


def best(rows: list[dict[str, Any]], group: str) -> dict[str, Any]:
    """Return the detector of the package with the best mean in a group of rows."""
    return max((row for row in rows if row["method"] not in (OURS, CONFIDENCE)), key=lambda row: row[group])


def per_task(lines: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for every task the AUROC of ours, of the best detectors on average, and of the best for this task."""
    methods = by_task(lines)
    leaders = {group: best(rows, group)["method"] for group in GROUPS}
    found = []
    for task in methods[OURS]:
        row: dict[str, Any] = {"task": task, "seeds": sum(line["task"] == task for line in lines)}
        for i, group in enumerate(GROUPS):
            others = {m: tasks[task][i] for m, tasks in methods.items() if m not in (OURS, CONFIDENCE)}
            top = max(others, key=others.__getitem__)
            row[group] = {
                "ours": methods[OURS][task][i],
                "leader": others[leaders[group]],
                "top": others[top],
                "name": top,
            }
        found.append(row)
    return found


def wins(tasks: list[dict[str, Any]], group: str, other: str) -> int:
    """Return on how many tasks our score is at least as good as another figure of the row."""
    return sum(row[group]["ours"] >= row[group][other] for row in tasks)


def heads(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return figures of the probabilities with far-field variance and of temperature scaling, one row a network."""
    found = []
    for line in lines:
        methods = line["methods"]
        row: dict[str, Any] = {"task": line["task"], "seed": line["seed"], "classes": methods["classes"]}
        row |= {"gap": methods["gap"][0], "error": methods["gap"][1], "tested": methods["test rows"]}
        for short, name in (("temperature", CONFIDENCE), ("ours", "with far-field variance")):
            figures = methods[name]
            away = [v for part, v in figures["confidence"].items() if part.startswith("far:")]
            row[short] = {
                "nll": figures["nll"]["test"],
                "accuracy": figures["accuracy"],
                "ece": figures["ece"],
                "far": float(np.mean(away)),
                "shifted": _shifted(figures),
                "auroc": float(np.mean(list(figures["auroc"].values()))),
            }
        row["best"] = _shifted(methods["own temperature"])
        row["score"] = float(np.mean(list(methods[OURS]["auroc"].values())))
        row["halfway"] = (1 / row["classes"] + row["temperature"]["far"]) / 2
        found.append(row)
    return found


def _shifted(figures: dict[str, Any]) -> float | None:
    moved = [v for part, v in figures["nll"].items() if part.startswith("shifted:")]
    return float(np.mean(moved)) if moved else None


def heads_by_task(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the means of `heads` over the seeds of every task; errors are those of means. The ratios are the means of
    the ratios of the seeds.
    """
    found = []
    rows = heads(lines)
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        row = {"task": task, "seeds": len(own)}
        for key in ("classes", "gap", "tested", "score", "halfway", "best"):
            row[key] = None if own[0][key] is None else float(np.mean([each[key] for each in own]))
        row["error"] = float(np.sqrt(np.sum([each["error"] ** 2 for each in own])) / len(own))
        for short in ("temperature", "ours"):
            row[short] = {
                key: None if value is None else float(np.mean([each[short][key] for each in own]))
                for key, value in own[0][short].items()
            }
        moved = [(each["ours"]["shifted"], each["temperature"]["shifted"], each["best"]) for each in own]
        some = moved[0][0] is not None
        row["ratio"] = float(np.mean([ours / base for ours, base, _ in moved])) if some else None
        row["best ratio"] = float(np.mean([best / base for _, base, best in moved])) if some else None
        found.append(row)
    return found


def targets(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return statements, what was measured, and whether they hold."""
    rows = ranking(result["evaluation"])
    own = next(row for row in rows if row["method"] == OURS)
    found = []

    def add(statement: str, measured: str, met: bool) -> None:
        found.append({"statement": statement, "measured": measured, "verdict": "met" if met else "**missed**"})

    for group in GROUPS:
        top = best(rows, group)
        add(
            f"AUROC of the score on {group} rows at least that of the best detector on average",
            f"{own[group]:.3f}, {top['method']} {top[group]:.3f}",
            own[group] >= top[group],
        )
    figures = heads_by_task(result["heads"])
    if not figures:
        return found
    names = {(line["task"], line["seed"]) for line in result["heads"]}
    same = [line for line in result["evaluation"] if (line["task"], line["seed"]) in names]
    top = max((row for row in ranking(same) if row["method"] not in (OURS, CONFIDENCE)), key=lambda row: row["mean"])
    each = {row["task"]: [np.mean(_near_and_far(x)) for x in result["heads"] if x["task"] == row["task"]]
            for row in figures}  # fmt: skip
    auroc = float(np.mean([np.mean(values) for values in each.values()]))
    add(
        "AUROC by plain confidence at least that of the best detector on average minus .05",
        f"{auroc:.3f}, {top['method']} {top['mean']:.3f}",
        auroc >= top["mean"] - 0.05,
    )
    held = sum(row["ours"]["far"] <= row["halfway"] for row in figures)
    mean = [float(np.mean([row["ours"]["far"] for row in figures])), float(np.mean([r["halfway"] for r in figures]))]
    add(
        "mean confidence on far rows at most half-way between 1/K and temperature scaling's",
        f"{mean[0]:.3f}, half-way {mean[1]:.3f}; {held} of {len(figures)} tasks",
        mean[0] <= mean[1],
    )
    ratios = [row["ratio"] for row in figures if row["ratio"] is not None]
    if ratios:
        add(
            "NLL of shifted rows at most .7 of temperature scaling's on average, never above it",
            f"{np.mean(ratios):.2f}, largest {max(ratios):.2f}; with the temperature that their labels choose "
            f"{np.mean([row['best ratio'] for row in figures if row['ratio'] is not None]):.2f}",
            float(np.mean(ratios)) <= 0.7 and max(ratios) <= 1,
        )
    worst = max(figures, key=lambda row: row["gap"] - row["error"])
    add(
        "in distribution, NLL at most temperature scaling's plus one standard error, every task",
        f"{sum(r['gap'] <= r['error'] for r in figures)} of {len(figures)} tasks; worst {worst['task']} "
        f"{worst['gap']:+.3f} ± {worst['error']:.3f}",
        worst["gap"] <= worst["error"],
    )
    slips = {row["task"]: row["ours"]["accuracy"] - row["temperature"]["accuracy"] for row in figures}
    slip = min(slips, key=slips.__getitem__)
    rows_of = {row["task"]: row["tested"] for row in figures}
    add(
        "accuracy within .3 points of the network's, every task",
        f"mean {100 * np.mean(list(slips.values())):+.1f} points, worst {slip} {100 * slips[slip]:+.1f}, where a test "
        f"row is {100 / rows_of[slip]:.1f} points",
        slips[slip] >= -0.003,
    )
    ece = max(row["ours"]["ece"] - row["temperature"]["ece"] for row in figures)
    mean_ece = float(np.mean([row["ours"]["ece"] - row["temperature"]["ece"] for row in figures]))
    add("ECE at most temperature scaling's plus .005, every task", f"mean {mean_ece:+.3f}, worst {ece:+.3f}",
        ece <= 0.005)  # fmt: skip
    return found


def _near_and_far(line: dict[str, Any]) -> list[float]:
    found = line["methods"]["with far-field variance"]["auroc"]
    return [float(np.mean([v for part, v in found.items() if part.startswith(group)])) for group in GROUPS]


def forms(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean near and far AUROC over the development tasks of every form of the score."""
    if not lines:
        return []
    tasks = list(dict.fromkeys(line["task"] for line in lines))
    found = []
    for form in lines[0]["forms"]:
        near, far = np.mean(
            [np.mean([line["forms"][form] for line in lines if line["task"] == task], axis=0) for task in tasks], axis=0
        ).tolist()
        found.append({"form": form, "near": near, "far": far, "mean": (near + far) / 2})
    return found


def noise_scores(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return means over development networks of the figures of every score as far-field variance."""
    names = list(lines[0]["forms"]) if lines else []
    keys = list(lines[0]["forms"][names[0]]) if lines else []
    return [
        {"form": name}
        | {key: float(np.nanmean([line["forms"][name][key] for line in lines])) for key in keys}
        | {"largest": float(np.nanmax([line["forms"][name]["ratio"] for line in lines]))}
        for name in names
    ]


def page(result: dict[str, Any]) -> str:
    """Return docs/results/detectors.md, rendered from the results."""
    template = jinja2.Template(
        (HERE / "detectors.md.jinja").read_text(encoding="utf-8"),
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    rows = ranking(result["evaluation"])
    tasks, by_task_rows = per_task(result["evaluation"], rows), heads_by_task(result["heads"])
    return template.render(
        rows=rows,
        tasks=tasks,
        leaders={group: best(rows, group)["method"] for group in GROUPS},
        wins={(group, other): wins(tasks, group, other) for group in GROUPS for other in ("leader", "top")},
        lines=len(result["evaluation"]),
        heads=by_task_rows,
        head_lines=len(result["heads"]),
        others={
            short: float(
                np.mean([row[key] for row in by_task_rows if row["task"] != "Vehicle" and row[key] is not None])
            )
            for short, key in (("ratio", "ratio"), ("best", "best ratio"))
        },
        targets=targets(result),
        forms=forms(result["forms"]),
        form_lines=len(result["forms"]),
        form_tasks=list(dict.fromkeys(line["task"] for line in result["forms"])),
        development=ranking(result["development"])[:6] if result["development"] else [],
        development_tasks=list(dict.fromkeys(line["task"] for line in result["development"])),
        own=next(row for row in rows if row["method"] == OURS),
        noise=noise_scores(result["far_field_scores"]),
        noise_lines=len(result["far_field_scores"]),
        environment=result["environment"],
        OURS=OURS,
        FORM=FORM,
    )


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")
