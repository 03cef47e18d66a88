"""EnsembleClassifier(likelihood="ordinal"): on the progression of diabetes, graded; in every fit, and in files."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.preprocessing import scale

import enkbayes as eb
from enkbayes import EnsembleClassifier
from enkbayes.evaluation.metrics import nll

X, progression = load_diabetes(return_X_y=True)
X = scale(X)


def graded(levels):
    """The progression of the disease in so many levels with equally many rows."""
    return np.digitize(progression, np.quantile(progression, np.arange(1, levels) / levels))


def ordinal(**parameters):
    return EnsembleClassifier(likelihood="ordinal", random_state=0, **({"prior_precision": 1.0} | parameters))


def ranked_probability_score(proba, y):
    """Mean squared error of the cumulative probabilities: a neighbouring class costs less than one far away."""
    reached = np.arange(proba.shape[1]) >= y[:, None]
    return np.mean(np.sum((np.cumsum(proba, axis=1) - reached) ** 2, axis=1))


@pytest.fixture(scope="module")
def fitted():
    return ordinal().fit(X, graded(5))


@pytest.mark.parametrize(("levels", "rows"), [(3, 100), (5, 100), (8, 100), (8, 300)])
def test_the_order_improves_predictions(levels, rows):
    """One logit for all levels instead of one for each takes fewer parameters. Where rows are many and levels few, as
    with 300 rows and 5 levels, the softmax learns the order by itself and both are about equal.
    """
    y, scores = graded(levels), []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(y))
        train, test = order[:rows], order[rows:]
        for likelihood in ("auto", "ordinal"):
            clf = EnsembleClassifier(prior_precision=1.0, likelihood=likelihood, random_state=0).fit(X[train], y[train])
            proba = clf.predict_proba(X[test])
            accuracy = clf.score(X[test], y[test])
            scores.append((accuracy, nll(proba, y[test]), ranked_probability_score(proba, y[test])))
    softmax, ordered = np.mean(np.asarray(scores).reshape(3, 2, 3), axis=0)
    assert ordered[0] > softmax[0] - 0.05  # the standard error of the difference is about .02
    assert ordered[1] < softmax[1] - 0.02
    assert ordered[2] < softmax[2] - 0.003


def test_two_classes_are_logistic_regression():
    """The intercept absorbs the single cutpoint, up to its own prior."""
    features, labels = load_breast_cancer(return_X_y=True)
    features = scale(features)[:, :6]
    one, other = (c.fit(features, labels) for c in (EnsembleClassifier(prior_precision=1.0, random_state=0), ordinal()))
    np.testing.assert_allclose(other.predict_proba(features), one.predict_proba(features), atol=2e-3)


def test_the_cutpoints_are_those_of_the_best_evidence(fitted):
    def evidence(factor):
        here = fitted.posterior_.likelihood
        changed = here.with_parameters(here.parameters + np.log(factor))
        return (
            EnsembleClassifier(prior_precision=1.0, likelihood=changed, random_state=0).fit(X, graded(5)).log_evidence_
        )

    best = evidence(1.0)
    assert fitted.log_evidence_ == pytest.approx(best, abs=0.05)
    assert max(evidence(0.85), evidence(1.15)) < best - 1


def test_labels_are_ordered_as_they_sort(fitted):
    names = np.asarray(["a", "b", "c", "d", "e"])
    named = ordinal().fit(X, names[graded(5)])
    np.testing.assert_array_equal(named.classes_, names)
    np.testing.assert_array_equal(named.predict_proba(X), fitted.predict_proba(X))
    np.testing.assert_array_equal(named.predict(X), names[fitted.predict(X)])


def test_row_weights_are_repetitions():
    y, weights = graded(4), np.arange(len(X)) % 3
    weighted = ordinal().fit(X, y, sample_weight=weights)
    repeated = ordinal().fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    assert weighted.posterior_.likelihood.cutpoints == pytest.approx(repeated.posterior_.likelihood.cutpoints, abs=1e-3)
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-3)


def test_batches_keep_the_cutpoints_of_the_first(fitted):
    y = graded(5)
    batches = ordinal().partial_fit(X[::2], y[::2])
    first = batches.posterior_.likelihood
    assert batches.partial_fit(X[1::2], y[1::2]).posterior_.likelihood == first
    assert np.abs(batches.predict_proba(X) - fitted.predict_proba(X)).mean() < 0.02
    with pytest.raises(ValueError, match="no row has the class 4, so its cutpoints are unknown"):
        ordinal().partial_fit(X[y < 4], y[y < 4], classes=range(5))


def test_shards_count_the_rows_of_all(fitted):
    y = graded(5)
    shard = ordinal().fit_shard(X, y)
    assert shard.posterior_.likelihood == fitted.posterior_.likelihood
    np.testing.assert_allclose(shard.predict_proba(X), fitted.predict_proba(X), atol=1e-6)


def test_an_auto_prior_and_ordered_classes_are_chosen_together(fitted):
    clf = ordinal(prior_precision="auto").fit(X, graded(5))
    assert clf.tuning_.converged
    assert clf.prior_precision_ != 1
    assert clf.log_evidence_ > fitted.log_evidence_
    assert ordinal(prior_precision="auto").tune(X, graded(5)) == clf.tuning_


def test_held_out_rows_mend_over_confident_weights():
    y = graded(5)
    few = ordinal(prior_precision=1e-3).fit(X[:60], y[:60])
    sure = ordinal(prior_mean=np.append(4 * few.posterior_.mean[:-1], few.posterior_.mean[-1]))
    calibrated = sure.fit(X[:60], y[:60], X_val=X[60:250], y_val=y[60:250])
    assert calibrated.calibration_.scale < 0.6
    assert nll(calibrated.predict_proba(X[250:]), y[250:]) < nll(few.predict_proba(X[250:]), y[250:])


def test_uncertainty_trust_and_polish(fitted):
    uncertainty = fitted.predict_uncertainty(X)
    np.testing.assert_allclose(uncertainty.total, uncertainty.aleatoric + uncertainty.epistemic)
    assert fitted.trust_.verdict == "good"
    assert fitted.trust_.data_rank == fitted.trust_.parameters == 11
    polished = clone(fitted).fit(X, graded(5)).polish(5)
    assert np.abs(polished.predict_proba(X) - fitted.predict_proba(X)).mean() < 0.01


def test_files_keep_order_and_cutpoints(tmp_path, fitted):
    fitted.save(tmp_path / "graded.safetensors")
    again = eb.load(tmp_path / "graded.safetensors")
    assert again.likelihood == "ordinal"
    assert again.posterior_.likelihood == fitted.posterior_.likelihood
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert again.assess(X, graded(5)).shift == pytest.approx(fitted.trust_.shift)
    again.partial_fit(X[:50], graded(5)[:50])
    assert again.posterior_.likelihood == fitted.posterior_.likelihood
