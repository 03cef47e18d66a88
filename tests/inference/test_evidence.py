"""Evidence against grids, closed forms, independent values, and one method against another."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale

import enkbayes as eb
from enkbayes.inference.evidence import (
    Evidence,
    elbo,
    importance_sampling,
    log_evidence,
    path_sampling,
    proposal,
)
from oracles.problems import NEGATIVE_ELBO, method_problem

# By tempered sequential Monte Carlo from the mean-field Gaussian: 4 runs of 2000 particles, 15 sweeps a level, about
# 1.5 minutes each; standard errors .007, .032, .017. Path sampling with 25 sweeps a node and no weights between nodes
# gives -19.17, -20.48, -29.40, because its chains lag behind.
LONG_RUNS = {"T3": (-19.090, 0.007), "T4": (-19.150, 0.032), "T5": (-29.052, 0.017)}
BY_MANY_WEIGHTS = {"T0": -9.182, "T1": -125.024, "T2": -159.881}  # 1e5 draws: errors of .001 to .002


def mean_field(name):
    problem = method_problem(name)
    return problem, eb.run(problem, eb.MeanField())


def grid(problem, half=8.0, points=401):
    """Trapezoid rule over +-8 prior sds in two dimensions: error 1e-4 at most here, as 2001 points show."""
    axis = np.linspace(-half, half, points) * math.sqrt(float(problem.prior.cov[0]))
    first, second = np.meshgrid(axis, axis)
    theta = np.column_stack([first.ravel(), second.ravel()])
    parts = np.array_split(theta, 60)
    heights = np.concatenate([problem.prior.log_density(t) - problem.loss(t) for t in parts])
    return logsumexp(heights) + 2 * math.log(axis[1] - axis[0])


@pytest.mark.parametrize("name", ["T0", "T6"])
def test_weights_and_path_agree_with_the_grid(name):
    problem, posterior = mean_field(name)
    truth = grid(problem)
    for evidence in (importance_sampling(problem, posterior), path_sampling(problem, posterior)):
        assert abs(evidence.value - truth) < 3 * evidence.error
        assert evidence.error < 0.03
    assert elbo(problem, posterior).value < truth


@pytest.mark.parametrize("name", BY_MANY_WEIGHTS)
def test_near_gaussian_problems_are_left_to_the_weights(name):
    evidence = log_evidence(*mean_field(name))
    assert evidence.method == "PSIS"
    assert abs(evidence.value - BY_MANY_WEIGHTS[name]) < 3 * math.hypot(evidence.error, 0.002)
    assert evidence.error < 0.01


@pytest.mark.parametrize("name", LONG_RUNS)
def test_problems_far_from_gaussian_are_left_to_the_path(name):
    evidence = log_evidence(*mean_field(name), seed=1)
    value, error = LONG_RUNS[name]
    assert evidence.method == "path sampling"
    # the error bar comes from 8 populations, so the score is Student's with 7 degrees of freedom: P(|t| > 4) = .005
    assert abs(evidence.value - value) < 4 * math.hypot(evidence.error, error)
    assert evidence.error < (0.5 if name == "T4" else 0.15)


def test_the_path_agrees_with_the_weights_where_both_are_good():
    problem, posterior = mean_field("T2")
    a, b = importance_sampling(problem, posterior), path_sampling(problem, posterior, sweeps=12)
    assert abs(a.value - b.value) < 3 * math.hypot(a.error, b.error)


def test_error_bars_are_about_right():
    """Ten runs on T6: their spread around the grid's value is that of their error bars, within a factor of 2."""
    problem, posterior = mean_field("T6")
    truth = grid(problem)
    runs = [path_sampling(problem, posterior, chains=32, sweeps=12, seed=seed) for seed in range(10)]
    scores = [(run.value - truth) / run.error for run in runs]
    assert 0.4 < math.sqrt(np.mean(np.square(scores))) < 2


@pytest.mark.parametrize("name", NEGATIVE_ELBO)
def test_elbo_has_the_values_of_the_method(name):
    bound = elbo(*mean_field(name))
    assert bound.value == pytest.approx(-NEGATIVE_ELBO[name], abs=2e-5)
    assert bound.bound
    assert math.isnan(bound.error)


def test_integrating_the_loss_over_fitted_tempered_gaussians_gives_the_elbo():
    """The envelope theorem: d(-ELBO)/ds at the fitted Gaussian of prior exp(-s Psi) is its E[Psi]."""
    problem = method_problem("T1")
    x, w = np.polynomial.legendre.leggauss(16)
    t = (x + 1) / 2
    losses = []
    for s in t**3:
        posterior = eb.run(problem.with_arrays(weights=np.full(problem.size, s)), eb.MeanField())
        losses.append(elbo_loss(problem, posterior))
    integral = np.sum(w / 2 * 3 * t**2 * np.asarray(losses))
    assert -integral == pytest.approx(-NEGATIVE_ELBO["T1"], abs=1e-4)


