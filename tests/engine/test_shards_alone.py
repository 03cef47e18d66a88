"""Programs for several processes run unchanged in one: there, a shard is all there is."""

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.engine import processes
from enkbayes.engine.sharded_rows import ShardedRows, leads, most_advanced
from enkbayes.inference.polishing import polish

rng = np.random.default_rng(3)
X = rng.standard_normal((90, 3))
Y = np.digitize(X @ [1.0, -1.0, 0.5] + 0.4 * rng.standard_normal(90), [-0.5, 0.5])


def test_one_shard_is_the_whole():
    sharded, whole = eb.Problem.create_sharded(X, Y), eb.Problem.create(X, Y)
    assert isinstance(sharded.rows, ShardedRows)
    assert np.array_equal(eb.run(sharded, particles=30).theta, eb.run(whole, particles=30).theta)
    assert leads(sharded.rows)
    assert most_advanced(sharded.rows, 3, "mine") == "mine"


def test_polish_finds_the_rows_of_shards():
    rows = np.array([5, 80, 2])
    assert np.array_equal(eb.Problem.create_sharded(X, Y).rows.take(rows), X[rows])
    asked = [eb.Problem.create_sharded(X, Y), eb.Problem.create(X, Y)]
    one, other = (polish(problem, eb.run(problem, particles=30), 2) for problem in asked)
    assert np.array_equal(one.theta, other.theta)


def test_rows_of_a_stream_cannot_be_picked():
    sharded = eb.Problem.stream_sharded([(X, Y)])
    with pytest.raises(ValueError, match="they are read in chunks"):
        sharded.rows.take(np.array([1]))


def test_a_shard_of_a_stream():
    chunks = [(X[:40], Y[:40]), (X[40:], Y[40:])]
    whole = eb.run(eb.Problem.create(X, Y), particles=30).theta
    for problem in (eb.Problem.stream(chunks).shard(), eb.Problem.stream_sharded(chunks)):
        assert np.max(np.abs(eb.run(problem, particles=30).theta - whole)) < 1e-10


def test_no_source_anywhere_is_an_error():
    with pytest.raises(ValueError, match="no process has a source"):
        eb.Problem.stream_sharded(None, classes=[0, 1])


def test_shards_must_agree(monkeypatch):
    def gather(thing, group=None):
        size, (dim, *rest) = thing
        return [thing, (size, (dim + 1, *rest))]

    monkeypatch.setattr("enkbayes.core.problem.gather", gather)
    with pytest.raises(ValueError, match="processes differ in parameters, dtype, likelihood or classes"):
        eb.Problem.create(X, Y).shard()


def test_a_classifier_of_shards_is_that_of_all_rows():
    weights = rng.uniform(0.5, 2, 90)
    whole = eb.EnsembleClassifier(particles=30, random_state=1).fit(X, Y, weights)
    shard = eb.EnsembleClassifier(particles=30, random_state=1).fit_shard(X, Y, weights)
    assert np.array_equal(whole.posterior_.theta, shard.posterior_.theta)
    assert shard.classes_.tolist() == [0, 1, 2]
    assert shard.trust_ == whole.trust_
    assert shard.evidence_ == whole.evidence_
    assert shard.fingerprint_ is None
    assert np.array_equal(
        shard.problem_of(X, Y, weights).loss(shard.posterior_.theta), whole.problem_.loss(whole.posterior_.theta)
    )


def test_an_automatic_prior_is_chosen_from_all_rows():
    whole = eb.EnsembleClassifier(particles=30, random_state=1, prior_precision="auto").fit(X, Y)
    shard = eb.EnsembleClassifier(particles=30, random_state=1, prior_precision="auto")
    with pytest.raises(ValueError, match=r"chosen from all rows; pass tuning=clf.tune\(X, y\), or a number"):
        shard.fit_shard(X, Y)
    tuning = shard.tune(X, Y)
    assert shard.fit_shard(X, Y, tuning=tuning).prior_precision_ == whole.prior_precision_
    assert np.array_equal(whole.posterior_.theta, shard.posterior_.theta)
    assert eb.EnsembleClassifier().tune(X, Y) is None


def test_a_single_class_is_an_error():
    with pytest.raises(ValueError, match="only one class, 1"):
        eb.EnsembleClassifier().fit_shard(X, np.ones(90))


@pytest.mark.parametrize(
    ("error", "words"),
    [(ValueError("wrong"), "wrong"), (FileNotFoundError(2, "No such file", "a.csv"), "a.csv: No such")],
)
def test_bad_input_is_raised_with_the_number_of_the_process(monkeypatch, error, words):
    monkeypatch.setattr(processes, "connected", lambda: True)
    monkeypatch.setattr(processes, "gather", lambda said, group: ["", said])
    with pytest.raises(ValueError, match=f"process 1: {words}"), processes.shared_errors():
        raise error
    monkeypatch.setattr(processes, "gather", lambda said, group: ["of the first", said])
    with pytest.raises(ValueError, match=r"^of the first$"), processes.shared_errors():
        pass
