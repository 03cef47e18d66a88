"""The paper's toy problem, D = 20, N = 300, prior I: steps, bias, and error bars."""

import numpy as np
import pytest

import enkbayes as eb
from oracles.problems import method_problem

SEEDS = range(6)


@pytest.fixture(scope="module")
def limit():
    return eb.run(method_problem("T1"), eb.MeanField(tol=1e-9))


def bias(posterior, limit):
    """Mean error in posterior sds (Mahalanobis / sqrt D), and the relative excess of the variance, against a limit."""
    difference = posterior.mean - limit.mean
    error = np.sqrt(difference @ np.linalg.solve(limit.cov, difference) / len(difference))
    return error, np.mean(np.diag(posterior.cov) / np.diag(limit.cov)) - 1


def estimate(values):
    return np.mean(values), np.std(values, ddof=1) / np.sqrt(len(values))


def test_equilibrium_needs_few_steps_and_has_no_bias(limit):
    runs = [eb.run(method_problem("T1"), eb.Equilibrium(tol=1e-6), particles=100, seed=seed) for seed in SEEDS]
    assert max(run.info.steps for run in runs) <= 35
    assert all(run.info.converged and run.info.blend == 0 for run in runs)
    errors, excess = zip(*(bias(run, limit) for run in runs), strict=True)
    assert max(errors) < 0.01  # error of a finite J, .0036 sd on average
    mean, error = estimate(excess)
    assert abs(mean) < 0.002 + 2 * error


def test_trotter_splitting_has_its_seven_per_cent(limit):
    sampler = eb.TrotterSampler(ds=0.1, tol=1e-7)
    runs = [eb.run(method_problem("T1"), sampler, particles=100, seed=seed) for seed in SEEDS]
    errors, excess = zip(*(bias(run, limit) for run in runs), strict=True)
    mean, error = estimate(excess)
    assert mean == pytest.approx(0.070, abs=0.003 + 3 * error)
    assert np.mean(errors) == pytest.approx(0.042, abs=0.005)
    assert all(
        run.info.residual > 0.03 for run in runs
    )  # the step-free residual sees the bias that the paper's rule cannot


def test_trotter_bias_falls_linearly_with_ds(limit):
    start = limit.theta
    excess = [
        bias(eb.run(method_problem("T1"), eb.TrotterSampler(ds=ds, tol=1e-7, max_steps=3000), theta=start), limit)[1]
        for ds in (0.05, 0.1, 0.2)
    ]
    assert excess[1] / excess[0] == pytest.approx(2, rel=0.15)
    assert excess[2] / excess[1] == pytest.approx(2, rel=0.2)


def test_homotopy_is_accurate_with_twenty_steps():
    problem = method_problem("T1")
    theta = problem.prior.whitened(100, np.random.default_rng(0))
    exact = eb.run(problem, eb.Homotopy(steps=400), theta=theta)
    error, excess = bias(eb.run(problem, eb.Homotopy(), theta=theta), exact)
    tamed_error, _ = bias(eb.run(problem, eb.TamedHomotopy(ds=1e-2), theta=theta), exact)
    assert error < 0.005
    assert abs(excess) < 0.005
    assert tamed_error > 10 * error  # with five times as many steps


def test_diagonal_remark_is_unsafe_for_many_data():
    """With N > 4 D and few steps the diagonal variant explodes, whereas the full matrix stays bounded."""
    problem = method_problem("T2")
    *_, full = eb.iterate(problem, eb.TamedHomotopy(ds=0.2), particles=60)
    *_, diagonal = eb.iterate(problem, eb.TamedHomotopy(ds=0.2, diagonal=True), particles=60)
    prior = np.trace(problem.prior.dense_cov)
    assert np.trace(full.ensemble.cov) < prior  # each factor is in (1/2, 1]
    assert np.trace(diagonal.ensemble.cov) > 5 * prior


@pytest.mark.parametrize(("J", "without", "right"), [(8, 0.253, 0.875), (20, 0.649, 0.948)])
def test_finite_size_correction_of_the_stochastic_sampler(J, without, right):
    """The stationary tr(P) / D for the target N(0, I), D = 5, with and without the correction; ds = .02 adds
    nearly .05.
    """
    problem = eb.Problem.create(np.ones((1, 5)), [0.0], 1.0, likelihood=eb.Normal(1e12))

    def stationary(correction):
        sampler = eb.StochasticSampler(ds=0.005, max_steps=8000, correction=correction)
        traces = [np.sum(s.ensemble.basis**2) / 5 for s in eb.iterate(problem, sampler, particles=J, seed=1)]
        return np.mean(traces[1000:])

    assert stationary(correction=False) == pytest.approx(without, abs=0.06)
    assert stationary(correction=True) == pytest.approx(right, abs=0.06)
