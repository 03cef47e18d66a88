"""Logistic regression under one prior after another."""

import numpy as np
import pytest
from scipy.special import expit

import enkbayes as eb
from enkbayes.core.moments import Diverged
from enkbayes.inference.evidence import elbo
from enkbayes.solvers.logistic_path import LogisticRows
from enkbayes.solvers.map_estimate import map_estimate


def posed(size=40, dim=5, scale=2.0, variance=1.0, seed=0, **settings):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((size, dim))
    labels = rng.random(size) < expit(scale * features[:, 0])
    return eb.Problem.create(features, labels, variance, intercept=100.0, classes=[False, True], **settings)


def precision(problem):
    return 1 / problem.prior.cov


@pytest.mark.parametrize("variance", [0.1, 10.0, 3000.0])
@pytest.mark.parametrize(("size", "dim"), [(40, 5), (12, 20)])
def test_it_is_the_mean_field_of_the_sampler(size, dim, variance):
    problem = posed(size, dim, variance=variance)
    rows = LogisticRows.of(problem)
    found = rows.gaussian(precision(problem), tol=1e-7)
    posterior = eb.run(problem, eb.MeanField(tol=1e-8), particles=200)
    sd = np.sqrt(np.diag(posterior.cov))
    np.testing.assert_allclose(found.mean / sd, posterior.mean / sd, atol=1e-5)
    np.testing.assert_allclose(found.basis @ found.basis.T, posterior.cov, atol=1e-5 * sd.max() ** 2)
    np.testing.assert_allclose(rows.elbo(precision(problem), found), elbo(problem, posterior).value, atol=1e-5)


@pytest.mark.parametrize("variance", [0.1, 3000.0])
def test_the_most_probable_weights(variance):
    problem = posed(variance=variance)
    rows = LogisticRows.of(problem)
    start = rows.gaussian(precision(problem))
    found = rows.mode(precision(problem), start.mean, start.root, tol=1e-8)
    np.testing.assert_allclose(found, map_estimate(problem).theta, rtol=1e-5)


def test_weights_of_rows_are_repetitions():
    counts = np.random.default_rng(1).integers(0, 3, 40)
    weighted = posed(weights=counts.astype(float))
    repeated = weighted.subset(np.repeat(np.arange(40), counts)).with_arrays(weights=None)
    found = [LogisticRows.of(p).gaussian(precision(p), tol=1e-9).mean for p in (weighted, repeated)]
    np.testing.assert_allclose(*found, atol=1e-7)


def test_a_fit_from_that_under_another_prior_is_the_same_in_fewer_rounds():
    narrow, wide = posed(variance=3.0), posed(variance=10.0)
    rows = LogisticRows.of(narrow)
    cold = rows.gaussian(precision(wide), tol=1e-6)
    warm = rows.gaussian(precision(wide), rows.gaussian(precision(narrow), tol=1e-6), tol=1e-6)
    np.testing.assert_allclose(warm.mean, cold.mean, atol=1e-5)
    assert warm.rounds <= cold.rounds


def test_separable_rows_converge():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((50, 30))
    problem = eb.Problem.create(features, features[:, 0] > 0, 1e4, intercept=100.0)
    rows = LogisticRows.of(problem)
    found = rows.gaussian(precision(problem), tol=1e-6, most=200)
    assert found.residual <= 1e-6


def test_blocks_of_many_rows_add_up_to_weighted_rows():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((1000, 2))
    labels = features[:, 0] + rng.logistic(size=1000) > 0
    weighted = eb.Problem.create(features, labels, intercept=100.0, weights=np.full(1000, 20.0))
    repeated = eb.Problem.create(np.tile(features, (20, 1)), np.tile(labels, 20), intercept=100.0)  # three blocks
    one, other = (LogisticRows.of(each).gaussian(precision(each), tol=1e-8) for each in (weighted, repeated))
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-7)
    np.testing.assert_allclose(one.root, other.root, rtol=1e-7, atol=1e-9)


def test_features_that_are_not_finite_diverge():
    rows = LogisticRows(np.full((3, 1), np.inf), np.asarray([0.0, 1.0, 1.0]), np.ones(3), np.zeros(1))
    with np.errstate(all="ignore"), pytest.raises((Diverged, ValueError)):
        rows.gaussian(np.ones(1))


def test_only_binary_problems_in_memory_fit():
    assert LogisticRows.fits(posed())
    assert not LogisticRows.fits(eb.Problem.create(np.eye(3), [0, 1, 2]))
