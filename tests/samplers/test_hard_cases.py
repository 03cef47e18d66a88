"""Cases that once went wrong, or could: mixed scales, diverging means, duplicates, many classes, overflow."""

import numpy as np
import pytest
from scipy.linalg import hilbert
from sklearn.exceptions import ConvergenceWarning

import enkbayes as eb
from oracles.problems import logistic_data, method_problem


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_priors_of_very_different_widths_keep_all_directions(dtype):
    """A direction with a small prior variance is not round-off next to one with a large variance."""
    features, labels = logistic_data(3, 50, seed=0)
    widths = (1e-4, 1e6) if dtype == np.float32 else (1e-14, 1e14)
    problem = eb.Problem.create(features.astype(dtype), labels, widths[0], intercept=widths[1])
    for sampler in (eb.Equilibrium(), eb.MeanField()):
        posterior = eb.run(problem, sampler, particles=100)
        assert posterior.ensemble.rank == 4
        assert posterior.info.converged
        assert np.sqrt(np.diag(posterior.cov))[:3] == pytest.approx(np.full(3, widths[0] ** 0.5), rel=0.2)
    theta = problem.prior.sample(30, np.random.default_rng(0))
    assert eb.run(problem, eb.Homotopy(), theta=theta).ensemble.rank == 4


@pytest.mark.parametrize("variance", [1e8, 1e12, 1e14])
def test_very_wide_priors(variance):
    features, labels = logistic_data(3, 50, seed=0)
    posterior = eb.run(eb.Problem.create(features, labels, variance), eb.MeanField())
    assert posterior.info.converged


def test_an_ill_conditioned_full_prior():
    """Hilbert matrices: the exact answer is known, and an explicit inverse of the covariance would lose it."""
    rng = np.random.default_rng(0)
    P0 = hilbert(9)
    problem = eb.Problem.create(
        rng.standard_normal((20, 9)), rng.standard_normal(20), eb.Gaussian(np.zeros(9), P0), likelihood=eb.Normal(0.5)
    )
    X, d = problem.features, problem.targets
    gain = P0 @ X.T @ np.linalg.inv(X @ P0 @ X.T + 0.5 * np.eye(20))
    for sampler in (eb.Equilibrium(), eb.MeanField(), eb.Homotopy(steps=1)):
        posterior = eb.run(problem, sampler, particles=40)
        assert posterior.info.converged
        assert posterior.mean == pytest.approx(gain @ d, abs=1e-5)
        assert posterior.cov == pytest.approx(P0 - gain @ X @ P0, abs=1e-5)


def test_explicit_steppers_admit_that_their_mean_went_astray():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((3000, 8)) + 5
    labels = rng.random(3000) < 1 / (1 + np.exp(-(features - 5) @ rng.standard_normal(8)))
    problem = eb.Problem.create(features, labels, 1.0, intercept=10.0)
    with pytest.warns(ConvergenceWarning, match=r"smaller ds|raise max_steps|smaller step"):
        trotter = eb.run(problem, eb.TrotterSampler(ds=0.1), particles=60)
    assert not trotter.info.converged
    with pytest.warns(ConvergenceWarning, match="times too large"):
        eb.run(problem, eb.TamedHomotopy(ds=1e-2), particles=60)
    assert eb.run(method_problem("T1"), eb.TamedHomotopy(ds=1e-2), particles=60).info.converged


def test_a_converged_run_goes_on_under_a_sharper_tolerance():
    problem = method_problem("T1")
    rough = eb.run(problem, eb.Equilibrium(tol=1e-2))
    sharp = eb.run(problem, eb.Equilibrium(tol=1e-9), state=rough.state)
    assert rough.info.residual > 1e-9 > sharp.info.residual
    assert sharp.info.converged
    assert sharp.info.steps > rough.info.steps
    same = eb.run(problem, eb.Equilibrium(tol=1e-2), state=rough.state)
    assert same.info.steps == rough.info.steps
    short = eb.run(problem, eb.StochasticSampler(max_steps=5), particles=30)
    longer = eb.run(problem, eb.StochasticSampler(max_steps=12), state=short.state)
    assert np.array_equal(longer.theta, eb.run(problem, eb.StochasticSampler(max_steps=12), particles=30).theta)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (eb.Homotopy(), eb.MeanField()),
        (eb.Equilibrium(tau=0.3), eb.Equilibrium()),
        (eb.MeanField(), eb.Equilibrium()),
        (eb.Equilibrium(), eb.Equilibrium(batch=10)),
    ],
)
def test_a_state_belongs_to_its_kind_of_sampler(first, second):
    problem = method_problem("T0")
    state = eb.run(problem, first).state
    with pytest.raises(ValueError, match="same kind of sampler"):
        eb.run(problem, second, state=state)


