"""Gaussian expectations: against numerical integration, and the identities that tie them together."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

import enkbayes as eb
from enkbayes.core.expectations import Expectation, closure, empirical
from enkbayes.core.quadrature import gauss_logit, quasi_random_points, scale_mixture

FUNCTIONS = (expit, lambda z: expit(z) * expit(-z), lambda z: np.logaddexp(0, z))


def integrate(function, a, v):
    """E function(z), z ~ N(a, v), with break points where the integrand turns."""
    sd = np.sqrt(v)
    lo, hi = a - 12 * sd, a + 12 * sd
    points = np.unique(np.clip([lo, hi, -40, -10, -3, 0, 3, 10, 40, a - 3 * sd, a, a + 3 * sd], lo, hi))
    density = lambda z: function(z) * norm.pdf(z, a, sd)  # noqa: E731
    return sum(quad(density, lo, hi, epsabs=1e-15, epsrel=1e-13, limit=200)[0] for lo, hi in pairwise(points))


@pytest.mark.parametrize("sd", [0.5, 2, 5, 10, 30, 100])
@pytest.mark.parametrize("a", [0.0, 1.0, -4.0, 30.0])
def test_scale_mixture_against_quadrature(a, sd):
    values = gauss_logit(np.asarray([a]), np.asarray([sd**2]))
    for value, function in zip(values, FUNCTIONS, strict=True):
        assert float(value[0]) == pytest.approx(integrate(function, a, sd**2), rel=1e-9, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.floats(-300, 300), st.floats(0, 1e4))
def test_identities_of_the_rule(a, v):
    """E sigma(-z) = 1 - E sigma(z); E sigma' is the derivative of E sigma; all stay in range."""
    y, r, s = (float(x[0]) for x in gauss_logit(np.asarray([a]), np.asarray([v])))
    mirrored = float(gauss_logit(np.asarray([-a]), np.asarray([v]))[0][0])
    assert y + mirrored == pytest.approx(1, abs=1e-12)
    assert 0 <= y <= 1 + 1e-12
    assert 0 <= r <= 0.25 + 1e-12
    assert s >= max(a, 0) - 1e-9 * (1 + abs(a))
    h = 1e-4
    up, down = (float(gauss_logit(np.asarray([a + x]), np.asarray([v]))[0][0]) for x in (h, -h))
    assert (up - down) / (2 * h) == pytest.approx(r, abs=1e-7)


def test_rule_is_the_logistic_function_without_variance():
    z = np.linspace(-30, 30, 301)
    assert np.abs(gauss_logit(z, np.zeros_like(z))[0] - expit(z)).max() < 1e-13
    assert scale_mixture()[1].sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("likelihood", [eb.Bernoulli(), eb.Categorical(3), eb.Normal(0.7)], ids=repr)
def test_many_particles_approach_the_closure(likelihood):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((12, 2))
    labels = np.arange(12) % (likelihood.outputs or 2)
    problem = eb.Problem.create(features, labels, 2.0, likelihood=likelihood)
    ensemble = eb.AffineEnsemble.factor(problem.prior.whitened(40000, rng))
    one, limit, half = (problem.moments(ensemble, e) for e in (empirical, closure, Expectation(0.5)))
    assert one.g == pytest.approx(limit.g, abs=0.05)
    assert pytest.approx(limit.S, abs=0.05) == one.S
    assert float(one.loss) == pytest.approx(float(limit.loss), abs=0.05)
    assert pytest.approx((one.S + limit.S) / 2, abs=1e-12) == half.S


