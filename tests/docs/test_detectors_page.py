"""The page that compares out-of-distribution scores is made of the results, and its verdicts follow from them."""

import json

import detector_page
import pytest


def test_the_page_is_made_of_the_results():
    text = detector_page.PAGE.read_text(encoding="utf-8")
    assert text == detector_page.page(json.loads(detector_page.RESULT.read_text(encoding="utf-8")))
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120


def line(task, seed, ours, knn, react):
    methods = {"OODScore": ours, "temperature scaling": [0.5, 0.5], "KNN": knn, "ReAct": react}
    return {"task": task, "seed": seed, "methods": methods}


def head(confidence, shifted, gap, seed=0):
    def figures(far, moved):
        return {
            "confidence": {"far:noise": far},
            "nll": {"test": 0.3, "shifted:noise": moved},
            "auroc": {"near:a": 0.6, "far:noise": 0.8},
            "accuracy": 0.9,
            "ece": 0.02,
        }

    methods = {
        "temperature scaling": figures(0.9, 2.0),
        "with far-field variance": figures(confidence, shifted),
        "OODScore": {"auroc": {"near:a": 0.7, "far:noise": 0.9}},
        "own temperature": {"nll": {"shifted:noise": 0.5}},
        "classes": 2,
        "test rows": 50,
        "gap": gap,
    }
    return {"task": "A", "seed": seed, "methods": methods}


LINES = [line("A", 0, [0.8, 0.9], [0.7, 0.95], [0.5, 0.5]), line("A", 1, [0.6, 0.9], [0.7, 0.95], [0.5, 0.5]),
         line("B", 0, [0.9, 0.9], [0.6, 0.95], [0.95, 0.5])]  # fmt: skip


def test_means_are_over_seeds_and_then_over_tasks():
    rows = {row["method"]: row for row in detector_page.ranking(LINES)}
    assert rows["OODScore"]["near"] == pytest.approx(0.8)  # not the mean of three lines
    assert rows["KNN"]["far"] == pytest.approx(0.95)
    assert rows["OODScore"]["rank"] < rows["temperature scaling"]["rank"]
    tasks = detector_page.per_task(LINES, list(rows.values()))
    assert tasks[1]["near"] == {"ours": 0.9, "leader": 0.95, "top": 0.95, "name": "ReAct"}
    assert [detector_page.wins(tasks, group, "top") for group in ("near", "far")] == [1, 0]


def test_targets_say_what_is_met():
    good = {"evaluation": LINES, "far_field_scores": [], "heads": [head(0.6, 1.0, [0.001, 0.002])]}
    bad = {"evaluation": LINES, "heads": [head(0.8, 2.1, [0.005, 0.002])]}
    verdicts = [[row["verdict"] for row in detector_page.targets(result)] for result in (good, bad)]
    assert verdicts[0][:2] == ["met", "**missed**"]
    assert verdicts[0][3:] == ["met"] * 5
    assert verdicts[1][3:6] == ["**missed**"] * 3
    assert "half-way 0.700" in detector_page.targets(good)[3]["measured"]


def test_targets_of_predictions_are_about_means_over_seeds():
    lines = [head(0.6, 1.0, [0.010, 0.003]), head(0.8, 2.1, [-0.012, 0.004], seed=1)]
    (row,) = detector_page.heads_by_task(lines)
    assert row["seeds"] == 2
    assert row["gap"] == pytest.approx(-0.001)
    assert row["error"] == pytest.approx(0.0025)
    assert row["ours"]["far"] == pytest.approx(0.7)
    assert row["ratio"] == pytest.approx((0.5 + 1.05) / 2)
    assert row["best ratio"] == pytest.approx(0.25)
    found = detector_page.targets({"evaluation": LINES, "heads": lines})
    assert found[5]["verdict"] == "met"
    assert "a test row is 2.0 points" in found[6]["measured"]
