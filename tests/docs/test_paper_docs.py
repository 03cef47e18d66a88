"""The committed run at paper size: its pages and verdicts are what the code makes of its stored numbers."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from enkbayes.reproduction import figures, tables
from enkbayes.reproduction.experiments import EXPERIMENTS
from enkbayes.reproduction.far_field import FarFieldScores, uncertain_with_far_field
from enkbayes.reproduction.report import report_page, summary
from enkbayes.reproduction.results import read
from enkbayes.reproduction.scores import PlaneScores, Scoreboard

DOCS = Path(__file__).parents[2] / "docs" / "paper"
COMMAND = "enkbayes reproduce all --size paper"


FAR_FIELD = {"figure3": 2, "figure6": 4}  # classes


def far_field(name):
    """Return the stored scores with far-field variance."""
    return [FarFieldScores(*values) for _, *values in stored(name, "far_field")]


def stored(name, table):
    """Return the rows of a stored table."""
    return next(found.rows for found in read(DOCS, name).tables if found.name == table)


def test_the_page_is_made_from_the_results():
    results = [read(DOCS, name) for name in EXPERIMENTS]
    assert None not in results
    assert (DOCS / "README.md").read_text(encoding="utf-8") == summary(results, command=COMMAND)
    page = report_page(results, DOCS, command=COMMAND)
    assert all(EXPERIMENTS[result.name].title in page for result in results)


@pytest.mark.parametrize("name", ["table1", "table2"])
def test_the_verdicts_on_tables_follow_from_the_errors(name):
    norms = {}
    for method, size, _, norm in stored(name, "repetitions"):
        norms.setdefault((method, size), []).append(norm)
    claims = tables.claims(name, {key: np.asarray(values) for key, values in norms.items()})
    assert claims == read(DOCS, name).claims


@pytest.mark.parametrize(
    ("name", "judge"),
    [("figure2", figures.figure2_claims), ("figure3", figures.far_claims), ("figure6", figures.figure6_claims)],
)
def test_the_verdicts_on_figures_follow_from_the_scores(name, judge):
    scores = {}
    for method, _, *values in stored(name, "seeds"):
        scores.setdefault(method, []).append(PlaneScores(*values))
    claims = judge(Scoreboard(scores))
    if name in FAR_FIELD:
        claims += (uncertain_with_far_field(far_field(name), FAR_FIELD[name]),)
    assert claims == read(DOCS, name).claims


@pytest.mark.parametrize("name", ["figure3", "figure4", "figure6"])
def test_far_field_variance_reaches_the_desirable_confidence(name):
    claim = uncertain_with_far_field(far_field(name), FAR_FIELD.get(name, 2))
    assert claim in read(DOCS, name).claims
    assert claim.verdict == "reproduced"
