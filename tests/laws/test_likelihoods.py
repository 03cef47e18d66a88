"""Laws that every likelihood obeys: derivatives, probabilities, and the same sums however they are added up."""

from dataclasses import replace

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.expectations import Expectation, at_mean, closure, empirical
from enkbayes.core.likelihoods import Categorical
from enkbayes.core.likelihoods.base import Likelihood, pull_back
from enkbayes.core.linear_logits import BasisLogits
from enkbayes.engine.sharded_rows import ShardedRows
from laws.cases import ALL, make, raw_data

likelihoods = pytest.mark.parametrize("name", ALL)
expectations = pytest.mark.parametrize("expectation", [empirical, closure, Expectation(0.3), at_mean], ids=repr)


def some_logits(likelihood, n=8, J=5, scale=2.0, seed=0):
    """Random logits (n, J) or (n, J, K) and targets (n,)."""
    rng = np.random.default_rng(seed)
    shape = (n, J) if likelihood.outputs is None else (n, J, likelihood.outputs)
    classes = likelihood.n_classes
    labels = np.arange(n) % (classes or 4)
    encoded, _ = likelihood.encode(labels, n, None if classes is None else np.arange(classes))
    return scale * rng.standard_normal(shape), likelihood.targets(encoded, np.zeros(0))


@likelihoods
def test_slope_and_curvature_are_derivatives_of_the_loss(name):
    likelihood, h = ALL[name], 1e-5
    logits, targets = some_logits(likelihood)
    slope, curvature = likelihood.slope(logits, targets), likelihood.curvature(logits, targets)
    if likelihood.outputs is None:
        logits, slope, curvature = logits[..., None], slope[..., None], curvature[..., None, None]

    def shaped(z):
        return z[..., 0] if likelihood.outputs is None else z

    for k in range(logits.shape[-1]):
        step = h * np.eye(logits.shape[-1])[k]
        up, down = shaped(logits + step), shaped(logits - step)
        numeric = (likelihood.loss(up, targets) - likelihood.loss(down, targets)) / (2 * h)
        assert slope[..., k] == pytest.approx(numeric, abs=1e-8)
        numeric = (likelihood.slope(up, targets) - likelihood.slope(down, targets)) / (2 * h)
        assert curvature[..., k].reshape(numeric.shape) == pytest.approx(numeric, abs=1e-8)


@likelihoods
def test_losses_are_logarithms_of_predicted_probabilities(name):
    likelihood = ALL[name]
    if likelihood.n_classes is None:
        pytest.skip("its targets are not classes")
    logits, targets = some_logits(likelihood)
    p = likelihood.mean(logits)
    assert p.shape == (*logits.shape[:2], likelihood.n_classes)
    assert p.sum(axis=-1) == pytest.approx(np.ones(logits.shape[:2]), abs=1e-14)
    own = np.take_along_axis(p, targets.astype(int)[:, None, None], axis=-1)[..., 0]
    assert likelihood.loss(logits, targets) == pytest.approx(-np.log(own), abs=1e-12)


@likelihoods
def test_faster_ways_give_what_the_base_class_derives(name):
    """A likelihood may override what its terms imply, never change it."""
    likelihood = ALL[name]
    logits, targets = some_logits(likelihood, J=40)
    derived = Likelihood.averages(likelihood, logits, targets)
    for own, other in zip(likelihood.averages(logits.copy(), targets), derived, strict=True):
        assert own == pytest.approx(other, abs=1e-13)
    assert np.all(np.isfinite(likelihood.averages(logits.copy(), targets, energy=False)[1]))
    assert likelihood.particle_predictive(logits.copy()) == pytest.approx(
        Likelihood.particle_predictive(likelihood, logits), abs=1e-13
    )
    rng = np.random.default_rng(1)
    V = (
        0.5
        * rng.standard_normal((*logits[:, 0].shape, 7))
        * rng.uniform(0.1, 4, (len(logits), *[1] * (logits.ndim - 1)))
    )
    mean = logits[:, 0]
    derived = Likelihood.gaussian_averages(likelihood, mean, targets, V=V)
    exact = likelihood.exact_closure
    for own, other in zip(likelihood.gaussian_averages(mean, targets, V=V), derived, strict=True):
        assert own == pytest.approx(other, abs=1e-10 if exact else 0.03)  # softmax blends two averages of the curvature
    assert likelihood.predictive(mean, V=V) == pytest.approx(Likelihood.predictive(likelihood, mean, V=V), abs=1e-10)