def elbo_loss(problem, posterior):
    from enkbayes.core.expectations import closure

    return float(problem.moments(posterior.ensemble, closure).loss)


def normal_problem():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((12, 3))
    targets = features @ [1.0, -2.0, 0.5] + 0.7 * rng.standard_normal(12)
    prior = eb.Gaussian([0.5, 0.0, -1.0], np.diag([1.0, 2.0, 0.5]) + 0.1)
    problem = eb.Problem.create(features, targets, prior, likelihood=eb.Normal(0.49))
    cov = features @ prior.dense_cov @ features.T + 0.49 * np.eye(12)
    return problem, multivariate_normal(features @ prior.mean, cov).logpdf(targets)


def test_every_method_is_exact_for_a_gaussian_likelihood():
    problem, truth = normal_problem()
    posterior = eb.run(problem, eb.MeanField())
    assert elbo(problem, posterior).value == pytest.approx(truth, abs=1e-8)  # the bound is tight
    evidence = log_evidence(problem, posterior)
    assert evidence.method == "PSIS"
    assert evidence.value == pytest.approx(truth, abs=1e-6)
    assert abs(path_sampling(problem, posterior).value - truth) < 0.02  # from a widened q: no longer exact


def test_softmax_agrees_with_a_grid_and_with_itself():
    rng = np.random.default_rng(3)
    features = rng.standard_normal((15, 1))
    labels = rng.random(15) < 0.5 + 0.3 * np.sign(features[:, 0])
    problem = eb.Problem.create(features, labels, 4.0, likelihood=eb.Categorical(2))
    posterior = eb.run(problem, eb.MeanField())
    for evidence in (log_evidence(problem, posterior), path_sampling(problem, posterior)):
        assert abs(evidence.value - grid(problem)) < 3 * evidence.error


def test_three_classes_weights_and_path_agree_above_the_bound():
    X, y = load_iris(return_X_y=True)
    problem = eb.Problem.create(scale(X), y, 1.0, intercept=100.0)
    posterior = eb.run(problem, particles=100)
    by_weights = importance_sampling(problem, posterior, draws=20_000)
    by_path = path_sampling(problem, posterior, sweeps=12)
    assert abs(by_weights.value - by_path.value) < 3 * math.hypot(by_weights.error, by_path.error)
    assert by_weights.error < 0.02
    assert elbo(problem, posterior).value < by_path.value


def test_a_covariance_with_a_structure_serves_as_proposal():
    problem = method_problem("T1")
    posterior = eb.run(problem, eb.MeanField(rank=4), particles=10)
    assert posterior.ensemble.complement is not None
    assert proposal(problem, posterior) is posterior
    for evidence in (log_evidence(problem, posterior), path_sampling(problem, posterior, sweeps=12)):
        assert abs(evidence.value + 125.0227) < 4 * evidence.error
    bound = elbo(problem, posterior)
    assert bound.value < -NEGATIVE_ELBO["T1"] + 3 * bound.error  # not above the best Gaussian's


@pytest.mark.parametrize("sampler", [eb.Homotopy(), eb.StochasticSampler(ds=0.1)])
def test_posteriors_that_are_no_full_gaussian_get_a_proposal(sampler):
    problem = method_problem("T1")
    particles = 10 if isinstance(sampler, eb.Homotopy) else 50
    posterior = eb.run(problem, sampler, particles=particles)
    assert proposal(problem, posterior) is not posterior
    evidence = log_evidence(problem, posterior)
    assert abs(evidence.value + 125.0227) < 4 * evidence.error


def test_nonlinear_logits_have_an_evidence_too():
    linear, _ = mean_field("T0")
    features = linear.features
    problem = eb.Problem.nonlinear(lambda theta: features @ theta.T, linear.targets.astype(int), linear.prior)
    posterior = eb.run(problem, particles=100)
    for evidence in (log_evidence(problem, posterior), path_sampling(problem, posterior)):
        assert abs(evidence.value + 9.18357) < 3 * evidence.error
    bound = elbo(problem, posterior)
    assert abs(bound.value + 9.1968) < 4 * bound.error
    with pytest.raises(ValueError, match="more particles than the 2 parameters"):
        log_evidence(problem, None)


def test_single_precision_torch_gives_the_same():
    torch = pytest.importorskip("torch")
    problem, posterior = mean_field("T1")
    features = torch.as_tensor(problem.features, dtype=torch.float32)
    other = eb.Problem.create(features, problem.targets.astype(int), 1.0)
    evidence = log_evidence(other, eb.run(other, eb.MeanField()))
    same = log_evidence(problem, posterior)  # not the same draws: the two libraries turn the basis differently
    assert abs(evidence.value - same.value) < 3 * math.hypot(evidence.error, same.error)


def test_evidence_speaks():
    assert str(Evidence(-3.14159, 0.012, "PSIS")) == "-3.14 ± 0.012 (PSIS)"
    assert str(Evidence(-3.14159, math.nan, "ELBO", bound=True)) == "at least -3.14 (ELBO)"
