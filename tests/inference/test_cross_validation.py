"""Predictions of rows that the fit has not seen."""

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.inference.cross_validation import left_out


def problem(classes, size=60, dim=4, variance=1.0, **kwargs):
    rng = np.random.default_rng(classes)
    features = rng.standard_normal((size, dim))
    logits = 2 * features @ rng.standard_normal((dim, classes))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return eb.Problem.create(features, labels, variance, **kwargs)


def loss(proba, task):
    return -np.log(proba[np.arange(task.size), task.targets.astype(int)]).mean()


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("variance", [1.0, 1000.0])
def test_folds_are_refits_whatever_the_prior(classes, variance):
    task = problem(classes, variance=variance)
    posterior = eb.run(task, eb.MeanField())
    many, _ = left_out(task, posterior, folds=task.size)
    few, method = left_out(task, posterior)
    assert method == "5-fold cross-validation"
    assert loss(posterior.predict_proba(task.features), task) < loss(many, task) < loss(few, task) * 1.2


def test_a_row_does_not_see_its_own_label():
    task = problem(2)
    other = eb.Problem.create(task.features, np.where(np.arange(60) == 7, 1 - task.targets, task.targets), 1.0)
    a, b = (left_out(each, eb.run(each), folds=60)[0][7] for each in (task, other))
    np.testing.assert_allclose(a, b, atol=0.01)


def test_large_problems_use_the_fitted_gaussian():
    task = problem(3)
    proba, method = left_out(task, eb.run(task), work=0)
    assert method == "leave-one-out from one fit"
    np.testing.assert_allclose(proba.sum(axis=1), 1)


def test_a_mixture_is_the_average_of_its_components():
    task = problem(2)
    priors = [eb.Gaussian.isotropic(4, v) for v in (0.1, 10.0)]
    parts = [eb.run(task.with_prior(prior)) for prior in priors]
    mixture = eb.MixturePosterior(tuple(parts), (0.25, 0.75), tuple(priors), (0.5, 0.5))
    each = [left_out(task.with_prior(prior), part)[0] for prior, part in zip(priors, parts, strict=True)]
    np.testing.assert_allclose(left_out(task, mixture)[0], each[0] / 4 + each[1] * 3 / 4)


def test_a_class_with_a_single_row_is_predicted():
    task = problem(3)
    labels = np.where(np.arange(60) == 0, 2, task.targets % 2).astype(int)
    rare = eb.Problem.create(task.features, labels, 1.0)
    assert np.all(np.isfinite(left_out(rare, eb.run(rare))[0]))
