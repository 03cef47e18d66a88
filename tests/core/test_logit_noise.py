"""Predictions with noise in every logit agree with draws of that noise, and tend to 1/K as it grows."""

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.logit_noise import cyclic_points, noisy_members, noisy_predictive


def fitted(classes):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((80, 3)), rng.integers(0, classes, 80)
    return eb.run(eb.Problem.create(X, y), eb.MeanField(), particles=60), X[:4]


@pytest.mark.parametrize("classes", [2, 3])
def test_noise_is_integrated(classes):
    posterior, X = fitted(classes)
    noise = np.asarray([0.0, 0.5, 2.0, 8.0])
    found = posterior.predict_proba(X, noise=noise)
    rng = np.random.default_rng(1)
    mean, V = posterior.map.predictive_logits(X, posterior.ensemble)
    draws = rng.standard_normal((4000, V.shape[-1]))
    logits = np.moveaxis(mean[..., None] + V @ draws.T, -1, 1)
    extra = rng.standard_normal(logits.shape) * np.sqrt(noise).reshape(-1, *[1] * (logits.ndim - 1))
    truth = posterior.likelihood.mean(logits + extra).mean(axis=1)
    np.testing.assert_allclose(found, truth, rtol=0, atol=0.02)
    np.testing.assert_allclose(found[0], posterior.predict_proba(X)[0], rtol=0, atol=3e-3)
    np.testing.assert_allclose(posterior.mean_proba(X, noise=noise), truth, rtol=0, atol=0.08)


@pytest.mark.parametrize("classes", [2, 3, 7, 16])
def test_much_noise_makes_all_classes_equally_probable(classes):
    rng = np.random.default_rng(0)
    likelihood = eb.Bernoulli() if classes == 2 else eb.Categorical(classes)
    shape = (5,) if classes == 2 else (5, classes)
    far = noisy_predictive(
        likelihood, 30 * rng.standard_normal(shape), rng.standard_normal((*shape, 2)), np.full(5, 1e10)
    )
    np.testing.assert_allclose(far, 1 / classes, rtol=0, atol=1e-3)


def test_noise_is_epistemic_and_reported():
    posterior, X = fitted(3)
    plain, noisy = posterior.predict_uncertainty(X), posterior.predict_uncertainty(X, noise=np.full(4, 25.0))
    assert plain.far_field is None
    assert np.all(noisy.epistemic > plain.epistemic + 0.2)
    assert np.all((noisy.far_field > 0.2) & (noisy.far_field <= noisy.epistemic))
    np.testing.assert_allclose(noisy.total, noisy.aleatoric + noisy.epistemic)
    assert posterior.sample_proba(X, noise=np.full(4, 25.0)).shape == (60, 4, 3)


def test_points_and_members_have_the_stated_moments():
    for dim in (1, 2, 5, 16):
        points = cyclic_points(dim)
        np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(points.T @ points / len(points), np.eye(dim), atol=1e-12)
    logits = np.random.default_rng(0).standard_normal((2, 30, 3))
    members = noisy_members(logits, np.asarray([0.0, 4.0]), 100)
    assert members.shape == (2, 120, 3)
    np.testing.assert_allclose(members[0], np.tile(logits[0], (4, 1)))
    np.testing.assert_allclose((members - np.tile(logits, (1, 4, 1)))[1].var(axis=0), 4.0)


@pytest.mark.parametrize("rank", [None, 6])
def test_a_tempered_posterior_scales_all_logits(rank):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((80, 8)), rng.integers(0, 3, 80)
    sampler = eb.MeanField() if rank is None else eb.MeanField(rank=rank)
    posterior = eb.run(eb.Problem.create(X, y), sampler, particles=12)
    twice = posterior.tempered(2.0)
    np.testing.assert_allclose(twice.cov, 4 * posterior.cov, rtol=1e-9, atol=1e-12)
    logits = [p.map.particle_logits(X, p.theta) for p in (posterior, twice)]
    np.testing.assert_allclose(logits[1], 2 * logits[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("classes", [3, 7])
def test_much_noise_makes_the_average_of_particles_uniform(classes):
    """The draws of the noise treat all classes alike, not only on average over many of them."""
    posterior, X = fitted(classes)
    np.testing.assert_allclose(posterior.mean_proba(X, noise=np.full(4, 1e10)), 1 / classes, rtol=0, atol=1e-3)


def test_noise_adds_to_the_variance_of_real_targets():
    problem = eb.Problem.create([[1.0], [2.0]], [1.0, 3.0], likelihood=eb.Normal(variance=2.0))
    posterior, noise = eb.run(problem, particles=50), np.asarray([0.0, 3.0])
    plain, noisy = (posterior.predict_uncertainty([[1.0], [1.0]], noise=given) for given in (None, noise))
    np.testing.assert_allclose(noisy.epistemic, plain.epistemic + noise)
    np.testing.assert_allclose(noisy.far_field, noise)
    np.testing.assert_allclose(noisy.aleatoric, 2.0)
