"""prior_precision="auto", log_evidence_ and evidence_ of the classifier; what files keep; the command line."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import scale
from typer.testing import CliRunner

import enkbayes as eb
from enkbayes.cli.app import app
from enkbayes.storage.model_file import decode, encode, read

X, y = load_breast_cancer(return_X_y=True)
X, y = scale(X)[::2, :10], y[::2]


def auto(**kwargs):
    return eb.EnsembleClassifier(prior_precision="auto", random_state=0, **kwargs)


@pytest.fixture(scope="module")
def fitted():
    return auto().fit(X, y)


def test_auto_is_the_classifier_of_the_precision_it_names(fitted):
    named = eb.EnsembleClassifier(prior_precision=fitted.prior_precision_, random_state=0).fit(X, y)
    assert isinstance(fitted.prior_precision_, float)
    assert np.allclose(named.predict_proba(X), fitted.predict_proba(X), atol=1e-9)
    assert fitted.tuning_.converged
    assert "chosen by evidence" in fitted.tuning_.message
    assert fitted.intercept_precision_ == 0.01
    assert named.tuning_ is None
    assert named.prior_precision_ == fitted.prior_precision_


def test_the_chosen_precision_has_the_highest_evidence(fitted):
    for factor in (0.1, 10.0):
        other = eb.EnsembleClassifier(prior_precision=fitted.prior_precision_ * factor, random_state=0).fit(X, y)
        assert other.log_evidence_ < fitted.log_evidence_ - 3 * np.hypot(other.evidence_.error, fitted.evidence_.error)


def test_evidence_is_computed_once_and_again_after_each_fit():
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    first = clf.evidence_
    assert clf.evidence_ is first
    assert clf.log_evidence_ == first.value
    assert clf.polish(1).evidence_ is first  # polish moves particles, not the evidence
    second = clf.fit(X[::2], y[::2]).log_evidence_
    assert second > first.value + 10  # half of the rows
    assert clf.partial_fit(X[1::4], y[1::4]).log_evidence_ > second


def test_evidence_of_batches_adds_up():
    """p(a, b) = p(a) p(b | a), up to the Gaussian between the batches."""
    whole = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    parts = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).partial_fit(X[::2], y[::2])
    first = parts.log_evidence_
    second = parts.partial_fit(X[1::2], y[1::2]).log_evidence_
    assert first + second == pytest.approx(whole.log_evidence_, abs=0.5)
    assert abs(second) < abs(first)


def test_files_and_pickles_keep_what_was_found(tmp_path, fitted):
    fitted.evidence_  # noqa: B018
    fitted.save(tmp_path / "model.safetensors")
    for again in (eb.load(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(fitted))):
        assert again.evidence_ == fitted.evidence_
        assert again.tuning_ == fitted.tuning_
        assert again.prior_precision_ == fitted.prior_precision_
        assert again.prior_precision == "auto"
        assert again.assess(X, y).shift == pytest.approx(fitted.trust_.shift)  # the tuned prior is known again


def test_without_evidence_a_file_says_what_to_do(tmp_path):
    eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y).save(tmp_path / "model.safetensors")
    again = eb.load(tmp_path / "model.safetensors")
    missing = "evidence_ needs the data of the fit, which files and pickles leave out"
    with pytest.raises(AttributeError, match=f"{missing}; access it before saving, or fit again"):
        _ = again.log_evidence_
    assert not hasattr(again, "evidence_")
    with pytest.raises(NotFittedError):
        _ = eb.EnsembleClassifier(prior_precision=1.0).log_evidence_


def test_files_of_before_still_load(tmp_path, fitted):
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    clf.save(tmp_path / "new.safetensors")
    header, tensors = encode(read(tmp_path / "new.safetensors"))
    header = json.loads(json.dumps(header))
    for name in ("evidence", "tuning"):
        del header[name]
    del header["estimator"]["parameters"]["prior_groups"]
    old = eb.EnsembleClassifier.from_artefact(decode(header, tensors))
    assert np.array_equal(old.predict_proba(X), clf.predict_proba(X))
    assert old.tuning_ is None
    assert old.prior_precision_ == 1.0


@pytest.mark.parametrize(
    ("name", "record"),
    [("evidence", {"value": "high"}), ("tuning", {"variances": 3.0}), ("evidence", [1.0]), ("tuning", {"fits": True})],
)
def test_damaged_records_are_refused(tmp_path, fitted, name, record):
    fitted.evidence_  # noqa: B018
    fitted.save(tmp_path / "model.safetensors")
    header, tensors = encode(read(tmp_path / "model.safetensors"))
    header[name] = header[name] | record if isinstance(record, dict) else record
    with pytest.raises(ValueError, match=name):
        decode(header, tensors)


@pytest.mark.parametrize("labels", [["mean"] * 5 + ["worst"] * 5, np.repeat([3, 8], 5)])
def test_groups_of_features(tmp_path, labels):
    clf = auto(prior_groups=labels).fit(X, y)
    precision = clf.prior_precision_
    assert precision.shape == (10,)
    assert len(np.unique(precision)) == 2
    assert len(np.unique(precision[:5])) == 1
    named = eb.EnsembleClassifier(prior_precision=precision, random_state=0).fit(X, y)
    assert np.allclose(named.predict_proba(X), clf.predict_proba(X), atol=1e-9)
    clf.save(tmp_path / "groups.safetensors")
    again = eb.load(tmp_path / "groups.safetensors")
    assert np.allclose(again.prior_precision_, precision)
    assert list(again.prior_groups) == list(labels)


def test_the_intercept_can_be_chosen_too():
    clf = auto(intercept_precision="auto").fit(X, y)
    assert clf.intercept_precision_ == pytest.approx(1 / clf.tuning_.variances[1])
    assert clf.prior_precision_ == pytest.approx(1 / clf.tuning_.variances[0])
    only = eb.EnsembleClassifier(prior_precision=1.0, intercept_precision="auto", random_state=0).fit(X, y)
    assert only.prior_precision_ == 1.0
    assert only.intercept_precision_ == pytest.approx(1 / only.tuning_.variances[0])
    assert (
        eb.EnsembleClassifier(prior_precision=1.0, intercept_precision="auto", fit_intercept=False).fit(X, y).tuning_
        is None
    )


def test_partial_fit_chooses_on_the_first_batch():
    clf = auto().partial_fit(X[::2], y[::2])
    chosen = clf.tuning_
    assert auto().fit(X[::2], y[::2]).tuning_ == chosen
    assert clf.partial_fit(X[1::2], y[1::2]).tuning_ == chosen


def test_every_fit_chooses_again(fitted):
    clf = clone(fitted)
    assert clf.prior_precision == "auto"
    assert not hasattr(clf, "tuning_")
    other = clf.fit(X[:100], y[:100]).prior_precision_
    assert other != fitted.prior_precision_
    assert clf.fit(X, y).prior_precision_ == fitted.prior_precision_


def test_three_classes_and_weights():
    features, labels = load_wine(return_X_y=True)
    features = scale(features)[:, :4]
    clf = auto().fit(features, labels, sample_weight=np.where(labels == 0, 2.0, 1.0))
    assert clf.tuning_.converged
    assert clf.evidence_.error < 0.2
    assert clf.predict_proba(features).shape == (178, 3)


def test_the_command_line_says_what_was_chosen(tmp_path):
    table = pd.DataFrame(X[:, :4], columns=list("abcd")).assign(y=np.where(y == 1, "yes", "no"))
    table.to_csv(tmp_path / "data.csv", index=False)
    command = ["fit", str(tmp_path / "data.csv"), "--target", "y", "--out", str(tmp_path / "m.safetensors")]
    shown = CliRunner().invoke(app, [*command, "--prior-precision", "auto"])
    assert shown.exit_code == 0, shown.output
    assert "chosen by evidence" in " ".join(shown.stdout.split())
    assert "log evidence" in shown.stdout
    facts = json.loads(CliRunner().invoke(app, [*command, "--prior-precision", "auto", "--json"]).stdout)
    model = eb.load(tmp_path / "m.safetensors")
    assert facts["prior_precision"] == pytest.approx(model.prior_precision_)
    assert facts["prior_choice"]["converged"] is True
    assert facts["log_evidence"]["value"] == pytest.approx(model.log_evidence_)  # the file keeps it
    assert facts["log_evidence"]["method"] == model.evidence_.method
