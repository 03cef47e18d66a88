"""Fill the tables of small_ensembles.md, trust.md and drift.md in docs/understand, and docs/how_to/deploy.md, from
the results of informed, big_heads, predictive, sequential and head_speed.

python benchmarks/doc_tables.py

The start of a table's first line identifies the table. The text around the tables is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from enkbayes.core.numerics import plain

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
LAYERS = {
    "digits, trained layer of 256": "a trained layer of 256, odd or even",
    "digits, 400 random ReLU features": "400 random ReLU features, odd or even",
    "digits, ten classes, trained layer of 30": "a trained layer of 30, ten classes",
}
COVARIANCES = ("rank 8, float32", "rank 24, float32", "rank 32, float32", "rank 32, float64")

Rows = Iterable[tuple[Any, ...]]


def small(informed: dict[str, Any], _: dict[str, Any]) -> Rows:
    for name, words in LAYERS.items():
        task = informed["tasks"][name]
        known = f"{task['parameters']} ({task['informed directions']})"
        for J, row in task["particles"].items():
            errors = (f"{row['random']:.4f}", f"{row['rank J - 1']:.5f}", f"{task['Laplace']:.4f}")
            yield words, known, J, *errors


def advice(informed: dict[str, Any], _: dict[str, Any]) -> Rows:
    for name, row in informed["advice"].items():
        yield name, *(f"{x['expected']:.4f} / {x['measured']:.4f}" for x in row.values())


def ranks(informed: dict[str, Any], _: dict[str, Any]) -> Rows:
    for rank, error in informed["tasks"]["digits, ten classes, trained layer of 30"]["rank"].items():
        yield rank, f"{error:.5f}"


def pairs(informed: dict[str, Any], _: dict[str, Any]) -> Rows:
    for name, row in informed["pairs"].items():
        sizes = (f"{row[what]:,}" for what in ("rows", "parameters", "particles"))
        yield name, *sizes, f"{row['independent']:.4f}", f"{row['pairs']:.4f}"


def heads(_: dict[str, Any], big: dict[str, Any]) -> Rows:
    for name, row in big["cases"].items():
        if name != "exact":
            shape = f"{row['features']:,} x {row['classes']:,}"
            time = f"{row['seconds']:.0f} ({row['processor seconds']:.0f})"
            memory = f"{row['GB peak of the fit']:.2g} GB"
            yield shape, f"{row['parameters']:,}", f"{row['rows']:,}", row["rank"], row["dtype"], time, memory


def covariances(_: dict[str, Any], big: dict[str, Any]) -> Rows:
    exact = big["cases"]["exact"]
    for name in COVARIANCES:
        row = exact["covariances"][name]
        ratios = ", ".join(f"{row[f'sd ratio, {which}']:.3f}" for which in ("mean", "1 %", "99 %"))
        figures = (f"{row['total variation']:.4f}", f"{row['largest difference']:.4f}")
        yield name, *figures, ratios, f"{row['mean in sds, rms']:.3f}"
    yield "none: MAP estimate", f"{exact['total variation of the MAP estimate']:.4f}", "", "", ""


def predictive(result: dict[str, Any]) -> Rows:
    found = {(row["data"], row["particles"]): row for row in result["errors"] if row["sampler"] == "mean-field"}
    for name in dict.fromkeys(data for data, _ in found):
        sizes = {J: row for (data, J), row in found.items() if data == name}
        errors = [sizes[200]["closed form"], *(row["particle average"] for row in sizes.values())]
        errors += [sizes[J]["polished particle average"] for J in (200, 1000)]
        errors += [sizes[J]["polished, predict_proba"] for J in (200, 1000)]
        yield name, *(f"{x:.4f}".removeprefix("0") for x in errors)


def drift(result: dict[str, Any]) -> Rows:
    for name, row in result["log loss"].items():
        yield name, *(f"{x:.3f}".removeprefix("0") for x in row.values())


def deployed(result: dict[str, Any]) -> Rows:
    for name, row in result["milliseconds"].items():
        network, *ours = (row[call] for call in ("network", "head", "predict_uncertainty"))
        yield name, plain(network, 3), *(f"{plain(x, 3)} ({x / network:.1f} times)" for x in ours)


SMALL = {
    "| features of digits, classes | ": small,
    "| data | J = 5 | ": advice,
    "| rank, ten classes | ": ranks,
    "| data | rows | ": pairs,
    "| features x classes | ": heads,
    "| covariance | total variation ": covariances,
}
TRUST = {"| problem | closed form | ": predictive}

DRIFT = {"| stream | forget=1 | ": drift}

DEPLOYED = {"| milliseconds | network | ": deployed}


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def filled(text: str, tables: dict[str, Callable[..., Rows]], *results: dict[str, Any]) -> str:
    """Return the text with the rows of every table replaced by those of the results."""
    lines = text.splitlines()
    for first, rows in tables.items():
        start = next(i for i, line in enumerate(lines) if line.startswith(first)) + 2
        end = next(i for i in range(start, len(lines) + 1) if i == len(lines) or not lines[i].startswith("|"))
        lines[start:end] = [" ".join(f"| {cell}".rstrip() for cell in row) + " |" for row in rows(*results)]
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Return the pages with their tables filled from the committed results."""
    small_page, trust_page, drift_page = (
        DOCS / f"understand/{name}.md" for name in ("small_ensembles", "trust", "drift")
    )
    deploy_page = DOCS / "how_to/deploy.md"
    found = result("informed"), result("big_heads")
    return {
        small_page: filled(small_page.read_text(encoding="utf-8"), SMALL, *found),
        trust_page: filled(trust_page.read_text(encoding="utf-8"), TRUST, result("predictive")),
        deploy_page: filled(deploy_page.read_text(encoding="utf-8"), DEPLOYED, result("head_speed")),
        drift_page: filled(drift_page.read_text(encoding="utf-8"), DRIFT, result("drift")),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
