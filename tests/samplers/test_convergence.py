"""Exactness, order of convergence, fixed points, free energy: what makes the steppers right."""

from itertools import pairwise

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import closure
from enkbayes.core.quadrature import gauss_logit
from enkbayes.reproduction.theory import equilibrium_flow, homotopy_flow, mean_field_path, solve_flow
from enkbayes.samplers.equilibrium import frozen_flow
from enkbayes.solvers.step_control import evaluate, free_energy
from oracles.problems import NEGATIVE_ELBO, logistic_data, method_problem


def linear_gaussian(J=12, D=4, N=15):
    """A linear-Gaussian problem, a whitened start, and the exact posterior."""
    rng = np.random.default_rng(0)
    root = rng.standard_normal((D, D)) + 2 * np.eye(D)
    prior = eb.Gaussian(rng.standard_normal(D), root @ root.T)
    features, labels = rng.standard_normal((N, D)), rng.standard_normal(N)
    weights = rng.uniform(0.5, 2, N)
    problem = eb.Problem.create(features, labels, prior, likelihood=eb.Normal(0.3), weights=weights)
    H = features.T @ (weights[:, None] * features) / 0.3
    cov = np.linalg.inv(H + np.linalg.inv(prior.cov))
    mean = cov @ (features.T @ (weights * labels) / 0.3 + np.linalg.inv(prior.cov) @ prior.mean)
    return problem, mean, cov


@pytest.mark.parametrize(
    "sampler",
    [
        eb.Homotopy(steps=1),
        eb.Homotopy(steps=1, midpoint=False),
        eb.Homotopy(steps=3, batch=4),
        eb.Equilibrium(tol=1e-11),
        eb.Equilibrium(tau=1.0, tol=1e-11, max_steps=2),
        eb.MeanField(tol=1e-11),
    ],
    ids=repr,
)
def test_exact_on_linear_gaussian_problems(sampler):
    problem, mean, cov = linear_gaussian()
    posterior = eb.run(problem, sampler, particles=12)
    assert posterior.mean == pytest.approx(mean, abs=1e-9)
    assert posterior.cov == pytest.approx(cov, abs=1e-9)
    theta = posterior.theta
    assert np.cov(theta.T, bias=True) == pytest.approx(cov, abs=1e-9)


def slope(steps, errors):
    return np.polyfit(np.log(steps), np.log(errors), 1)[0]


@pytest.mark.parametrize("likelihood", [eb.Bernoulli(), eb.Categorical(3)], ids=repr)
@pytest.mark.parametrize(
    ("sampler", "order", "steps"),
    [
        (lambda K: eb.Homotopy(steps=K, grading=1.0), 2, (16, 32, 64)),
        (lambda K: eb.Homotopy(steps=K), 2, (16, 32, 64)),
        (lambda K: eb.Homotopy(steps=K, midpoint=False), 1, (32, 64, 128)),
        (lambda K: eb.TamedHomotopy(ds=1 / K), 1, (64, 128, 256)),
    ],
    ids=["midpoint", "midpoint, graded", "first order", "tamed"],
)
def test_homotopies_converge_with_their_order(sampler, order, steps, likelihood):
    features, labels = logistic_data(3, 30, seed=2)
    labels = labels if likelihood.outputs is None else np.arange(30) % 3
    problem = eb.Problem.create(features, labels, 1.0, likelihood=likelihood)
    theta = problem.prior.sample(15, np.random.default_rng(0))
    exact = solve_flow(problem, AffineEnsemble.factor(theta), [1.0], flow=homotopy_flow)[0].theta
    errors = [np.abs(eb.run(problem, sampler(K), theta=theta).theta - exact).max() for K in steps]
    assert slope(steps, errors) == pytest.approx(-order, abs=0.2)


@pytest.mark.parametrize("name", ["trotter", "frozen flow"])
def test_equilibrium_samplers_follow_their_flow_to_first_order(name):
    """At s = 1 the particles themselves, not only their moments, approach those of the ODE, with error O(ds)."""
    features, labels = logistic_data(3, 30, seed=2)
    problem = eb.Problem.create(features, labels, 1.0)
    theta = problem.prior.sample(15, np.random.default_rng(0))
    exact = solve_flow(problem, AffineEnsemble.factor(theta), [1.0], flow=equilibrium_flow)[0].theta
    errors = []
    for K in (32, 64, 128):
        fixed = eb.Equilibrium(tau=1 - np.exp(-1 / K), max_steps=K)
        sampler = eb.TrotterSampler(ds=1 / K, max_steps=K) if name == "trotter" else fixed
        *_, last = eb.iterate(problem, sampler, theta=theta)
        assert last.steps == K
        errors.append(np.abs(last.ensemble.theta - exact).max())
    assert slope((32, 64, 128), errors) == pytest.approx(-1, abs=0.15)


def test_fixed_point_does_not_depend_on_tau():
    problem = method_problem("T1")
    start = AffineEnsemble(problem.prior.mean, problem.prior.dense_root, np.zeros((2, 20)))
    limits = []
    for tau in (0.3, 0.6, 0.9):
        point = evaluate(problem, start, closure)
        while point.residual > 1e-11:
            point = evaluate(problem, point.ensemble.affine(*frozen_flow(point.moments, tau)), closure)
        limits.append(point)
    for point in limits[1:]:
        assert point.ensemble.mean == pytest.approx(limits[0].ensemble.mean, abs=1e-9)
        assert point.ensemble.cov == pytest.approx(limits[0].ensemble.cov, abs=1e-9)


