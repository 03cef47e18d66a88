"""Shards in several processes give what one process gives."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import distributed_worker as worker

import enkbayes as eb
from enkbayes.engine import connect

WORKER = Path(worker.__file__)
PAIRS = list(worker.SAMPLERS)
TRIPLES = ["binary", "softmax", "empty", "empty structured"]


def start(folder, count, *cases):
    """Run the worker in `count` processes and wait for them."""
    command = [sys.executable, str(WORKER), ",".join(cases)]
    started = [
        subprocess.Popen([*command, str(number), str(count), str(folder)], stderr=subprocess.PIPE, text=True)
        for number in range(count)
    ]
    return [process.communicate(timeout=300)[1] for process in started]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("shards")
    start(path, 2, *PAIRS, "bad", "ordered")
    start(path, 3, *TRIPLES)
    start(path, 2, "lost")
    return path


@pytest.mark.parametrize(("case", "count"), [*((c, 2) for c in PAIRS), *((c, 3) for c in TRIPLES)])
def test_shards_add_up_to_all_data(folder, case, count):
    alone = worker.fit(case, eb.Problem.create)
    found = [np.load(folder / f"{case}-{count}-{number}.npz") for number in range(count)]
    for other in found[1:]:
        assert np.array_equal(found[0]["theta"], other["theta"])  # bitwise
    assert int(found[0]["steps"]) == alone.info.steps
    assert np.max(np.abs(found[0]["theta"] - np.asarray(alone.theta))) < 1e-10


def test_classes_are_ordered_and_counted_over_all_processes(folder):
    clf, features, labels, weights = worker.grades()
    alone = clf.fit(features, labels, weights)
    one, other = (np.load(folder / f"ordered-{number}.npz") for number in range(2))
    assert len(np.unique(labels[worker.rows("binary", 0, 2)])) < len(alone.classes_)
    for name in ("theta", "cutpoints", "classes"):
        assert np.array_equal(one[name], other[name])
    assert np.array_equal(one["classes"], alone.classes_)
    assert one["cutpoints"] == pytest.approx(alone.posterior_.likelihood.cutpoints, abs=1e-8)
    assert one["theta"] == pytest.approx(alone.posterior_.theta, abs=1e-6)


def test_bad_data_of_one_process_raise_on_all(folder):
    for number in range(2):
        assert (folder / f"bad-{number}.txt").read_text().startswith("process 1: features contain NaN")


def test_a_lost_process_ends_the_run_with_a_sentence(folder):
    words = (folder / "lost.txt").read_text()
    assert words == "another process has ended or does not answer; start all of them again"


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert connect() == (0, 1)


def test_shards_need_linear_logits_and_have_no_batches(monkeypatch):
    features, labels, _ = worker.data("binary")
    monkeypatch.setattr("enkbayes.core.problem.gather", lambda thing: [thing, thing])
    sharded = eb.Problem.create(features, labels).shard()
    assert sharded.size == 400
    with pytest.raises(ValueError, match="each process holds a shard"):
        np.asarray(sharded.features)
    with pytest.raises(ValueError, match="mini-batches need all rows at once"):
        sharded.subset(np.arange(3))
    nonlinear = eb.Problem.nonlinear(lambda theta: features @ theta.T, labels, eb.Gaussian.isotropic(6))
    with pytest.raises(ValueError, match="a problem of several processes needs linear logits"):
        nonlinear.shard()
