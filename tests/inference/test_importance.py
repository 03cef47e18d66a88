"""Pareto-smoothed importance sampling against theory and ArviZ, and the errors that weighted draws show."""

import math
import warnings

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.arviz import quiet_arviz
from enkbayes.core.low_rank import LowRankGaussian
from enkbayes.inference.assessment import shift
from enkbayes.inference.importance import (
    effective_share,
    pareto_fit,
    smoothed,
    standard_draws,
    weighted_errors,
    weights_at,
)
from oracles.problems import method_problem


def psislw():
    arviz = quiet_arviz() or pytest.skip("ArviZ is not installed")
    return getattr(arviz, "psislw", None) or pytest.skip("this ArviZ has no psislw")


@pytest.mark.parametrize("scale", [0.1, 0.5, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("size", [60, 4000])
def test_agrees_with_arviz(scale, size):
    weights = scale * np.random.default_rng(0).standard_exponential(size)
    smooth, k_hat = smoothed(weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, k = psislw()(weights.copy())
    assert k_hat == pytest.approx(float(k), abs=1e-6)
    assert np.allclose(smooth - np.logaddexp.reduce(smooth), expected, atol=1e-6)


@pytest.mark.parametrize("k", [-0.3, 0.0, 0.3, 0.7, 1.5])
def test_the_shape_of_a_pareto_distribution_is_found(k):
    u = np.random.default_rng(0).random(20_000)
    x = -np.log1p(-u) if k == 0 else ((1 - u) ** -k - 1) / k
    shape, scale = pareto_fit(np.sort(x))
    assert shape == pytest.approx(k, abs=0.05)
    assert scale == pytest.approx(1, abs=0.05)


def test_weights_keep_scale_and_order():
    weights = 0.4 * np.random.default_rng(0).standard_exponential(1000) - 7
    smooth = smoothed(weights)[0]
    assert np.all(np.diff(smooth[np.argsort(weights)]) >= -1e-9)
    assert np.mean(smooth == weights) > 0.8
    assert smooth.max() <= weights.max()
    assert np.log(np.mean(np.exp(smooth))) == pytest.approx(np.log(np.mean(np.exp(weights))), abs=0.1)


def test_extreme_weights():
    assert smoothed(np.zeros(1000))[1] == 0.0
    assert smoothed(np.zeros(10))[1] == math.inf  # too few
    assert smoothed(np.append(np.zeros(999), math.nan))[1] == math.inf
    for spread in (1e2, 1e4, 1e8):
        weights, k_hat = smoothed(spread * np.random.default_rng(0).standard_normal(1000))
        assert not k_hat < 0.7
        assert 0 < effective_share(weights) < 0.05


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.4, 1.0), (0.0, 1.3), (0.3, 0.8)])
def test_errors_of_a_gaussian_are_found(shift, scale):
    """The Gaussian of linear regression is exact; moved and stretched it has known errors."""
    rng = np.random.default_rng(0)
    problem = eb.Problem.create(rng.standard_normal((20, 3)), rng.standard_normal(20), 1.0, likelihood=eb.Normal(0.5))
    exact = eb.run(problem, eb.MeanField(tol=1e-10), particles=50).ensemble
    off = exact.scaled(1.0, scale)
    off = type(off)(exact.mean + shift * np.sqrt(exact.variances) * [0, 1, 0], off.basis, off.points)
    z = standard_draws(40_000, off, 0)
    found = weighted_errors(problem, off.gaussian, z, weights_at(problem, off, z))
    assert found.mean == pytest.approx(shift, abs=0.06)
    assert found.variances == pytest.approx(scale, abs=0.03)
    if shift:
        assert found.parameter == 1


def test_independent_draws_have_the_moments_of_the_posterior():
    problem = method_problem("T1")
    posterior = eb.run(problem, particles=100)
    draws = posterior.sample(50_000, seed=3)
    assert np.allclose(draws.mean(axis=0), posterior.mean, atol=4 * np.sqrt(posterior.cov.max() / 50_000))
    assert np.allclose(np.cov(draws.T), posterior.cov, atol=0.01)
    assert np.array_equal(draws[:5], posterior.sample(50_000, seed=3)[:5])
    assert not np.array_equal(draws[:100], posterior.sample(100, seed=4))
    half = posterior.theta - posterior.mean
    assert np.allclose(half[:50], -half[50:])  # particles come in pairs
    few = posterior.sample(100, seed=3) - posterior.mean
    assert not np.allclose(few[:50], -few[50:], atol=0.01)


def test_draws_of_polished_particles_are_particles():
    problem = method_problem("T0")
    posterior = eb.polish(problem, eb.run(problem, particles=100), 2)
    rows = {tuple(row) for row in posterior.theta.tolist()}
    some = [tuple(row) for row in posterior.sample(60).tolist()]
    assert len(set(some)) == 60
    assert set(some) <= rows
    assert posterior.sample(300).shape == (300, 2)


def test_draws_of_a_mixture_follow_its_weights():
    problem = method_problem("T0")
    narrow, wide = (eb.run(problem.with_prior(eb.Gaussian.isotropic(2, v)), particles=50) for v in (0.01, 25.0))
    mixture = eb.MixturePosterior((narrow, wide), (0.3, 0.7))
    draws = mixture.sample(20_000, seed=1)
    assert np.allclose(draws.mean(axis=0), mixture.mean, atol=0.05)
    assert np.allclose(np.cov(draws.T), mixture.cov, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "3"])
def test_a_number_of_draws_that_is_none_is_refused(n):
    problem = method_problem("T0")
    with pytest.raises(ValueError, match=r"n is .*; expected a whole number, at least 1"):
        eb.run(problem).sample(n)


def test_a_few_effective_draws_show_no_errors():
    """A Gaussian that is 15 % too wide in 500 directions: three of 4,000 draws have all the weight, and seemed to say
    that a mean is off by several standard deviations.
    """
    P = 500
    problem = eb.Problem.create(np.eye(P)[:1], [0.0], likelihood=eb.Normal())  # the posterior is almost the prior
    wide = LowRankGaussian(np.zeros(P), 1.15 * np.eye(P))
    z = np.random.default_rng(0).standard_normal((4000, P))
    theta = wide.unwhiten(z)
    weights = problem.prior.log_density(theta) - problem.loss(theta) + np.sum(z**2, axis=1) / 2
    assert effective_share(weights) * 4000 < 20
    found = weighted_errors(problem, wide, z, weights)
    assert (found.mean, found.variances, found.norm) == (0.0, 1.0, 0.0)


def test_the_shift_of_normal_log_weights_does_not_depend_on_the_draws_that_were_seen():
    """KL is half of their variance, 50 here, also where exp(50) is out of the reach of 4,000 draws."""
    log_w = 10 * np.random.default_rng(0).standard_normal(4000)
    assert shift(log_w, informed=100.0) == pytest.approx(1.0, abs=0.05)
    assert shift(log_w / 100, informed=100.0) == pytest.approx(0.01, abs=1e-3)
