"""EnsembleClassifier(): averaged over the width of the prior, in every fit, in files and pickles."""

import pickle
from inspect import signature

import numpy as np
import pytest
import scipy.sparse
from scipy.special import expit
from sklearn import config_context
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

import enkbayes as eb

rng = np.random.default_rng(0)
X = rng.standard_normal((150, 8))
y = np.where(rng.random(150) < expit(X @ rng.standard_normal(8)), "yes", "no")
TRAIN, TEST = slice(0, 60), slice(60, 150)


@pytest.fixture(scope="module")
def fitted():
    return eb.EnsembleClassifier(random_state=0).fit(X[TRAIN], y[TRAIN])


def test_predictions_are_the_average_of_its_components(fitted):
    mixture = fitted.posterior_
    expected = sum(w * c.predict_proba(X) for w, c in zip(mixture.weights, mixture.components, strict=True))
    np.testing.assert_allclose(fitted.predict_proba(X), expected, atol=1e-14)
    assert len(mixture.components) > 1
    assert fitted.sample_proba(X).shape == (200, 150, 2)
    assert "averaged over prior widths" in fitted.tuning_.message
    precisions = [1 / prior.cov[0] for prior in mixture.priors]
    assert min(precisions) < fitted.prior_precision_ < max(precisions)
    assert fitted.intercept_precision_ == 0.01


def test_trust_and_evidence_are_those_of_the_average(fitted):
    assert fitted.trust_.verdict in ("good", "usable")
    each = [eb.log_evidence(p, c).value for p, c in zip(*components(fitted), strict=True)]
    assert min(each) + np.log(sum(fitted.posterior_.prior_weights)) <= fitted.log_evidence_ <= max(each)


def components(clf):
    return clf.posterior_.problems(clf.problem_), clf.posterior_.components


def test_files_and_pickles_keep_the_average(fitted, tmp_path):
    fitted.save(tmp_path / "model.safetensors")
    for again in (eb.load(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(fitted))):
        assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
        assert again.tuning_ == fitted.tuning_
        assert again.prior_precision_ == fitted.prior_precision_
        assert again.assess(X[TRAIN], y[TRAIN]).shift == pytest.approx(fitted.trust_.shift)
        later = again.partial_fit(X[TEST], y[TEST])
        assert later.posterior_.weights != fitted.posterior_.weights


def test_batches_update_every_component_and_the_weights():
    batches = eb.EnsembleClassifier(random_state=0).partial_fit(X[TRAIN], y[TRAIN])
    before, codes = batches.posterior_, np.searchsorted(batches.classes_, y[TEST])
    proba = np.stack([c.predict_proba(X[TEST])[np.arange(90), codes] for c in before.components])
    batches.partial_fit(X[TEST], y[TEST])
    after = batches.posterior_
    assert len(after.components) == len(before.components)
    weights = np.asarray(after.weights)  # those of stacking: the weights before count as the 60 rows that chose them
    expected = (weights * (proba / (weights @ proba)).sum(axis=1) + 60 * np.asarray(before.weights)) / 150
    np.testing.assert_allclose(weights, expected, atol=1e-3)
    assert batches.tuning_.rows == 150
    whole = eb.EnsembleClassifier(random_state=0).fit(X, y)
    assert np.abs(batches.predict_proba(X) - whole.predict_proba(X)).mean() < 0.03


def test_held_out_rows_are_fitted_with_the_others(fitted):
    clf = eb.EnsembleClassifier(random_state=0).fit(X[:40], y[:40], X_val=X[40:60], y_val=y[40:60])
    np.testing.assert_allclose(clf.predict_proba(X), fitted.predict_proba(X), atol=1e-9)
    assert clf.calibration_ is None
    sparse = eb.EnsembleClassifier(random_state=0)
    sparse.fit(scipy.sparse.csr_array(X[:40]), y[:40], [1.0] * 40, X_val=X[40:60], y_val=y[40:60])
    np.testing.assert_allclose(sparse.predict_proba(X), fitted.predict_proba(X), atol=1e-4)


def test_held_out_rows_pass_through_a_pipeline():
    raw = 50 * X + 300
    with config_context(enable_metadata_routing=True):
        clf = eb.EnsembleClassifier(random_state=0).set_fit_request(X_val=True, y_val=True)
        pipeline = Pipeline([("scale", StandardScaler()), ("clf", clf)], transform_input=["X_val"])
        pipeline.fit(raw[:40], y[:40], X_val=raw[40:60], y_val=y[40:60])
        assert log_loss(y[TEST], pipeline.predict_proba(raw[TEST])) < 0.6


def test_held_out_rows_on_another_scale_are_refused():
    clf = eb.EnsembleClassifier()
    with pytest.raises(ValueError, match=r"the spread of the held-out rows .* transform_input"):
        clf.fit(X[:40], y[:40], X_val=50 * X[40:60], y_val=y[40:60])
    with pytest.raises(ValueError, match="the mean of the held-out rows X_val is 3"):
        clf.fit(X[:40], y[:40], X_val=X[40:60] + 30, y_val=y[40:60])
    with pytest.raises(ValueError, match="expected both X_val and y_val, or neither"):
        clf.fit(X[:40], y[:40], X_val=X[40:60])


def test_shards_and_fits_agree_with_the_same_tuning(fitted):
    tuning = fitted.tune(X[TRAIN], y[TRAIN])
    assert tuning == fitted.tuning_
    shard = eb.EnsembleClassifier(random_state=0).fit_shard(X[TRAIN], y[TRAIN], tuning=tuning)
    np.testing.assert_allclose(shard.predict_proba(X), fitted.predict_proba(X), atol=1e-8)
    with pytest.warns(UserWarning, match="one prior width, logit variance 3"):
        alone = eb.EnsembleClassifier(random_state=0).fit_shard(X[TRAIN], y[TRAIN])
    assert alone.posterior_.weights == (1.0,)


def test_groups_and_intercepts_have_their_own_scales():
    clf = eb.EnsembleClassifier(prior_groups=[0, 0, 0, 0, 1, 1, 1, 1], intercept_precision="auto", random_state=0)
    clf.fit(np.hstack([X[TRAIN, :4], 0.01 * X[TRAIN, 4:]]), y[TRAIN])
    small, large = clf.prior_precision_[[0, 4]]
    assert small > 100 * large
    assert clf.intercept_precision_ != 0.01
    ratios = [prior.cov[0] / prior.cov[4] for prior in clf.posterior_.priors]
    np.testing.assert_allclose(ratios, ratios[0])


def test_few_rows_are_predicted_better_than_by_cross_validated_logistic_regression():
    gains, newer = [], {"l1_ratios": (0.0,), "use_legacy_attributes": False}  # which keep newer versions from warning
    newer = newer if "use_legacy_attributes" in signature(LogisticRegressionCV).parameters else {}
    for seed in range(6):
        draw = np.random.default_rng(seed)
        A = draw.standard_normal((2040, 20))
        b = draw.random(2040) < expit(A @ draw.standard_normal(20) / 2)
        clf = eb.EnsembleClassifier(random_state=0).fit(A[:40], b[:40])
        point = LogisticRegressionCV(scoring="neg_log_loss", **newer)
        point.fit(A[:40], b[:40])
        gains.append(log_loss(b[40:], point.predict_proba(A[40:])) - log_loss(b[40:], clf.predict_proba(A[40:])))
    assert np.mean(gains) > 0
    assert np.min(gains) > -0.02
