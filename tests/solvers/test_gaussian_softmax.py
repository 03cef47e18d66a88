"""The mean-field Gaussian of a softmax in the contrasts of its classes is that of `MeanField`."""

from dataclasses import replace

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.moments import Diverged
from enkbayes.inference.evidence import elbo
from enkbayes.inference.softmax_fits import with_all_classes
from enkbayes.solvers.gaussian_softmax import ContrastPrior, SoftmaxRows, contrasts, predicted
from enkbayes.solvers.map_estimate import map_estimate


def posed(N=60, D=3, K=3, variance=4.0, seed=0, **settings):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((N, D))
    labels = np.argmax(features @ rng.standard_normal((D, K)) + rng.gumbel(size=(N, K)), axis=1)
    likelihood = eb.Categorical(K)
    return eb.Problem.create(features, labels, variance, intercept=9.0, likelihood=likelihood, **settings)


def fitted(problem, points=8, tol=1e-3, **settings):
    rows = replace(SoftmaxRows.of(problem), points=points)
    return rows.gaussian(ContrastPrior.of(problem), tol=tol, **settings)


@pytest.mark.parametrize(("classes", "variance"), [(3, 1.0), (3, 100.0), (5, 10.0), (2, 10.0)])
def test_it_is_the_mean_field_of_the_sampler(classes, variance):
    problem = posed(K=classes, variance=variance)
    mean, basis = with_all_classes(problem, fitted(problem))
    truth = eb.run(problem, eb.MeanField(), particles=problem.dim + 2)
    sd = np.sqrt(np.diag(truth.cov))
    np.testing.assert_allclose(mean / sd, truth.mean / sd, atol=0.03)
    np.testing.assert_allclose(basis @ basis.T / np.outer(sd, sd), truth.cov / np.outer(sd, sd), atol=0.03)


def test_the_bound_is_the_evidence_lower_bound():
    problem = posed()
    truth = elbo(problem, eb.run(problem, eb.MeanField(), particles=problem.dim + 2)).value
    assert fitted(problem).elbo == pytest.approx(truth, abs=0.02)


def test_the_mode_is_the_most_probable_weights():
    problem = posed(variance=30.0)
    rows, prior = SoftmaxRows.of(problem), ContrastPrior.of(problem)
    found = rows.mode(prior, fitted(problem).mean, tol=1e-6) @ contrasts(3).T
    np.testing.assert_allclose(found.reshape(-1), map_estimate(problem).theta, atol=1e-4)


def test_the_mean_of_the_prior_counts():
    problem = posed(N=5)
    mean = np.random.default_rng(3).standard_normal(problem.dim)
    moved = problem.with_prior(eb.Gaussian(mean, problem.prior.cov))
    truth = eb.run(moved, eb.MeanField(), particles=problem.dim + 2)
    np.testing.assert_allclose(with_all_classes(moved, fitted(moved))[0], truth.mean, atol=0.05)


def test_weights_are_repetitions():
    counts = np.random.default_rng(1).integers(0, 4, 60)
    weighted = posed(weights=counts)
    some = np.repeat(np.arange(60), counts)
    repeated = eb.Problem.create(
        weighted.features[some], weighted.targets[some].astype(int), 4.0, intercept=9.0, likelihood=eb.Categorical(3)
    )
    np.testing.assert_allclose(fitted(weighted).mean, fitted(repeated).mean, atol=1e-2)


def test_every_start_ends_at_the_same_gaussian_and_a_near_one_sooner():
    problem, wide = posed(variance=30.0), posed(variance=60.0)
    rows = SoftmaxRows.of(problem)
    there = rows.gaussian(ContrastPrior.of(wide), tol=1e-3)
    cold, warm = (rows.gaussian(ContrastPrior.of(problem), start, tol=1e-3) for start in (None, there))
    np.testing.assert_allclose(warm.mean, cold.mean, atol=2e-2)
    assert warm.steps < cold.steps


def test_chunks_do_not_matter():
    problem = posed()
    rows = SoftmaxRows.of(problem)
    here, there = (replace(rows, at_once=size).gaussian(ContrastPrior.of(problem)) for size in (2**20, 1000))
    np.testing.assert_allclose(there.mean, here.mean, rtol=1e-9)


def test_names_of_classes_do_not_matter():
    problem = posed(K=4, variance=30.0)
    order = np.asarray([2, 0, 3, 1])
    other = eb.Problem.create(
        problem.features,
        np.argsort(order)[problem.targets.astype(int)],
        30.0,
        intercept=9.0,
        likelihood=eb.Categorical(4),
    )
    x = SoftmaxRows.of(problem).x
    here, there = (predicted(*fitted(each).logits(x)) for each in (problem, other))
    np.testing.assert_allclose(there, here[:, order], atol=0.01)


def test_separable_rows_under_a_wide_prior_have_a_finite_gaussian():
    labels = np.arange(30) % 3
    features = 10.0 * np.eye(3)[labels] + np.random.default_rng(0).standard_normal((30, 3))
    problem = eb.Problem.create(features, labels, 1e4, intercept=100.0)
    found = fitted(problem, tol=0.05, most=60)
    assert np.all(np.isfinite(found.cov))
    assert found.residual < 0.5
    assert np.argmax(predicted(*found.logits(SoftmaxRows.of(problem).x)), axis=1).tolist() == labels.tolist()


def test_logits_that_overflow_are_reported():
    problem = posed()
    rows = replace(SoftmaxRows.of(problem), x=SoftmaxRows.of(problem).x * np.inf)
    with np.errstate(all="ignore"), pytest.raises(Diverged):
        rows.gaussian(ContrastPrior.of(problem))
