"""Multi-hot labels: as many binary classifiers, in everything that a classifier answers."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss
from sklearn.preprocessing import scale

import enkbayes as eb
from enkbayes.cli.model import TableModel

rng = np.random.default_rng(0)
X = scale(rng.standard_normal((120, 4)))
Y = (X @ rng.standard_normal((4, 3)) + rng.standard_normal((120, 3)) > [0.0, 0.5, 1.0]).astype(int)
SETTINGS = {"prior_precision": 1.0, "particles": 40, "random_state": 0}


@pytest.fixture(scope="module")
def fitted():
    clf = eb.EnsembleClassifier(**SETTINGS).fit(X, Y)
    return clf, [eb.EnsembleClassifier(**SETTINGS).fit(X, own) for own in Y.T]


def test_every_answer_is_that_of_binary_classifiers(fitted):
    clf, own = fitted
    proba = clf.predict_proba(X)
    assert proba.shape == (120, 3)
    for k, binary in enumerate(own):
        loss = log_loss(Y[:, k], proba[:, k])
        assert loss == pytest.approx(log_loss(Y[:, k], binary.predict_proba(X)[:, 1]), abs=1e-6)
        np.testing.assert_array_equal(clf.predict(X)[:, k], binary.predict(X))
        np.testing.assert_allclose(clf.decision_function(X)[:, k], binary.decision_function(X))
        np.testing.assert_allclose(clf.predict_uncertainty(X).epistemic[:, k], binary.predict_uncertainty(X).epistemic)
        np.testing.assert_allclose(clf.sample_proba(X)[:, :, k], binary.sample_proba(X)[:, :, 1])
        np.testing.assert_allclose(clf.coef_[k], binary.coef_[0])
    np.testing.assert_allclose(np.exp(clf.predict_log_proba(X)), proba)
    np.testing.assert_allclose(clf.ood_score(X), own[0].ood_score(X))
    assert clf.intercept_.shape == (3,)
    assert clf.log_evidence_ == pytest.approx(sum(binary.log_evidence_ for binary in own))
    assert clf.trust_.verdict in {binary.trust_.verdict for binary in own}
    assert clf.assess(X, Y).verdict == clf.trust_.verdict
    assert [row.output for row in clf.summary().rows] == ["0"] * 5 + ["1"] * 5 + ["2"] * 5
    thresholds = clf.reject_threshold(X, Y, max_error=0.2)
    assert thresholds[1] == own[1].reject_threshold(X, Y[:, 1], max_error=0.2)
    assert clf.score(X, Y) == np.mean((clf.predict(X) == Y).all(axis=1))


def test_batches_weights_and_held_out_rows():
    weights = rng.random(120) + 0.5
    clf = eb.EnsembleClassifier(class_weight="balanced", **SETTINGS)
    clf.fit(X[:80], Y[:80], weights[:80], X_val=X[80:], y_val=Y[80:])
    binary = eb.EnsembleClassifier(class_weight="balanced", **SETTINGS)
    binary.fit(X[:80], Y[:80, 1], weights[:80], X_val=X[80:], y_val=Y[80:, 1])
    np.testing.assert_allclose(clf.predict_proba(X)[:, 1], binary.predict_proba(X)[:, 1])
    batches = eb.EnsembleClassifier(**SETTINGS).partial_fit(X[:60], Y[:60]).partial_fit(X[60:], Y[60:])
    own = eb.EnsembleClassifier(**SETTINGS).partial_fit(X[:60], Y[:60, 2]).partial_fit(X[60:], Y[60:, 2])
    np.testing.assert_allclose(batches.predict_proba(X)[:, 2], own.predict_proba(X)[:, 1])
    assert np.array_equal(batches.fit(X, Y[:, 0]).classes_, [0, 1])  # another kind of labels
    assert batches.predict_proba(X).shape == (120, 2)
    assert not hasattr(batches, "estimators_")


def test_data_frames_of_labels_keep_to_their_names_and_may_be_nullable():
    frame = pd.DataFrame(Y, columns=["dog", "cat", "cow"])
    clf = eb.EnsembleClassifier(**SETTINGS).fit(X, frame)
    nullable = eb.EnsembleClassifier(**SETTINGS).fit(X, frame.astype("Int64"))
    np.testing.assert_array_equal(nullable.predict_proba(X), clf.predict_proba(X))
    turned = frame[["cow", "dog", "cat"]]
    assert repr(clf.assess(X, turned)) == repr(clf.assess(X, frame))
    loose = {"max_error": 0.45}
    np.testing.assert_array_equal(clf.reject_threshold(X, turned, **loose), clf.reject_threshold(X, frame, **loose))
    batches = eb.EnsembleClassifier(**SETTINGS).partial_fit(X[:60], frame[:60])
    with pytest.raises(ValueError, match=r"columns \['dog', 'cat'\]; expected \['dog', 'cat', 'cow'\], as in the fit"):
        batches.partial_fit(X[60:], frame[["dog", "cat"]][60:])
    whole = eb.EnsembleClassifier(**SETTINGS).partial_fit(X[:60], Y[:60]).partial_fit(X[60:], Y[60:])
    np.testing.assert_array_equal(batches.partial_fit(X[60:], turned[60:]).predict_proba(X), whole.predict_proba(X))


def test_labels_that_drift_forget_by_a_factor_of_their_own():
    first, then = eb.EnsembleClassifier(**SETTINGS).partial_fit(X[:60], Y[:60]), 1 - Y[60:]
    clf = first.partial_fit(X[60:], np.column_stack([Y[60:, :2], then[:, 2]]), forget="auto")
    assert [found.factor for found in clf.forgetting_][2] < 1


def test_each_verdict_of_several_labels_is_that_of_the_worst():
    noise = np.random.default_rng(1).permutation(Y[:, 0])
    clf = eb.EnsembleClassifier(**SETTINGS).fit(X, np.column_stack([Y[:, 0], noise]))
    assert [part.trust_.predictions.verdict for part in clf.estimators_] == ["good", "do not trust"]
    assert clf.trust_.predictions.verdict == "do not trust"


def test_a_label_that_no_row_has():
    clf = eb.EnsembleClassifier(particles=40, random_state=0).fit(
        X, np.column_stack([Y[:, 0], np.zeros(120, dtype=int)])
    )
    proba = clf.predict_proba(X)[:, 1]
    assert np.all(proba < 0.2)
    assert np.all(proba > 0)


def test_files_and_pickles(fitted, tmp_path):
    clf, _ = fitted
    frame = pd.DataFrame(X, columns=["p", "q", "r", "s"])
    named = eb.EnsembleClassifier(**SETTINGS).fit(frame, pd.DataFrame(Y, columns=["dog", "cat", "cow"]))
    assert named.classes_.tolist() == ["dog", "cat", "cow"]
    assert named.trust_.verdict
    named.remember().save(tmp_path / "labels.safetensors")
    again = eb.load(tmp_path / "labels.safetensors")
    np.testing.assert_array_equal(again.predict_proba(frame), named.predict_proba(frame))
    assert again.classes_.tolist() == ["dog", "cat", "cow"]
    assert repr(again.trust_) == repr(named.trust_)
    assert again.fingerprint_ == named.fingerprint_
    assert again.summary() == named.summary()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(clf)).predict_proba(X), clf.predict_proba(X))
    with pytest.raises(ValueError, match="predicts 3 labels for each row, and the commands predict one class"):
        TableModel.load(tmp_path / "labels.safetensors")


def test_showing_computes_nothing(fitted, monkeypatch):
    clf = pickle.loads(pickle.dumps(fitted[0]))
    for name in ("classifier.assess", "base.log_evidence"):
        monkeypatch.setattr(f"enkbayes.estimators.{name}", lambda *_: pytest.fail("it was computed"))
    assert "EnsembleClassifier" in clf._repr_html_()


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (np.arange(240).reshape(120, 2), "labels have 2 columns with other entries than 0 and 1"),
        ([[0, 1], [2], []] * 40, "lists of different lengths"),
        ([{0, 1}, {2}, {1}] * 40, "or sets; expected one class for each row"),
        (Y[:50], "inconsistent numbers of samples"),
    ],
)
def test_wrong_labels(labels, match):
    with pytest.raises(ValueError, match=match):
        eb.EnsembleClassifier(**SETTINGS).fit(X, labels)


def test_what_needs_one_kind_of_labels(fitted, tmp_path):
    with pytest.raises(ValueError, match="a checkpoint holds one run"):
        eb.EnsembleClassifier(**SETTINGS).fit(X, Y, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match=r"use clf.estimators_\[k\].problem_of"):
        fitted[0].problem_of(X, Y)
    with pytest.raises(ValueError, match=r"labels have shape \(120, 2\); expected \(n, 3\)"):
        fitted[0].assess(X, Y[:, :2])
    with pytest.raises(ValueError, match="prior_mean has 2 columns; expected 3, one for each label"):
        eb.EnsembleClassifier(prior_mean=np.zeros((4, 2)), **SETTINGS).fit(X, Y)
