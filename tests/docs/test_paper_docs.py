"""The committed results of the run in the paper's size: complete, small, and told by README.md as they are."""

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from enkbayes.reproduction.experiments import EXPERIMENTS
from enkbayes.reproduction.results import read
from enkbayes.reproduction.summary import summary

DOCS = Path(__file__).parents[2] / "docs" / "paper"
COMMAND = "enkbayes reproduce all --size paper"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_was_run_in_the_paper_s_size(name):
    result = read(DOCS, name)
    assert result is not None
    assert result.size == "paper"
    assert result.title == EXPERIMENTS[name].title
    assert {"python", "numpy", "torch"} <= set(result.versions)
    for picture in result.pictures:
        assert (DOCS / name / picture.file).stat().st_size < 400_000
    for table in result.tables:
        assert (DOCS / name / f"{table.name}.csv").exists()


def test_the_page_tells_what_the_results_say():
    results = [read(DOCS, name) for name in EXPERIMENTS]
    assert (DOCS / "README.md").read_text() == summary(results, command=COMMAND)
