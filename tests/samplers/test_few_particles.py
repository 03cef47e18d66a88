"""Predictions do not depend on the number of particles where these are too few to average over."""

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.expectations import Expectation

rng = np.random.default_rng(0)
X, NEW = rng.standard_normal((30, 7)), 1.5 * rng.standard_normal((500, 7))
SCORE = 2 * X[:, 0] + rng.logistic(size=30)
WIDE = eb.Problem.create(X, SCORE > 0, 100.0)
GRADES = eb.Problem.create(X[:, :3], np.digitize(SCORE, [-1.0, 1.0]), 10.0)


@pytest.mark.parametrize(("problem", "new"), [(WIDE, NEW), (GRADES, NEW[:, :3])], ids=["two classes", "softmax"])
@pytest.mark.parametrize("share", [0.7, 1.0, 1.2, 2.0, 2.9])
def test_fewer_than_three_particles_a_parameter_predict_like_any_other_number(problem, new, share):
    limit = eb.run(problem, eb.MeanField()).predict_proba(new)
    posterior = eb.run(problem, particles=int(share * problem.dim), seed=1)
    assert posterior.info.converged
    np.testing.assert_allclose(posterior.predict_proba(new), limit, atol=2e-4)


def test_particles_of_ones_own_predict_like_any_other():
    theta = WIDE.prior.sample(12, np.random.default_rng(0))
    limit = eb.run(WIDE, eb.MeanField()).predict_proba(NEW)
    np.testing.assert_allclose(eb.run(WIDE, theta=theta).predict_proba(NEW), limit, atol=2e-4)


def test_many_particles_stay_close_and_come_closer():
    """They end with averages of their own, which are noisy; the tolerance is what the documentation says."""
    limit = eb.run(WIDE, eb.MeanField()).predict_proba(NEW)
    few, many = (
        np.mean([np.abs(eb.run(WIDE, particles=J, seed=s).predict_proba(NEW) - limit).mean() for s in range(5)])
        for J in (21, 1000)
    )
    assert many < 0.002
    assert many < few < 0.02


def test_own_averages_are_there_on_request():
    own = eb.run(GRADES, eb.Equilibrium(enough=1.0), particles=20, seed=1)
    assert own.info.converged
    assert own.info.blend == 0.0
    assert eb.run(GRADES, particles=20, seed=1).info.blend == 1.0


def test_up_to_a_thousand_parameters_few_particles_have_the_dense_covariance():
    """A structured one has other logit variances where classes interact."""
    rng = np.random.default_rng(3)
    features = rng.standard_normal((60, 102)) @ np.diag(np.linspace(2, 0.2, 102))
    labels = np.argmax(features @ rng.standard_normal((102, 5)) + rng.gumbel(size=(60, 5)), axis=1)
    problem = eb.Problem.create(features, labels, 0.1)
    few, other = (eb.run(problem, sampler, particles=20) for sampler in (eb.MeanField(), eb.MeanField(dense_few=500)))
    assert few.ensemble.complement is None
    linear = problem.linear_logits("the test")
    V, W = (linear.predictive_logits(features, posterior.ensemble)[1] for posterior in (few, other))
    dense, structured = np.sum(V**2, axis=(1, 2)), np.sum(W**2, axis=(1, 2))
    hessian = problem.moments(few.ensemble, Expectation(1.0)).S + problem.prior_moments(few.ensemble).S
    assert np.max(np.abs(hessian - np.eye(problem.dim))) < 0.02
    assert np.max(np.abs(structured / dense - 1)) > 0.01
