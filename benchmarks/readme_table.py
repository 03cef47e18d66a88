"""Fill the table of results of README.md from results/*.json and docs/paper, and docs/results.md with the same table.

python benchmarks/readme_table.py
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import default_page
import detector_page
import numpy as np

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "README.md", ROOT / "docs" / "results.md"
BEGIN, END = "<!-- begin results: python benchmarks/readme_table.py -->", "<!-- end results -->"
SITE = "https://github.com/enkbayes/enkbayes/blob/main/"

Row = tuple[str, str, str, str]
"""A question, what was measured, on what, and the page of the documentation that has the details."""


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def span(numbers: Sequence[int]) -> str:
    return f"{min(numbers):,} to {max(numbers):,}"


def rows() -> list[Row]:
    """Return the rows of the table, in the order in which they appear."""
    return [accuracy(), *defaults(), *times(), detectors(), far_away()]


def accuracy() -> Row:
    """Error of the probabilities against long NUTS and HMC runs, by the data set."""
    size = 200
    found = {
        row["data"]: row["closed form"]
        for row in result("predictive")["errors"]
        if (row["sampler"], row["particles"]) == ("equilibrium", size)
    }
    real, hard = ("breast cancer", "wine"), max(found.values())
    return (
        "How far are probabilities from those of long NUTS runs?",
        f"{' and '.join(f'{found[name]:.4f}' for name in real)} on average; {hard:.3f} on the hardest problem",
        f"breast cancer and wine, and {len(found) - len(real)} synthetic problems",
        "understand/trust.md",
    )


def defaults() -> list[Row]:
    """The default against LogisticRegressionCV on data that chose nothing."""
    found = []
    for name, question, kind in (
        ("defaults", "How large is the log loss, relative to `LogisticRegressionCV`?", "data sets"),
        (
            "defaults_fresh",
            "... and on fresh data sets, named before any method was run?",
            "data sets with two classes",
        ),
    ):
        pairs = default_page.pairs_of(result(name))
        whole = default_page.compared(pairs, default_page.OURS, default_page.REFERENCE)
        assert whole
        found.append(
            (
                question,
                f"{whole.ratio:.2f} times; lower in {100 * whole.wins:.0f} % of cases",
                f"{len({each for each, _ in pairs})} {kind}, {span([size for _, size in pairs])} training rows",
                "results/defaults.md",
            )
        )
    return found


def times() -> list[Row]:
    """Ratios of times, each with its scope."""
    pairs = default_page.pairs_of(result("defaults"))
    costs = [
        ours / max(theirs, 1e-3)
        for size in pairs.values()
        for splits in [default_page.common(size, default_page.OURS, default_page.REFERENCE)]
        for ours, theirs in [
            [default_page.mean(size, name, "seconds", splits) for name in (default_page.OURS, default_page.REFERENCE)]
        ]
    ]
    bars = {row["work"]: row["measured"] for part in result("speed")["bars"].values() for row in part}
    nuts = bars["NUTS 500 x 7 / Equilibrium, N 300, D 50 (the paper's toy)"]
    classes = result("many_classes")["cases"]
    ratios = {name: case["ratio of the average"] for name, case in classes.items() if "ratio of the average" in case}
    counts = [classes[name]["rows, features, classes"][2] for name in ratios]
    return [
        (
            "How long does a fit take, relative to `LogisticRegressionCV`?",
            f"{np.median(costs):.1f} times (median); {max(costs):.0f} times at worst",
            f"the same {len({each for each, _ in pairs})} data sets",
            "results/defaults.md",
        ),
        (
            "... and with many classes, relative to one `LogisticRegression`?",
            f"{min(ratios.values()):.0f} to {max(ratios.values()):.0f} times",
            f"digits and made data, {span(counts)} classes",
            "results/many_classes.md",
        ),
        (
            "... and relative to NUTS?",
            f"1 / {nuts:,.0f} of its time",
            "300 rows, 50 features, a fixed prior; 7 chains of 500 draws",
            "results/speed.md",
        ),
    ]


def detectors() -> Row:
    """The out-of-distribution score against the best detectors of pytorch-ood, near and far rows apart."""
    found = result("detectors")["evaluation"]
    ranking = detector_page.ranking(found)
    tasks = len(detector_page.by_task(found)[detector_page.OURS])
    ours = next(row for row in ranking if row["method"] == detector_page.OURS)
    shown = [
        f"{ours[group]:.2f} for {kind} (best other {detector_page.best(ranking, group)[group]:.2f})"
        for group, kind in (("near", "unseen classes"), ("far", "other data"))
    ]
    return (
        "Does `OODScore` recognise inputs unlike the training data (AUROC)?",
        ", ".join(shown),
        f"networks for {tasks} tasks, {len(ranking) - 2} other detectors",
        "results/detectors.md",
    )


def far_away() -> Row:
    """Confidence far from the data with and without far-field variance, by figure 3 of the paper."""
    with (ROOT / "docs/paper/figure3/far_field.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    without, with_it = (np.mean([float(row[name]) for row in found]) for name in ("far", "far_with"))
    return (
        "How confident is a network far from the data, where 0.5 is right?",
        f"{with_it:.2f}; without far-field variance {without:.2f}",
        f"two moons, {len(found)} networks",
        "understand/uncertainty.md",
    )


def table(page: Path) -> str:
    """Return the table in Markdown, with links that suit the page: absolute ones in the README."""
    head = "| Question | Answer | Measured on |\n|---|---|---|\n"
    return head + "".join(
        f"| {question} | {answer} | [{scope}]({link(page, target)}) |\n" for question, answer, scope, target in rows()
    )


def link(page: Path, target: str) -> str:
    """Return the link from a page to a target that is relative to docs."""
    return SITE + f"docs/{target}" if page.name == "README.md" else target


def filled(page: Path) -> str:
    """Return the page with the table between its marks replaced."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(page)}{END}{after}"


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path), encoding="utf-8")
