"""The worked example of a likelihood from outside the package: the page runs, and its class works everywhere."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm, poisson
from sklearn.linear_model import PoissonRegressor

import enkbayes as eb
from enkbayes.core.expectations import closure
from enkbayes.evaluation.baselines import MAP, Laplace
from laws.own_likelihood import Poisson, blocks, run

SAMPLERS = {
    "mean field": eb.MeanField(tol=1e-8),
    "mean field of low rank": eb.MeanField(rank=2, tol=1e-8),
    "equilibrium": eb.Equilibrium(tol=1e-8),
    "equilibrium, fixed tau": eb.Equilibrium(tau=0.5, tol=1e-8, max_steps=500),
    "trotter": eb.TrotterSampler(ds=0.01, max_steps=3000, tol=1e-6),
    "homotopy": eb.Homotopy(steps=20),
    "tamed homotopy": eb.TamedHomotopy(ds=1e-3),
    "tamed homotopy, diagonal": eb.TamedHomotopy(ds=1e-3, diagonal=True),
}
EQUILIBRIA = ("mean field", "equilibrium", "trotter")


def counted(N=200, seed=1):
    rng = np.random.default_rng(seed)
    features = 0.5 * rng.standard_normal((N, 3))
    return features, rng.poisson(np.exp(0.3 + features @ [0.5, -0.3, 0.2]))


SETTINGS = {"intercept": 0.3, "likelihood": Poisson()}


@pytest.fixture(scope="module")
def problem():
    features, counts = counted()
    return eb.Problem.create(features, counts, 0.3, **SETTINGS)


def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run(*blocks())
    features, truth = names["features"], np.exp(0.5 + names["features"] @ [0.5, -0.3, 0.2])
    assert np.abs(names["rates"] / truth - 1).max() < 0.3
    assert names["uncertainty"].aleatoric == pytest.approx(names["rates"], rel=0.02)  # variance = mean
    assert np.all(names["uncertainty"].epistemic > 0)
    assert names["streamed"].theta == pytest.approx(names["posterior"].theta, abs=1e-6)
    loaded = names["loaded"]
    assert isinstance(loaded.likelihood, names["Poisson"])
    np.testing.assert_array_equal(loaded.predict_proba(features)[:, 0], names["rates"])


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_deterministic_sampler_takes_it(problem, name):
    reference = eb.run(problem, eb.MeanField(tol=1e-8))
    posterior = eb.run(problem, SAMPLERS[name], particles=100)
    assert posterior.info.converged
    sd = np.sqrt(np.diag(reference.cov))
    near = 0.1 if any(name.startswith(kind) for kind in EQUILIBRIA) else 1.0  # a homotopy is another approximation
    assert np.abs(posterior.mean - reference.mean).max() < near * sd.max()


def test_the_stochastic_sampler_takes_it_and_says_when_a_step_is_too_large(problem):
    posterior = eb.run(problem, eb.StochasticSampler(ds=0.01, max_steps=500), particles=100)
    assert np.abs(posterior.mean - eb.run(problem).mean).max() < 0.2
    wide = problem.with_prior(eb.Gaussian.isotropic(problem.dim, 100.0))
    with pytest.warns(match="StochasticSampler did not converge: the ensemble left the range"):
        eb.run(wide, eb.StochasticSampler(ds=0.05), particles=100)


def test_the_most_probable_weights_are_those_of_scikit_learn():
    features, counts = counted()
    estimate = MAP().fit(eb.Problem.create(features, counts, 0.5, likelihood=Poisson()))
    # its objective is the mean deviance / 2 + alpha |w|^2 / 2
    other = PoissonRegressor(alpha=1 / (0.5 * len(counts)), fit_intercept=False, tol=1e-10).fit(features, counts)
    assert estimate.mean == pytest.approx(other.coef_, abs=1e-5)


def test_evidence_and_mean_of_one_weight_against_numerical_integration():
    d = np.asarray([3, 1, 4, 1, 5])
    problem = eb.Problem.create(np.ones((5, 1)), d, 1.0, likelihood=Poisson())
    joint = lambda w: np.exp(poisson.logpmf(d, np.exp(w)).sum()) * norm.pdf(w)  # noqa: E731
    evidence = quad(joint, -5, 5, epsabs=0, epsrel=1e-10)[0]
    mean = quad(lambda w: np.exp(w) * joint(w) / evidence, -5, 5)[0]
    assert eb.log_evidence(problem).value == pytest.approx(np.log(evidence), abs=0.01)
    assert eb.run(problem).predict_proba([[1.0]])[0, 0] == pytest.approx(mean, rel=0.01)
    assert Laplace().fit(problem).predict_proba([[1.0]])[0, 0] == pytest.approx(mean, rel=0.1)


def test_derived_averages_are_the_closed_form():
    """E exp(z) = exp(m + v / 2)."""
    m, V = np.linspace(-3, 3, 7), np.linspace(0.01, 3, 7)[:, None]
    _, slope, curvature = Poisson().gaussian_averages(m, np.ones(7), V=V)
    assert curvature == pytest.approx(np.exp(m + V[:, 0] ** 2 / 2), rel=1e-11)
    assert slope + 1 == pytest.approx(curvature, rel=1e-11)
    assert Poisson().predictive(m, V=V)[:, 0] == pytest.approx(curvature, rel=1e-11)


def test_chunks_streams_shards_and_weights_give_the_same_posterior(problem):
    features, counts = counted()
    whole = eb.run(problem)
    chunks = [(features[i : i + 60], counts[i : i + 60]) for i in range(0, 200, 60)]
    doubled = eb.Problem.create(
        features,
        counts,
        eb.Gaussian.isotropic(3, 0.15),
        weights=np.full(200, 2.0),
        intercept=0.15,
        likelihood=Poisson(),
    )
    assert doubled.moments(whole.ensemble, closure).g == pytest.approx(2 * problem.moments(whole.ensemble, closure).g)
    for other in (
        eb.Problem.create(features, counts, 0.3, chunk=64, **SETTINGS),
        eb.Problem.stream(chunks, 0.3, **SETTINGS),
        eb.Problem.create_sharded(features, counts, 0.3, **SETTINGS),
        eb.Problem.stream_sharded(chunks, 0.3, **SETTINGS),
    ):
        assert eb.run(other).theta == pytest.approx(whole.theta, abs=1e-6)


@pytest.mark.parametrize("counts", [[1.0, -1.0], [0.5, 1.0]])
def test_labels_that_are_no_counts_are_refused(counts):
    features = np.ones((2, 1))
    for create in (
        lambda: eb.Problem.create(features, counts, likelihood=Poisson()),
        lambda: eb.Problem.stream([(features, np.asarray(counts))], likelihood=Poisson()),
    ):
        with pytest.raises(ValueError, match="numbers that are not counts"):
            create()


def test_checks_of_a_posterior_take_it(problem):
    posterior = eb.run(problem)
    assert eb.assess(problem, posterior).verdict == "good"
    assert eb.polish(problem, posterior).info.sweeps > 0
    assert eb.fit_likelihood(problem) is problem


def test_a_likelihood_without_noise_says_what_is_missing():
    class Silent(Poisson):
        noise_variance = eb.Likelihood.noise_variance

    features, counts = counted(20)
    posterior = eb.run(eb.Problem.create(features, counts, likelihood=Silent()))
    with pytest.raises(NotImplementedError, match=r"Silent does not define noise_variance\(logits\)"):
        posterior.predict_uncertainty(features)
    with pytest.raises(NotImplementedError, match=r"Likelihood does not define loss\(logits, targets\)"):
        eb.Likelihood().loss(np.zeros((1, 1)), np.zeros(1))
