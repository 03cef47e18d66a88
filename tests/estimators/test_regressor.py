"""Linear regression: the posterior is exact, the noise is found, and scikit-learn agrees."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import BayesianRidge, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.utils.estimator_checks import parametrize_with_checks

import enkbayes as eb
from enkbayes.inference.linear_regression import regression_scales


@parametrize_with_checks(
    [
        eb.EnsembleRegressor(),
        eb.EnsembleRegressor(prior_precision=1.0, fit_intercept=False),
        eb.EnsembleRegressor(far_field=True),
    ]
)
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return scale(X), y


def dense_posterior(X, y, precision, noise, intercept_mean, intercept_variance):
    A = np.column_stack([X, np.ones(len(X))])
    prior = np.diag([*np.full(X.shape[1], precision), 1 / intercept_variance])
    cov = np.linalg.inv(A.T @ A / noise + prior)
    return cov @ (A.T @ y / noise + prior[:, -1] * intercept_mean), cov


def test_the_posterior_is_the_closed_form(diabetes):
    X, y = diabetes
    model = eb.EnsembleRegressor(prior_precision=0.01, noise_variance=3000.0, random_state=0).fit(X, y)
    mean, cov = dense_posterior(X, y, 0.01, 3000.0, y.mean(), 100 * y.var())
    np.testing.assert_allclose(model.posterior_.mean, mean, rtol=1e-8, atol=1e-6)
    np.testing.assert_allclose(model.posterior_.cov, cov, rtol=1e-7, atol=1e-8)
    predicted, std = model.predict(X, return_std=True)
    A = np.column_stack([X, np.ones(len(X))])
    np.testing.assert_allclose(predicted, A @ mean, rtol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(3000 + np.sum(A @ cov * A, axis=1)), rtol=1e-7)


@pytest.mark.parametrize("particles", [3, 200])
def test_predictions_do_not_depend_on_the_number_of_particles(diabetes, particles):
    X, y = diabetes
    mean, std = eb.EnsembleRegressor(particles=particles, random_state=0).fit(X, y).predict(X[:5], return_std=True)
    expected = eb.EnsembleRegressor(particles=50, random_state=1).fit(X, y).predict(X[:5], return_std=True)
    np.testing.assert_allclose([mean, std], expected, rtol=1e-6)


def test_evidence_chooses_the_noise_and_the_prior_that_a_grid_finds(diabetes):
    X, y = diabetes
    problem = eb.Problem.create(X, y, likelihood=eb.Normal(), intercept=1.0)
    found = regression_scales(problem)

    def evidence(noise, prior):
        centred = y - y.mean()
        cov = noise * np.eye(len(y)) + prior * X @ X.T
        _, log_det = np.linalg.slogdet(cov)
        return -(log_det - np.log(noise) + centred @ np.linalg.solve(cov, centred)) / 2

    best = evidence(found.noise, found.prior)
    for noise in found.noise * np.asarray([0.8, 0.95, 1.05, 1.25]):
        for prior in found.prior * np.asarray([0.5, 0.9, 1.1, 2.0]):
            assert evidence(noise, prior) < best


def test_auto_agrees_with_scikit_learn(diabetes):
    X, y = diabetes
    model, ridge = eb.EnsembleRegressor(random_state=0).fit(X, y), BayesianRidge().fit(X, y)
    assert model.noise_variance_ == pytest.approx(1 / ridge.alpha_, rel=0.02)
    np.testing.assert_allclose(model.coef_, ridge.coef_, atol=0.5)
    fixed = eb.EnsembleRegressor(prior_precision=2.0, noise_variance=10.0, random_state=0).fit(X, y)
    np.testing.assert_allclose(fixed.coef_, Ridge(alpha=20.0).fit(X, y).coef_, rtol=1e-4)
    assert fixed.intercept_ == pytest.approx(y.mean(), rel=1e-4)


def test_intervals_cover_new_targets():
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(40):
        truth = rng.standard_normal(5)
        X, new = rng.standard_normal((30, 5)), rng.standard_normal((50, 5))
        model = eb.EnsembleRegressor(random_state=0).fit(X, X @ truth + rng.standard_normal(30))
        low, high = model.predict_interval(new, level=0.9).T
        y = new @ truth + rng.standard_normal(50)
        hits.append(np.mean((low < y) & (y < high)))
    assert 0.86 < np.mean(hits) < 0.94


def test_samples_of_predictions_vary_as_much_as_the_mean_is_uncertain(diabetes):
    X, y = diabetes
    model = eb.EnsembleRegressor(particles=400, random_state=0).fit(X, y)
    samples = model.sample_predictions(X[:5])
    assert samples.shape == (400, 5)
    np.testing.assert_allclose(samples.mean(axis=0), model.predict(X[:5]), rtol=1e-8)
    np.testing.assert_allclose(samples.var(axis=0), model.predict_uncertainty(X[:5]).epistemic, rtol=1e-6)


def test_targets_of_any_scale_and_offset(diabetes):
    X, y = diabetes
    plain = eb.EnsembleRegressor(random_state=0).fit(X, y).predict(X, return_std=True)
    moved = eb.EnsembleRegressor(random_state=0).fit(X, 1e-6 * y - 7.0).predict(X, return_std=True)
    np.testing.assert_allclose(moved[0], 1e-6 * plain[0] - 7.0, rtol=1e-7)
    np.testing.assert_allclose(moved[1], 1e-6 * plain[1], rtol=1e-4)


def test_constant_targets_and_constant_features_are_fitted():
    X = np.random.default_rng(0).standard_normal((20, 3))
    np.testing.assert_allclose(eb.EnsembleRegressor().fit(X, np.full(20, 4.0)).predict(X), 4.0, atol=1e-4)
    y = X[:, 0]
    model = eb.EnsembleRegressor().fit(np.ones((20, 3)), y)
    np.testing.assert_allclose(model.predict(np.ones((2, 3))), y.mean(), atol=0.1)


def test_weights_count_rows(diabetes):
    X, y = diabetes
    counts = np.random.default_rng(0).integers(1, 4, len(y))
    weighted = eb.EnsembleRegressor(random_state=0).fit(X, y, sample_weight=counts)
    repeated = eb.EnsembleRegressor(random_state=0).fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    np.testing.assert_allclose(weighted.predict(X, return_std=True), repeated.predict(X, return_std=True), rtol=1e-5)


def test_batches_give_the_posterior_of_one_fit(diabetes):
    X, y = diabetes
    settings = {"prior_precision": 0.01, "noise_variance": 3000.0, "random_state": 0, "fit_intercept": False}
    once = eb.EnsembleRegressor(**settings).fit(X, y)
    model = eb.EnsembleRegressor(**settings)
    for rows in np.array_split(np.arange(len(y)), 4):
        model.partial_fit(X[rows], y[rows])
    np.testing.assert_allclose(model.posterior_.mean, once.posterior_.mean, rtol=1e-6)
    np.testing.assert_allclose(model.posterior_.cov, once.posterior_.cov, rtol=1e-5, atol=1e-8)


def test_a_file_predicts_the_same_bits(diabetes, tmp_path):
    X, y = diabetes
    precision = np.linspace(0.5, 2.0, X.shape[1])
    for settings in ({}, {"prior_precision": precision}):
        model = eb.EnsembleRegressor(random_state=0, **settings).fit(X, y)
        eb.save(model, tmp_path / "model.safetensors")
        again = eb.load(tmp_path / "model.safetensors")
        assert isinstance(again, eb.EnsembleRegressor)
        np.testing.assert_array_equal(again.predict(X, return_std=True), model.predict(X, return_std=True))
        np.testing.assert_array_equal(again.prior_precision_, model.prior_precision_)


def test_it_works_in_a_pipeline(diabetes):
    X, y = diabetes
    pipeline = make_pipeline(StandardScaler(), eb.EnsembleRegressor(random_state=0)).fit(X * 1000, y)
    assert pipeline.score(X * 1000, y) > 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise_variance": 0}, "noise_variance is 0; expected a positive number"),
        ({"noise_variance": None}, "noise_variance is None"),
        ({"prior_mean": 1.0}, "chooses a prior around 0"),
        ({"prior_precision": -1.0}, "expected positive numbers"),
    ],
)
def test_bad_settings_get_one_sentence(diabetes, settings, message):
    with pytest.raises(ValueError, match=message):
        eb.EnsembleRegressor(**settings).fit(*diabetes)
    with pytest.raises(ValueError, match="level is 2"):
        eb.EnsembleRegressor().fit(*diabetes).predict_interval(diabetes[0], level=2)


def test_far_field_variance(diabetes, tmp_path):
    """Predictions of new rows lose at most .005 nats, and rows far away get much more variance than a line has."""
    X, y = diabetes
    plain, model = (eb.EnsembleRegressor(random_state=0, far_field=f).fit(X[:300], y[:300]) for f in (False, True))
    mean, std = model.predict(X[300:], return_std=True)
    np.testing.assert_allclose(mean, plain.predict(X[300:]), rtol=1e-10)

    def loss(spread):
        return np.mean(np.log(spread) + (y[300:] - mean) ** 2 / (2 * spread**2))

    assert loss(std) < loss(plain.predict(X[300:], return_std=True)[1]) + 0.02
    far = 30 * X[:3]
    found = model.predict_uncertainty(far)
    assert np.all(found.total > 4 * plain.predict_uncertainty(far).total)
    np.testing.assert_allclose(found.total - found.far_field, plain.predict_uncertainty(far).total, rtol=1e-6)
    np.testing.assert_allclose(model.predict(far, return_std=True)[1], np.sqrt(found.total))
    model.save(tmp_path / "model.safetensors")
    again = eb.load(tmp_path / "model.safetensors")
    np.testing.assert_allclose(again.predict_uncertainty(far).far_field, found.far_field, rtol=1e-12)
    assert again.far_field_.choice == model.far_field_.choice
