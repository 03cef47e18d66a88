"""The average over widths: chosen by held-out rows, never worse there than its best point estimate."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

import enkbayes as eb
from enkbayes.inference.many_classes import WidthAverage, at_width
from enkbayes.inference.stacking import stacking_weights
from enkbayes.solvers.softmax_path import Eigenbasis


def from_the_prior(N, D, K, width, seed=0):
    weights = np.random.default_rng(9).standard_normal((D, K)) * np.sqrt(width / D)
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((N, D))
    logits = features @ weights
    return features, np.argmax(logits + rng.gumbel(size=(N, K)), axis=1)


def loss(probabilities, labels):
    return -np.mean(np.log(probabilities[np.arange(len(labels)), labels]))


@pytest.fixture(scope="module")
def digits():
    features, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))  # they come writer by writer
    return scale(features)[order], labels[order]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("width", [1.0, 300.0])
def test_never_worse_than_the_best_point_estimate_on_held_out_rows(seed, width):
    features, labels = from_the_prior(150, 5, 6, width, seed)
    choice = WidthAverage().choose(eb.Problem.create(features, labels, intercept=100.0))
    assert choice.log_loss <= choice.best_mode
    assert sum(choice.weights) == pytest.approx(1)


def test_about_as_good_as_a_point_estimate_chosen_in_hindsight(digits):
    features, labels = digits
    train, test = np.arange(300), np.arange(300, 1797)
    posterior = WidthAverage().posterior(eb.Problem.create(features[train], labels[train], intercept=100.0))
    points = [LogisticRegression(C=C, max_iter=2000).fit(features[train], labels[train]) for C in (0.03, 0.3, 3.0)]
    best = min(loss(point.predict_proba(features[test]), labels[test]) for point in points)
    assert loss(posterior.predict_proba(features[test]), labels[test]) < best + 0.01


def test_spread_where_the_prior_is_right():
    features, labels = from_the_prior(500, 16, 26, 100.0)
    new, truth = from_the_prior(1000, 16, 26, 100.0, seed=1)  # of which the gain is 2.4 standard errors
    choice = WidthAverage().choose(eb.Problem.create(features, labels))
    assert max(choice.spreads) > 0
    posterior = WidthAverage().posterior(eb.Problem.create(features, labels))
    assert np.mean(posterior.predict_uncertainty(new[:50]).epistemic) > 0.01
    flat = WidthAverage(spreads=()).posterior(eb.Problem.create(features, labels))
    assert loss(posterior.predict_proba(new), truth) < loss(flat.predict_proba(new), truth)


def test_directions_in_which_rows_of_a_class_differ_get_small_weights():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 15, 1400)
    within = rng.standard_normal((1400, 20)) * np.geomspace(0.6, 6.0, 20)
    features = scale(rng.standard_normal((15, 20))[labels] + within)
    problem = eb.Problem.create(features[:400], labels[:400], intercept=100.0)
    choice = WidthAverage().choose(problem)
    assert sum(w for w, shaped in zip(choice.weights, choice.shaped, strict=True) if shaped) > 0.9
    found = WidthAverage().posterior(problem, choice)
    points = [LogisticRegression(C=C, max_iter=2000).fit(features[:400], labels[:400]) for C in (0.03, 0.3, 3.0)]
    best = min(loss(point.predict_proba(features[400:]), labels[400:]) for point in points)
    assert loss(found.predict_proba(features[400:]), labels[400:]) < 0.9 * best
    assert "differ within a class" in found.message


def test_fewer_rows_than_features():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 13
    features = rng.standard_normal((13, 80))[labels] + 0.7 * rng.standard_normal((60, 80))
    posterior = WidthAverage().posterior(eb.Problem.create(features, labels, intercept=100.0), particles=10)
    assert posterior.info.converged
    assert posterior.theta.shape == (10, 81 * 13)
    new = rng.standard_normal((5, 80))
    assert posterior.predict_proba(new).sum(axis=1) == pytest.approx(np.ones(5))


def test_scale_of_features_and_prior_do_not_matter(digits):
    features, labels = digits[0][:200], digits[1][:200]
    probabilities = [
        WidthAverage().posterior(eb.Problem.create(factor * features, labels, prior)).predict_proba(factor * features)
        for factor, prior in ((1.0, 1.0), (8.0, 0.5))
    ]
    assert probabilities[0] == pytest.approx(probabilities[1], abs=2e-3)


def test_what_does_not_matter():
    features, labels = from_the_prior(60, 30, 14, 30.0)
    rng = np.random.default_rng(2)
    columns, order, counts = rng.permutation(30), rng.permutation(60), rng.integers(1, 3, 60)
    twice = np.repeat(np.arange(60), counts)

    def proba(X, y, **settings):
        problem = eb.Problem.create(X, y, likelihood=eb.Categorical(14), **settings)
        return WidthAverage().posterior(problem).predict_proba(X[:20])

    expected = proba(features, labels)
    assert proba(features[:, columns], labels) == pytest.approx(expected, abs=5e-3)
    moved = WidthAverage().posterior(eb.Problem.create(features[order], labels[order], likelihood=eb.Categorical(14)))
    assert moved.predict_proba(features[:20]) == pytest.approx(expected, abs=5e-3)
    here = WidthAverage().choose(eb.Problem.create(features[twice], labels[twice], likelihood=eb.Categorical(14)))
    there = WidthAverage().choose(eb.Problem.create(features, labels, likelihood=eb.Categorical(14), weights=counts))
    assert here.weights == pytest.approx(there.weights, abs=1e-3)
    assert here.scales == pytest.approx(there.scales, rel=1e-3)


def test_width_is_the_variance_of_a_typical_logit(digits):
    features, labels = digits[0][:200], digits[1][:200]
    problem = eb.Problem.create(features, labels, 3.0, intercept=25.0)
    wide = at_width(problem, 7.0, Eigenbasis.of(problem)).prior
    typical = np.mean(features**2 @ wide.cov.reshape(-1, 10)[:-1, 0])
    assert typical == pytest.approx(7.0, rel=1e-5)
    assert wide.cov[-10:] == pytest.approx(np.full(10, 25.0))


def test_one_fold_beyond_a_number_of_rows(digits):
    features, labels = digits
    problem = eb.Problem.create(features, labels, intercept=100.0)
    assert "1 fold," in WidthAverage(one_fold=1000).choose(problem).message


def test_tensors_and_weights(digits):
    torch = pytest.importorskip("torch")
    features, labels = digits[0][:200], digits[1][:200]
    weights = np.linspace(0.5, 1.5, 200)
    theirs = eb.Problem.create(torch.asarray(features), labels, weights=weights)
    ours = eb.Problem.create(features, labels, weights=weights)
    expected, found = (WidthAverage().posterior(p, particles=10) for p in (ours, theirs))
    assert found.weights == pytest.approx(expected.weights, abs=1e-3)
    assert np.asarray(found.predict_proba(torch.asarray(features))) == pytest.approx(
        expected.predict_proba(features), abs=1e-3
    )


def test_streams_are_refused(digits):
    features, labels = digits[0][:200], digits[1][:200]
    with pytest.raises(ValueError, match="rows in memory"):
        WidthAverage().posterior(eb.Problem.stream([(features, labels)]))


def test_stacking_weights_prefer_what_predicts():
    good, bad = np.log(np.full(100, 0.9)), np.log(np.full(100, 0.1))
    weights = stacking_weights(np.stack([good, bad]), np.ones(100), 3.0)
    assert weights[0] > 0.95
    alone = stacking_weights(np.stack([good, bad]), np.ones(100), 1e6)
    assert alone == pytest.approx([0.5, 0.5], abs=0.01)
