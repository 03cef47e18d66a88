"""What docs and docstrings say of prediction is what benchmarks/predictive.py measured."""

import json
from pathlib import Path

import predictive
import pytest

import enkbayes as eb

ROOT = Path(__file__).parents[2]
ROWS = json.loads((ROOT / "benchmarks/results/predictive.json").read_text())["errors"]
CLOSED, AVERAGE, POLISHED = "closed form", "particle average", "polished particle average"


def row(data, particles, sampler="mean-field"):
    found = [r for r in ROWS if (r["data"], r["particles"], r["sampler"]) == (data, particles, sampler)]
    assert len(found) == 1
    return found[0]


def short(value):
    return f"{value:.4f}".lstrip("0")


def test_the_closed_form_is_never_worse_than_the_average():
    assert len(ROWS) == 8 * 2 * 4
    assert all(r[CLOSED] <= 1.01 * r[AVERAGE] for r in ROWS)
    ties = {(r["data"], r["particles"]) for r in ROWS if r[CLOSED] > r[AVERAGE]}
    assert ties == {("T5", 1000)}  # as docs/trust.md says


def test_after_polish_nearly_the_better_way_is_taken():
    for r in ROWS:
        assert r["polished, predict_proba"] <= 1.45 * min(r[CLOSED], r[POLISHED]), r


@pytest.mark.parametrize("data", ["breast cancer", "T1"])
def test_the_docstring_has_the_figures(data):
    text = " ".join(eb.Posterior.predict_proba.__doc__.split())
    figures = ", ".join(short(row(data, J)[AVERAGE]) for J in (20, 50, 200))
    assert short(row(data, 200)[CLOSED]) in text
    assert figures in text


def test_the_table_has_the_figures():
    lines = (ROOT / "docs/trust.md").read_text().splitlines()
    for data in {r["data"] for r in ROWS}:
        wanted = [short(row(data, 200)[CLOSED]), *(short(row(data, J)[AVERAGE]) for J in (20, 50, 200, 1000))]
        for way in (POLISHED, "polished, predict_proba"):
            wanted += [short(row(data, J)[way]) for J in (200, 1000)]
        assert f"| {data} | {' | '.join(wanted)} |" in lines


def test_the_study_runs():
    found = predictive.errors("T6", eb.MeanField(), 20, 0)
    assert set(found) == {CLOSED, AVERAGE, POLISHED, "polished, predict_proba"}
    assert all(0 < value < 0.05 for value in found.values())
