"""Shapes and scales drawn by hypothesis: what holds for one problem holds for all."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import enkbayes as eb
from enkbayes.core.expectations import closure, empirical
from oracles import paper

sizes = st.tuples(st.integers(1, 9), st.integers(1, 12), st.integers(2, 14), st.integers(0, 2**32 - 1))
exponents = st.floats(-2, 1)


def binary(D, N, seed, scale, variance):
    rng = np.random.default_rng(seed)
    features, labels = scale * rng.standard_normal((N, D)), rng.integers(0, 2, N)
    return eb.Problem.create(features, labels, variance, classes=[0, 1]), rng


@settings(max_examples=60, deadline=None)
@given(sizes, exponents, exponents)
def test_one_tamed_step_is_the_papers(shape, log_scale, log_variance):
    D, N, J, seed = shape
    problem, rng = binary(D, N, seed, 10**log_scale, 10**log_variance)
    theta = problem.prior.sample(J, rng)
    logits = problem.features @ theta.T
    if np.abs(logits).max() > 25:
        return  # the paper's R^{-1} underflows there; the package does not form it
    *_, last = eb.iterate(problem, eb.TamedHomotopy(ds=1.0), theta=theta)
    expected = paper.tamed_step(theta, problem.features.T, problem.targets, 1.0)
    assert np.allclose(last.ensemble.theta, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@settings(max_examples=60, deadline=None)
@given(sizes)
def test_factoring_keeps_the_particles(shape):
    D, _, J, seed = shape
    theta = np.random.default_rng(seed).standard_normal((J, D)) * np.logspace(-3, 3, D)
    ensemble = eb.AffineEnsemble.factor(theta)
    assert ensemble.rank == min(D, J - 1)
    assert np.allclose(ensemble.theta, theta, atol=1e-9)
    assert np.allclose(ensemble.points.T @ ensemble.points / J, np.eye(ensemble.rank), atol=1e-6)
    assert np.allclose(ensemble.cov, np.cov(theta.T, bias=True), atol=1e-6 * np.abs(theta).max() ** 2)


@settings(max_examples=40, deadline=None)
@given(sizes, exponents, exponents, st.integers(1, 20))
def test_moments_are_sums_over_data_for_any_chunk(shape, log_scale, log_variance, chunk):
    D, N, J, seed = shape
    problem, rng = binary(D, N, seed, 10**log_scale, 10**log_variance)
    ensemble = eb.AffineEnsemble.factor(problem.prior.sample(J, rng))
    chunked = eb.Problem.create(problem.features, problem.targets, problem.prior, classes=[0, 1], chunk=chunk)
    for expectation in (empirical, closure):
        one, other = problem.moments(ensemble, expectation), chunked.moments(ensemble, expectation)
        scale = 1 + float(np.abs(one.S).max())
        assert np.allclose(one.S, other.S, atol=1e-12 * scale)
        assert np.allclose(one.g, other.g, atol=1e-12 * scale)
        assert np.linalg.eigvalsh(one.S)[0] > -1e-10 * scale


@settings(max_examples=40, deadline=None)
@given(sizes, exponents, exponents)
def test_adaptive_samplers_end_at_their_equilibrium(shape, log_scale, log_variance):
    D, N, J, seed = shape
    problem, _ = binary(D, N, seed, 10**log_scale, 10**log_variance)
    for sampler in (eb.MeanField(), eb.Equilibrium()):
        *_, last = eb.iterate(problem, sampler, particles=J)
        assert np.all(np.isfinite(last.ensemble.theta))
        assert last.converged
        assert last.ensemble.theta.shape == (J, D)
