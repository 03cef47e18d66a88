"""The default for three and more classes: a posterior where a problem is of ordinary size."""

import numpy as np
import pytest
from sklearn.datasets import load_iris, load_wine
from sklearn.linear_model import LogisticRegressionCV
from sklearn.preprocessing import scale

import enkbayes as eb


def drawn(N=200, D=20, K=3, width=10.0, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((N, D))
    weights = np.random.default_rng(9).standard_normal((D, K)) * np.sqrt(width / D)
    return features, np.argmax(features @ weights + rng.gumbel(size=(N, K)), axis=1)


def clouds(rows, rng, classes=10, dim=60):
    """Return rows of classes whose features are correlated, like handwritten digits."""
    fixed = np.random.default_rng(5)
    decay = np.arange(1, dim + 1) ** -0.5
    mixing = np.linalg.qr(fixed.standard_normal((dim, dim)))[0]
    means = 0.7 * fixed.standard_normal((classes, dim)) * decay
    labels = np.arange(rows) % classes
    return scale((means[labels] + rng.standard_normal((rows, dim)) * decay) @ mixing), labels


def loss(proba, labels):
    return -np.log(np.maximum(proba[np.arange(len(labels)), labels], 1e-12)).mean()


@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_known_sets_get_a_posterior_with_evidence_and_intervals(load):
    features, labels = load(return_X_y=True)
    clf = eb.EnsembleClassifier(random_state=0).fit(scale(features), labels)
    assert not clf.posterior_.held_out
    assert clf.posterior_.info.converged
    assert np.isfinite(clf.log_evidence_)
    assert "97.5 %" in str(clf.summary())
    assert clf.trust_.verdict != "held-out"
    assert clf.predict_uncertainty(scale(features)).epistemic.max() > 0.01


def test_a_posterior_where_the_prior_is_right_about_as_good_as_the_best_point_estimate():
    (features, labels), (new, truth) = drawn(), drawn(2000, seed=1)
    clf = eb.EnsembleClassifier(random_state=0).fit(features, labels)
    point = LogisticRegressionCV(
        scoring="neg_log_loss", l1_ratios=(0.0,), max_iter=1000, use_legacy_attributes=False
    ).fit(features, labels)
    assert not clf.posterior_.held_out
    assert loss(clf.predict_proba(new), truth) < loss(point.predict_proba(new), truth) + 0.01


def test_five_rows_a_class_are_better_than_a_point_estimate():
    """Folds of so few rows choose the strength of a point estimate badly."""
    new, truth = clouds(2000, np.random.default_rng(100))
    losses = []
    for seed in range(3):
        features, labels = clouds(50, np.random.default_rng(seed))
        point = LogisticRegressionCV(
            scoring="neg_log_loss", l1_ratios=(0.0,), max_iter=1000, use_legacy_attributes=False
        ).fit(features, labels)
        ours = eb.EnsembleClassifier(random_state=0).fit(features, labels)
        losses.append((loss(ours.predict_proba(new), truth), loss(point.predict_proba(new), truth)))
    ours, point = np.mean(losses, axis=0)
    assert ours < point


@pytest.mark.parametrize(("rows", "features"), [(120, 6), (30, 40)])
def test_what_does_not_matter(rows, features):
    X, y = drawn(rows, features)
    new = drawn(50, features, seed=1)[0]

    def proba(X, y, new, **settings):
        return eb.EnsembleClassifier(random_state=0).fit(X, y, **settings).predict_proba(new)

    expected = proba(X, y, new)
    columns, order = np.random.default_rng(3).permutation(features), np.random.default_rng(4).permutation(rows)
    np.testing.assert_allclose(proba(X[:, columns], y, new[:, columns]), expected, atol=2e-3)
    np.testing.assert_allclose(proba(X[order], y[order], new), expected, atol=2e-3)
    np.testing.assert_allclose(proba(8.0 * X, y, 8.0 * new), expected, atol=2e-3)
    names = np.asarray([2, 0, 1])
    np.testing.assert_allclose(proba(X, names[y], new)[:, names], expected, atol=0.03)
    counts = np.random.default_rng(5).integers(1, 3, rows)
    twice = np.repeat(np.arange(rows), counts)
    weighted = proba(X, y, new, sample_weight=counts)
    np.testing.assert_allclose(proba(X[twice], y[twice], new), weighted, atol=2e-3)


def test_fewer_rows_than_features_leave_the_prior_outside_their_space():
    X, y = drawn(24, 40)
    posterior = eb.EnsembleClassifier(random_state=0).fit(X, y).posterior_
    outside = np.linalg.svd(X)[2][-1]
    direction = np.kron(np.append(outside, 0.0), np.asarray([1.0, 0.0, 0.0]))
    for component, prior in zip(posterior.components, posterior.priors, strict=True):
        assert direction @ component.cov @ direction == pytest.approx(prior.cov[0], rel=1e-6)
        assert direction @ component.mean == pytest.approx(0.0, abs=1e-9)
