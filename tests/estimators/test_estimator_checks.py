"""Every check of scikit-learn. One cannot hold without an intercept, for its LogisticRegression neither."""

import warnings

import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from enkbayes import EnsembleClassifier, Equilibrium


@parametrize_with_checks(
    [
        EnsembleClassifier(),
        EnsembleClassifier("mean-field", particles=30, prior_precision=1.0),
        EnsembleClassifier(
            Equilibrium(tol=1e-8), particles=100, fit_intercept=False, warm_start=True, prior_precision=1.0
        ),
        EnsembleClassifier(likelihood="ordinal", prior_precision=1.0),
    ],
    expected_failed_checks=lambda estimator: (
        {} if estimator.fit_intercept else {"check_class_weight_classifiers": "no line through 0 spares the data"}
    ),
)
@pytest.mark.filterwarnings("ignore:.*particles span")
@pytest.mark.filterwarnings("ignore:.* of X varies by")  # features of the checks have a mean of 100 and a spread of 1
def test_scikit_learn_check(estimator, check):
    with warnings.catch_warnings():
        if check.func.__name__ == "check_class_weight_classifiers":  # its weights have a ratio of 10 million
            warnings.filterwarnings("ignore", ".*did not converge", ConvergenceWarning)
        check(estimator)
