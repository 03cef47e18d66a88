"""The building blocks of the experiments, checked against independent calculations."""

import json

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import t as student

pytest.importorskip("torch")

import enkbayes as eb
from enkbayes.core.gaussian import Gaussian
from enkbayes.reproduction import mean_field, scores, tables
from enkbayes.reproduction.findings import Estimate
from enkbayes.reproduction.methods import MOONS, Fitted, Study, algorithm_2, gaussian_predict
from enkbayes.reproduction.scores import PlaneScores, Scoreboard, scoreboard
from enkbayes.reproduction.sizes import SMOKE, Run


def test_an_estimate_has_student_s_interval():
    x = np.random.default_rng(0).standard_normal(6) + 3
    found = Estimate.of(x)
    low, high = student.interval(0.95, 5, loc=x.mean(), scale=x.std(ddof=1) / np.sqrt(6))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.above(low - 1e-9)
    assert not found.above(x.mean())
    assert found.below(high + 1e-9)
    assert not Estimate.of([5.0]).above(0.0)  # a single repetition has no finite interval


def test_the_equations_hold_at_the_solution_only():
    _, problem = tables.experiment(1, np.eye(20))
    exact = eb.run(problem, eb.MeanField(tol=1e-9))
    assert max(mean_field.equation_residuals(problem, exact.mean, exact.cov)) < 1e-7
    moved = mean_field.equation_residuals(problem, exact.mean + 0.01, exact.cov * 1.1)
    assert min(moved) > 0.01


def test_the_averages_in_the_equations_agree_with_quadrature():
    problem = eb.Problem.create(np.asarray([[1.5]]), [1], Gaussian(np.zeros(1), np.eye(1)), classes=[0, 1])
    m, v = np.asarray([0.3]), np.asarray([[0.7]])

    def average(f):
        return quad(lambda z: f(z) * np.exp(-((z - 0.45) ** 2) / (2 * 1.575)) / np.sqrt(2 * np.pi * 1.575), -30, 30)[0]

    gradient = 1.5 * (average(expit) - 1)
    hessian = 1.5**2 * average(lambda z: expit(z) * expit(-z))
    found = mean_field.equation_residuals(problem, m, v)
    assert found[0] == pytest.approx(abs(0.3 + gradient), rel=1e-6)
    assert found[1] == pytest.approx(abs(0.7 - 1 / (1 + hessian)) / 0.7, rel=1e-6)


def test_a_change_of_units_does_not_change_the_potential():
    problem = mean_field.small_problem()
    rng = np.random.default_rng(3)
    A, theta = rng.standard_normal((5, 5)), rng.standard_normal((4, 5))
    other = mean_field.transformed(problem, A, np.zeros(5))
    assert np.allclose(problem.loss(theta), other.loss(theta @ A.T))
    assert np.allclose(
        np.sum(problem.prior.whiten(theta.T) ** 2, axis=0), np.sum(other.prior.whiten(A @ theta.T) ** 2, axis=0)
    )


def test_distance_from_a_span():
    particles = np.asarray([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert tables.distance_to_span(np.asarray([5.0, -3.0, 2.0]), particles) == pytest.approx(2.0)


def test_repetitions_are_independent_and_repeatable():
    one, two = (tables.experiment(k, np.eye(20)) for k in (0, 1))
    assert not np.allclose(one[0], two[0])
    assert np.array_equal(tables.experiment(0, np.eye(20))[0], one[0])


def test_algorithm_2_runs_to_its_horizon():
    problem = mean_field.small_problem()
    with pytest.warns(UserWarning, match="did not converge"):
        assert eb.run(problem, algorithm_2()).info.steps == 200


@pytest.fixture(scope="module")
def small():
    """A study with a network that is barely trained."""
    from dataclasses import replace

    return Study(MOONS, replace(SMOKE, steps=20, member_steps=5), seed=0)


def test_a_gaussian_predicts_what_its_posterior_predicts(small):
    fitted = small.fit("mean-field")
    predict = gaussian_predict(small, Gaussian(fitted.posterior.mean, fitted.posterior.cov))
    at = scores.near_grid(small.data.train, 5)
    assert np.allclose(predict(at), fitted.predict(at), atol=1e-6)


def test_methods_are_fitted_once_and_predict_probabilities(small):
    assert small.fit("trotter") is small.fit("trotter")
    for name in ("mle", "deep-ensemble", "laplace-probit", "tamed-homotopy", "trotter"):
        proba = small.fit(name).predict(small.data.test)
        assert proba.shape == (30, 2)
        assert np.allclose(proba.sum(axis=1), 1)
    assert "did not converge" in small.fit("trotter").warning


def test_the_mle_is_the_network(small):
    import torch

    with torch.no_grad():
        logits = small.network(torch.as_tensor(small.data.test, dtype=torch.float32))[:, 0].double().numpy()
    assert np.allclose(small.fit("mle").predict(small.data.test)[:, 1], expit(logits))


def test_scores_are_read_again_from_their_file(tmp_path):
    calls = []

    class Fake:
        def fit(self, name):
            calls.append(name)
            return Fitted(name, lambda _: None, 1, 1.0)

    fakes = {
        "studies": lambda *_: Fake(),
        "measure": lambda _, fitted: PlaneScores(1, 0, 0.9, 0.5, len(fitted.name), 1, 1),
    }
    run = Run(SMOKE, tmp_path)
    first = scoreboard(MOONS, run, ("mle", "hmc"), **fakes)
    assert calls.count("mle") == SMOKE.seeds
    again = scoreboard(MOONS, run, ("mle", "hmc", "trotter"), **fakes)
    assert calls.count("mle") == SMOKE.seeds
    assert calls.count("trotter") == SMOKE.seeds
    assert np.array_equal(first.values("hmc", "distance"), again.values("hmc", "distance"))
    file = tmp_path / "moons-0.json"
    file.write_text(json.dumps({"another key": json.loads(file.read_text())[run.key]}))
    scoreboard(MOONS, run, ("mle",), **fakes)
    assert calls.count("mle") == SMOKE.seeds + 1


def test_gaps_are_paired():
    def scores(value):
        return PlaneScores(value, 0, 0, 0, 0, 0, 0)

    board = Scoreboard({"a": [scores(0.9), scores(0.5)], "b": [scores(0.8), scores(0.4)]})
    gap = board.gap("a", "b", "accuracy")
    assert gap.mean == pytest.approx(0.1)
    assert gap.error == pytest.approx(0, abs=1e-12)
