"""Step control: acceleration, coarse sums on the way, and the way from the search to the stages."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.expectations import Expectation, closure
from enkbayes.core.moments import Moments
from enkbayes.samplers.equilibrium import controlled_step, frozen_flow, with_track
from enkbayes.solvers.laplace import laplace_ensemble
from enkbayes.solvers.natural import Natural, arrived
from enkbayes.solvers.newton import NewtonSearch
from enkbayes.solvers.step_control import Point, Stage, StepControl, Track, evaluate, few_pairs
from oracles.problems import weighted_problem

SAMPLERS = [eb.Equilibrium(tol=1e-6), eb.MeanField(tol=1e-6)]


def test_a_step_in_the_frame_of_its_end_is_the_step_carried_there():
    rng = np.random.default_rng(0)
    S = rng.standard_normal((4, 4)) / 4
    step = Natural(rng.standard_normal(4), S + S.T)
    shift, root = frozen_flow(Moments(0.0, step.g, np.eye(4) + step.S), 1.0)
    slow, fast = step.carry(shift, root), arrived(shift, root)
    assert fast.g == pytest.approx(slow.g, abs=1e-12)
    assert pytest.approx(slow.S, abs=1e-12) == fast.S


def test_the_residual_is_the_fisher_norm_of_what_is_left():
    g, S = np.asarray([3.0, 4.0]), np.asarray([[2.0, 0.5], [0.5, 1.0]])
    assert Moments(0.0, g, S).residual == pytest.approx(np.sqrt((25 + 1.5 / 2) / 2))
    assert Moments(0.0, 0 * g, np.eye(2)).residual == 0.0


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("kind", ["binary", "softmax"])
def test_coarse_sums_on_the_way_do_not_change_where_a_run_ends(sampler, kind):
    problem = weighted_problem(kind, N=3_000)
    found = {}
    for limit in (0, np.inf):
        states = list(eb.iterate(problem, replace(sampler, large=limit), particles=80))
        assert any(state.control.coarse for state in states) == (limit == 0)
        assert states[-1].converged
        found[limit] = states[-1]
    last = found[0]
    assert not last.control.coarse  # the verdict is in double precision
    expectation = Expectation(last.blend, last.control.stage if isinstance(sampler, eb.MeanField) else 0)
    assert problem.potential_moments(last.ensemble, expectation).residual == pytest.approx(last.residual, abs=1e-9)
    sd = np.sqrt(last.ensemble.variances)
    assert np.abs((last.ensemble.mean - found[np.inf].ensemble.mean) / sd).max() < 1e-4


def test_where_coarse_sums_are_too_coarse_a_run_goes_on_with_exact_ones():
    """Offsets a million times the spread drown in float32."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((2_000, 4))
    labels = features[:, 0] + rng.logistic(size=2_000) > 0
    problem = eb.Problem.create(features + 3e6 * np.eye(4)[0], labels, 1.0)
    for sampler in SAMPLERS:
        posterior = eb.run(problem, replace(sampler, large=0), particles=50)
        assert posterior.info.converged
        assert posterior.info.residual < 1e-6


def test_coarse_sums_judge_only_where_they_are_far_better_than_the_tolerance():
    """A loose tolerance ends with coarse sums and the residual of exact ones; data that drown in round-off do not."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((3_000, 4))
    labels = features[:, 0] + rng.logistic(size=3_000) > 0
    for offset, coarse in ((0.0, True), (1e4, False)):
        problem = eb.Problem.create(features + offset * np.asarray([1.0, 1.0, 0.0, 0.0]), labels, 1.0)
        *_, last = eb.iterate(problem, eb.MeanField(tol=5e-3, large=0), particles=50)
        assert last.converged
        assert last.control.coarse is coarse
        assert problem.potential_moments(last.ensemble, closure).residual == pytest.approx(last.residual, abs=5e-4)


def test_a_run_does_not_end_with_sums_that_are_too_coarse_for_the_verdict():
    """They were good enough at the start. At the end their error exceeds the tolerance, so exact sums judge."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((3_000, 4))
    labels = features[:, 0] + rng.logistic(size=3_000) > 0
    problem = eb.Problem.create(features + 1e3 * np.asarray([1.0, 1.0, 0.0, 0.0]), labels, 1.0)
    ensemble = eb.AffineEnsemble.factor(problem.prior.whitened(50, np.random.default_rng(0)))
    search, stages = NewtonSearch(near=3.0), (Stage(1.0, descend=True),)
    control = StepControl(frozen_flow, stages, tol=0.05, max_steps=50, large=0, fine=0.05, search=search)
    state = with_track(eb.State(ensemble, 0), control.begin(problem, ensemble))
    assert state.control.coarse
    while not state.finished:
        state = controlled_step(control, problem, state)
    assert not state.control.coarse
    assert problem.potential_moments(state.ensemble, closure).residual == pytest.approx(state.residual, rel=1e-9)


