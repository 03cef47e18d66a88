"""Every method that can be compared, for the laws that hold for all of them."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import scipy.sparse

import enkbayes as eb
from enkbayes.engine.arrays import namespace, to_numpy
from enkbayes.evaluation.baselines import ALDI, BY_NAME, HMC, Ensemble
from enkbayes.samplers import BY_NAME as SAMPLERS
from laws.cases import make, raw_data

NAMES = [name for name in BY_NAME if name not in ("hmc", "deep-ensemble")]  # these two have tests of their own
POINTS = ("mle", "map", "temperature")
QUICK = {
    "aldi": ALDI(max_steps=60),
    "eks": ALDI(max_steps=60, correction=False),
    "stochastic": eb.StochasticSampler(max_steps=60),
    "tamed-homotopy": eb.TamedHomotopy(ds=0.02),
}


def quick(name):
    """A method with settings that are fast on small problems."""
    method = BY_NAME[name]()
    return Ensemble(name, QUICK.get(name, method.sampler), particles=40) if isinstance(method, Ensemble) else method


def small_problem(likelihood, convert=lambda x: x, prior=1.0):
    features, labels = raw_data(likelihood)
    return make(likelihood, convert(features), labels, prior, intercept=prior)


def check(method, problem, posterior):
    """What holds for anything that a method returns."""
    K = problem.likelihood.n_classes
    features = problem.features
    assert isinstance(posterior, eb.Posterior)
    proba = to_numpy(posterior.predict_proba(features))
    members = to_numpy(posterior.sample_proba(features))
    assert proba.shape == (problem.size, K)
    assert members.shape == (posterior.theta.shape[0], problem.size, K)
    assert proba.sum(axis=-1) == pytest.approx(np.ones(problem.size), abs=1e-6)
    assert np.all(proba >= 0)
    if not posterior.gaussian:
        assert members.mean(axis=0) == pytest.approx(proba, abs=1e-6)
    assert posterior.info.sampler.startswith(type(getattr(method, "sampler", method)).__name__)
    labels = to_numpy(problem.targets)
    assert np.mean(proba.argmax(axis=1) == labels) > 0.6
    uncertainty = posterior.predict_uncertainty(features)
    assert np.all(to_numpy(uncertainty.epistemic) >= 0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical"])
@pytest.mark.parametrize("name", NAMES)
def test_fits_predicts_and_repeats_itself(name, likelihood):
    method, problem = quick(name), small_problem(likelihood)
    first, second = method.fit(problem, seed=3), method.fit(problem, seed=3)
    check(method, problem, first)
    assert np.array_equal(first.theta, second.theta)
    assert first.ensemble.size == 1 if name in POINTS else first.ensemble.size >= 40


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("mle", "temperature")])
def test_the_prior_is_the_problem_s(name):
    problem = small_problem("categorical")
    centre = np.linspace(-1, 1, problem.dim)
    posterior = quick(name).fit(problem.with_prior(eb.Gaussian(centre, 1e-6)))
    assert posterior.mean == pytest.approx(centre, abs=1e-3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["mle", "map", "laplace", "laplace-probit", "aldi", "particle-flow", "svgd"])
def test_weight_two_is_two_rows_and_sparse_features_are_features(name):
    features, labels = raw_data("categorical")
    twice = make("categorical", np.vstack([features] * 2), np.tile(labels, 2), 1.0, intercept=1.0)
    weighted = make(
        "categorical", scipy.sparse.csr_array(features), labels, 1.0, intercept=1.0, weights=np.full(len(labels), 2.0)
    )
    expected, actual = (quick(name).fit(problem).predict_proba(features) for problem in (twice, weighted))
    assert actual == pytest.approx(expected, abs=1e-7)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SAMPLERS])  # samplers: see test_backends.py
def test_torch_arrays_stay_torch_arrays(name):
    torch = pytest.importorskip("torch")
    expected = quick(name).fit(small_problem("bernoulli"))
    problem = small_problem("bernoulli", torch.asarray)
    posterior = quick(name).fit(problem)
    assert namespace(posterior.theta) is namespace(problem.features)
    assert to_numpy(posterior.theta) == pytest.approx(expected.theta, abs=1e-6)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_name_is_a_method_of_that_name(name):
    method = BY_NAME[name]()
    assert method.name == name
    assert is_dataclass(method)
    assert "name" in {field.name for field in fields(method)}
    assert method == BY_NAME[name]()
    assert isinstance(getattr(method, "needs", ()), tuple)


def test_the_names_are_those_that_tables_and_legends_know():
    expected = (
        "mle map temperature laplace laplace-probit hmc aldi eks particle-flow svgd equilibrium homotopy mean-field"
    )
    assert set(BY_NAME) - {"deep-ensemble"} == {*expected.split(), "trotter", "tamed-homotopy", "stochastic"}


def test_hmc_repeats_itself_with_three_classes():
    pytest.importorskip("numpyro")
    method, problem = HMC(samples=50, chains=2, warmup=100), small_problem("categorical")
    with pytest.warns(match="HMC did not converge: R-hat is"):
        first = method.fit(problem, seed=3)
    with pytest.warns(match="R-hat"):
        second = method.fit(problem, seed=3)
    check(method, problem, first)
    assert np.array_equal(first.theta, second.theta)
    assert first.theta.shape == (100, problem.dim)
    assert not first.info.converged