def test_equal_and_duplicated_particles():
    problem = eb.Problem.create(*logistic_data(3, 20, seed=0), 1.0)
    for value in (1.0, 0.1, 1e6 / 3):
        with pytest.raises(ValueError, match="all particles are equal"):
            eb.run(problem, theta=np.full((10, 3), value))
    triple = np.repeat(1e6 + np.random.default_rng(0).standard_normal((3, 3)), 5, axis=0)
    posterior = eb.run(problem, eb.Homotopy(), theta=triple)
    assert posterior.ensemble.rank == 2
    assert np.abs(posterior.theta[:5] - posterior.theta[0]).max() < 1e-6


def test_two_particles_one_row_one_feature():
    problem = eb.Problem.create([[1.0]], [1], 1.0, classes=[0, 1])
    for sampler in (eb.Equilibrium(), eb.MeanField(), eb.Homotopy(), eb.TrotterSampler()):
        posterior = eb.run(problem, sampler, particles=2)
        assert posterior.theta.shape == (2, 1)
        assert posterior.info.converged


def test_a_small_ensemble_says_what_it_does_not_span():
    problem = eb.Problem.create(*logistic_data(30, 50, seed=0), 1.0)
    assert "10 particles span 9 of 30 directions" in eb.run(problem, eb.Homotopy(), particles=10).info.message
    for sampler in (eb.Equilibrium(), eb.MeanField()):
        assert "fitted in all 30 directions" in eb.run(problem, sampler, particles=10).info.message


def test_many_classes_and_few_directions():
    """More classes than coordinates: sums without a K x K matrix for each row (tests/laws/test_likelihoods.py)."""
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((40, 3)), rng.integers(0, 25, 40)
    problem = eb.Problem.create(features, labels, 1.0, classes=range(25), weights=rng.uniform(0.5, 2, 40))
    posterior = eb.run(problem, eb.Equilibrium(), particles=12)
    assert posterior.info.converged
    assert posterior.predict_proba(features).sum(axis=1) == pytest.approx(np.ones(40))


def test_random_softmax_problems():
    """The softmax part of the study, a sample: everything finite, nearly everything converged, the rest explained."""
    from step_control import random_softmax_problem

    for sampler in (eb.MeanField(tol=1e-4), eb.Equilibrium(tol=1e-4)):
        infos = []
        for seed in range(16):
            problem, J = random_softmax_problem(seed)
            *_, state = eb.iterate(problem, sampler, particles=J)
            assert np.all(np.isfinite(state.ensemble.theta))
            assert state.converged or state.message
            infos.append(state.converged)
        assert np.mean(infos) >= 0.85


def test_overflow_is_one_sentence():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((30, 3))
    for labels in (np.arange(30) % 2, np.arange(30) % 3):
        with pytest.raises(ValueError, match="scale"):
            eb.run(eb.Problem.create(1e160 * features, labels, 1.0), eb.MeanField())
        posterior = eb.run(eb.Problem.create(features, labels, 1.0))
        with pytest.raises(ValueError, match="overflow"):
            posterior.predict_proba(1e200 * features)


def test_gradients_of_the_user_are_left_out():
    torch = pytest.importorskip("torch")
    features, labels = logistic_data(3, 20, seed=0)
    tensor = torch.asarray(features).requires_grad_()
    posterior = eb.run(eb.Problem.create(tensor, labels, 1.0))
    assert not posterior.theta.requires_grad
    assert np.asarray(posterior.predict_proba(tensor)).shape == (20, 2)


@pytest.mark.parametrize("sampler", [eb.Homotopy(steps=2), eb.Homotopy(steps=2, batch=500), eb.MeanField()], ids=repr)
def test_memory_of_other_samplers_does_not_grow_with_the_data_either(sampler):
    import tracemalloc

    def peak(N):
        features = np.random.default_rng(0).standard_normal((N, 8))
        problem = eb.Problem.create(features, features[:, 0] > 0, 1.0, chunk=500)
        tracemalloc.start()
        eb.run(problem, sampler, particles=30)
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    rows = 60000
    assert peak(rows) < 0.5 * rows * 8 * 8  # less than half of the features themselves
