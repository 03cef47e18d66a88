"""Pages that show measurements say what the measurements say."""

import json
from pathlib import Path

import acquisition
import compare_real
import default_page
import doc_tables
import image_networks
import pretrained
import pytest
import scaling
import speed_page
import useful_page

ROOT = Path(scaling.__file__).parent.parent


def test_the_page_of_the_cluster_is_made_of_the_results():
    results = json.loads((ROOT / "benchmarks/results/scaling.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs/results/cluster.md").read_text(encoding="utf-8") == scaling.page(results)


def test_the_page_of_real_data_is_made_of_the_results():
    cases = json.loads((ROOT / "benchmarks/results/compare_real.json").read_text(encoding="utf-8"))["cases"]
    assert (ROOT / "benchmarks/results/compare_real.md").read_text(encoding="utf-8") == compare_real.page(cases)


def test_the_page_of_speed_is_made_of_the_results():
    assert (ROOT / "docs/results/speed.md").read_text(encoding="utf-8") == speed_page.page()


@pytest.mark.parametrize(
    "page", [*(f"understand/{name}.md" for name in ("small_ensembles", "trust", "drift")), "how_to/deploy.md"]
)
def test_tables_of_other_pages_are_made_of_the_results(page):
    path = ROOT / "docs" / page
    assert path.read_text(encoding="utf-8") == doc_tables.pages()[path]


def test_a_table_is_filled_between_words():
    text = "Before.\n\n| a | b |\n|---|---|\n| 1 | old |\n| 2 | old |\n\nAfter.\n"
    filled = doc_tables.filled(text, {"| a |": lambda result: [(3, result["x"]), ("four", "")]}, {"x": "new"})
    assert filled == "Before.\n\n| a | b |\n|---|---|\n| 3 | new |\n| four | |\n\nAfter.\n"


def test_the_page_of_usefulness_is_made_of_the_results():
    found = [
        json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))
        for name in ("usefulness", "useful_choices", "useful_scores")
    ]
    page = useful_page.page(*found)
    assert (ROOT / "docs/results/usefulness.md").read_text(encoding="utf-8") == page
    assert max(map(len, page.splitlines())) <= 120
    for result in found:  # no task has taken the figures of another
        figures = [json.dumps(task) for task in result["tasks"].values()]
        assert len(set(figures)) == len(figures)


def test_a_ring_sends_less_of_each_number_the_more_processes_there_are():
    one = {"sums": 1.0, "dense algebra": 0.1}
    parts = [scaling.predicted(one, 1_000, 100, p, 64_000) for p in (1, 2, 64)]
    assert [part["sums"] for part in parts] == [64.0, 32.0, 1.0]
    assert parts[0]["all-reduce"] == 0
    assert parts[2]["all-reduce"] < 2 * parts[1]["all-reduce"] + 130 * scaling.LATENCY


def test_the_page_of_defaults_is_made_of_the_results():
    found = (json.loads(path.read_text(encoding="utf-8")) for path in (default_page.RESULT, default_page.FRESH_RESULT))
    text = default_page.PAGE.read_text(encoding="utf-8")
    assert text == default_page.page(*found)
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120


def test_the_page_of_acquisition_is_made_of_the_results():
    result = json.loads(acquisition.RESULT.read_text(encoding="utf-8"))
    assert acquisition.PAGE.read_text(encoding="utf-8") == acquisition.page(result)


def test_the_page_of_image_networks_is_made_of_the_results():
    result, forms = (
        json.loads(path.read_text(encoding="utf-8")) for path in (image_networks.RESULT, image_networks.FORMS)
    )
    text = image_networks.PAGE.read_text(encoding="utf-8")
    assert text == image_networks.page(result, forms)
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120


def test_a_target_of_image_networks_compares_far_rows_with_the_way_to_one_of_k():
    row = {"NLL, minus": 0.0, "NLL, error": 0.1, "accuracy": 0.9, "ECE": 0.01}
    base = row | {"corrupted": {"noise": 2.0}, "confidence": {"drawings": 0.7}}
    ours = row | {"corrupted": {"noise": 1.0}, "confidence": {"drawings": 0.41}}
    methods = {"with far-field variance": ours, "temperature scaling": base}
    found = {each["statement"]: each for each in image_networks.targets({"methods": methods})}
    assert found["the same for drawings"]["limit"] == pytest.approx(0.4)
    assert not found["the same for drawings"]["met"]
    assert found["NLL of corrupted rows over temperature scaling's, mean of 15, at most"]["measured"] == 0.5


def test_the_page_of_pretrained_networks_is_made_of_the_results():
    result = json.loads(pretrained.RESULT.read_text(encoding="utf-8"))
    text = pretrained.PAGE.read_text(encoding="utf-8")
    assert text == pretrained.page(result)
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120
