"""Write docs/results/defaults.md and its chart from results/defaults.json and results/defaults_fresh.json: tables, and
targets with their outcome.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from default_methods import LARGEST_WORK, METHODS, NUTS_NAME, OURS, REFERENCE, SCALED
from default_sets import DEVELOPMENT, EVALUATION, FRESH, LARGEST, RAREST, TEST_ROWS

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results" / "defaults.md"
RESULT = HERE / "results" / "defaults.json"
FRESH_RESULT = HERE / "results" / "defaults_fresh.json"
RAW_RESULT = HERE / "results" / "default_raw.json"
CHART = HERE / "results" / "defaults.png"
SMALL = (50, 200)  # training rows of the target for small data

Size = dict[str, dict[str, Any]]  # the figures of every method for a data set and a number of training rows
Pairs = dict[tuple[str, int], Size]


@dataclass(frozen=True)
class Target:
    """A statement, the measured value (None: nothing was measured), and the limit that it must keep."""

    statement: str
    measured: float | None
    limit: float
    at_least: bool = False

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not measured"
        met = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "met" if met else "**missed**"


def pairs_of(result: dict[str, Any]) -> Pairs:
    """Return the figures by (data set, training rows), where our default and the reference have common splits."""
    found = {(name, int(n)): size for name, sizes in result["sets"].items() for n, size in sizes.items()}
    return {key: size for key, size in found.items() if common(size, OURS, REFERENCE)}


def common(size: Size, *methods: str) -> list[int]:
    """Return the splits that all of these methods have."""
    splits = [set(size[method]["splits"]) if method in size else set() for method in methods]
    return sorted(set.intersection(*splits))


def mean(size: Size, method: str, figure: str, splits: list[int]) -> float:
    """Return the mean of a figure over some splits."""
    row = size[method]
    return float(np.mean([row[figure][row["splits"].index(split)] for split in splits]))


@dataclass(frozen=True)
class Comparison:
    """A method beside another on the pairs that have both: means over common splits, then over pairs.

    ratio : geometric mean of the ratios of NLL
    wins : share of pairs with a smaller NLL
    worst, where : the largest NLL minus the other's, and its pair
    difference, error : mean NLL minus the other's, and its standard error over data sets
    """

    pairs: int
    ratio: float
    wins: float
    worst: float
    where: tuple[str, int]
    difference: float
    error: float


def compared(pairs: Pairs, method: str, other: str) -> Comparison | None:
    """Return the comparison, or None if no pair has both methods."""
    nll = {}
    for key, size in pairs.items():
        if splits := common(size, method, other):
            nll[key] = mean(size, method, "nll", splits), mean(size, other, "nll", splits)
    if not nll:
        return None
    differences = {key: one - two for key, (one, two) in nll.items()}
    where = max(differences, key=lambda key: differences[key])
    names = {name for name, _ in nll}
    by_set = [np.mean([d for key, d in differences.items() if key[0] == name]) for name in names]
    return Comparison(
        len(nll),
        float(np.exp(np.mean([np.log(one / two) for one, two in nll.values()]))),
        float(np.mean([one < two for one, two in nll.values()])),
        differences[where],
        where,
        float(np.mean(list(differences.values()))),
        float(np.std(by_set, ddof=1) / np.sqrt(len(names))) if len(names) > 1 else float("nan"),
    )


def figures(pairs: Pairs, figure: str, *methods: str) -> tuple[float, ...] | None:
    """Return the mean figure of each method over the pairs and splits that all of them have."""
    rows = [
        [mean(size, method, figure, splits) for method in methods]
        for size in pairs.values()
        if (splits := common(size, *methods))
    ]
    return tuple(np.mean(rows, axis=0)) if rows else None


def targets(pairs: Pairs) -> list[Target]:
    """Return the targets of the default, with what was measured."""
    small = {key: size for key, size in pairs.items() if key[1] in SMALL}
    whole, few, exact = (compared(*case) for case in (
        (pairs, OURS, REFERENCE), (small, OURS, REFERENCE), (pairs, OURS, NUTS_NAME)
    ))  # fmt: skip
    calibrated = figures(pairs, "ece", OURS, SCALED)
    return [
        Target("geometric mean of NLL ratios to LogisticRegressionCV", whole and whole.ratio, 0.95),
        Target("the same, 50 and 200 training rows", few and few.ratio, 0.935),
        Target("share of (set, rows) pairs with a smaller NLL", whole and whole.wins, 0.85, at_least=True),
        Target("largest NLL minus LogisticRegressionCV's", whole and whole.worst, 0.02),
        Target("mean NLL minus that of NUTS, where it was run", exact and exact.difference, 0.005),
        Target(
            "mean ECE minus that of LogisticRegressionCV with temperature",
            calibrated and float(calibrated[0] - calibrated[1]),
            0.0,
        ),
    ]


def page(result: dict[str, Any], later: dict[str, Any]) -> str:
    """Return the page of the documentation, from the figures of the evaluation sets and of the fresh ones."""
    template = jinja2.Template((HERE / "defaults.md.jinja").read_text(encoding="utf-8"), keep_trailing_newline=True)
    pairs, fresh = pairs_of(result), pairs_of(later)
    found = targets(pairs)
    methods = [method for method in METHODS if method != REFERENCE]
    return template.render(
        result=result,
        pairs=len(pairs),
        sets=len({name for name, _ in pairs}),
        splits=round(float(np.median([len(common(size, OURS, REFERENCE)) for size in pairs.values()]))),
        extreme=_extreme(pairs),
        targets=found,
        missed=[target for target in found if target.verdict != "met"],
        methods={method: row for method in methods if (row := _row(pairs, method))},
        sizes=[(label, _cells(some)) for label, some in _by_size(pairs).items()],
        rows=[_line(key, size) for key, size in pairs.items()],
        failures=_failures(pairs),
        absent=sorted(set(EVALUATION) - {name for name, _ in pairs}),
        fresh=fresh,
        fresh_targets=[t for t in targets(fresh) if t.measured is not None],
        fresh_rows=[_line(key, size) for key, size in fresh.items()],
        fresh_row=_row(fresh, OURS),
        fresh_sizes=[(label, compared(some, OURS, REFERENCE)) for label, some in _by_size(fresh).items()],
        fresh_names=FRESH,
        development=DEVELOPMENT,
        evaluation=EVALUATION,
        largest=LARGEST,
        test_rows=TEST_ROWS,
        rarest=RAREST,
        reference=REFERENCE,
        late=METHODS[NUTS_NAME],
        work=LARGEST_WORK,
        raw=_raw(json.loads(RAW_RESULT.read_text(encoding="utf-8"))),
    )


def _raw(found: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of default_raw.py, and how many splits they have."""
    counts = [sum((line["set"], line["n"]) == pair for line in found["lines"]) for pair in _pairs(found["lines"])]
    few, many = min(counts), max(counts)
    splits = f"{few} to {many} splits each" if few < many else f"{few} split{'s' if few > 1 else ''} each"
    return found | {"splits": splits}


