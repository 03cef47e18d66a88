"""The parameter likelihood of the classifier: by name and as an object, in every fit, in files."""

from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.preprocessing import scale

import enkbayes as eb
from enkbayes import EnsembleClassifier

X, y = load_breast_cancer(return_X_y=True)
X = scale(X)[:, :8]


@dataclass(frozen=True)
class Swapped(eb.Bernoulli):
    """A likelihood from outside the package, with a setting of its own."""

    unused: float = 0.0


@pytest.mark.parametrize(("data", "kind"), [((X, y), eb.Bernoulli()), (load_iris(return_X_y=True), eb.Categorical(3))])
def test_auto_is_bernoulli_for_two_classes_and_categorical_for_more(data, kind):
    auto, named = (
        EnsembleClassifier(prior_precision=1.0, likelihood=value, random_state=0).fit(*data) for value in ("auto", kind)
    )
    assert auto.posterior_.likelihood == named.posterior_.likelihood == kind
    np.testing.assert_array_equal(auto.predict_proba(data[0]), named.predict_proba(data[0]))


def test_a_softmax_of_two_classes_is_the_logistic_model_of_the_difference():
    """The difference of two weights has twice their prior variance."""
    one = EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    two = EnsembleClassifier(
        likelihood=eb.Categorical(2), prior_precision=2.0, intercept_precision=0.02, random_state=0
    )
    assert two.fit(X, y).posterior_.theta.shape == (200, 18)
    np.testing.assert_allclose(two.predict_proba(X), one.predict_proba(X), atol=2e-3)


def test_every_fit_uses_it():
    softmax = EnsembleClassifier(prior_precision=1.0, likelihood=eb.Categorical(2), random_state=0)
    assert clone(softmax).likelihood == softmax.likelihood
    batches = clone(softmax).partial_fit(X[::2], y[::2]).partial_fit(X[1::2], y[1::2])
    assert batches.posterior_.likelihood == eb.Categorical(2)
    assert clone(softmax).fit_shard(X, y).posterior_.likelihood == eb.Categorical(2)
    calibrated = clone(softmax).fit(X[::2], y[::2], X_val=X[1::2], y_val=y[1::2])
    assert calibrated.problem_.likelihood == eb.Categorical(2)
    assert clone(softmax).set_params(prior_precision="auto").fit(X, y).tuning_.converged


@pytest.mark.parametrize("likelihood", [eb.Categorical(2), Swapped(0.3)])
def test_files_keep_it(tmp_path, likelihood):
    clf = EnsembleClassifier(prior_precision=1.0, likelihood=likelihood, random_state=0).fit(X, y)
    clf.save(tmp_path / "model.safetensors")
    again = eb.load(tmp_path / "model.safetensors", **({"likelihood": Swapped} if likelihood == Swapped(0.3) else {}))
    assert again.likelihood == clf.likelihood
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert again.partial_fit(X[:50], y[:50]).posterior_.likelihood == likelihood


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        ("poisson", "likelihood is 'poisson'; expected"),
        (eb.Bernoulli, 'expected "auto", "ordinal" or a likelihood object'),
        (eb.Categorical(3), "labels have 2 classes, which does not fit"),
        (eb.Normal(), "whose targets are real numbers; expected classes"),
    ],
)
def test_wrong_likelihoods_are_explained(likelihood, message):
    with pytest.raises(ValueError, match=message):
        EnsembleClassifier(prior_precision=1.0, likelihood=likelihood).fit(X, y)
