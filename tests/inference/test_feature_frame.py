"""The default on features as they come: centred, and in the units that suit them."""

import warnings
from functools import partial

import numpy as np
import pytest
import scipy.sparse
from scipy.special import expit
from sklearn.metrics import log_loss

import enkbayes as eb
from enkbayes.core.gaussian import Gaussian
from enkbayes.inference.feature_frame import FeatureFrame, frames_of

rng = np.random.default_rng(0)
X = rng.standard_normal((700, 6)) @ (np.eye(6) + 0.3 * rng.standard_normal((6, 6)))
LOGITS = 1.2 * X[:, 0] - X[:, 1] + 0.5
BINARY = (rng.random(700) < expit(LOGITS)).astype(int)
SEVERAL = np.argmax(np.column_stack([LOGITS, X[:, 2], -X[:, 3]]) + rng.gumbel(size=(700, 3)), axis=1)
TRAIN, TEST = slice(0, 100), slice(100, 700)
FAR = 10.0 ** np.arange(6) * (-1.0) ** np.arange(6)
UNITS = 10.0 ** np.asarray([-3, 0, 3, -2, 2, 1])


def proba(features, labels, **settings):
    clf = eb.EnsembleClassifier(random_state=0, **settings).fit(features[TRAIN], labels[TRAIN])
    return clf.predict_proba(features[TEST])


@pytest.mark.parametrize("labels", [BINARY, SEVERAL], ids=["two", "three"])
def test_shifted_features_give_the_same_predictions(labels):
    plain = proba(X, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        shifted = proba(X + FAR, labels)
    np.testing.assert_allclose(shifted, plain, atol=1e-3)


def test_shifted_embeddings_with_fewer_rows_than_features_give_the_same_predictions():
    wide = rng.standard_normal((700, 120)) * np.linspace(0.5, 1.5, 120)
    np.testing.assert_allclose(proba(wide + 3.0, BINARY), proba(wide, BINARY), atol=1e-3)


@pytest.mark.parametrize("labels", [BINARY, SEVERAL], ids=["two", "three"])
def test_units_do_not_matter_where_they_differ_so_much_that_features_are_standardised(labels):
    first, second = UNITS, UNITS[::-1]
    np.testing.assert_allclose(proba(X * second, labels), proba(X * first, labels), atol=1e-4)
    truth = labels[TEST]
    assert log_loss(truth, proba(X * first, labels)) < log_loss(truth, proba(X, labels)) + 0.01


def test_sparse_features_are_fitted_as_dense_ones():
    sparse = scipy.sparse.csr_array(np.where(np.abs(X) > 0.8, X + 1, 0.0))
    np.testing.assert_allclose(proba(sparse, BINARY), proba(sparse.toarray(), BINARY), atol=1e-6)


def test_everything_is_in_the_coordinates_of_the_user(tmp_path):
    raw = X * UNITS + FAR
    clf = eb.EnsembleClassifier(random_state=0).fit(raw[TRAIN], BINARY[TRAIN])
    same = eb.EnsembleClassifier(random_state=0).fit((X * UNITS)[TRAIN], BINARY[TRAIN])
    np.testing.assert_allclose(clf.posterior_.predict_proba(raw[TEST]), clf.predict_proba(raw[TEST]), atol=1e-12)
    np.testing.assert_allclose(clf.coef_, same.coef_, rtol=0.02, atol=0.02 * np.abs(same.coef_).max())
    logits = raw[TEST] @ clf.coef_[0] + clf.intercept_
    assert np.corrcoef(logits, LOGITS[TEST])[0, 1] > 0.9
    assert clf.prior_precision_.shape == (6,)
    assert clf.trust_.verdict in ("good", "usable")
    assert clf.log_evidence_ == pytest.approx(same.log_evidence_, abs=0.2)
    clf.save(tmp_path / "m.safetensors")
    again = eb.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict_proba(raw), clf.predict_proba(raw))
    assert again.tuning_ == clf.tuning_
    before = log_loss(BINARY[400:], clf.predict_proba(raw[400:]))
    again.partial_fit(raw[100:400], BINARY[100:400])
    assert log_loss(BINARY[400:], again.predict_proba(raw[400:])) < before


