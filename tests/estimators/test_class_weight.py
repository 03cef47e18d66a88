"""Weights of classes count rows as scikit-learn counts them."""

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale
from sklearn.utils.class_weight import compute_sample_weight

import enkbayes as eb
from enkbayes.evaluation.baselines import MAP

SETTINGS = {"prior_precision": 1.0, "particles": 40, "random_state": 0}


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    rows = np.r_[0:20, 50:100, 100:110]
    return scale(X)[rows], np.asarray(["a", "b", "c"])[y[rows]]


@pytest.mark.parametrize("class_weight", ["balanced", {"a": 2.0, "b": 0.5, "c": 3.0}, {"c": 4}])
def test_a_class_weight_is_a_weight_of_its_rows(iris, class_weight):
    X, y = iris
    own = np.where(X[:, 0] > 0, 1.0, 2.0)
    clf = eb.EnsembleClassifier(class_weight=class_weight, **SETTINGS)
    for given in (None, own):
        found = clf.fit(X, y, sample_weight=given).posterior_
        counted = compute_sample_weight(class_weight, y) if given is None else None
        if given is not None:  # the classes are balanced as the rows count
            each = dict.fromkeys("abc", 1.0) | (class_weight if isinstance(class_weight, dict) else {})
            if class_weight == "balanced":
                each = {c: own.sum() / 3 / own[y == c].sum() for c in "abc"}
            counted = own * np.asarray([each[c] for c in y])
        expected = eb.EnsembleClassifier(**SETTINGS).fit(X, y, sample_weight=counted).posterior_
        np.testing.assert_allclose(found.theta, expected.theta, atol=1e-10)


def test_the_mode_is_that_of_logistic_regression(iris):
    X, y = iris
    clf = eb.EnsembleClassifier(class_weight="balanced", intercept_precision=1e-6, **SETTINGS).fit(X, y == "c")
    mode = MAP().fit(clf.problem_).mean
    other = LogisticRegression(class_weight="balanced", tol=1e-8).fit(X, y == "c")
    assert mode[:4] == pytest.approx(other.coef_[0], abs=1e-3)
    assert mode[4] == pytest.approx(other.intercept_[0], abs=1e-3)


def test_batches_take_numbers_only(iris):
    X, y = iris
    clf = eb.EnsembleClassifier(class_weight={"c": 3.0}, **SETTINGS)
    clf.partial_fit(X[::2], y[::2]).partial_fit(X[1::2], y[1::2])
    counted = np.where(y == "c", 3.0, 1.0)
    other = eb.EnsembleClassifier(**SETTINGS).partial_fit(X[::2], y[::2], sample_weight=counted[::2])
    other.partial_fit(X[1::2], y[1::2], sample_weight=counted[1::2])
    np.testing.assert_allclose(clf.posterior_.mean, other.posterior_.mean, atol=1e-10)
    with pytest.raises(ValueError, match='"balanced" needs the numbers of rows of all classes, which batches do not'):
        eb.EnsembleClassifier(class_weight="balanced", **SETTINGS).partial_fit(X, y)


@pytest.mark.parametrize("class_weight", ["balanced", {"a": 2.0, "c": 3.0}])
def test_files_keep_the_weights(iris, class_weight, tmp_path):
    X, y = iris
    clf = eb.EnsembleClassifier(class_weight=class_weight, **SETTINGS).fit(X, y)
    clf.save(tmp_path / "model.safetensors")
    again = eb.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.class_weight_, clf.class_weight_)
    kept = dict(zip("abc", clf.class_weight_, strict=True)) if isinstance(class_weight, dict) else class_weight
    assert again.get_params()["class_weight"] == kept
    np.testing.assert_allclose(again.problem_of(X, y).weights, clf.problem_.weights)
    np.testing.assert_array_equal(again.fit(X, y).posterior_.theta, clf.posterior_.theta)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"d": 1.0}, "class_weight has the key 'd'; expected one of the classes"),
        ({"a": -1.0}, "the smallest weight is -1; expected non-negative weights"),
        ("equal", "class_weight is 'equal'; expected None, a dict of weights"),
    ],
)
def test_wrong_weights(iris, wrong, match):
    with pytest.raises(ValueError, match=match):
        eb.EnsembleClassifier(class_weight=wrong, **SETTINGS).fit(*iris)
