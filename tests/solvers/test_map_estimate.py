"""The gradient of the loss, and the maximum of the posterior."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import enkbayes as eb
from enkbayes.core.expectations import at_mean
from enkbayes.core.low_rank import LowRankGaussian
from enkbayes.engine.arrays import namespace, to_numpy
from enkbayes.solvers.laplace import laplace, whitened_moments
from enkbayes.solvers.map_estimate import map_estimate
from laws.cases import LIKELIHOODS, full_prior, make, raw_data
from oracles.problems import method_problem


def potential(problem, theta):
    return problem.loss(theta) - problem.prior.log_density(theta)


def differences(function, theta, h=1e-5):
    """Central differences (P,) of a function of particles (J, P) -> (J,) at theta (P,)."""
    steps = h * np.eye(theta.size)
    return (function(theta + steps) - function(theta - steps)) / (2 * h)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("sparse", [False, True])
def test_gradient_against_finite_differences(likelihood, sparse):
    features, labels = raw_data(likelihood)
    features = scipy.sparse.csr_array(features) if sparse else features
    weights = np.linspace(0.5, 2.0, 40)
    problem = make(likelihood, features, labels, 1.0, intercept=3.0, weights=weights, chunk=16)
    theta = np.random.default_rng(0).standard_normal((3, problem.dim))
    loss, gradient = problem.loss_and_gradient(theta)
    assert loss == pytest.approx(problem.loss(theta))
    for j in range(3):
        assert gradient[j] == pytest.approx(differences(problem.loss, theta[j]), abs=1e-6)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("sparse", [False, True])
def test_hessian_against_finite_differences_and_ensemble_moments(likelihood, sparse):
    features, labels = raw_data(likelihood)
    prior = full_prior(likelihood, D=3).stack(eb.Gaussian.isotropic(LIKELIHOODS[likelihood].outputs or 1, 3.0))
    options = {"weights": np.linspace(0.5, 2.0, 40), "intercept": 3.0, "chunk": 16}
    sparse_features = scipy.sparse.csr_array(features) if sparse else features
    problem = make(likelihood, sparse_features, labels, full_prior(likelihood), **options)
    theta = np.random.default_rng(0).standard_normal(problem.dim)
    H = problem.moments(LowRankGaussian(theta, np.eye(problem.dim)), at_mean).S
    h = 1e-5 * np.eye(problem.dim)
    expected = (problem.loss_and_gradient(theta + h)[1] - problem.loss_and_gradient(theta - h)[1]) / 2e-5
    assert pytest.approx(expected, abs=1e-6) == H
    point = eb.AffineEnsemble(theta, prior.dense_root, np.zeros((1, problem.dim)))  # one particle, at theta
    same, moments = problem.potential_moments(point), whitened_moments(problem, theta)
    assert moments.g == pytest.approx(same.g, abs=1e-9)
    assert pytest.approx(same.S, abs=1e-9) == moments.S


@pytest.mark.parametrize("outputs", [None, 3])
def test_gradient_of_nonlinear_logits(outputs):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((30, 4))
    P = 4 * (outputs or 1)

    def logits(theta):
        return np.tanh(np.moveaxis((x @ theta.reshape(-1, 4, outputs or 1)), 0, 1))[..., slice(None) if outputs else 0]

    def jacobian(theta, tangents, h=1e-6):
        columns = [(logits(theta + h * t) - logits(theta - h * t)) / (2 * h) for t in tangents.T]
        return np.stack(columns, axis=-1)

    labels = rng.integers(0, outputs or 2, 30)
    problem = eb.Problem.nonlinear(logits, labels, eb.Gaussian.isotropic(P), jacobian)
    theta = rng.standard_normal((2, P))
    _, gradient = problem.loss_and_gradient(theta)
    assert gradient[1] == pytest.approx(differences(problem.loss, theta[1]), abs=1e-6)
    estimate = map_estimate(problem)
    assert estimate.converged
    assert np.abs(differences(lambda t: potential(problem, t), estimate.theta)).max() < 1e-4
    with pytest.raises(ValueError, match="Jacobian"):
        eb.Problem.nonlinear(logits, labels, eb.Gaussian.isotropic(P)).loss_and_gradient(theta)


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
@pytest.mark.parametrize("variance", [0.1, 10.0])
def test_against_scikit_learn(load, variance):
    features, labels = load(return_X_y=True)
    features = StandardScaler().fit_transform(features)
    with_constant = np.hstack([features, np.ones((len(features), 1))])
    model = LogisticRegression(C=variance, fit_intercept=False, tol=1e-10, max_iter=10000, solver="newton-cholesky")
    expected = model.fit(with_constant, labels).coef_
    estimate = map_estimate(eb.Problem.create(features, labels, variance, intercept=variance))
    assert estimate.converged
    assert estimate.residual < 1e-8
    theta = estimate.theta.reshape(-1, len(expected)).T
    assert theta == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_is_the_maximum_under_a_full_prior(likelihood):
    features, labels = raw_data(likelihood)
    problem = make(likelihood, features, labels, full_prior(likelihood), weights=np.linspace(0.5, 2.0, 40), chunk=16)
    estimate = map_estimate(problem)
    assert differences(lambda t: potential(problem, t), estimate.theta) == pytest.approx(
        np.zeros(problem.dim), abs=1e-6
    )
    from_elsewhere = map_estimate(problem, start=estimate.theta + 1.0)
    assert from_elsewhere.theta == pytest.approx(estimate.theta, abs=1e-8)


@pytest.mark.parametrize("name", ["T2", "T4", "T6"])
def test_separable_data_and_weak_priors(name):
    problem = method_problem(name)
    estimate = map_estimate(problem)
    assert estimate.converged
    assert np.linalg.norm(whitened_moments(problem, estimate.theta).g) < 1e-7


def test_more_parameters_than_newton_takes():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 1200))
    problem = eb.Problem.create(features, features[:, 0] > 0, 0.5)
    estimate = map_estimate(problem)
    assert estimate.converged
    _, gradient = problem.loss_and_gradient(estimate.theta[None, :])
    assert np.linalg.norm(gradient[0] * 0.5**0.5 + estimate.theta / 0.5**0.5) == pytest.approx(estimate.residual)
    assert estimate.residual < 1e-5


@pytest.mark.parametrize("steps", [2, 6])
def test_says_when_it_has_not_converged(steps):
    estimate = map_estimate(method_problem("T1"), max_steps=steps, dense=0)
    assert estimate.residual > 0.01
    assert not estimate.converged
    assert "posterior sds from the maximum" in estimate.message


@pytest.mark.parametrize(
    ("library", "likelihood"),
    [
        ("torch", "bernoulli"),
        ("torch", "categorical"),
        ("strict", "bernoulli"),
        ("strict", "categorical"),
        ("jax", "bernoulli"),
    ],
)
def test_same_numbers_on_every_library(library, likelihood):
    if library == "strict":
        convert = pytest.importorskip("array_api_strict").asarray
    elif library == "jax":
        convert = pytest.importorskip("jax").numpy.asarray
    else:
        convert = pytest.importorskip("torch").asarray
    features, labels = raw_data(likelihood)
    expected = map_estimate(make(likelihood, features, labels, full_prior(likelihood)))
    actual = map_estimate(make(likelihood, convert(features), labels, full_prior(likelihood)))
    assert namespace(actual.theta) is namespace(convert(features))
    assert to_numpy(actual.theta) == pytest.approx(expected.theta, abs=1e-7)


def test_single_precision_stays_single():
    features, labels = raw_data("categorical")
    expected = map_estimate(make("categorical", features, labels, 1.0))
    actual = map_estimate(make("categorical", features.astype(np.float32), labels, 1.0))
    assert actual.theta.dtype == np.float32
    assert actual.converged
    assert actual.theta == pytest.approx(expected.theta, abs=1e-4)


def test_the_laplace_approximation_begins_with_the_directions_that_the_data_determine_best():
    problem = method_problem("T1")
    gaussian = laplace(problem, map_estimate(problem).theta)
    shares = np.sum(problem.prior.whiten(gaussian.basis) ** 2, axis=0)  # of the prior variance that is left
    assert np.all(np.diff(shares) >= 0)
    assert shares[0] < 0.5 * shares[-1]