@pytest.mark.parametrize("labels", [BINARY, SEVERAL], ids=["two", "three"])
def test_features_very_far_from_zero_are_fitted_judged_and_learned_from(labels):
    far = X + 1e8
    clf = eb.EnsembleClassifier(random_state=0).fit(far[TRAIN], labels[TRAIN])
    plain = eb.EnsembleClassifier(random_state=0).fit(X[TRAIN], labels[TRAIN])
    assert clf.trust_.verdict == plain.trust_.verdict
    for each, features in ((clf, far), (plain, X)):
        each.partial_fit(features[100:300], labels[100:300])
    np.testing.assert_allclose(clf.predict_proba(far[300:]), plain.predict_proba(X[300:]), atol=1e-3)


def test_pixels_keep_their_units_where_these_predict_better():
    """Noise of small variance in many features, and a signal in those of large variance."""
    sd = np.repeat([1.0, 0.05], [8, 60])
    features = rng.standard_normal((1500, 68)) * sd
    labels = (rng.random(1500) < expit(2 * features[:, :8].sum(axis=1))).astype(int)
    clf = eb.EnsembleClassifier(random_state=0).fit(features[:80], labels[:80])
    weight = sum(each.weight for each in clf.tuning_.components if each.standardised)
    assert weight < 0.3


def test_a_prior_of_your_own_keeps_its_meaning():
    clf = eb.EnsembleClassifier(prior_precision=2.0, random_state=0).fit(X[TRAIN] + 3.0, BINARY[TRAIN])
    assert clf.problem_.prior.centre is None
    np.testing.assert_array_equal(clf.problem_.prior.cov, [0.5] * 6 + [100.0])
    with pytest.warns(UserWarning, match="varies by .* subtract its mean"):
        clf.fit(X[TRAIN] + 300.0, BINARY[TRAIN])


@pytest.mark.parametrize("outputs", [None, 3])
def test_frames_map_posteriors_and_priors_exactly(outputs):
    labels = BINARY if outputs is None else SEVERAL
    problem = eb.Problem.create(X[TRAIN] + 2.0, labels[TRAIN], intercept=9.0)
    frame = FeatureFrame(np.full(6, 2.0), np.asarray([1.0, 2.0, 0.5, 3.0, 1.0, 1.0]))
    inner = frame.inside(problem)
    outer = problem.with_prior(frame.prior(inner.prior))
    for fit in (partial(eb.run, particles=100), partial(eb.run, sampler=eb.MeanField(rank=2), particles=20)):
        inside = fit(inner)
        mapped = frame.outside(inside)
        np.testing.assert_allclose(
            mapped.predict_proba(problem.features), inside.predict_proba(inner.features), atol=1e-10
        )
        np.testing.assert_allclose(
            mapped.sample_proba(problem.features), inside.sample_proba(inner.features), atol=1e-9
        )
        back = frame.ensemble(mapped.ensemble, inwards=True)
        np.testing.assert_allclose(back.cov, inside.cov, atol=1e-9)
    first, second = eb.run(inner, eb.MeanField(1e-8)), eb.run(outer, eb.MeanField(1e-8))
    np.testing.assert_allclose(frame.outside(first).cov, second.cov, atol=1e-5)
    assert eb.inference.elbo(inner, first).value == pytest.approx(eb.inference.elbo(outer, second).value, abs=1e-5)


def test_a_centred_prior_is_the_gaussian_that_it_says():
    prior = Gaussian(np.zeros(6), np.arange(1.0, 7.0), np.asarray([1.5, -2.0]))
    theta = prior.sample(5, np.random.default_rng(0))
    full = Gaussian(np.zeros(6), prior.dense_cov)
    np.testing.assert_allclose(prior.log_density(theta), full.log_density(theta))
    np.testing.assert_allclose(prior.root @ prior.inverse_root, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(prior.whiten(prior.unwhiten(np.eye(6)).T), np.eye(6), atol=1e-12)
    assert not prior.diagonal
    with pytest.raises(ValueError, match="the centre has shape"):
        Gaussian(np.zeros(6), np.ones(6), np.ones(4))


def test_features_are_as_given_where_they_cannot_be_centred():
    groups = np.asarray([0] * 6 + [-1])
    base = eb.Problem.create(X[TRAIN] + 2.0, BINARY[TRAIN], intercept=9.0)
    assert frames_of(base, groups)[0] is not None
    assert frames_of(base, np.asarray([0, 0, 0, 1, 1, 1, -1])) == (None,)
    assert frames_of(eb.Problem.create(X[TRAIN] + 2.0, BINARY[TRAIN]), groups[:6]) == (None,)
    assert frames_of(eb.Problem.stream([(X[TRAIN], BINARY[TRAIN])], intercept=9.0), groups) == (None,)
