"""The loop: stepping, callbacks, progress, and what a run returns."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import enkbayes as eb
from oracles.problems import logistic_data

FEATURES, LABELS = logistic_data(3, 50, seed=0)


@pytest.fixture
def problem():
    return eb.Problem.create(FEATURES, LABELS, 1.0)


def test_iterate_ends_where_run_ends(problem):
    *_, last = eb.iterate(problem, eb.Equilibrium(), particles=30, seed=4)
    posterior = eb.run(problem, eb.Equilibrium(), particles=30, seed=4)
    assert np.array_equal(last.ensemble.theta, posterior.theta)
    assert posterior.info.steps == last.steps
    assert posterior.info.residual == last.residual < 1e-6


def test_callback_sees_every_state_and_can_stop(problem):
    seen = []
    eb.run(problem, eb.Homotopy(steps=6), callback=lambda state: seen.append(state.steps))
    assert seen == list(range(7))
    with pytest.warns(ConvergenceWarning, match="stopped by the callback after 2 steps"):
        posterior = eb.run(problem, eb.Homotopy(steps=6), callback=lambda state: state.steps == 2)
    assert not posterior.info.converged
    finished = eb.run(problem, eb.Homotopy(steps=6), state=posterior.state)
    assert np.array_equal(finished.theta, eb.run(problem, eb.Homotopy(steps=6)).theta)


def test_progress_bar_shows_steps_and_residual(problem, capsys):
    eb.run(problem, eb.Equilibrium(), progress=True)
    shown = capsys.readouterr().out
    assert "Equilibrium" in shown
    assert "residual" in shown


def test_a_generator_is_a_seed(problem):
    one, two = (eb.run(problem, seed=np.random.default_rng(3), particles=10).theta for _ in range(2))
    assert np.array_equal(one, two)


def test_particles_are_the_number_asked_for_also_when_fewer_than_parameters():
    features, labels = logistic_data(12, 30, seed=0)
    problem = eb.Problem.create(features, labels, 1.0)
    for sampler in (eb.Equilibrium(), eb.MeanField(), eb.Homotopy()):
        posterior = eb.run(problem, sampler, particles=5)
        assert posterior.theta.shape == (5, 12)
    wide, narrow = (eb.run(problem, eb.MeanField(), particles=J) for J in (200, 5))
    assert narrow.predict_proba(features) == pytest.approx(wide.predict_proba(features), abs=1e-6)
    assert narrow.cov == pytest.approx(wide.cov, abs=1e-5)


def test_predictions(problem):
    posterior = eb.run(problem, eb.Equilibrium(), particles=4000)
    proba, samples = posterior.predict_proba(FEATURES), posterior.sample_proba(FEATURES)
    assert proba.sum(axis=1) == pytest.approx(np.ones(50))
    assert samples.shape == (4000, 50, 2)
    assert samples.mean(axis=0) == pytest.approx(proba, abs=5e-3)
    by_hand = 1 / (1 + np.exp(-FEATURES @ posterior.theta.T))
    assert samples[:, :, 1] == pytest.approx(by_hand.T)
    assert posterior.predict_proba(FEATURES[:0]).shape == (0, 2)


def test_uncertainty_adds_up(problem):
    posterior = eb.run(problem)
    parts = posterior.predict_uncertainty(np.vstack([FEATURES, 100 * FEATURES]))
    assert parts.total == pytest.approx(parts.aleatoric + parts.epistemic)
    assert np.all(parts.epistemic >= 0)
    assert np.all(parts.total <= np.log(2) + 1e-12)
    assert np.all((parts.confidence >= 0.5) & (parts.confidence <= 1))
    near, far = parts.epistemic[:50].mean(), parts.epistemic[50:].mean()
    assert far > 2 * near  # far from the data the model knows less


def test_stochastic_posteriors_predict_by_their_particles(problem):
    posterior = eb.run(problem, eb.StochasticSampler(max_steps=50), particles=40)
    assert not posterior.gaussian
    assert posterior.predict_proba(FEATURES) == pytest.approx(posterior.sample_proba(FEATURES).mean(axis=0))


def test_string_labels_keep_their_names():
    posterior = eb.run(eb.Problem.create(FEATURES, np.where(LABELS, "yes", "no"), 1.0))
    assert posterior.classes.tolist() == ["no", "yes"]
    assert posterior.predict_proba(FEATURES) == pytest.approx(
        eb.run(eb.Problem.create(FEATURES, LABELS, 1.0)).predict_proba(FEATURES)
    )


def test_import_is_light():
    """`import enkbayes` pulls in no optional library and none of the slow ones."""
    slow = ("torch", "jax", "matplotlib", "sklearn", "pandas", "rich")
    code = f"import sys, enkbayes; print([m for m in {slow} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_memory_does_not_grow_with_the_data():
    """Peak memory beyond the features themselves is that of a chunk, whatever N."""
    import tracemalloc

    def peak(N):
        features = np.random.default_rng(0).standard_normal((N, 4))
        problem = eb.Problem.create(features, features[:, 0] > 0, 1.0, chunk=500)
        tracemalloc.start()
        eb.run(problem, eb.Equilibrium(), particles=50)
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    assert peak(40000) < 1.5 * peak(5000)


def test_a_state_goes_on_in_the_mode_that_made_it():
    """A fixed step leaves moments behind, a controlled run leaves its track."""
    problem = eb.Problem.create([[1.0], [-1.0], [0.5]], [1, 0, 0])
    *_, state = eb.iterate(problem, eb.Equilibrium(tau=0.5, max_steps=2, tol=0.0), particles=10)
    with pytest.raises(ValueError, match="expected the same kind of sampler"):
        next(eb.iterate(problem, eb.Equilibrium(), state=state))
    assert next(eb.iterate(problem, eb.Equilibrium(tau=0.25), state=state)).steps == 2


def test_the_rule_of_the_paper_cannot_hide_that_the_mean_is_far_away():
    """Steps so short that the covariance hardly changes pass the rule at once."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((50, 2))
    problem = eb.Problem.create(features, features[:, 0] > 0, eb.Gaussian(np.full(2, -5.0), 1.0))
    with pytest.warns(ConvergenceWarning, match="the covariance has converged but the mean has not"):
        found = eb.run(problem, eb.TrotterSampler(ds=1e-6, tol=1e-3), particles=20)
    assert not found.info.converged


def test_explicit_steps_that_are_too_long_say_by_how_much():
    rng = np.random.default_rng(0)
    features = 5 * rng.standard_normal((50, 2))
    steep = eb.Problem.create(features, features[:, 0] + rng.logistic(size=50) > 0)
    assert eb.run(steep, eb.TamedHomotopy(ds=0.01), particles=40).info.converged
    with pytest.warns(ConvergenceWarning, match=r"ds = 0\.2 is .* times too large for the mean's step"):
        assert not eb.run(steep, eb.TamedHomotopy(ds=0.2), particles=40).info.converged


def test_a_homotopy_that_has_arrived_stays_there_under_other_settings(problem):
    *_, last = eb.iterate(problem, eb.Homotopy(steps=10), particles=40)
    assert list(eb.iterate(problem, eb.Homotopy(steps=10, grading=1.0), state=last)) == [last]