@likelihoods
@expectations
@pytest.mark.parametrize("particles", [40, 3])  # all directions, and fewer of them than a softmax has logits
@pytest.mark.parametrize("scale", [0.3, 10.0])  # narrow and wide logits
def test_sums_in_a_basis_are_those_of_the_rows(name, expectation, particles, scale):
    """In-basis moments = basis' (sum over rows of gradient and Hessian) basis, for every way to average."""
    features, labels = raw_data(name)
    weights = np.random.default_rng(2).uniform(0.5, 2, len(features))
    problem = make(name, features, labels, 1.0, intercept=1.0, weights=weights, chunk=16)
    ensemble = eb.AffineEnsemble.factor(scale * problem.prior.sample(particles, np.random.default_rng(3)))
    linear, observed = problem.model, (problem.targets, problem.weights)
    mean_logits, V = linear.gaussian_logits(features, ensemble)
    in_basis = linear.moments_in_basis(problem.rows, ensemble, problem.likelihood, expectation)
    logits = BasisLogits(mean_logits, V, ensemble)
    loss, slope, curvature = expectation.averages(problem.likelihood, logits, *observed)
    gradient = linear.pull_back(features, slope[:, None, ...])[0, :]
    hessian = linear.pull_back_curvature(features, curvature)
    assert float(in_basis.loss) == pytest.approx(float(loss.sum()), rel=1e-12)
    assert in_basis.g == pytest.approx(ensemble.basis.T @ gradient, rel=1e-10, abs=1e-10)
    by_rows = ensemble.basis.T @ hessian @ ensemble.basis
    assert np.abs(in_basis.S - by_rows).max() < 1e-10 * np.abs(by_rows).max()
    _, _, pulled = pull_back(V, (loss, slope, curvature))
    assert np.abs(pulled - by_rows).max() < 1e-10 * np.abs(by_rows).max()
    of_the_problem = problem.moments(ensemble, expectation)
    assert of_the_problem.g == pytest.approx(in_basis.g, rel=1e-9, abs=1e-9)
    assert np.abs(of_the_problem.S - in_basis.S).max() < 1e-10 * np.abs(in_basis.S).max()


@likelihoods
@expectations
def test_no_rows_add_nothing(name, expectation):
    """A process without rows takes part in every sum."""
    features, labels = raw_data(name)
    problem = make(name, features, labels, 1.0)
    ensemble = eb.AffineEnsemble.factor(problem.prior.sample(40, np.random.default_rng(0)))
    nothing = problem.subset(np.arange(0)).rows
    empty = replace(problem, rows=ShardedRows(nothing, problem.size, target=problem.targets[:1]))
    for add in (empty.model.moments_in_basis, empty.model.moments_in_parameters):
        moments = add(empty.rows, ensemble, problem.likelihood, expectation)
        assert float(moments.loss) == 0
        assert not np.any(moments.g)
        assert not np.any(moments.S)


@likelihoods
def test_uncertainty_is_in_nats_for_classes_and_in_squared_units_for_real_targets(name):
    features, labels = raw_data(name)
    posterior = eb.run(make(name, features, labels, 1.0), particles=60)
    found = posterior.predict_uncertainty(features)
    assert found.total == pytest.approx(found.aleatoric + found.epistemic, abs=1e-14)
    assert np.all(found.aleatoric >= 0)
    assert np.all(found.epistemic >= 0)
    classes = ALL[name].n_classes
    if classes is not None:
        assert np.all(found.total <= np.log(classes) + 1e-12)
        assert np.array_equal(found.confidence, posterior.predict_proba(features).max(axis=-1))
        return
    values = posterior.sample_proba(features)[..., 0]
    noise = {"normal": np.full_like(values, 0.5), "poisson": values}[name]
    assert found.aleatoric == pytest.approx(noise.mean(axis=0), abs=1e-12)
    assert found.epistemic == pytest.approx(values.var(axis=0), abs=1e-12)
    assert np.all(np.isnan(found.confidence))


def test_a_covariance_cannot_be_taken_for_its_root():
    """V and V V' have the same shape for K logits, so a call names the one that it passes."""
    mean, cov = np.zeros((2, 3)), np.stack([np.eye(3), np.eye(3)])
    with pytest.raises(TypeError, match="positional argument"):
        Categorical(3).predictive(mean, cov)
    with pytest.raises(TypeError, match="positional argument"):
        Categorical(3).gaussian_averages(mean, cov, np.zeros(2, dtype=int))