@pytest.mark.parametrize("likelihood", [eb.Bernoulli(), eb.Categorical(3), eb.Normal(0.7)], ids=repr)
@pytest.mark.parametrize("expectation", [empirical, closure])
def test_finite_differences(likelihood, expectation):
    """g is the gradient of the average loss with respect to the mean; S, the average Hessian, is its slope."""
    rng = np.random.default_rng(1)
    features = rng.standard_normal((10, 2))
    labels = np.arange(10) % (likelihood.outputs or 2)
    problem = eb.Problem.create(features, labels, 1.0, likelihood=likelihood, weights=rng.uniform(0.5, 2, 10))
    ensemble = eb.AffineEnsemble.factor(problem.prior.sample(7, rng))
    moments, h = problem.moments(ensemble, expectation), 1e-5
    for i in range(ensemble.rank):
        shift, root = h * np.eye(ensemble.rank)[i], np.eye(ensemble.rank)
        up, down = (problem.moments(ensemble.affine(sign * shift, root), expectation) for sign in (1, -1))
        assert float(up.loss - down.loss) / (2 * h) == pytest.approx(float(moments.g[i]), abs=1e-7)
        exact = expectation is empirical or likelihood.exact_closure  # else S blends two averages, see Categorical
        assert (up.g - down.g) / (2 * h) == pytest.approx(moments.S[:, i], abs=1e-7 if exact else 2e-2)


@pytest.mark.parametrize("likelihood", [eb.Bernoulli(), eb.Normal(0.7)], ids=repr)
def test_curvature_is_twice_the_slope_in_the_covariance(likelihood):
    """Price's theorem, exact for the rule: dE[Psi]/dP = E[Hess] / 2, so objective and natural gradient agree."""
    rng = np.random.default_rng(2)
    features = 3 * rng.standard_normal((10, 2))
    labels = np.arange(10) % 2
    problem = eb.Problem.create(features, labels, 1.0, likelihood=likelihood)
    ensemble = eb.AffineEnsemble.factor(problem.prior.whitened(10, rng))
    direction, h = np.asarray([[1.0, 0.4], [0.4, -0.5]]), 1e-5
    up, down = (problem.moments(ensemble.affine(np.zeros(2), np.eye(2) + s * h * direction), closure) for s in (1, -1))
    slope = float(up.loss - down.loss) / (2 * h)
    assert slope == pytest.approx(np.sum(problem.moments(ensemble, closure).S * direction), rel=1e-7)


@pytest.mark.parametrize("dim", [1, 3, 20, 300])
def test_quasi_random_points_are_white(dim):
    x = quasi_random_points(dim)
    assert x.T @ x / len(x) == pytest.approx(np.eye(dim), abs=1e-10)
    assert np.abs(x.mean(axis=0)).max() < 1e-12


def test_softmax_curvature_for_wide_logits_is_the_slope_of_the_energy():
    """Where logits are wide S follows the quadrature's own energy, whatever the number of points."""
    rng = np.random.default_rng(2)
    for D in (4, 1):  # more coordinates than classes, and fewer
        features = 300 * rng.standard_normal((10, D))
        problem = eb.Problem.create(features, np.arange(10) % 3, 1.0, weights=rng.uniform(0.5, 2, 10))
        ensemble = eb.AffineEnsemble.factor(problem.prior.sample(20 if D == 4 else 3, rng))
        r, h = ensemble.rank, 1e-6
        direction = rng.standard_normal((r, r))
        direction = direction + direction.T
        up, down = (
            problem.moments(ensemble.affine(np.zeros(r), np.eye(r) + s * h * direction), closure) for s in (1, -1)
        )
        slope = float(up.loss - down.loss) / (2 * h)
        assert slope == pytest.approx(np.sum(problem.moments(ensemble, closure).S * direction), rel=2e-2)


def test_predicted_probabilities_are_never_above_one():
    from enkbayes.core.likelihoods import Bernoulli

    p = Bernoulli().predictive(np.linspace(30, 300, 1000), V=np.full((1000, 1), 0.1))
    assert p.max() <= 1


def test_a_refined_expectation_is_more_accurate():
    """Four times as many points for each step, in a case whose logits are spread widely."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((20, 3))
    problem = eb.Problem.create(features, rng.integers(0, 3, 20), 25.0)
    ensemble = eb.AffineEnsemble(np.zeros(9), 5.0 * np.eye(9), np.zeros((2, 9)))
    found = [problem.moments(ensemble, Expectation(1.0, refine)) for refine in (0, 1, 4)]
    errors = [float(np.linalg.norm(each.g - found[-1].g)) for each in found[:2]]
    assert 0 < errors[1] < 0.6 * errors[0]
