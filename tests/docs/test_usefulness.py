"""The benchmark of usefulness: disjoint data, figures that are what they are called, targets, and the page."""

import json
from dataclasses import replace
from itertools import combinations, islice

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import useful_methods  # noqa: E402
import useful_page  # noqa: E402
import useful_tasks  # noqa: E402
import usefulness  # noqa: E402
from useful_methods import METHODS, Outcome, plain  # noqa: E402

WINE = next(task for task in useful_tasks.TASKS if task.name == "wine")
ONE_SPLIT = replace(WINE, splits=lambda seed: islice(WINE.splits(seed), 1))


@pytest.fixture(scope="module")
def split():
    return next(WINE.splits(0))


def test_rows_for_training_calibration_and_evaluation_are_disjoint(split):
    parts = [split.train.x, split.calibration.x, split.evaluation.x, *split.ood.values()]
    for one, other in combinations(parts, 2):
        assert torch.cdist(one, other).min() > 1e-4
    assert sum(map(len, parts)) == 178


def test_networks_of_a_seed_differ_and_are_good(split):
    first, second, *_ = (useful_methods.logits(network, split.evaluation.x) for network in split.networks)
    assert np.abs(first - second).max() > 0.1
    assert np.mean(first.argmax(axis=1) == split.evaluation.y) > 0.8


@pytest.mark.parametrize("method", ["trained network", "temperature scaling", "our default", "our whole network"])
def test_methods_predict_probabilities_and_scores_of_all_rows(split, method):
    found = METHODS[method](split, WINE, 0)
    assert np.allclose(found.evaluation.proba.sum(axis=1), 1)
    row = usefulness.measured(found, split)
    assert row["cost"] >= 1
    assert 0 <= row["AUROC, recommended"] <= 1
    assert set(row["scores"]) >= {"confidence", found.recommended}


def test_figures_are_what_they_are_called(split):
    labels = split.evaluation.y
    right = np.eye(3)[labels]
    proba = 0.8 * right + 0.2 / 3
    doubtful = np.full((10, 3), 1 / 3)
    calibration = plain(0.8 * np.eye(3)[split.calibration.y] + 0.2 / 3)
    found = Outcome(calibration, plain(proba), {"a": plain(doubtful), "b": plain(proba[:10])}, 3 * split.seconds[0])
    row = usefulness.measured(found, split)
    assert row["NLL"] == pytest.approx(-np.log(0.8 + 0.2 / 3))
    assert row["calibrated NLL"] < 1e-3  # always right: the temperature falls
    assert (row["accuracy"], row["error at 80 % coverage"], row["cost"]) == (1, 0, pytest.approx(3))
    assert row["AUROC"] == pytest.approx(0.75)  # 1 for the first kind, one half for the second


def test_an_interrupted_run_continues(tmp_path, monkeypatch):
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path))
    runs = []

    def counted(split, task, seed):
        runs.append(seed)
        return METHODS["trained network"](split, task, seed)

    for again in (False, False, True):
        usefulness.run_task(ONE_SPLIT, 0, {"counted": counted}, again=again)
    assert runs == [0, 0]
    assert json.loads(usefulness.kept(WINE, 0, "counted").read_text())["accuracy"] > 0.8


def figures(nll, auroc):
    each = {name: {"mean": 0.0} for name in ("NLL", "ECE", "accuracy", "cost", "AUROC", "AUROC, recommended")}
    return each | {"NLL": {"mean": nll}, "AUROC, recommended": {"mean": auroc}, "cost": {"mean": 1.0}}


def test_the_figures_decide_whether_targets_are_met():
    methods = {name: figures(0.5, 0.9) for name in useful_page.NEEDED}
    result = {"tasks": {"t": {"methods": methods | {useful_page.OURS: figures(0.6, 0.9)}}}}
    default = {target.statement: target.met for target in useful_page.default_targets(result)["t"]}
    network = {target.statement: target.met for target in useful_page.network_targets(result)}
    assert not default["NLL minus temperature scaling's"]
    assert default["ECE minus temperature scaling's"]
    assert network["mean AUROC of the OOD score at least 0.02 above the trained network's"]
    assert not network["mean AUROC of the confidence at least 0.02 above the trained network's"]
    assert not network["cost at most half that of five networks, t"]
    assert not network["cost at most half that of five networks, mean over tasks"]
    missed = [met for met in (*default.values(), *network.values()) if not met]
    assert len(missed) == 5  # two of NLL, two of cost, and confidence, which gains nothing


@pytest.mark.parametrize("at_least", [True, False])
def test_a_target_is_met_up_to_the_fourth_place(at_least):
    sign = -1 if at_least else 1
    for excess, met in ((-0.1, True), (0.0, True), (0.00004, True), (0.00006, False), (0.1, False)):
        assert useful_page.Target("", 0.5 + sign * excess, 0.5, at_least).met == met


def test_methods_are_compared_on_the_same_splits():
    ours, scaled = {"NLL": 0.5, "first": {"NLL": 0.4}}, {"NLL": 0.6, "first": {"NLL": 0.7}}
    methods = {useful_page.OURS: ours, useful_page.SCALED: scaled, useful_page.WHOLE: {}}
    assert useful_page.same_rows(methods, useful_page.OURS, useful_page.WHOLE) == {"NLL": 0.4}
    assert useful_page.same_rows(methods, useful_page.OURS, useful_page.SCALED)["NLL"] == 0.5
    assert useful_page.same_rows(methods, useful_page.WHOLE, useful_page.OURS) == {}
    del ours["first"]  # as in small tasks, where all methods are measured on all splits
    assert useful_page.same_rows(methods, useful_page.SCALED, useful_page.OURS)["NLL"] == 0.6
    assert useful_page.same_rows(methods, useful_page.OURS, useful_page.WHOLE)["NLL"] == 0.5


def test_the_chosen_spreads_are_read_from_the_reports():
    reports = "a posterior of prior spread 0.03: log loss 0.1 below; temperature scaling: no posterior is better"
    assert useful_page.chosen_spreads(reports) == "0.03, T"
    assert useful_page.chosen_spreads("a posterior of prior spread 3: log loss") == "3"


def test_the_first_split_of_images_is_kept_beside_the_mean(tmp_path, monkeypatch):
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path))
    task = replace(WINE, images=True)
    usefulness.keep(task, 0, "some", [{"NLL": 0.2, "note": "a"}, {"NLL": 0.4, "note": "a"}])
    found = json.loads(usefulness.kept(task, 0, "some").read_text())
    assert found == {"NLL": pytest.approx(0.3), "note": "a", "first": {"NLL": 0.2, "note": "a"}}
    usefulness.keep(task, 0, "some", [{"NLL": 0.2, "note": "a"}])
    assert "first" not in json.loads(usefulness.kept(task, 0, "some").read_text())
