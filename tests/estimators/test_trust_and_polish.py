"""trust_ and polish of a fitted classifier, and what files keep of them."""

import json
import pickle

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.preprocessing import scale

import enkbayes as eb
from enkbayes.storage.model_file import decode, encode, read
from oracles.problems import relu_data

X, y = load_breast_cancer(return_X_y=True)
X, y = scale(X)[::3, :6], y[::3]


def test_trust_is_computed_once_and_again_after_each_fit():
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    first = clf.trust_
    assert clf.trust_ is first
    second = clf.fit(X[::2], y[::2]).trust_
    assert second.shift != first.shift
    third = clf.partial_fit(X[1::2], y[1::2]).trust_
    assert third.shift != second.shift
    assert clf.polish(1).trust_.sweeps == 1
    assert third.sweeps == 0


def test_assess_and_trust_agree():
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    assert repr(clf.assess(X, y)) == repr(clf.trust_)
    weights = np.linspace(0, 2, len(y))
    weighted = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y, sample_weight=weights)
    assert repr(weighted.assess(X, y, sample_weight=weights)) == repr(weighted.trust_)
    assert weighted.trust_.shift != clf.trust_.shift


def test_files_keep_trust_once_it_is_computed(tmp_path):
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    clf.save(tmp_path / "without.safetensors")
    report = repr(clf.trust_)
    clf.save(tmp_path / "with.safetensors")
    assert repr(eb.load(tmp_path / "with.safetensors").trust_) == report
    again = eb.load(tmp_path / "without.safetensors")
    missing = "trust_ needs the data of the fit, which files and pickles leave out"
    with pytest.raises(AttributeError, match=missing + r"; call assess\(X, y\), or fit again"):
        _ = again.trust_
    assert repr(again.assess(X, y)) == report
    assert repr(pickle.loads(pickle.dumps(clf)).trust_) == report
    with pytest.raises(AttributeError, match="polish needs the data of the fit"):
        again.polish(2)


def test_files_of_earlier_versions_still_load(tmp_path):
    """A header without trust, before, trace, sweeps and drift."""
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    clf.save(tmp_path / "new.safetensors")
    header, tensors = encode(read(tmp_path / "new.safetensors"))
    header = json.loads(json.dumps(header))
    del header["trust"], header["posterior"]["before"]
    for name in ("trace", "sweeps", "drift"):
        del header["posterior"]["info"]["fields"][name]
    del header["estimator"]["parameters"]["sweeps"]
    old = eb.EnsembleClassifier.from_artefact(decode(header, tensors))
    assert np.array_equal(old.predict_proba(X), clf.predict_proba(X))
    assert old.posterior_.info.trace == ()
    assert old.sweeps == 0


def test_the_trace_of_a_run_is_kept_and_thinned(tmp_path):
    clf = eb.EnsembleClassifier("tamed-homotopy", random_state=0, prior_precision=1.0).fit(X, y)
    trace = clf.posterior_.info.trace
    assert len(trace) <= 400
    assert trace[0][0] == 0
    assert trace[-1][0] == clf.n_iter_ == 1000
    assert np.isnan(trace[-1][1])
    assert trace[-1][2] == pytest.approx(np.trace(clf.posterior_.cov))
    clf.save(tmp_path / "m.safetensors")
    again = eb.load(tmp_path / "m.safetensors").posterior_.info.trace
    assert np.array_equal(np.asarray(again), np.asarray(trace), equal_nan=True)


def test_polish_in_the_fit_is_polish_after_it():
    features, labels = relu_data()
    plain = eb.EnsembleClassifier(prior_precision=0.5, random_state=0).fit(features, labels)
    before = plain.posterior_
    inside = eb.EnsembleClassifier(prior_precision=0.5, random_state=0, sweeps=6).fit(features, labels)
    after = plain.polish(6)
    assert np.array_equal(after.posterior_.theta, inside.posterior_.theta)
    assert after.posterior_.fitted is before.ensemble
    assert np.trace(after.posterior_.cov) > np.trace(before.cov)


@pytest.mark.filterwarnings("ignore:10 particles span")
def test_polished_classifiers_learn_on(tmp_path):
    """Ten polished particles span nine directions; the Gaussian that they came from is the next prior."""
    wine, labels = load_wine(return_X_y=True)
    clf = eb.EnsembleClassifier(prior_precision=1.0, particles=10, sweeps=2, random_state=0)
    clf.partial_fit(scale(wine)[::2], labels[::2]).partial_fit(scale(wine)[1::2], labels[1::2])
    assert clf.posterior_.info.sweeps == 2
    assert clf.score(scale(wine), labels) > 0.95
    clf.save(tmp_path / "m.safetensors")
    again = eb.load(tmp_path / "m.safetensors")
    assert np.array_equal(again.predict_proba(scale(wine)), clf.predict_proba(scale(wine)))
    assert again.posterior_.distribution.dim == clf.posterior_.distribution.dim
