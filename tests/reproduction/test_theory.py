"""The theorem on the mean-field limit: coupled systems, the bound on W_2, its rate."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

import enkbayes as eb
from enkbayes.reproduction.theory import Coupling, convergence_rate, couple, homotopy_flow, mean_field_path
from oracles.problems import logistic_data


@pytest.fixture(scope="module")
def problem():
    return eb.Problem.create(*logistic_data(2, 25, seed=1), 1.0)


def test_both_systems_start_together_and_have_the_right_distributions(problem):
    coupling = couple(problem, problem.prior, 200, [0.0, 0.5, 30.0], np.random.default_rng(0))
    assert coupling.bound[0] < 1e-12
    limit = mean_field_path(problem, problem.prior, [0.0, 0.5, 30.0])[1]
    white = np.linalg.solve(np.linalg.cholesky(limit.cov), (coupling.eta[1] - limit.mean).T)
    start = coupling.theta[0].T  # eta_s is a linear image of the start: whitened by N(m_s, P_s), a rotation of it
    assert white.T @ white == pytest.approx(start.T @ start, abs=1e-4)
    equilibrium = eb.run(problem, eb.Equilibrium(tau=0.3, tol=1e-9, max_steps=500), theta=coupling.theta[0])
    assert coupling.theta[2].mean(axis=0) == pytest.approx(equilibrium.mean, abs=5e-3)


def test_coupling_bounds_the_wasserstein_distance(problem):
    coupling = couple(problem, problem.prior, 60, [0.0, 1.0], np.random.default_rng(3))
    cost = cdist(coupling.theta[1], coupling.eta[1], "sqeuclidean")
    rows, columns = linear_sum_assignment(cost)
    exact = np.sqrt(cost[rows, columns].mean())
    assert 0 < exact <= coupling.bound[1] + 1e-12


@pytest.mark.parametrize("flow", ["equilibrium", "homotopy"])
def test_rate_is_one_half(problem, flow):
    options = {"flow": homotopy_flow} if flow == "homotopy" else {}
    sizes, repetitions = (20, 80, 320, 1280), 12
    errors = np.asarray(
        [
            [
                couple(
                    problem, problem.prior, J, [0.0, 1.0], np.random.default_rng((J, i)), rtol=1e-5, **options
                ).bound[1]
                for i in range(repetitions)
            ]
            for J in sizes
        ]
    )
    rate, error = convergence_rate(sizes, errors)
    assert rate == pytest.approx(-0.5, abs=0.05 + 2 * error)
    assert error < 0.08


def test_the_bound_is_the_root_mean_square_distance():
    coupling = Coupling(theta=np.zeros((1, 2, 2)), eta=np.asarray([[[3.0, 4.0], [0.0, 0.0]]]))
    assert coupling.bound.tolist() == [np.sqrt(12.5)]
