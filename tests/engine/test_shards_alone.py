"""Programs for several processes run unchanged in one: there, a shard is all there is."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.expectations import Expectation
from enkbayes.engine import processes
from enkbayes.engine.sharded_rows import ShardedRows, leads, most_advanced
from enkbayes.inference.polishing import polish
from enkbayes.solvers.low_rank_sums import sums_over_rows

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
    def gather(thing):
        size, (dim, *rest) = thing
        return [thing, (size, (dim + 1, *rest))]

    monkeypatch.setattr("enkbayes.core.problem.gather", gather)
    with pytest.raises(ValueError, match="processes differ in parameters, dtype, likelihood or classes"):
        eb.Problem.create(X, Y).shard()


def test_a_classifier_of_shards_is_that_of_all_rows():
    weights = rng.uniform(0.5, 2, 90)
    whole = eb.EnsembleClassifier(prior_precision=1.0, particles=30, random_state=1).fit(X, Y, weights)
    shard = eb.EnsembleClassifier(prior_precision=1.0, particles=30, random_state=1).fit_shard(X, Y, weights)
    assert np.array_equal(whole.posterior_.theta, shard.posterior_.theta)
    assert shard.classes_.tolist() == [0, 1, 2]
    assert shard.trust_.predictions is None  # which needs all rows in one process
    assert repr(shard.trust_) == repr(replace(whole.trust_, predictions=None))  # some figures may be NaN
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
    assert eb.EnsembleClassifier(prior_precision=1.0).tune(X, Y) is None


def test_a_single_class_is_an_error():
    with pytest.raises(ValueError, match="only one class, 1"):
        eb.EnsembleClassifier(prior_precision=1.0).fit_shard(X, np.ones(90))


@pytest.mark.parametrize(
    ("error", "words"),
    [(ValueError("wrong"), "wrong"), (FileNotFoundError(2, "No such file", "a.csv"), "a.csv: No such")],
)
def test_bad_input_is_raised_with_the_number_of_the_process(monkeypatch, error, words):
    monkeypatch.setattr(processes, "connected", lambda: True)
    monkeypatch.setattr(processes, "gather", lambda said: ["", said])
    with pytest.raises(ValueError, match=f"process 1: {words}"), processes.shared_errors():
        raise error
    monkeypatch.setattr(processes, "gather", lambda said: ["of the first", said])
    with pytest.raises(ValueError, match=r"^of the first$"), processes.shared_errors():
        pass


@pytest.mark.parametrize("likelihood", [None, eb.Ordinal((-1.0, 1.0)), eb.Normal()], ids=repr)
def test_a_shard_without_rows_contributes_zeros(likelihood):
    """The sums of a process without rows, in every pass of a run over the rows."""
    problem = eb.Problem.create(X, Y, likelihood=likelihood)
    nothing = problem.rows.subset(np.zeros(0, dtype=int))
    empty = replace(problem, rows=ShardedRows(nothing, 90, target=problem.targets[:1]))
    posterior = eb.run(problem, particles=30)
    for expectation in (Expectation(0.0), Expectation(1.0), Expectation(at_mean=True)):
        moments = empty.moments(posterior.ensemble, expectation)
        assert float(moments.loss) == 0.0
        assert not np.any(moments.g)
        assert not np.any(moments.S)
    assert not np.any(empty.loss(posterior.theta))
    structured = eb.run(problem, eb.MeanField(rank=2, tol=1e-3), particles=30).state.control
    for many in (30, 2):
        sums = sums_over_rows(empty, structured.frame, structured.q, products=True, many=many)
        assert sums.loss == 0.0
        assert not any(np.any(x) for x in (sums.slopes, sums.diagonal, sums.XHX, sums.HX))


def test_a_shard_whose_weights_are_all_zero():
    weights = np.where(np.arange(90) < 40, 0.0, 1.0)
    whole = eb.Problem.create(X, Y, weights=weights)
    chunks = [(X[:40], Y[:40], weights[:40]), (X[40:], Y[40:], weights[40:])]
    expected = eb.run(whole, particles=30).mean
    for problem in (eb.Problem.stream(chunks), eb.Problem.stream_sharded(chunks)):
        np.testing.assert_allclose(eb.run(problem, particles=30).mean, expected, atol=1e-8)
    for create, rows in (
        (eb.Problem.create, (X, Y)),
        (eb.Problem.create_sharded, (X, Y)),
    ):
        with pytest.raises(ValueError, match="all weights are zero"):
            create(*rows, weights=np.zeros(90))
    for stream in (eb.Problem.stream, eb.Problem.stream_sharded):
        with pytest.raises(ValueError, match="all weights are zero"):
            stream([(X, Y, np.zeros(90))])


def test_one_shard_may_have_weights_of_zero_only(monkeypatch):
    """Another process has positive weights."""
    monkeypatch.setattr("enkbayes.core.problem.gather", lambda thing: [thing, _of_another(thing)])
    problem = eb.Problem.create_sharded(X, Y, weights=np.zeros(90))
    assert problem.size == 180


def _of_another(thing):
    return True if thing is False else thing


@dataclass(frozen=True)
class Positive(eb.Normal):
    """A likelihood that refuses the target 0."""

    def encode(self, labels, size, classes=None):
        values, known = super().encode(labels, size, classes)
        if np.any(values <= 0):
            raise ValueError("targets must be positive")
        return values, known


def test_a_shard_without_rows_takes_a_target_of_another_process(monkeypatch):
    def gather(thing):
        if isinstance(thing, tuple) and isinstance(thing[0], int):
            return [thing, (3, thing[1])]
        return [thing, {list: [2.5], bool: True}.get(type(thing), 2.5)]

    monkeypatch.setattr("enkbayes.core.problem.gather", gather)
    problem = eb.Problem.create_sharded(np.zeros((0, 3)), [], likelihood=Positive())
    assert problem.size == 3
    assert problem.rows.target.tolist() == [2.5]
