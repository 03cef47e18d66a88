"""EnsembleClassifier in the company it keeps: pipelines, searches, frames, sparse matrices, batches."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import enkbayes as eb
from enkbayes import EnsembleClassifier
from enkbayes.evaluation.metrics import nll
from enkbayes.solvers.map_estimate import map_estimate


def standardised(load):
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def odd_digits(return_X_y):
    X, y = load_digits(return_X_y=return_X_y)
    return X, y % 2


@pytest.fixture(scope="module")
def wine():
    return standardised(load_wine)


@pytest.fixture(scope="module")
def cancer():
    return standardised(load_breast_cancer)


def test_is_the_core_with_labels(wine):
    X, y = wine
    clf = EnsembleClassifier(prior_precision=2.0, intercept_precision=0.1, random_state=3, particles=80).fit(X, y)
    posterior = eb.run(eb.Problem.create(X, y, 0.5, intercept=10.0), particles=80, seed=3)
    np.testing.assert_array_equal(clf.posterior_.theta, posterior.theta)
    np.testing.assert_array_equal(clf.predict_proba(X), posterior.predict_proba(X))
    assert clf.n_iter_ == posterior.info.steps
    assert clf.posterior_.state is None  # nothing of the run, and no data, is kept


@pytest.mark.parametrize("labels", [["a", "b", "c"], [10, 20, 30], [2.0, 4.0, 8.0]])
def test_labels_of_any_kind(wine, labels):
    X, y = wine
    named = np.asarray(labels)[y]
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, named)
    np.testing.assert_array_equal(clf.classes_, labels)
    assert clf.score(X, named) > 0.98
    assert clf.predict(X).dtype == named.dtype


def test_two_classes_have_two_columns_and_uncertainty_adds_up(cancer):
    X, y = cancer
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0, particles=100).fit(X, y)
    probabilities, samples, uncertainty = clf.predict_proba(X), clf.sample_proba(X), clf.predict_uncertainty(X)
    assert probabilities.shape == (len(X), 2)
    assert samples.shape == (100, len(X), 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert np.abs(samples.mean(axis=0) - probabilities).mean() < 0.005
    np.testing.assert_allclose(uncertainty.total, uncertainty.aleatoric + uncertainty.epistemic)
    assert np.all(uncertainty.epistemic >= -1e-12)
    np.testing.assert_allclose(uncertainty.confidence, probabilities.max(axis=1))


def test_far_away_the_epistemic_part_grows(cancer):
    X, y = cancer
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    assert clf.predict_uncertainty(-5 * X).epistemic.mean() > 2 * clf.predict_uncertainty(X).epistemic.mean()


def test_frames_and_their_names():
    frame, y = load_iris(return_X_y=True, as_frame=True)
    names = pd.Series(np.asarray(["setosa", "versicolor", "virginica"])[y])
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(frame, names)
    assert list(clf.feature_names_in_) == list(frame.columns)
    assert clf.score(frame, names) > 0.95
    with pytest.raises(ValueError, match="feature names"):
        clf.predict(frame[frame.columns[::-1]])


def test_sparse_is_dense(cancer):
    X, y = cancer
    X = np.where(np.abs(X) < 0.7, 0.0, X)
    dense = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    for kind in (scipy.sparse.csr_matrix, scipy.sparse.csc_array):
        sparse = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(kind(X), y)
        np.testing.assert_allclose(sparse.predict_proba(kind(X)), dense.predict_proba(X), atol=1e-8)


def test_float32_stays_float32(cancer):
    X, y = cancer
    wide, narrow = (
        EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X.astype(t), y) for t in (np.float64, np.float32)
    )
    assert narrow.predict_proba(X.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(narrow.predict_proba(X), wide.predict_proba(X), atol=1e-3)
    narrow.partial_fit(X[:50], y[:50])  # a float32 posterior is a prior like any other
    assert narrow.score(X, y) > 0.97


def test_weights_are_repetitions(wine):
    X, y = wine
    weights = np.random.default_rng(0).integers(0, 3, len(y))
    weighted = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y, sample_weight=weights)
    repeated = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(
        np.repeat(X, weights, axis=0), np.repeat(y, weights)
    )
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-6)


def test_random_state(wine):
    X, y = wine
    fit = [
        EnsembleClassifier(prior_precision=1.0, random_state=state).fit(X, y).posterior_.theta for state in (1, 1, 2)
    ]
    np.testing.assert_array_equal(fit[0], fit[1])
    assert not np.array_equal(fit[0], fit[2])
    generators = [np.random.RandomState(5) for _ in range(2)]
    fit = [
        EnsembleClassifier(prior_precision=1.0, random_state=state).fit(X, y).posterior_.theta for state in generators
    ]
    np.testing.assert_array_equal(*fit)


def test_clone_pickle_and_set_params(wine):
    X, y = wine
    clf = EnsembleClassifier(eb.Equilibrium(tol=1e-5), particles=60, random_state=0, prior_precision=1.0).fit(X, y)
    again = pickle.loads(pickle.dumps(clf))
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    other = clone(clf).set_params(particles=70)
    assert other.sampler == clf.sampler
    assert not hasattr(other, "posterior_")
    assert other.fit(X, y).posterior_.theta.shape == (70, 42)


@pytest.mark.parametrize(
    "name", ["auto", "equilibrium", "homotopy", "mean-field", "trotter", "tamed-homotopy", "stochastic"]
)
def test_samplers_by_name_agree(name):
    X, y = standardised(load_iris)
    X, y = X[y > 0], y[y > 0]
    reference = EnsembleClassifier("mean-field", random_state=0, prior_precision=1.0).fit(X, y).predict_proba(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        clf = EnsembleClassifier(name, particles=100, random_state=0, prior_precision=1.0).fit(X, y)
    assert np.abs(clf.predict_proba(X) - reference).mean() < 0.02


def test_pipeline_and_grid_search():
    X, y = load_wine(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), EnsembleClassifier(prior_precision=1.0, particles=60, random_state=0))
    grid = {"ensembleclassifier__prior_precision": [1.0, 1e4]}
    search = GridSearchCV(pipeline, grid, cv=3, scoring="neg_log_loss").fit(X, y)
    assert search.best_params_["ensembleclassifier__prior_precision"] == 1.0
    assert -search.best_score_ < 0.2


def test_calibration_of_a_frozen_classifier(cancer):
    X, y = cancer
    train, test, y_train, y_test = train_test_split(X, y, random_state=0)
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(train[:200], y_train[:200])
    before = clf.predict_proba(test)
    calibrated = CalibratedClassifierCV(FrozenEstimator(clf)).fit(train[200:], y_train[200:])
    assert calibrated.score(test, y_test) > 0.93
    np.testing.assert_array_equal(clf.predict_proba(test), before)


def test_conformal_sets_cover():
    SplitConformalClassifier = pytest.importorskip("mapie.classification").SplitConformalClassifier

    X, y = load_digits(return_X_y=True)
    X, y = X[y < 5, 2::4] / 16, y[y < 5]
    train, rest, y_train, y_rest = train_test_split(X, y, train_size=300, random_state=0)
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(train, y_train)
    conformal = SplitConformalClassifier(clf, confidence_level=0.9, prefit=True).conformalize(rest[::2], y_rest[::2])
    predicted, sets = conformal.predict_set(rest[1::2])
    covered = sets[np.arange(len(predicted)), y_rest[1::2], 0]
    assert 0.86 < covered.mean() < 0.95
    assert sets[:, :, 0].sum(axis=1).mean() < 3


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine, odd_digits])
@pytest.mark.parametrize("order", [0, 1])
def test_ten_batches_are_one_fit(load, order):
    X, y = standardised(load)
    whole = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    batches = EnsembleClassifier(prior_precision=1.0, random_state=0)
    for rows in np.array_split(np.random.default_rng(order).permutation(len(y)), 10):
        batches.partial_fit(X[rows], y[rows], classes=np.unique(y))
    assert np.abs(whole.predict_proba(X) - batches.predict_proba(X)).mean() < 0.01


def test_few_particles_learn_batch_by_batch_by_mean_field(cancer):
    X, y = cancer
    whole = EnsembleClassifier("mean-field", random_state=0, prior_precision=1.0).fit(X, y)
    batches = EnsembleClassifier(prior_precision=1.0, particles=10, random_state=0)
    for rows in np.array_split(np.random.default_rng(0).permutation(len(y)), 10):
        batches.partial_fit(X[rows], y[rows], classes=[0, 1])
    assert batches.posterior_.theta.shape == (10, 31)
    assert np.abs(whole.predict_proba(X) - batches.predict_proba(X)).mean() < 0.01


def test_a_singular_ensemble_is_no_prior(cancer):
    X, y = cancer
    with pytest.warns(UserWarning, match="10 particles span 9 of 31 parameters"):
        clf = EnsembleClassifier("homotopy", particles=10, random_state=0, prior_precision=1.0).fit(X, y)
    with pytest.raises(ValueError, match="singular; use more than 31 particles"):
        clf.partial_fit(X, y)


def test_few_particles_of_the_default_sampler_are_enough(cancer):
    X, y = cancer
    few, many = (EnsembleClassifier(prior_precision=1.0, particles=j, random_state=0).fit(X, y) for j in (10, 400))
    assert np.abs(few.predict_proba(X) - many.predict_proba(X)).max() < 0.005
    assert few.partial_fit(X[:50], y[:50]).posterior_.theta.shape == (10, 31)


def test_a_class_first_seen_later_is_announced(wine):
    X, y = wine
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0).partial_fit(X[y < 2], y[y < 2], classes=[0, 1, 2])
    assert clf.predict_proba(X).shape == (len(X), 3)
    assert clf.partial_fit(X[y == 2], y[y == 2]).score(X, y) > 0.9
    with pytest.raises(ValueError, match="class 2, which is not among"):
        EnsembleClassifier(prior_precision=1.0).partial_fit(X[y < 2], y[y < 2]).partial_fit(X, y)
    with pytest.raises(ValueError, match="as on the first call"):
        clf.partial_fit(X, y, classes=[0, 1, 2, 3])


def test_partial_fit_goes_on_from_fit_and_names_the_data(cancer):
    X, y = cancer
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X[:300], y[:300])
    spread, before = np.trace(clf.posterior_.cov), clf.fingerprint_
    clf.partial_fit(X[300:], y[300:])
    assert np.trace(clf.posterior_.cov) < spread
    assert clf.fingerprint_ != before
    after = clf.fingerprint_
    assert clf.fit(X[:300], y[:300]).fingerprint_ == before
    assert clf.partial_fit(X[300:], y[300:]).fingerprint_ == after
    other = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X[:200], y[:200]).partial_fit(X[300:], y[300:])
    assert other.fingerprint_ != after  # it names all batches, not the last one alone


def test_warm_start_is_shorter_and_ends_where_a_cold_one_does(cancer):
    X, y = cancer
    warm = EnsembleClassifier(prior_precision=1.0, random_state=0, warm_start=True).fit(X, y)
    cold_steps, cold = warm.n_iter_, warm.predict_proba(X)
    warm.fit(X, y)
    assert warm.n_iter_ < cold_steps
    np.testing.assert_allclose(warm.predict_proba(X), cold, atol=1e-4)
    warm.set_params(particles=100).fit(X, y)  # another shape: a cold start
    assert warm.posterior_.theta.shape == (100, 31)
    with pytest.raises(ValueError, match="starts from the prior"):
        warm.set_params(sampler="homotopy").fit(X, y)


def test_priors_of_every_shape(cancer):
    X, y = cancer
    D = X.shape[1]
    fits = [
        EnsembleClassifier(prior_precision=p, random_state=0).fit(X, y).predict_proba(X)
        for p in (2.0, np.full(D, 2.0), 2.0 * np.eye(D))
    ]
    np.testing.assert_allclose(fits[1], fits[0], atol=1e-6)
    np.testing.assert_allclose(fits[2], fits[0], atol=1e-6)
    tight = EnsembleClassifier(prior_precision=1e6, prior_mean=0.5, random_state=0).fit(X, y)
    np.testing.assert_allclose(tight.posterior_.mean[:D], 0.5, atol=0.01)


def test_a_run_that_does_not_converge_warns(wine):
    X, y = wine
    with pytest.warns(ConvergenceWarning, match="raise max_steps"):
        EnsembleClassifier(eb.Equilibrium(max_steps=2), prior_precision=1.0).fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"prior_precision": "automatic"},
            'prior_precision is \'automatic\'; expected "average", "auto", or positive numbers',
        ),
        ({"intercept_precision": "weak"}, "intercept_precision is 'weak'; expected a positive number, or \"auto\""),
        ({"prior_precision": "auto", "prior_groups": [0, 1]}, r"prior_groups has shape \(2,\); expected \(13,\)"),
        ({"prior_precision": [1.0, 2.0]}, r"shape \(2,\); expected a number"),
        ({"prior_precision": -1.0}, "expected positive"),
        ({"prior_mean": "zero"}, "prior_mean is 'zero'"),
        ({"intercept_precision": 0.0}, "intercept_precision is 0"),
        ({"sampler": "gibbs"}, "expected a sampler object or one of auto, equilibrium"),
        ({"particles": 1}, "at least 2"),
    ],
)
@pytest.mark.filterwarnings("ignore:1 particles span")
def test_wrong_parameters_are_explained(wine, parameters, message):
    with pytest.raises(ValueError, match=message):
        EnsembleClassifier(**parameters).fit(*wine)


@pytest.mark.parametrize("data", ["cancer", "wine"])
def test_calibration_rows_mend_over_confident_weights(data, request):
    X, y = request.getfixturevalue(data)
    X = X + 1.5 * np.random.default_rng(0).standard_normal(X.shape)
    train, held_out, fresh = np.array_split(np.random.default_rng(1).permutation(len(y)), 3)
    weights = map_estimate(eb.Problem.create(X[train], y[train], 1e3, intercept=1e3)).theta
    trained = 2 * weights.reshape(X.shape[1] + 1, -1)
    trained = trained[:, 0] if trained.shape[1] == 1 else trained
    clf = EnsembleClassifier(prior_precision=1.0, prior_mean=trained, random_state=0)
    clf.fit(X[train], y[train], X_val=X[held_out].astype(np.float32), y_val=y[held_out])
    point = EnsembleClassifier(prior_mean=trained, prior_precision=1e8, intercept_precision=1e8).fit(X[train], y[train])
    assert clf.calibration_.rows == len(held_out)
    assert clf.calibration_.scale < 0.6
    before, after = (nll(c.predict_proba(X[fresh]), y[fresh]) for c in (point, clf))
    assert after < 0.7 * before
    assert clf.trust_.verdict in {"good", "usable"}
    again = pickle.loads(pickle.dumps(clf))
    assert again.calibration_ == clf.calibration_
    assert clf.fit(X[train], y[train]).calibration_ is None


def test_held_out_rows_are_fitted_too_when_nothing_was_trained_before(cancer):
    X, y = cancer
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0)
    clf.fit(X[:200], y[:200], X_val=X[200:400], y_val=y[200:400])
    whole = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X[:400], y[:400])
    np.testing.assert_array_equal(clf.predict_proba(X), whole.predict_proba(X))


def test_prior_mean_may_bring_the_intercept(wine):
    X, y = wine
    mean = np.random.default_rng(0).standard_normal((X.shape[1] + 1, 3))
    clf = EnsembleClassifier(prior_precision=1.0, prior_mean=mean, random_state=0).fit(X, y)
    np.testing.assert_array_equal(clf.problem_.prior.mean, mean.ravel())
    clf = EnsembleClassifier(prior_precision=1.0, prior_mean=mean[:, 0], random_state=0).fit(X, y)
    np.testing.assert_array_equal(clf.problem_.prior.mean, np.repeat(mean[:, 0], 3))
    with pytest.raises(ValueError, match="prior_mean has shape"):
        EnsembleClassifier(prior_precision=1.0, prior_mean=mean, fit_intercept=False).fit(X, y)


def test_the_problem_refers_to_the_data_without_a_copy(wine):
    X, y = wine
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    assert np.shares_memory(clf.problem_.features, X)
    assert clf.problem_.dim == 14 * 3


def test_partial_fit_keeps_the_last_batch(wine):
    X, y = wine
    clf = (
        EnsembleClassifier(prior_precision=1.0, random_state=0)
        .partial_fit(X[::2], y[::2])
        .partial_fit(X[1::2], y[1::2])
    )
    assert clf.problem_.size == len(X[1::2])
    assert not clf.problem_.prior.diagonal  # the posterior of the first batch


def test_pickles_and_files_leave_the_problem_out(wine, tmp_path):
    X, y = wine
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    clf.save(tmp_path / "wine.safetensors")
    for again in (pickle.loads(pickle.dumps(clf)), copy.deepcopy(clf), eb.load(tmp_path / "wine.safetensors")):
        assert not hasattr(again, "problem_")
        assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert hasattr(clf, "problem_")