def _pairs(lines: list[dict[str, Any]]) -> set[tuple[str, int]]:
    return {(line["set"], line["n"]) for line in lines}


def _extreme(pairs: Pairs) -> tuple[str, int, float, float, float]:
    """Return the pair with the most extreme ratio, both NLLs, and its effect on the geometric mean in per cent."""
    nll = {
        key: [mean(size, method, "nll", common(size, OURS, REFERENCE)) for method in (OURS, REFERENCE)]
        for key, size in pairs.items()
    }
    key = max(nll, key=lambda key: abs(np.log(nll[key][0] / nll[key][1])))
    ours, reference = nll[key]
    return *key, ours, reference, float(100 * abs(np.expm1(np.log(ours / reference) / len(pairs))))


def _row(pairs: Pairs, method: str) -> dict[str, Any] | None:
    found, ece = compared(pairs, method, REFERENCE), figures(pairs, "ece", method, REFERENCE)
    if found is None or ece is None:
        return None
    accuracy = figures(pairs, "accuracy", method, REFERENCE) or (np.nan, np.nan)
    costs = [
        mean(size, method, "seconds", splits) / max(mean(size, REFERENCE, "seconds", splits), 1e-3)
        for size in pairs.values()
        if (splits := common(size, method, REFERENCE))
    ]
    return {
        "found": found,
        "ece": ece,
        "accuracy": accuracy,
        "cost": float(np.median(costs)),
        "most": float(np.max(costs)),
    }


