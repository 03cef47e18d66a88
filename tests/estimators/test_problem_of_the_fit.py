"""The estimator keeps a reference to the problem of its last fit, and never writes it anywhere."""

import copy
import pickle

import numpy as np
from sklearn.datasets import load_wine
from sklearn.preprocessing import scale

import enkbayes as eb

X, y = load_wine(return_X_y=True)
X = np.ascontiguousarray(scale(X))


def test_the_problem_refers_to_the_data_without_a_copy():
    clf = eb.EnsembleClassifier(random_state=0).fit(X, y)
    assert np.shares_memory(clf.problem_.model.features, X)
    assert clf.problem_.dim == 14 * 3


def test_partial_fit_keeps_the_last_batch():
    clf = eb.EnsembleClassifier(random_state=0).partial_fit(X[::2], y[::2]).partial_fit(X[1::2], y[1::2])
    assert clf.problem_.size == len(X[1::2])
    assert not clf.problem_.prior.diagonal  # the posterior of the first batch


def test_pickles_and_files_leave_the_problem_out(tmp_path):
    clf = eb.EnsembleClassifier(random_state=0).fit(X, y)
    clf.save(tmp_path / "wine.safetensors")
    for again in (pickle.loads(pickle.dumps(clf)), copy.deepcopy(clf), eb.load(tmp_path / "wine.safetensors")):
        assert not hasattr(again, "problem_")
        assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert hasattr(clf, "problem_")
