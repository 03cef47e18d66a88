"""Every check of scikit-learn, none expected to fail."""

import pytest
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
    ]
)
@pytest.mark.filterwarnings("ignore:.*particles span")
def test_scikit_learn_check(estimator, check):
    check(estimator)
