"""One fit after another: warm starts, and batches of `partial_fit`."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss
from sklearn.preprocessing import scale

import enkbayes as eb


def wide_data(seed, rows=200, columns=40):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((rows, columns))
    weights = np.random.default_rng(9).standard_normal(columns) / 2
    return features, features @ weights + rng.logistic(size=rows) > 0


@pytest.mark.parametrize("particles", [15, 41])
def test_a_warm_start_with_few_particles_ends_where_a_cold_one_does(particles):
    settings = {"particles": particles, "random_state": 0, "prior_precision": 1.0}
    warm = eb.EnsembleClassifier(warm_start=True, **settings).fit(*wide_data(1))
    cold = eb.EnsembleClassifier(**settings).fit(*wide_data(2))
    new, _ = wide_data(3)
    np.testing.assert_allclose(warm.fit(*wide_data(2)).predict_proba(new), cold.predict_proba(new), atol=1e-4)


def test_a_warm_start_begins_from_the_gaussian_and_not_from_polished_particles():
    settings = {"random_state": 0, "prior_precision": 1.0, "particles": 60}
    X, y = wide_data(1, columns=5)
    warm = eb.EnsembleClassifier(warm_start=True, **settings).fit(X, y)
    polished = eb.EnsembleClassifier(warm_start=True, **settings).fit(X, y).polish(5)
    assert warm.fit(X, y).predict_proba(X) == pytest.approx(polished.fit(X, y).predict_proba(X), abs=1e-5)


@pytest.mark.parametrize("sweeps", [0, 5])
def test_polished_batches_are_as_good_as_others(sweeps):
    """The fitted Gaussian is the prior of the next batch, not the covariance of a few polished particles."""
    X, y = load_breast_cancer(return_X_y=True)
    X, y = scale(X)[:400], y[:400]
    order = np.random.default_rng(0).permutation(400)
    settings = {"random_state": 0, "prior_precision": 1.0, "particles": 62}
    parts = eb.EnsembleClassifier(sweeps=sweeps, **settings)
    plain = eb.EnsembleClassifier(**settings)
    for rows in np.array_split(order, 5):
        parts.partial_fit(X[rows], y[rows])
        plain.partial_fit(X[rows], y[rows])
    np.testing.assert_allclose(parts.posterior_.fitted.cov, plain.posterior_.fitted.cov, rtol=0.1, atol=1e-3)
    assert log_loss(y, parts.predict_proba(X)) < log_loss(y, plain.predict_proba(X)) + 0.02


def drifting(seed, rows=1000):
    """Rows whose weights change sign in the middle."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((rows, 6))
    logits = features @ np.linspace(1, 2, 6) * np.where(np.arange(rows) < rows // 2, 1, -1)
    return features, (logits + rng.logistic(size=rows) > 0).astype(int)


def one_step_ahead(X, y, forget):
    """Return the mean log loss of batches that are predicted before they are learned, and the factors."""
    clf = eb.EnsembleClassifier("mean-field", particles=20, random_state=0, prior_precision=1.0)
    losses, factors = [], []
    for rows in np.array_split(np.arange(len(y)), len(y) // 50):
        if hasattr(clf, "posterior_"):
            losses.append(log_loss(y[rows], clf.predict_proba(X[rows]), labels=[0, 1]))
        clf.partial_fit(X[rows], y[rows], classes=[0, 1], forget=forget)
        factors.append(clf.forgetting_.factor)
    return np.mean(losses), factors


def test_forgetting_recovers_from_a_drift_and_costs_nothing_without_one():
    X, y = drifting(0)
    plain, chosen = one_step_ahead(X, y, 1.0)[0], one_step_ahead(X, y, "auto")
    assert chosen[0] < 0.85 * plain
    assert min(chosen[1][8:12]) < 0.2
    assert one_step_ahead(X, y, 0.8)[0] < plain
    steady = X[:500], y[:500]
    assert one_step_ahead(*steady, "auto")[0] < one_step_ahead(*steady, 1.0)[0] + 0.002


def test_forgetting_everything_is_a_fit_of_the_last_batch():
    X, y = drifting(1)
    settings = {"random_state": 0, "prior_precision": 3.0, "prior_mean": 0.1}
    clf = eb.EnsembleClassifier(**settings).fit(X[:100], y[:100]).partial_fit(X[100:200], y[100:200], forget=0)
    last = eb.EnsembleClassifier(**settings).fit(X[100:200], y[100:200])
    np.testing.assert_allclose(clf.predict_proba(X), last.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("forget", [-0.1, 1.1, "always", None, np.nan])
def test_a_wrong_factor_is_explained(forget):
    with pytest.raises(ValueError, match=r"forget is .*; expected a number from 0"):
        eb.EnsembleClassifier(prior_precision=1.0).partial_fit(*drifting(0, 60), forget=forget)
