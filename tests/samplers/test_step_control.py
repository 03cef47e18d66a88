"""Step control never fails the user: a sample of benchmarks/step_control.py, and the cases it must cope with."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from step_control import outcome as study_outcome
from step_control import random_problem, skewed_problem, summary

import enkbayes as eb
from enkbayes.core.expectations import Expectation
from oracles.problems import method_problem


@pytest.fixture(scope="module")
def outcomes():
    """Outcomes of 60 problems for both adaptive samplers."""
    samplers = {"mean field": eb.MeanField(tol=1e-5), "equilibrium": eb.Equilibrium(tol=1e-5, enough=1.0)}
    return {
        name: summary([study_outcome(*random_problem(seed), sampler) for seed in range(60)])
        for name, sampler in samplers.items()
    }


def test_mean_field_converges_on_all_and_quickly(outcomes):
    figures = outcomes["mean field"]
    assert figures["converged"] == 1
    assert figures["finite"] == 1
    assert figures["steps, median"] <= 15


def test_equilibrium_converges_and_mostly_with_its_own_averages(outcomes):
    figures = outcomes["equilibrium"]
    assert figures["finite"] == 1
    assert figures["converged"] >= 0.99
    assert figures["own averages"] > 0.7


def test_fixed_large_tau_fails_on_some_of_them_and_says_so():
    rows = [study_outcome(*random_problem(seed), eb.Equilibrium(tau=0.8, tol=1e-5)) for seed in range(60)]
    figures = summary(rows)
    assert 0.5 < figures["converged"] < 0.95
    assert figures["finite"] == 1
    assert figures["explained"] == 1


@pytest.mark.parametrize("name", ["T4", "T6"])
def test_where_a_finite_ensemble_cycles_it_converges_with_the_closure(name):
    posterior = eb.run(method_problem(name), eb.Equilibrium(enough=1.0), particles=100)
    assert posterior.info.converged
    assert posterior.info.blend > 0
    assert "Gaussian expectations" in posterior.info.message


@pytest.mark.parametrize("name", ["T1", "T2", "T3", "T5"])
def test_elsewhere_the_residual_of_its_own_averages_vanishes(name):
    problem = method_problem(name)
    posterior = eb.run(problem, eb.Equilibrium(), particles=150)
    assert posterior.info.blend == 0
    assert problem.potential_moments(posterior.ensemble, Expectation(0.0)).residual < 1e-6


def test_skewed_features_converge():
    problem, J = skewed_problem()
    posterior = eb.run(problem, eb.Equilibrium(), particles=J)
    assert posterior.info.converged
    limit = eb.run(problem, eb.MeanField())
    distance = np.abs(posterior.predict_proba(problem.features) - limit.predict_proba(problem.features))
    assert distance.mean() < 0.002


def test_a_run_out_of_steps_is_finite_and_warns_with_advice():
    with pytest.warns(ConvergenceWarning, match="raise max_steps"):
        posterior = eb.run(method_problem("T4"), eb.Equilibrium(max_steps=8))
    assert not posterior.info.converged
    assert np.all(np.isfinite(posterior.theta))
    with pytest.warns(ConvergenceWarning, match="raise max_steps"):
        eb.run(method_problem("T4"), eb.MeanField(max_steps=8))
    with pytest.warns(ConvergenceWarning, match="smaller tau"):
        eb.run(method_problem("T4"), eb.Equilibrium(tau=1.0))


def test_divergence_of_explicit_steps_is_caught():
    """With ds = 1 Trotter steps diverge; the run ends with finite particles and a message."""
    problem = eb.Problem.create(30 * np.eye(5), [0, 1, 0, 1, 1], 1e6)
    with pytest.warns(ConvergenceWarning, match=r"smaller step|raise max_steps"):
        posterior = eb.run(problem, eb.TrotterSampler(ds=5.0))
    assert np.all(np.isfinite(posterior.theta))


@pytest.mark.parametrize("scale", [1e-150, 1e-8, 1e8, 1e100])
def test_extreme_scales(scale):
    """Features far outside any sensible range: a finite answer that says whether it converged, or one clear error."""
    rng = np.random.default_rng(0)
    features = scale * rng.standard_normal((30, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for sampler in (eb.MeanField(), eb.Equilibrium()):
            try:
                posterior = eb.run(eb.Problem.create(features, features[:, 0] > 0, 1.0), sampler)
            except ValueError as error:
                assert "scale" in str(error)  # noqa: PT017
            else:
                assert np.all(np.isfinite(posterior.theta))
                assert posterior.info.converged or posterior.info.message
                assert posterior.info.converged or scale > 1e6


@pytest.mark.parametrize("sampler", [eb.MeanField(), eb.Equilibrium()], ids=repr)
def test_softmax_problems_converge_too(sampler):
    rng = np.random.default_rng(0)
    for scale, variance in ((0.3, 1.0), (1.0, 10.0), (10.0, 1.0), (5.0, 100.0)):
        features = scale * rng.standard_normal((90, 4))
        labels = np.argmax(features @ rng.standard_normal((4, 3)), axis=1)
        posterior = eb.run(
            eb.Problem.create(features, labels, variance, intercept=1.0, classes=[0, 1, 2]), sampler, particles=60
        )
        assert posterior.info.converged, (scale, variance, posterior.info)


def test_softmax_quadrature_is_refined_when_it_stalls():
    """Standardised digits have pixels 20 sds from their mean; 256 points a row are then too few to converge."""
    from sklearn.datasets import load_digits
    from sklearn.preprocessing import StandardScaler

    features, labels = load_digits(return_X_y=True)
    rows = np.flatnonzero(labels < 5)[:300]
    features = StandardScaler().fit_transform(features[rows][:, features[rows].std(axis=0) > 0])[:, :12]
    problem = eb.Problem.create(features, labels[rows], 1.0, intercept=10.0)
    posterior = eb.run(problem, eb.MeanField(tol=1e-5))
    assert posterior.info.converged
