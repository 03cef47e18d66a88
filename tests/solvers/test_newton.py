"""Newton's search for the most probable parameters."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.solvers.laplace import laplace, whitened_moments
from enkbayes.solvers.map_estimate import map_estimate
from enkbayes.solvers.newton import NewtonSearch
from oracles.problems import weighted_problem

SEARCH = NewtonSearch()


def test_newton_leads_to_the_laplace_approximation():
    problem = weighted_problem("binary")
    ensemble = eb.AffineEnsemble.factor(problem.prior.whitened(30, np.random.default_rng(0)))
    point = SEARCH.begin(problem, ensemble)
    while point.residual > 1e-9:
        point = SEARCH.advance(problem, point)
        assert point.evaluations < 15
    theta = map_estimate(problem).theta
    assert point.ensemble.mean == pytest.approx(theta, abs=1e-7)
    H = whitened_moments(problem, theta).S
    cov = problem.prior.dense_root @ np.linalg.inv(H) @ problem.prior.dense_root.T
    assert laplace(problem, point.ensemble.mean).cov == pytest.approx(cov, rel=1e-6, abs=1e-9)


def test_newton_shortens_steps_that_do_not_help():
    """Far out on the flat side of separable data a full step goes astray; the potential still falls all the way."""
    features = np.asarray([[30.0], [-30.0], [20.0], [-25.0]])
    problem = eb.Problem.create(features, [1, 0, 0, 1], 1e4)
    ensemble = eb.AffineEnsemble.factor(np.random.default_rng(0).standard_normal((5, 1)) + 40.0)
    point, losses = SEARCH.begin(problem, ensemble), []
    while not SEARCH.done(point):
        losses.append(float(point.moments.loss))
        point = SEARCH.advance(problem, point)
    assert all(b <= a for a, b in pairwise(losses))
    assert point.residual < SEARCH.near
    assert eb.run(problem, theta=ensemble.theta).info.converged


def test_newton_from_afar_takes_the_length_that_the_potential_asks_for():
    problem = weighted_problem("binary", N=2_000)
    ensemble = eb.AffineEnsemble.factor(problem.prior.whitened(30, np.random.default_rng(0)))
    point = SEARCH.begin(problem, ensemble)
    assert point.residual > SEARCH.far
    length = SEARCH.reach(problem, point)
    step = ensemble.basis @ point.step

    def potential(s):
        theta = (ensemble.mean - s * step)[None, :]
        return float(problem.loss(theta)[0] - problem.prior.log_density(theta)[0])

    assert 1 <= length <= SEARCH.lengths[-1]
    assert potential(length) <= min(potential(s) for s in SEARCH.lengths) + 1e-2 * (potential(0) - potential(length))
    assert SEARCH.advance(problem, point).residual < 0.5 * _full_step(problem, point).residual


def _full_step(problem, point):
    ensemble = point.ensemble
    return SEARCH.begin(problem, replace(ensemble, mean=ensemble.mean - ensemble.basis @ point.step))


def test_newton_ends_at_round_off_instead_of_going_on_for_ever():
    problem = weighted_problem("binary")
    ensemble = eb.AffineEnsemble.factor(problem.prior.whitened(30, np.random.default_rng(0)))
    search = NewtonSearch(near=0.0, most=200)
    point = search.begin(problem, ensemble)
    while not search.done(point):
        point = search.advance(problem, point)
    assert point.evaluations < 20
    assert point.decrement < 1e-9
