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
