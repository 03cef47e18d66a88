"""An average of posteriors: what it predicts, its moments, its particles, its files, and what is asked of it."""

from dataclasses import replace

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.mixture import MixturePosterior, proportional
from enkbayes.inference import elbo

WIDTHS = (0.3, 3.0, 30.0)
WEIGHTS = (0.2, 0.5, 0.3)


def problem(classes=2, variance=1.0):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 3))
    scores = features @ rng.standard_normal((3, classes)) + rng.gumbel(size=(60, classes))
    return eb.Problem.create(features, np.argmax(scores, axis=1), variance, intercept=4.0)


def mixture(classes=2, particles=40):
    problems = [problem(classes, width) for width in WIDTHS]
    components = tuple(replace(eb.run(p, particles=particles), state=None) for p in problems)
    return MixturePosterior(components, WEIGHTS, tuple(p.prior for p in problems), (0.3, 0.3, 0.4))


@pytest.fixture(scope="module", params=[2, 3])
def found(request):
    return mixture(request.param)


def test_predictions_are_the_weighted_average(found):
    features = problem().features
    expected = sum(w * c.predict_proba(features) for w, c in zip(WEIGHTS, found.components, strict=True))
    np.testing.assert_allclose(found.predict_proba(features), expected, atol=1e-14)
    uncertainty = found.predict_uncertainty(features)
    np.testing.assert_allclose(uncertainty.confidence, expected.max(axis=1), atol=1e-14)
    np.testing.assert_allclose(uncertainty.total, uncertainty.aleatoric + uncertainty.epistemic)


def test_moments_are_those_of_a_mixture(found):
    rng = np.random.default_rng(1)
    draws = np.concatenate(
        [
            rng.multivariate_normal(c.mean, c.cov, int(w * 400_000))
            for w, c in zip(WEIGHTS, found.components, strict=True)
        ]
    )
    scale = np.sqrt(np.diag(found.cov))
    assert np.max(np.abs(found.mean - draws.mean(axis=0)) / scale) < 0.01
    assert np.max(np.abs(found.cov - np.cov(draws.T)) / scale / scale[:, None]) < 0.02
    np.testing.assert_allclose(found.variances, np.diag(found.cov))
    np.testing.assert_allclose(found.distribution.cov, found.cov)


def test_particles_are_in_proportion_to_the_weights(found):
    assert np.bincount(found.members).tolist() == [8, 20, 12]
    for j, k in enumerate(found.members):
        np.testing.assert_array_equal(found.theta[j], found.components[k].theta[j])
    features = problem().features
    assert found.sample_proba(features).shape[0] == 40
    np.testing.assert_allclose(found.sample_proba(features).mean(axis=0), found.mean_proba(features))


def test_draws_come_from_the_components_in_proportion_to_the_weights(found):
    draws = found.sample(20_000, seed=3)
    error = np.sqrt(np.asarray(found.variances) / len(draws))
    assert np.max(np.abs(draws.mean(axis=0) - found.mean) / error) < 4.5
    assert np.max(np.abs(draws.var(axis=0) / found.variances - 1)) < 0.06


def test_the_worst_heavy_component_decides_how_the_run_went(found):
    first, second, light = found.components
    parts = (
        replace(first, info=replace(first.info, residual=0.25, drift=0.5)),
        replace(second, info=replace(second.info, residual=0.125, drift=0.75)),
        replace(light, info=replace(light.info, residual=9.0, drift=1.0, converged=False)),
    )
    whole = MixturePosterior(parts, (0.5, 0.49, 0.01)).info
    assert (whole.residual, whole.drift, whole.converged) == (0.25, 0.75, True)
    assert whole.steps == sum(part.info.steps for part in parts)


def test_whole_numbers_in_proportion_add_up():
    rng = np.random.default_rng(0)
    for _ in range(50):
        weights = rng.dirichlet(np.ones(7))
        counts = proportional(weights, 33)
        assert counts.sum() == 33
        assert np.all(np.abs(counts - 33 * weights) < 1)


@pytest.mark.parametrize("point", [False, True])
def test_a_file_predicts_the_same_bits(found, tmp_path, point):
    if point:
        component = found.components[1]
        mode = replace(component, ensemble=component.ensemble.scaled(1.3, 0.0))
        found = replace(found, components=(found.components[0], mode, found.components[2]))
    features = problem().features
    eb.save(found, tmp_path / "m.safetensors")
    again = eb.load(tmp_path / "m.safetensors")
    assert again.weights == found.weights
    assert np.array_equal(again.predict_proba(features), found.predict_proba(features))
    assert np.array_equal(again.theta, found.theta)
    assert np.array_equal(again.sample_proba(features), found.sample_proba(features))
    assert all(np.array_equal(a.cov, b.cov) for a, b in zip(again.priors, found.priors, strict=True))


def test_a_point_estimate_is_a_component(found):
    mode = replace(found.components[0], ensemble=found.components[0].ensemble.scaled(2.0, 0.0))
    features = problem().features
    logits = mode.map.particle_logits(features, mode.mean[None, :])
    np.testing.assert_allclose(mode.predict_proba(features), mode.likelihood.mean(logits)[:, 0, :])
    alone = MixturePosterior((mode,), (1.0,))
    assert np.allclose(alone.cov, 0)
    assert np.allclose(alone.predict_uncertainty(features).epistemic, 0, atol=1e-12)


def test_the_evidence_is_that_of_the_mixed_prior():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((20, 1))
    targets = features[:, 0] + rng.standard_normal(20)
    own = [eb.Problem.create(features, targets, v, likelihood=eb.Normal()) for v in (0.5, 2.0)]
    components = tuple(eb.run(p, eb.MeanField(), particles=20) for p in own)
    found = MixturePosterior(components, (0.5, 0.5), tuple(p.prior for p in own), (0.25, 0.75))
    closed = [elbo(p, c).value for p, c in zip(own, components, strict=True)]  # exact for a Gaussian likelihood
    expected = np.log(0.25 * np.exp(closed[0]) + 0.75 * np.exp(closed[1]))
    assert abs(eb.log_evidence(own[0], found).value - expected) < 1e-6


def test_trust_and_polish_see_every_component(found):
    trust = eb.assess(problem(found.likelihood.n_classes), found)
    assert trust.verdict in ("good", "usable")
    assert trust.spanned == found.mean.shape[0]
    polished = eb.polish(problem(found.likelihood.n_classes), found, 4)
    assert polished.info.sweeps == 4
    assert not np.allclose(polished.theta, found.theta)


def test_without_priors_nothing_is_compared_with_data(found):
    bare = replace(found, priors=(), prior_weights=())
    with pytest.raises(ValueError, match="the priors of the components are unknown"):
        eb.assess(problem(found.likelihood.n_classes), bare)


def test_weights_must_fit_the_components(found):
    with pytest.raises(ValueError, match="expected 3, with the sum 1"):
        replace(found, weights=(0.5, 0.5))
    with pytest.raises(ValueError, match="expected 3, with the sum 1"):
        replace(found, weights=(0.5, 0.5, 0.5))
    with pytest.raises(ValueError, match="differ in particles, parameters"):
        MixturePosterior((found.components[0], mixture(4).components[0]), (0.5, 0.5))


def test_particles_in_pairs_stay_in_pairs(found):
    """Particle j and particle j + J/2 come from the same component, on opposite sides of its mean."""
    means = np.stack([component.mean for component in found.components])[found.members]
    half = len(found.theta) // 2
    np.testing.assert_allclose((found.theta - means)[half:], -(found.theta - means)[:half], atol=1e-12)
