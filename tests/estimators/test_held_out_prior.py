"""After a fit with held-out rows the prior is the one that these chose: in assess, forgetting and prior_precision_."""

import pickle

import numpy as np
import pytest

import enkbayes as eb

rng = np.random.default_rng(0)
W = np.linspace(-2, 2, 5)
X = rng.standard_normal((200, 5))
Y = X @ W + rng.logistic(size=200) > 0
HELD_OUT = rng.standard_normal((80, 5))
ANSWERS = HELD_OUT @ W + rng.logistic(size=80) > 0


@pytest.fixture(scope="module")
def calibrated():
    clf = eb.EnsembleClassifier(random_state=0, prior_mean=6 * W, prior_precision=1.0)
    return clf.fit(X, Y, X_val=HELD_OUT, y_val=ANSWERS)


def test_assess_uses_the_prior_of_the_fit(calibrated, tmp_path):
    calibrated.trust_  # noqa: B018
    calibrated.save(tmp_path / "model.safetensors")
    again = pickle.loads(pickle.dumps(calibrated))
    for clf in (calibrated, again, eb.load(tmp_path / "model.safetensors")):
        assert clf.assess(HELD_OUT, ANSWERS).shift == pytest.approx(calibrated.trust_.shift, abs=1e-6)


def test_its_precision_is_reported(calibrated):
    prior = calibrated.problem_.prior
    cov = prior.cov[:5, :5] if prior.cov.ndim == 2 else np.diag(prior.cov[:5])
    reported = np.asarray(calibrated.prior_precision_)
    precision = reported if reported.ndim == 2 else np.eye(5) * reported
    np.testing.assert_allclose(precision @ cov, np.eye(5), atol=1e-8)
    plain = eb.EnsembleClassifier(random_state=0, prior_precision=1.0).fit(X, Y)
    assert plain.prior_precision_ == 1.0


def test_forgetting_everything_leads_back_to_it(calibrated):
    clf = pickle.loads(pickle.dumps(calibrated))
    clf.partial_fit(HELD_OUT, ANSWERS, forget=0)
    np.testing.assert_allclose(clf.predict_proba(X), calibrated.predict_proba(X), atol=1e-5)
