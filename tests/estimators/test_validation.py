"""What users pass as features and labels: one sentence that says what is wrong with it and what to do."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_score

import enkbayes as eb

X, y = load_iris(return_X_y=True)
FRAME = pd.DataFrame(X, columns=["a", "b", "c", "d"])
TOWN = np.where(y == 0, "Bern", "Oslo")
PLAIN = {"prior_precision": 1.0, "particles": 40, "random_state": 0}

WRONG = {
    "text": (FRAME.assign(b=TOWN), "column 'b' of X has text such as 'Bern'; expected numbers"),
    "text beside numbers": (np.column_stack([X, TOWN]).astype(object), "feature 4 of X has text such as 'Bern'"),
    "text in lists": ([[1.0, "Bern"], [2.0, "Oslo"]] * 75, "feature 1 of X has text such as 'Bern'"),
    "dates": (FRAME.assign(b=pd.date_range("2020", periods=150)), "column 'b' of X has dates"),
    "durations": (FRAME.assign(b=pd.timedelta_range("1D", periods=150)), "column 'b' of X has dates or durations"),
    "a gap": (FRAME.mask(FRAME > 7.8), "row 131 of column 'a' of X is missing"),
    "a nullable gap": (FRAME.round().astype("Int64").mask(FRAME > 7.8), "row 131 of column 'a' of X is missing"),
    "an infinite value": (np.where(X > 7.8, np.inf, X), "row 131 of feature 0 of X is infinite"),
    "two columns of one name": (FRAME.set_axis(list("aabc"), axis=1), "X has 2 columns named 'a'"),
    "a gap in a sparse matrix": (scipy.sparse.csr_matrix(np.where(X > 7.8, np.nan, X)), "entries that are NaN"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("estimator", [eb.EnsembleClassifier, eb.EnsembleRegressor])
def test_features_that_are_no_numbers_are_named(name, estimator):
    features, sentence = WRONG[name]
    with pytest.raises(ValueError, match=sentence):
        estimator().fit(features, y)
    fitted = estimator(prior_precision=1.0, particles=40).fit(FRAME if hasattr(features, "columns") else X, y)
    if name != "text beside numbers":
        with pytest.raises(ValueError, match=sentence):
            fitted.predict(features)


@pytest.mark.parametrize(("kind", "dtype"), [(int, "i"), (bool, "b")])
def test_numbers_in_an_array_of_objects_are_classes(kind, dtype):
    labels = np.asarray([kind(label > 0) for label in y], dtype=object)
    clf = eb.EnsembleClassifier(**PLAIN).fit(X, labels)
    assert clf.classes_.dtype.kind == dtype
    np.testing.assert_array_equal(
        clf.predict_proba(X), eb.EnsembleClassifier(**PLAIN).fit(X, labels.astype(kind)).predict_proba(X)
    )


def test_tensors_that_record_gradients_are_features():
    torch = pytest.importorskip("torch")
    clf = eb.EnsembleClassifier(**PLAIN).fit(torch.tensor(X, requires_grad=True), y)
    np.testing.assert_array_equal(clf.predict_proba(X), eb.EnsembleClassifier(**PLAIN).fit(X, y).predict_proba(X))


@pytest.mark.parametrize("estimator", [eb.EnsembleClassifier, eb.EnsembleRegressor])
def test_features_far_from_zero_are_warned_of(estimator, recwarn):
    shifted = FRAME.assign(year=2020 + 0.5 * (np.arange(150) % 7))
    with pytest.warns(UserWarning, match=r"column 'year' of X varies by 1 around 2021.*StandardScaler") as found:
        estimator(prior_precision=1.0, particles=40, random_state=0).fit(shifted, y)
    assert found[0].filename == __file__
    recwarn.clear()
    estimator(prior_precision=1.0, particles=40, random_state=0).fit(FRAME.assign(constant=1e3), y)
    assert not [each for each in recwarn if "varies by" in str(each.message)]


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"])
def test_every_format_of_sparse_matrices(kind):
    rows = scipy.sparse.csr_matrix(X[::2])
    pool = rows.asformat(kind)
    clf = eb.EnsembleClassifier(**PLAIN).fit(pool, y[::2])
    np.testing.assert_allclose(clf.predict_proba(pool), clf.predict_proba(X[::2]), atol=1e-12)
    np.testing.assert_array_equal(eb.acquire(clf, pool, 5), eb.acquire(clf, rows, 5))


@pytest.mark.parametrize("name", ["fit_intercept", "warm_start", "progress"])
@pytest.mark.parametrize("value", ["no", None, 2])
def test_switches_are_true_or_false(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}; expected True or False"):
        eb.EnsembleClassifier(**PLAIN | {name: value}).fit(X, y)
    if name != "warm_start":
        with pytest.raises(ValueError, match=f"{name} is {value!r}; expected True or False"):
            eb.EnsembleRegressor(**{name: value}).fit(X, y)


@pytest.mark.parametrize("groups", ["abc", 3, [0, 1], [np.nan] * 4])
def test_groups_are_checked_where_the_prior_is_given(groups):
    """A file could not hold those with NaN, so a finished fit was lost."""
    with pytest.raises(ValueError, match="prior_groups"):
        eb.EnsembleClassifier(**PLAIN, prior_groups=groups).fit(X, y)


def test_sparse_columns_that_leave_out_nan_are_features():
    frame = FRAME.astype(pd.SparseDtype(float))
    clf = eb.EnsembleClassifier(**PLAIN).fit(frame, y)
    assert clf.feature_names_in_.tolist() == list("abcd")
    np.testing.assert_array_equal(clf.predict_proba(frame), clf.predict_proba(FRAME))


@pytest.mark.parametrize("call", [lambda clf: clf.save(None), lambda clf: eb.load(3)])
def test_a_file_name_is_text_or_a_path(call):
    with pytest.raises(TypeError, match="expected text or a Path"):
        call(eb.EnsembleClassifier(**PLAIN).fit(X, y))


@pytest.mark.parametrize(("dtype", "classes"), [("boolean", [False, True]), ("Int64", [0, 1])])
def test_labels_of_nullable_columns_keep_their_kind(dtype, classes):
    """They came back as 0.0 and 1.0."""
    X = np.random.default_rng(0).standard_normal((60, 2))
    y = pd.Series(X[:, 0] > 0).astype(dtype)
    clf = eb.EnsembleClassifier(prior_precision=1.0).fit(X, y)
    assert clf.classes_.tolist() == classes
    assert clf.classes_.dtype.kind in "bi"
    assert clf.score(X, y) == pytest.approx(np.mean(clf.predict(X) == y.to_numpy(dtype=clf.classes_.dtype)))
    assert clf.score(X, y) > 0.8
    assert cross_val_score(clf, X, y, cv=2).min() > 0.8
    assert 0.5 < clf.reject_threshold(X, y, max_error=0.2) < 1
    again = clf.partial_fit(X, y)
    assert again.classes_.tolist() == classes


@pytest.mark.parametrize("dtype", ["string", "boolean", "category", object])
def test_a_missing_label_is_named(dtype):
    X = np.random.default_rng(0).standard_normal((60, 2))
    y = pd.Series(X[:, 0] > 0, dtype="boolean")
    y = (y if dtype == "boolean" else y.map({True: "ill", False: "well"})).astype(dtype)
    y[7] = pd.NA
    with pytest.raises(ValueError, match=r"row 7 of y is missing \(NaN\); leave out rows without a label"):
        eb.EnsembleClassifier(prior_precision=1.0).fit(X, y)
    with pytest.raises(ValueError, match="row 7 of y is missing"):
        eb.EnsembleRegressor().fit(X, pd.Series(X[:, 0]).where(y.notna()))
