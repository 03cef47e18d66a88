"""The advised number of particles against what such ensembles do."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.preprocessing import scale

import enkbayes as eb
from enkbayes.inference.advice import Spectrum


def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X), y


def wine():
    X, y = load_wine(return_X_y=True)
    return scale(X), y


def digits():
    X, y = load_digits(n_class=2, return_X_y=True)
    return np.maximum(X / 16 @ np.random.default_rng(0).standard_normal((64, 100)), 0), y


@pytest.mark.parametrize("data", [cancer, wine, digits])
@pytest.mark.parametrize("wanted", [0.005, 0.002])
def test_advised_ensembles_do_what_was_promised(data, wanted):
    X, y = data()
    problem = eb.Problem.create(X, y, 1.0, intercept=100.0)
    advice = eb.advise(problem, wanted)
    assert advice.error <= wanted
    measured = []
    for seed in range(5):
        posterior = eb.run(problem, particles=advice.particles, seed=seed)
        measured.append(np.abs(posterior.sample_proba(X).mean(axis=0) - posterior.predict_proba(X)).mean())
    assert 0.5 * advice.error < np.median(measured) < 1.4 * wanted


@pytest.mark.parametrize("particles", [16, 64])
def test_the_expected_error_of_particles_in_pairs_is_an_upper_estimate(particles):
    """Six directions: 12 particles or more come in pairs. The estimate ignores that they are whitened, too."""
    X, y = (part[:60] for part in cancer())
    problem = eb.Problem.create(X[:, :5], y, 1.0, intercept=100.0)
    spectrum = Spectrum.of(problem)
    assert spectrum.pairs(particles)
    measured = []
    for seed in range(10):
        posterior = eb.run(problem, particles=particles, seed=seed)
        errors = posterior.sample_proba(X[:, :5]).mean(axis=0) - posterior.predict_proba(X[:, :5])
        measured.append(np.abs(errors).mean())
    assert np.mean(measured) < spectrum.error(particles) < 2.5 * np.mean(measured)


def test_more_accuracy_takes_more_particles():
    problem = eb.Problem.create(*wine(), 1.0, intercept=100.0)
    sizes = [eb.advise(problem, error).particles for error in (0.02, 0.005, 0.001)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2]


def test_the_sentence_names_the_figures():
    advice = eb.advise(eb.Problem.create(*cancer(), 1.0), 0.01)
    assert f"{advice.particles} particles" in advice.sentence
    assert advice.informed < advice.parameters == 30


def test_bad_requests_are_explained():
    problem = eb.Problem.create(*cancer(), 1.0)
    with pytest.raises(ValueError, match="error is 2; expected a number between 0 and 1"):
        eb.advise(problem, 2)
    x = np.linspace(-2, 2, 40)
    nonlinear = eb.Problem.nonlinear(lambda theta: np.tanh(x[:, None] * theta[:, 0]), x > 0.1, eb.Gaussian.isotropic(1))
    with pytest.raises(ValueError, match="needs linear logits"):
        eb.advise(nonlinear)
