"""The study of prediction (benchmarks/predictive.py), and the figures that the documentation takes from it."""

import json
from pathlib import Path

import predictive
import pytest

import enkbayes as eb

ROWS = json.loads((Path(__file__).parents[2] / "benchmarks/results/predictive.json").read_text())["errors"]
CLOSED, AVERAGE, POLISHED, CHOSEN = (
    "closed form",
    "particle average",
    "polished particle average",
    "polished, predict_proba",
)


@pytest.mark.parametrize("problem", ["T1", "T6"])
def test_the_closed_form_has_a_smaller_error_than_few_particles(problem):
    found = predictive.errors(problem, eb.MeanField(), 20, 0)
    assert set(found) == {CLOSED, AVERAGE, POLISHED, CHOSEN}
    assert 0 < found[CLOSED] < found[AVERAGE] < 0.05


@pytest.mark.parametrize("problem", ["T1", "T6"])
def test_a_polished_posterior_predicts_nearly_as_well_as_the_better_method(problem):
    found = predictive.errors(problem, eb.MeanField(), 20, 0)
    assert found[CHOSEN] <= 1.45 * min(found[CLOSED], found[POLISHED])


def test_the_claims_of_the_trust_page_follow_from_the_results():
    assert len(ROWS) == 8 * 2 * 4
    assert all(row[CLOSED] <= 1.01 * row[AVERAGE] for row in ROWS)
    ties = {(row["data"], row["particles"]) for row in ROWS if row[CLOSED] > row[AVERAGE]}
    assert ties == {("T5", 1000)}
    assert all(row[CHOSEN] <= 1.45 * min(row[CLOSED], row[POLISHED]) for row in ROWS)


@pytest.mark.parametrize("data", ["breast cancer", "T1"])
def test_the_docstring_has_the_figures_of_the_results(data):
    def short(value):
        return f"{value:.4f}".lstrip("0")

    found = {row["particles"]: row for row in ROWS if (row["data"], row["sampler"]) == (data, "mean-field")}
    text = " ".join(eb.Posterior.predict_proba.__doc__.split())
    assert short(found[200][CLOSED]) in text
    assert ", ".join(short(found[J][AVERAGE]) for J in (20, 50, 200)) in text
