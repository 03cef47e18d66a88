"""MLE, temperature scaling, Laplace and HMC, each against another implementation or by its definition."""

import math
import sys

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

import enkbayes as eb
from enkbayes.evaluation.baselines import HMC, MAP, MLE, Laplace, LaplaceProbit, Temperature
from enkbayes.evaluation.baselines.temperature import stratified_split
from enkbayes.inference.temperature import temperature_scale
from golden.make_nuts import FOLDER, real_problem
from laws.cases import full_prior, make, raw_data
from oracles.problems import method_problem


def test_map_is_the_mode():
    problem = method_problem("T1")
    posterior = MAP().fit(problem)
    _, gradient = problem.loss_and_gradient(posterior.theta)
    assert gradient[0] + posterior.mean == pytest.approx(np.zeros(20), abs=1e-7)
    assert posterior.info.converged
    assert posterior.ensemble.rank == 0


@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical"])
def test_mle_against_scikit_learn(likelihood):
    features, labels = raw_data(likelihood, N=200)
    expected = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10000).fit(features, labels).predict_proba(features)
    posterior = MLE().fit(make(likelihood, features, labels, full_prior(likelihood), intercept=1.0))
    assert posterior.predict_proba(features) == pytest.approx(expected, abs=1e-5)
    assert posterior.info.message == ""


@pytest.mark.parametrize("name", ["T3", "T6"])
def test_mle_reports_that_it_does_not_exist(name):
    posterior = MLE().fit(method_problem(name))
    assert posterior.info.converged
    assert "no maximum" in posterior.info.message
    assert "times 1e+08" in posterior.info.message


def test_mle_detects_data_that_are_partly_separable():
    """One feature determines the class of some rows; the other rows overlap."""
    rng = np.random.default_rng(0)
    sure = rng.random(100) < 0.1
    labels = np.where(sure, 1, rng.random(100) < 0.5)
    features = np.stack([sure, rng.standard_normal(100)], axis=1)
    assert "separable" in MLE().fit(eb.Problem.create(features, labels, intercept=1.0)).info.message


@pytest.mark.parametrize("variance", [0.001, 100.0])
def test_temperature_is_the_one_of_scikit_learn(variance):
    features, labels = raw_data("categorical", N=300)
    problem = make("categorical", features, labels, variance, intercept=variance)
    posterior = Temperature(held_out=0.3).fit(problem, seed=1)
    kept, held = stratified_split(labels, 0.3, 1)
    frozen = LogisticRegression(C=variance, fit_intercept=False, tol=1e-10, max_iter=10000, solver="newton-cholesky")
    with_constant = np.hstack([features, np.ones((300, 1))])
    calibrated = CalibratedClassifierCV(
        FrozenEstimator(frozen.fit(with_constant[kept], labels[kept])), method="temperature"
    ).fit(with_constant[held], labels[held])
    assert posterior.predict_proba(features) == pytest.approx(calibrated.predict_proba(with_constant), abs=1e-3)
    assert posterior.state.held_out == len(held)


def test_temperature_lowers_the_held_out_loss_and_keeps_the_classes():
    features, labels = raw_data("bernoulli", N=300)
    problem = make("bernoulli", features, labels, 0.01)
    theta = MAP().fit(problem).mean
    temperature = 1 / temperature_scale(problem, theta, sharpening=math.inf)
    losses = [float(problem.loss(theta[None, :] / t)[0]) for t in (temperature, 0.9 * temperature, 1.1 * temperature)]
    assert losses[0] == min(losses)
    assert temperature < 0.5  # a prior this narrow makes the MAP much too cautious


def test_temperature_is_one_when_no_temperature_is_best():
    features = np.linspace(-1, 1, 50)[:, None]
    posterior = Temperature().fit(eb.Problem.create(features, features[:, 0] > 0))
    assert "so no temperature is best" in posterior.info.message
    assert posterior.state.temperature == 1
    with pytest.raises(ValueError, match="leaves no row to hold out"):
        Temperature(held_out=0.1).fit(eb.Problem.create(features[:4], [0, 1, 0, 1]))
    with pytest.raises(ValueError, match="between 0 and 1"):
        Temperature(held_out=1.0)


def test_split_is_stratified_and_disjoint():
    targets = np.repeat([0, 1, 2], [50, 30, 1])
    kept, held = stratified_split(targets, 0.2, 0)
    assert np.bincount(targets[held], minlength=3).tolist() == [10, 6, 0]
    assert sorted([*kept, *held]) == list(range(81))


