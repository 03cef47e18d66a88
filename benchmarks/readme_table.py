"""Fill the table of results of README.md from results/*.json and docs/paper, and docs/results.md with the same table.

python benchmarks/readme_table.py
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import default_page
import detector_page
import numpy as np
import useful_page

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "README.md", ROOT / "docs" / "results.md"
BEGIN, END = "<!-- begin results: python benchmarks/readme_table.py -->", "<!-- end results -->"
SITE = "https://github.com/enkbayes/enkbayes/blob/main/"

Row = tuple[str, str, str, str]
"""A statement, its scope, what was measured, and the page of the documentation that has the details."""


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def rows() -> list[Row]:
    """Return the rows of the table, in the order in which they appear."""
    return [*accuracy(), *defaults(), *times(), *networks(), *detectors(), far_away(), robustness()]


def accuracy() -> list[Row]:
    """Error of the probabilities against long NUTS and HMC runs, by the data set."""
    size = 200
    found = {
        row["data"]: row["closed form"]
        for row in result("predictive")["errors"]
        if (row["sampler"], row["particles"]) == ("equilibrium", size)
    }
    real, hard = ("breast cancer", "wine"), max(found.values())
    shown = " and ".join(f"{found[name]:.4f}" for name in real)
    return [
        (
            "Mean difference from the probabilities of a long NUTS run",
            "breast cancer and wine, fixed prior",
            shown,
            "understand/trust.md",
        ),
        (
            "The same, where a Gaussian fits the posterior badly",
            f"worst of {len(found) - len(real)} synthetic problems",
            f"{hard:.3f}",
            "understand/trust.md",
        ),
    ]


def defaults() -> list[Row]:
    """The default against LogisticRegressionCV on data that chose nothing."""
    pairs, fresh = (default_page.pairs_of(result(name)) for name in ("defaults", "defaults_fresh"))
    last = default_page.compared(fresh, default_page.OURS, default_page.REFERENCE)
    assert last
    few = {key: size for key, size in pairs.items() if key[1] in default_page.SMALL}
    whole, small = (default_page.compared(some, default_page.OURS, default_page.REFERENCE) for some in (pairs, few))
    assert whole
    assert small
    sets = len({name for name, _ in pairs})
    return [
        (
            "Log loss divided by that of `LogisticRegressionCV`",
            f"default; {sets} data sets, 50 or 200 rows ({small.pairs} cases)",
            f"{small.ratio:.2f}; lower in {small.wins:.0%} of cases",
            "results/defaults.md",
        ),
        (
            "Log loss divided by that of `LogisticRegressionCV`",
            f"default; the same sets, 50 to 5,000 rows ({whole.pairs} cases)",
            f"{whole.ratio:.2f}; lower in {whole.wins:.0%} of cases",
            "results/defaults.md",
        ),
        (
            "Log loss divided by that of `LogisticRegressionCV`",
            f"default; {len({name for name, _ in fresh})} fresh sets with two classes ({last.pairs} cases)",
            f"{last.ratio:.2f}; lower in {last.wins:.0%} of cases",
            "results/defaults.md",
        ),
    ]


def times() -> list[Row]:
    """Ratios of times, each with its scope."""
    bars = {row["work"]: row["measured"] for part in result("speed")["bars"].values() for row in part}
    point, nuts = (
        bars["Equilibrium / scikit-learn lbfgs (network features)"],
        bars["NUTS 500 x 7 / Equilibrium, N 300, D 50 (the paper's toy)"],
    )
    pairs = default_page.pairs_of(result("defaults"))
    costs = [
        ours / max(theirs, 1e-3)
        for size in pairs.values()
        for splits in [default_page.common(size, default_page.OURS, default_page.REFERENCE)]
        for ours, theirs in [
            [default_page.mean(size, name, "seconds", splits) for name in (default_page.OURS, default_page.REFERENCE)]
        ]
    ]
    classes = result("many_classes")["cases"]
    ratios = {name: case["ratio of the average"] for name, case in classes.items() if "ratio of the average" in case}
    large = max(classes, key=lambda name: classes[name]["rows, features, classes"][0])
    others = [ratio for name, ratio in ratios.items() if name != large]
    shapes = [case["rows, features, classes"] for name, case in classes.items() if name in ratios and name != large]
    most, (least_k, most_k) = max(shape[0] for shape in shapes), (f(shape[2] for shape in shapes) for f in (min, max))
    return [
        (
            "Time divided by that of `LogisticRegression`",
            "fixed prior; two classes, 10,000 rows, 256 features",
            f"{point:.1f}",
            "results/speed.md",
        ),
        (
            "Time divided by that of NUTS, 7 chains of 500 draws",
            "fixed prior; two classes, 300 rows, 50 features",
            f"1 / {nuts:,.0f}",
            "results/speed.md",
        ),
        (
            "Time divided by that of `LogisticRegressionCV`",
            f"default; the {len(costs)} cases above",
            f"median {np.median(costs):.1f}, largest {max(costs):.0f}",
            "results/defaults.md",
        ),
        (
            "Time divided by that of `LogisticRegression`",
            "default; {2} classes, {0:,} rows, {1} features".format(*classes[large]["rows, features, classes"]),
            f"{ratios[large]:.1f}",
            "results/many_classes.md",
        ),
        (
            "Time divided by that of `LogisticRegression`",
            f"default; {least_k} to {most_k} classes, at most {most:,} rows",
            f"{min(others):.0f} to {max(others):.0f}",
            "results/many_classes.md",
        ),
    ]


def networks() -> list[Row]:
    """Last layers against temperature scaling, over the tasks of the benchmark."""
    found = result("usefulness")
    tasks = [task["methods"] for task in found["tasks"].values()]
    targets = useful_page.default_targets(found).values()
    gains = [row[0].measured for row in targets]
    return [
        (
            "Log loss minus that of temperature scaling",
            f"last layers of networks for {len(tasks)} tasks, without far-field variance",
            f"median {np.median(gains):+.3f}, worst {max(gains):+.4f}",
            "results/usefulness.md",
        ),
    ]


def detectors() -> list[Row]:
    """The out-of-distribution score against the best detectors of pytorch-ood, near and far rows apart."""
    found = result("detectors")["evaluation"]
    ranking, rows = detector_page.ranking(found), []
    tasks = len(detector_page.by_task(found)[detector_page.OURS])
    ours, confidence = (
        next(row for row in ranking if row["method"] == name) for name in (detector_page.OURS, detector_page.CONFIDENCE)
    )
    for group, kind in (("near", "mostly for unseen classes"), ("far", "for other data sets and noise")):
        best = detector_page.best(ranking, group)
        rows.append(
            (
                f"AUROC of `OODScore`, {kind}",
                f"networks for {tasks} tasks; {len(ranking) - 2} other detectors",
                f"{ours[group]:.2f}; best other {best[group]:.2f}; confidence {confidence[group]:.2f}",
                "results/detectors.md",
            )
        )
    return rows


def far_away() -> Row:
    """Confidence far from the data with and without far-field variance, by figure 3 of the paper."""
    with (ROOT / "docs/paper/figure3/far_field.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    without, with_it = (np.mean([float(row[name]) for row in found]) for name in ("far", "far_with"))
    return (
        "Confidence far from the data, where 0.5 is right",
        f"two moons, {len(found)} networks",
        f"{with_it:.2f}; without far-field variance {without:.2f}",
        "understand/uncertainty.md",
    )


def robustness() -> Row:
    """How many hostile problems converge."""
    found = result("step_control")["two classes"]["Equilibrium"]
    return (
        "Fits that converge",
        f"{found['problems']:,} random problems with two classes, many separable or badly scaled",
        f"{found['converged']:.0%}, in {found['steps, median']:g} steps (median)",
        "../benchmarks/results/step_control.json",
    )


def table(page: Path) -> str:
    """Return the table in Markdown, with links that suit the page: absolute ones in the README."""
    head = "| What | Scope | Measured | Details |\n|---|---|---|---|\n"
    return head + "".join(
        f"| {what} | {scope} | {measured} | [{Path(target).stem.replace('_', ' ')}]({link(page, target)}) |\n"
        for what, scope, measured, target in rows()
    )


def link(page: Path, target: str) -> str:
    """Return the link from a page to a target that is relative to docs."""
    return SITE + f"docs/{target}".replace("docs/../", "") if page.name == "README.md" else target


def filled(page: Path) -> str:
    """Return the page with the table between its marks replaced."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(page)}{END}{after}"


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path), encoding="utf-8")
