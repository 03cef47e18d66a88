"""The benchmark of usefulness: data that never touch, figures that are what they are called, a page of the results."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import useful_methods  # noqa: E402
import useful_page  # noqa: E402
import useful_tasks  # noqa: E402
import usefulness  # noqa: E402
from useful_methods import METHODS, Outcome, plain  # noqa: E402

WINE = next(task for task in useful_tasks.TASKS if task.name == "wine")


@pytest.fixture(scope="module")
def split():
    return next(WINE.splits(0))


def test_rows_to_train_calibrate_and_measure_never_touch(split):
    parts = [split.train.x, split.calibration.x, split.evaluation.x, *split.strange.values()]
    for one, other in combinations(parts, 2):
        assert torch.cdist(one, other).min() > 1e-4
    assert sum(map(len, parts)) == 178


def test_networks_of_a_seed_differ_and_are_good(split):
    first, second, *_ = (useful_methods.logits(network, split.evaluation.x) for network in split.networks)
    assert np.abs(first - second).max() > 0.1
    assert np.mean(first.argmax(axis=1) == split.evaluation.y) > 0.8


@pytest.mark.parametrize("method", ["trained network", "temperature", "our default", "our whole network"])
def test_methods_say_probabilities_and_scores_of_all_rows(split, method):
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
    known = plain(0.8 * np.eye(3)[split.calibration.y] + 0.2 / 3)
    found = Outcome(known, plain(proba), {"a": plain(doubtful), "b": plain(proba[:10])}, 3 * split.seconds[0])
    row = usefulness.measured(found, split)
    assert row["NLL"] == pytest.approx(-np.log(0.8 + 0.2 / 3))
    assert row["calibrated NLL"] < 1e-3  # always right: the temperature falls
    assert (row["accuracy"], row["risk 80 %"], row["cost"]) == (1, 0, pytest.approx(3))
    assert row["AUROC"] == pytest.approx(0.75)  # all of the first kind are found, the second is a coin


def test_a_stopped_run_goes_on(split, tmp_path, monkeypatch):
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path))
    monkeypatch.setattr(useful_tasks, "SPLITS", 1)
    asked = []

    def counted(split, task, seed):
        asked.append(seed)
        return METHODS["trained network"](split, task, seed)

    monkeypatch.setitem(usefulness.METHODS, "counted", counted)
    for _ in range(2):
        usefulness.run_task(WINE, 0, ["counted"], again=False)
    assert asked == [0]
    assert json.loads(usefulness.kept(WINE, 0, "counted").read_text())["accuracy"] > 0.8


def test_bars_are_decided_by_the_figures():
    def figures(nll, auroc):
        each = {name: {"mean": 0.0} for name in ("NLL", "ECE", "accuracy", "cost", "AUROC", "AUROC, recommended")}
        return each | {"NLL": {"mean": nll}, "AUROC, recommended": {"mean": auroc}, "cost": {"mean": 1.0}}

    names = (useful_page.OURS, useful_page.SCALED, useful_page.LAPLACE, useful_page.TRAINED, useful_page.WHOLE)
    methods = {name: figures(0.5, 0.9) for name in (*names, useful_page.MANY)}
    result = {"tasks": {"t": {"methods": methods | {useful_page.OURS: figures(0.6, 0.9)}}}}
    met = {row["words"]: row["met"] for row in useful_page.bars(result)}
    assert not met["default, t: NLL at most temperature scaling's"]
    assert met["default, t: ECE at most temperature scaling's + .005"]
    assert not met["whole network, t: cost over that of five networks"]
    assert not met["whole network, mean over tasks: cost over that of five networks"]
    assert sum(not value for value in met.values()) == 5  # two of NLL, two of cost, and confidence that gains nothing


def test_methods_that_saw_one_halving_are_compared_on_that_one():
    methods = {"often": {"NLL": 0.5, "first": {"NLL": 0.4}}, "always": {"NLL": 0.6, "first": {"NLL": 0.7}}, "once": {}}
    assert useful_page.same_rows(methods, "often", "once") == {"NLL": 0.4}
    assert useful_page.same_rows(methods, "often", "always")["NLL"] == 0.5
    assert useful_page.same_rows(methods, "once", "often") == {}


def test_the_first_halving_of_images_is_kept_beside_the_mean(tmp_path, monkeypatch):
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path))
    task = replace(WINE, images=True)
    usefulness._keep(task, 0, "some", [{"NLL": 0.2, "note": "a"}, {"NLL": 0.4, "note": "a"}])
    found = json.loads(usefulness.kept(task, 0, "some").read_text())
    assert found == {"NLL": pytest.approx(0.3), "note": "a", "first": {"NLL": 0.2, "note": "a"}}
    usefulness._keep(task, 0, "some", [{"NLL": 0.2, "note": "a"}])
    assert "first" not in json.loads(usefulness.kept(task, 0, "some").read_text())