@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical"])
def test_laplace_covariance_against_differences_of_the_potential(likelihood):
    features, labels = raw_data(likelihood)
    problem = make(likelihood, features, labels, full_prior(likelihood))
    posterior = Laplace().fit(problem)
    h = 1e-3 * np.eye(problem.dim)

    def potential(theta):
        return problem.loss(theta) - problem.prior.log_density(theta)

    m = posterior.mean
    hessian = np.stack(
        [potential(m + h + s) + potential(m - h - s) - potential(m + h - s) - potential(m - h + s) for s in h]
    ) / (4 * 1e-6)
    assert np.linalg.inv(posterior.cov) == pytest.approx(hessian, abs=1e-3)
    assert np.cov(posterior.theta.T, bias=True) == pytest.approx(posterior.cov, abs=1e-9)


def test_laplace_is_exact_where_the_posterior_is_gaussian():
    features, labels = raw_data("normal")
    problem = make("normal", features, labels, full_prior("normal"))
    laplace, exact = Laplace().fit(problem), eb.run(problem, eb.Homotopy(steps=1))
    assert laplace.mean == pytest.approx(exact.mean, abs=1e-8)
    assert laplace.cov == pytest.approx(exact.cov, abs=1e-8)


def test_probit_rule_of_the_paper():
    problem = method_problem("T1")
    exact, probit = Laplace().fit(problem), LaplaceProbit().fit(problem)
    features = 3 * problem.features[:50]
    m, v = features @ exact.mean, np.sum((features @ exact.cov) * features, axis=1)
    expected = 1 / (1 + np.exp(-m / np.sqrt(1 + math.pi * v / 8)))
    assert probit.predict_proba(features)[:, 1] == pytest.approx(expected, abs=1e-12)
    gap = np.abs(probit.predict_proba(features) - exact.predict_proba(features)).max()
    assert 1e-4 < gap < 0.02


@pytest.fixture(scope="module")
def nuts():
    pytest.importorskip("numpyro")
    problem = real_problem("breast_cancer")
    return problem, HMC(samples=150, chains=4, warmup=150).fit(problem, seed=1)


def test_hmc_agrees_with_a_long_run(nuts):
    problem, posterior = nuts
    golden = np.load(FOLDER / "nuts_breast_cancer.npz")
    report = posterior.state
    error = np.abs(posterior.mean - golden["mean"]) / golden["sd"]
    assert error.max() < 5 / math.sqrt(report.ess)
    ratio = posterior.theta.std(axis=0) / golden["sd"]
    assert ratio == pytest.approx(np.ones_like(ratio), abs=0.2)
    assert np.abs(posterior.predict_proba(problem.features) - golden["proba"]).mean() < 0.002


def test_hmc_reports_the_quality_of_its_chains(nuts):
    _, posterior = nuts
    report = posterior.state
    assert 0.99 < report.r_hat < 1.05
    assert 200 < report.ess < 2000
    assert report.divergences == 0
    assert 0.6 < report.acceptance <= 1
    assert posterior.info.converged == (report.r_hat <= 1.01)
    assert posterior.theta.shape == (600, 31)


def test_hmc_does_not_change_the_precision_of_jax(nuts):
    jax = pytest.importorskip("jax")
    from enkbayes.evaluation.baselines.hmc import double_precision

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    try:
        with double_precision():
            assert jax.numpy.asarray(1.0).dtype == "float64"
        assert jax.numpy.asarray(1.0).dtype == "float32"
    finally:
        jax.config.update("jax_enable_x64", before)


def test_hmc_names_the_extra_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(ImportError, match=r"pip install 'enkbayes\[hmc\]'"):
        HMC().fit(method_problem("T0"))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"samples": 2}, "at least 4"), ({"chains": 0}, "whole number"), ({"target_accept": 1}, "between 0 and 1")],
)
def test_wrong_settings_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        HMC(**settings)


def test_importing_evaluation_imports_no_extra():
    import subprocess

    program = (
        "import sys; from enkbayes.evaluation import baselines, compare, metrics, plots, report;"
        " print([m for m in ('jax', 'numpyro', 'torch', 'matplotlib', 'jinja2') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_breast_cancer_laplace_is_worse_than_the_ensemble(record_property):
    problem = real_problem("breast_cancer")
    golden = np.load(FOLDER / "nuts_breast_cancer.npz")["proba"]
    features = load_breast_cancer(return_X_y=True)[0]
    assert len(features) == len(golden)
    distance = {
        name: float(np.abs(method.predict_proba(problem.features) - golden).mean())
        for name, method in (
            ("equilibrium", eb.run(problem, particles=200)),
            ("laplace", Laplace().fit(problem)),
            ("map", MAP().fit(problem)),
        )
    }
    record_property("mean distance to NUTS", distance)
    assert distance["equilibrium"] < distance["laplace"] / 3 < distance["map"]


def test_a_split_leaves_every_class_a_row_to_fit():
    targets = np.asarray([0, 0, 0, 1, 1, 2])
    kept, held = stratified_split(targets, 0.9, seed=0)
    assert set(targets[kept]) == {0, 1, 2}
    assert sorted([*kept, *held]) == list(range(6))
