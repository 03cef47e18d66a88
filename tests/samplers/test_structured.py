"""Runs whose covariance has a structure: every state is the current one, and a failure at the end loses nothing."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.moments import Diverged
from enkbayes.solvers.low_rank_mean_field import LowRankSolver

rng = np.random.default_rng(0)
X, y = rng.standard_normal((80, 20)), rng.integers(0, 3, 80)
PROBLEM = eb.Problem.create(X, y, 2.0)
SAMPLER = eb.MeanField(rank=10, tol=1e-3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_state_has_the_particles_of_its_gaussian():
    """The trace of P moves, and a run that is stopped has come closer by every step."""
    whole = eb.run(PROBLEM, SAMPLER, particles=20)
    spreads = [spread for _, _, spread in whole.info.trace]
    assert len(set(spreads[:5])) == 5
    assert spreads[-1] == pytest.approx(float(np.sum(whole.ensemble.variances)))
    errors = []
    for stop in range(4):
        part = eb.run(PROBLEM, SAMPLER, particles=20, callback=lambda state, stop=stop: state.steps >= stop)
        errors.append(np.abs(part.predict_proba(X) - whole.predict_proba(X)).max())
    assert errors[-1] < errors[0] / 3


@dataclass(frozen=True)
class FailsLate(LowRankSolver):
    """A solver whose second search for directions, or whose steps from the third on, leave the floating-point range."""

    search_fails: bool = True

    def search(self, problem, point):
        raise Diverged("the gradient or the curvature is not finite")

    def advance(self, problem, point):
        if not self.search_fails and len(point.history) >= 2:
            raise Diverged("the gradient or the curvature is not finite")
        return super().advance(problem, point)


@pytest.mark.parametrize("search_fails", [True, False])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_was_found_before_a_failure_stays(search_fails):
    whole = eb.run(PROBLEM, SAMPLER, particles=20).predict_proba(X)
    sampler = eb.MeanField(rank=10, tol=1e-3, low_rank=FailsLate(search_fails=search_fails))
    posterior = eb.run(PROBLEM, sampler, particles=20)
    assert posterior.info.converged == search_fails
    np.testing.assert_allclose(posterior.predict_proba(X), whole, atol=0.01 if search_fails else 0.03)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_separable_data_with_many_more_parameters_than_rows_keep_their_fit():
    rng = np.random.default_rng(1)
    centres, labels = 6 * rng.standard_normal((15, 140)), np.arange(60) % 15
    features = centres[labels] + rng.standard_normal((60, 140))
    sampler = eb.MeanField(rank=40)
    clf = eb.EnsembleClassifier(sampler, particles=20, random_state=0, prior_precision=1.0)
    clf.fit(features / features.std(axis=0), labels)
    assert clf.score(features / features.std(axis=0), labels) == 1.0


def test_particles_outside_the_directions_follow_the_seed():
    ensemble = eb.run(PROBLEM, SAMPLER, particles=20).ensemble
    first, again, other = (replace(ensemble.complement, seed=seed).draws(ensemble.basis, 200) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert abs(np.mean(first * other)) < 0.2 * np.mean(first**2)