def test_equilibrium_equations_of_the_paper():
    """m* = m0 - P0 mu*[grad Psi], P* = (mu*[Hess Psi] + P0^{-1})^{-1}."""
    problem = method_problem("T3")
    posterior = eb.run(problem, eb.MeanField(tol=1e-10))
    X = problem.features
    variance = np.sum((X @ posterior.ensemble.basis) ** 2, axis=1)
    y, r, _ = gauss_logit(X @ posterior.mean, variance)
    assert posterior.mean == pytest.approx(-2.0 * X.T @ (y - problem.targets), abs=1e-8)
    assert posterior.cov == pytest.approx(np.linalg.inv(X.T @ (r[:, None] * X) + np.eye(50) / 2), abs=1e-8)


@pytest.mark.parametrize("name", NEGATIVE_ELBO)
def test_free_energy_values_and_descent(name):
    problem = method_problem(name)
    states = list(eb.iterate(problem, eb.MeanField(max_steps=200)))
    energies = [s.control.point.free_energy for s in states if not s.control.searching]
    assert states[-1].converged
    assert energies[-1] == pytest.approx(NEGATIVE_ELBO[name], abs=1e-6)
    assert all(b <= a + 1e-9 for a, b in pairwise(energies))
    away = states[-1].ensemble.theta * 0.1 + np.random.default_rng(0).standard_normal(problem.dim)
    again = eb.run(problem, eb.MeanField(max_steps=300), theta=away)
    assert again.state.control.point.free_energy == pytest.approx(NEGATIVE_ELBO[name], abs=1e-6)


def test_thermodynamic_integration_along_the_tempered_path_is_the_free_energy():
    problem = method_problem("T1")
    nodes, weights = np.polynomial.legendre.leggauss(24)
    total = 0.0
    for x, w in zip(nodes, weights, strict=True):
        s = ((x + 1) / 2) ** 3  # graded: E_s[Psi] is steep near the prior
        tempered = eb.Problem.create(problem.features, problem.targets, 1.0, weights=np.full(300, s))
        ensemble = eb.run(tempered, eb.MeanField(tol=1e-8)).ensemble
        total += w / 2 * 3 * ((x + 1) / 2) ** 2 * float(problem.moments(ensemble, closure).loss)
    assert total == pytest.approx(NEGATIVE_ELBO["T1"], abs=1e-4)


def test_mean_field_ode_ends_at_the_mean_field_equilibrium():
    problem = method_problem("T0")
    last = mean_field_path(problem, eb.Gaussian(np.asarray([1.0, -2.0]), 5.0), [0.0, 40.0])[-1]
    posterior = eb.run(problem, eb.MeanField(tol=1e-10))
    assert last.mean == pytest.approx(posterior.mean, abs=1e-6)
    assert last.cov == pytest.approx(posterior.cov, abs=1e-6)


def test_free_energy_is_minus_the_log_evidence_for_gaussians():
    problem, mean, cov = linear_gaussian()
    posterior = eb.run(problem, eb.MeanField(tol=1e-11))
    e = posterior.ensemble
    energy = free_energy(problem.moments(e, closure), problem.prior_moments(e))
    at_mean = float(problem.loss(mean[None, :])[0]) - float(problem.prior.log_density(mean[None, :])[0])
    log_evidence = -at_mean + 0.5 * np.linalg.slogdet(2 * np.pi * cov)[1]
    assert energy == pytest.approx(-log_evidence, abs=1e-8)


def test_softmax_with_two_classes_is_the_binary_problem():
    features, labels = logistic_data(3, 40, seed=5)
    binary = eb.run(eb.Problem.create(features, labels, 2.0), eb.MeanField())
    double = eb.run(eb.Problem.create(features, labels, 1.0, likelihood=eb.Categorical(2)), eb.MeanField())
    difference = np.kron(np.eye(3), [[-1.0, 1.0]])
    assert difference @ double.mean == pytest.approx(binary.mean, rel=1e-3, abs=1e-3)
    assert difference @ double.cov @ difference.T == pytest.approx(binary.cov, rel=2e-3, abs=1e-3)
    assert double.predict_proba(features) == pytest.approx(binary.predict_proba(features), abs=1e-3)


def test_softmax_ensemble_with_two_classes_is_the_binary_ensemble():
    """With the same differences w1 - w0 the two ensembles have the same moments, exactly."""
    features, labels = logistic_data(3, 40, seed=5)
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((12, 3))
    binary = eb.Problem.create(features, labels, 2.0)
    double = eb.Problem.create(features, labels, 1.0, likelihood=eb.Categorical(2))
    one = eb.run(binary, eb.Homotopy(steps=5), theta=theta)
    other = eb.run(double, eb.Homotopy(steps=5), theta=np.kron(theta / 2, [[-1.0, 1.0]]))
    assert other.theta @ np.kron(np.eye(3), [[-1.0], [1.0]]) == pytest.approx(one.theta, abs=1e-10)