def _by_size(pairs: Pairs) -> dict[str, Pairs]:
    groups = {f"{n:,} rows": {key: size for key, size in pairs.items() if key[1] == n} for n in (50, 200, 1_000)}
    return groups | {"all rows": {key: size for key, size in pairs.items() if key[1] not in {50, 200, 1_000}}}


def _cells(pairs: Pairs) -> dict[str, Any]:
    shown = (OURS, "ours, prior_precision=1", "LogisticRegression", SCALED)
    return {"pairs": len(pairs), "found": [compared(pairs, method, REFERENCE) for method in shown]}


def _line(key: tuple[str, int], size: Size) -> dict[str, Any]:
    splits = common(size, OURS, REFERENCE)
    ours, reference = (mean(size, method, "nll", splits) for method in (OURS, REFERENCE))
    others = {}
    for method in (SCALED, NUTS_NAME):
        shared = common(size, method, REFERENCE)
        others[method] = (
            f"{mean(size, method, 'nll', shared) - mean(size, REFERENCE, 'nll', shared):+.3f}" if shared else "-"
        )
    return {
        "name": key[0],
        "n": key[1],
        "splits": len(splits),
        "reference": reference,
        "ours": ours,
        "difference": ours - reference,
        "others": others,
        "seconds": [mean(size, method, "seconds", splits) for method in (OURS, REFERENCE)],
    }


def _failures(pairs: Pairs) -> list[str]:
    return [
        f"{method}, {name}, {n} rows, {reason}"
        for (name, n), size in pairs.items()
        for method, row in size.items()
        for reason in row.get("failed", [])
    ]


def chart(result: dict[str, Any], path: Path) -> None:
    """Draw the NLL minus the reference's for every pair, by training rows."""
    import matplotlib.pyplot as plt

    groups = _by_size(pairs_of(result))
    shown = {OURS: "#0072B2", "ours, prior_precision=1": "#E69F00", "LogisticRegression": "#999999", SCALED: "#009E73"}
    figure, axes = plt.subplots(1, len(groups), figsize=(12, 5.2), layout="constrained", sharex=True)
    for ax, (label, pairs) in zip(axes, groups.items(), strict=True):
        names = sorted({name for name, _ in pairs}, key=str.lower)
        for method, colour in shown.items():
            places, values = [], []
            for (name, _), size in pairs.items():
                if splits := common(size, method, REFERENCE):
                    places.append(names.index(name))
                    values.append(mean(size, method, "nll", splits) - mean(size, REFERENCE, "nll", splits))
            ax.plot(np.clip(values, -0.25, 0.25), places, "o", color=colour, markersize=5, label=method)
        ax.axvline(0, color="#222222", linewidth=1)
        ax.set(title=label, yticks=range(len(names)), yticklabels=names)
        ax.invert_yaxis()
        ax.grid(axis="y", linewidth=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(f"NLL minus that of {REFERENCE} (cut at 0.25)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_page() -> None:
    """Write chart and page."""
    result, later = (json.loads(path.read_text(encoding="utf-8")) for path in (RESULT, FRESH_RESULT))
    chart(result, CHART)
    PAGE.write_text(page(result, later), encoding="utf-8")