@pytest.mark.parametrize("kind", ["binary", "softmax", "normal"])
def test_few_pairs_of_particles_lead_most_of_the_way_to_the_equilibrium(kind):
    """The first ensemble of the stages is much nearer than the Laplace approximation where the search ends."""
    problem = weighted_problem(kind, N=2_000)
    ensemble = eb.AffineEnsemble.factor(problem.prior.whitened(80, np.random.default_rng(0)))
    control = StepControl(frozen_flow, (Stage(1.0, descend=True),), tol=1e-9, max_steps=50)
    track = control.begin(problem, ensemble)
    while track.searching:
        found, track = track.point, control.advance_search(problem, track)
    assert np.array_equal(track.start.points, ensemble.points)
    before = evaluate(problem, laplace_ensemble(problem, found.ensemble.mean, 80, 0), closure).residual
    assert evaluate(problem, track.start, closure).residual < max(0.3 * before, 1e-9)


def test_pairs_depend_on_neither_order_nor_coordinates():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((50, 4))
    turn = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    pairs = few_pairs(points, 32)
    assert len(pairs) == 64
    assert pairs.sum(axis=0) == pytest.approx(0, abs=1e-12)
    assert np.linalg.norm(pairs, axis=1) == pytest.approx(2.0)
    assert few_pairs(rng.permutation(points) @ turn, 32) == pytest.approx(pairs @ turn, abs=1e-12)


@pytest.mark.parametrize("seed", [6, 9, 12, 34])
def test_the_free_energy_falls_as_long_as_the_end_is_far(seed):
    """A lower residual alone does not make a step a good one there."""
    rng = np.random.default_rng(seed)
    N, D = int(rng.integers(5, 60)), int(rng.integers(2, 8))
    features = rng.standard_normal((N, D)) * np.exp(rng.standard_normal(D))
    K = int(rng.integers(2, 4))
    scores = features[:, :1] @ rng.standard_normal((1, K)) + 0.3 * rng.gumbel(size=(N, K))
    problem = eb.Problem.create(features, np.argmax(scores, axis=1), float(10 ** rng.uniform(0, 5)))
    tracks = [state.control for state in eb.iterate(problem, eb.MeanField(), particles=problem.dim + 10)]
    points = [(track.stage, track.point) for track in tracks if not track.searching]
    far = [
        after.free_energy - before.free_energy
        for (first, before), (second, after) in pairwise(points)
        if first == second and before.residual > 0.02 < after.residual
    ]
    assert far
    assert max(far) <= 0


def test_an_extrapolation_to_a_singular_precision_is_not_taken():
    """The history predicts a precision of -4; the step is that of the moments themselves."""
    control = StepControl(frozen_flow, (Stage(1.0, descend=True),), 1e-6, 100)
    ensemble = eb.AffineEnsemble(np.zeros(1), np.eye(1), np.asarray([[-1.0], [1.0]]))
    moments = Moments(0.0, np.zeros(1), np.asarray([[1.5]]))
    step, change = Natural(np.zeros(1), np.asarray([[0.5]])), Natural(np.zeros(1), np.asarray([[0.05]]))
    good = Natural(np.zeros(1), np.asarray([[-0.5]]))
    for history, taken in ((((step, change),), False), (((step, good),), True)):
        proposed, tau = control.propose(Track(Point(ensemble, moments, 0.0, 1.0, history)))
        assert (proposed is not moments) == taken
        assert tau == 1.0


def test_a_stage_for_the_rescue_is_left_out_where_none_is_needed():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((20, 2))
    labels = np.argmax(features @ np.eye(2, 3) * 2 + rng.gumbel(size=(20, 3)), axis=1)
    states = list(eb.iterate(eb.Problem.create(features, labels, 30.0), eb.Equilibrium(), particles=100))
    assert states[-1].converged
    pairs = [(a.steps, b.steps) for a, b in pairwise(states) if (a.control.stage, b.control.stage) == (0, 2)]
    assert [b - a for a, b in pairs] == [2]  # one evaluation ends the first stage, and one begins the third


@pytest.mark.parametrize("seed", [0, 1])
def test_a_softmax_run_ends_where_a_finer_quadrature_confirms_it(seed):
    """The logits are so wide that 256 points a row find an equilibrium of their own."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((30, 3))
    labels = np.argmax(2 * features @ rng.standard_normal((3, 3)) + rng.gumbel(size=(30, 3)), axis=1)
    problem = eb.Problem.create(features, labels, 100.0, classes=[0, 1, 2])
    *_, last = eb.iterate(problem, eb.MeanField(), particles=40)
    assert last.converged
    finer = Expectation(1.0, refine=last.control.stage + 1)
    assert problem.potential_moments(last.ensemble, finer).residual < 0.01


def test_a_shortened_step_grows_again_when_steps_succeed():
    rng = np.random.default_rng(3)
    features = rng.standard_normal((40, 6)) * np.logspace(-1, 1, 6)
    problem = eb.Problem.create(features, 5 * features[:, 0] + features[:, 1] > 0, 1e4)  # separable
    states = eb.iterate(problem, eb.Equilibrium(), particles=60)
    taus = [state.control.point.tau for state in states if not state.control.searching]
    assert min(taus) < taus[-1] == 1.0
