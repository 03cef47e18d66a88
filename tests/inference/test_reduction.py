"""The reduction to the directions that the rows span gives the posterior of the whole problem."""

import numpy as np
import pytest

import enkbayes as eb
from oracles.problems import logistic_data, method_problem


@pytest.mark.parametrize("name", ["T3", "T4"])
def test_the_reduction_is_exact(name):
    problem = method_problem(name)
    reduced, lift = eb.reduce_to_data(problem)
    assert (problem.dim, reduced.dim) == (50, 30)
    full, small = eb.run(problem, eb.MeanField(tol=1e-9)), eb.run(reduced, eb.MeanField(tol=1e-9))
    lifted = lift(eb.Gaussian(small.mean, small.cov))
    assert lifted.mean == pytest.approx(full.mean, abs=1e-5)
    assert lifted.cov == pytest.approx(full.cov, abs=1e-4)
    assert small.state.control.point.free_energy == pytest.approx(full.state.control.point.free_energy, abs=1e-8)


def test_a_full_prior_with_a_mean_and_an_intercept():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((9, 9)) + 2 * np.eye(9)
    features, labels = logistic_data(9, 4, seed=0)
    prior = eb.Gaussian(rng.standard_normal(9), root @ root.T)
    problem = eb.Problem.create(features, labels, prior, intercept=3.0, classes=[0, 1])
    reduced, lift = eb.reduce_to_data(problem)
    full, small = eb.run(problem, eb.MeanField(tol=1e-9)), eb.run(reduced, eb.MeanField(tol=1e-9))
    lifted = lift(eb.Gaussian(small.mean, small.cov))
    assert reduced.dim == 4
    assert lifted.mean == pytest.approx(full.mean, abs=1e-6)
    assert lifted.cov == pytest.approx(full.cov, abs=1e-5)
