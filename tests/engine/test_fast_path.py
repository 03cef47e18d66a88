"""The fast ways give the answers of the slow ones: sums in the parameters, products in float32, Newton's start."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse

import enkbayes as eb
from enkbayes.core import row_logits
from enkbayes.core.expectations import Expectation, closure, empirical
from enkbayes.core.logits import LinearLogits
from enkbayes.core.moments import Moments, Sums
from enkbayes.engine.arrays import logistic_averages
from enkbayes.solvers import newton, relaxation
from enkbayes.solvers.map_estimate import map_estimate, whitened_moments
from oracles.problems import logistic_data, weighted_problem

SAMPLERS = [eb.Equilibrium(tol=1e-6), eb.MeanField(tol=1e-6)]


@pytest.mark.parametrize("kind", ["binary", "softmax", "normal"])
@pytest.mark.parametrize("expectation", [empirical, closure, Expectation(0.3)], ids=repr)
@pytest.mark.parametrize(
    "cached", [1, 2**20]
)  # so that a piece is averaged in several parts, in one memory, or at once
def test_sums_in_the_parameters_are_those_in_the_basis(kind, expectation, cached, monkeypatch):
    monkeypatch.setattr(row_logits, "CACHED", cached)
    problem = weighted_problem(kind)
    ensemble = eb.AffineEnsemble.factor(problem.prior.whitened(60, np.random.default_rng(1)) * 0.3)
    fast = problem.moments(ensemble, expectation)
    slow = problem.model._in_basis(ensemble, problem.likelihood, expectation, problem.targets, problem.weights)
    assert fast.g == pytest.approx(slow.g, rel=1e-9, abs=1e-9)
    assert np.abs(fast.S - slow.S).max() < 1e-10 * np.abs(slow.S).max()
    assert float(fast.loss) == pytest.approx(float(slow.loss), rel=1e-10)


@pytest.mark.parametrize("basis", [np.diag([1.0, -2.0, 3.0]), np.diag([1.0, 0.0, 3.0]), np.tri(3)], ids=str)
def test_moments_in_a_diagonal_basis_are_those_in_any(basis):
    rng = np.random.default_rng(0)
    gradient, hessian = rng.standard_normal(3), rng.standard_normal((3, 3))
    found = Moments.seen(Sums((1.0, gradient, hessian)), basis)
    assert found.g == pytest.approx(basis.T @ gradient)
    assert pytest.approx(basis.T @ hessian @ basis) == found.S


def test_a_step_seen_from_its_end_is_the_step_carried_there():
    rng = np.random.default_rng(0)
    S = rng.standard_normal((4, 4)) / 4
    step = relaxation.Natural(rng.standard_normal(4), S + S.T)
    shift, root = relaxation.frame_map(relaxation.precision(step))
    slow, fast = step.carry(shift, root), relaxation.arrived(shift, root)
    assert fast.g == pytest.approx(slow.g, abs=1e-12)
    assert pytest.approx(slow.S, abs=1e-12) == fast.S


def test_narrow_features_are_read_in_longer_strips_with_the_same_sums():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((20_000, 3))
    labels = features[:, 0] + rng.logistic(size=20_000) > 0
    long, short = (eb.Problem.create(features, labels, chunk=chunk) for chunk in (None, 500))
    assert [rows.stop - rows.start for rows in long.model.strips.slices] == [20_000]
    assert short.model.strips is short.model  # somebody wants to save memory
    ensemble = eb.AffineEnsemble.factor(long.prior.whitened(60, rng))
    one, other = (problem.moments(ensemble) for problem in (long, short))
    assert np.abs(one.S - other.S).max() < 1e-12 * np.abs(one.S).max()
    assert np.abs(one.g - other.g).max() < 1e-12 * np.abs(one.S).max()
    classes = eb.Problem.create(features, np.digitize(features[:, 0], [-1, 1]))
    assert classes.model.strips is classes.model  # logits of K classes take K times the room


def test_features_of_a_mapped_file_go_the_same_way(tmp_path):
    features = np.random.default_rng(0).standard_normal((300, 4))
    np.save(tmp_path / "x.npy", features)
    mapped, plain = (
        eb.Problem.create(x, features[:, 0] > 0) for x in (np.load(tmp_path / "x.npy", mmap_mode="r"), features)
    )
    assert isinstance(mapped.model.features, np.memmap)
    assert mapped.model.in_memory
    ensemble = eb.AffineEnsemble.factor(plain.prior.whitened(30, np.random.default_rng(1)))
    for single in (True, False):
        one, other = (problem.moments(ensemble, single=single) for problem in (mapped, plain))
        assert np.array_equal(one.S, other.S)
        assert type(one.S) is np.ndarray


def test_sparse_features_give_the_same_sums():
    features = scipy.sparse.random(200, 6, density=0.4, random_state=0, format="csr")
    labels = np.arange(200) % 2
    problems = [eb.Problem.create(x, labels, 1.0, intercept=1.0) for x in (features, features.toarray())]
    ensemble = eb.AffineEnsemble.factor(problems[0].prior.whitened(30, np.random.default_rng(0)))
    for single, tolerance in ((False, 1e-12), (True, 1e-5)):
        sparse, dense = (problem.moments(ensemble, single=single) for problem in problems)
        assert np.abs(sparse.S - dense.S).max() < tolerance * np.abs(dense.S).max()


def test_averages_of_the_logistic_function():
    z = np.random.default_rng(0).normal(0, 5, (7, 40))
    y = 1 / (1 + np.exp(-z))
    ybar, rbar = logistic_averages(z.copy())
    assert ybar == pytest.approx(y.mean(axis=1), abs=1e-15)
    assert rbar == pytest.approx((y * (1 - y)).mean(axis=1), abs=1e-15)


def test_the_logits_of_a_user_are_left_alone():
    features, labels = logistic_data(3, 40, seed=5)
    theta = np.random.default_rng(0).standard_normal((12, 3))
    mine = features @ theta.T
    before = mine.copy()
    eb.Bernoulli().moments(mine, features, labels.astype(float), None)
    eb.Bernoulli().particle_predictive(mine)
    assert np.array_equal(mine, before)


@pytest.mark.parametrize("kind", ["binary", "softmax"])
@pytest.mark.parametrize("expectation", [empirical, closure], ids=["empirical", "closure"])
def test_float32_products_are_off_by_round_off_and_add_up_in_double(kind, expectation):
    """In units of the posterior, where S = I: far below any residual at which float32 is used."""
    problem = weighted_problem(kind, N=20_000, D=10)
    ensemble = eb.run(problem, eb.MeanField(tol=1e-3), particles=100).ensemble
    double, single = (problem.moments(ensemble, expectation, single=s) for s in (False, True))
    assert single.S.dtype == np.float64
    scale = relaxation.FINE / 3
    assert 0 < np.linalg.norm(single.g - double.g) < scale * np.sqrt(problem.dim)
    assert np.linalg.norm(single.S - double.S) < scale * np.sqrt(problem.dim)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("kind", ["binary", "softmax"])
def test_float32_on_the_way_does_not_change_where_it_ends(sampler, kind, monkeypatch):
    problem = weighted_problem(kind, N=3_000)
    found = {}
    for limit in (0, np.inf):
        monkeypatch.setattr(relaxation, "LARGE", limit)
        states = list(eb.iterate(problem, sampler, particles=80))
        assert any(getattr(s.control, "single", False) for s in states) == (limit == 0)
        assert states[-1].converged
        found[limit] = states[-1]
    last = found[0]
    assert not last.control.point.single  # the verdict is in double precision
    expectation = Expectation(last.blend, getattr(last.control, "refine", 0))
    assert problem.potential_moments(last.ensemble, expectation).residual == pytest.approx(last.residual, abs=1e-9)
    sd = np.sqrt(last.ensemble.variances)
    assert np.abs((last.ensemble.mean - found[np.inf].ensemble.mean) / sd).max() < 1e-4


def test_where_float32_is_too_coarse_the_run_goes_on_in_double(monkeypatch):
    """Offsets a million times the spread drown in float32."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((2_000, 4))
    labels = features[:, 0] + rng.logistic(size=2_000) > 0
    monkeypatch.setattr(relaxation, "LARGE", 0)
    problem = eb.Problem.create(features + 3e6 * np.eye(4)[0], labels, 1.0)
    for sampler in SAMPLERS:
        posterior = eb.run(problem, sampler, particles=50)
        assert posterior.info.converged
        assert posterior.info.residual < 1e-6


def test_float32_judges_only_where_it_is_far_better_than_the_tolerance(monkeypatch):
    """A loose tolerance ends in float32, with the residual of double precision; data that drown in it do not."""
    monkeypatch.setattr(relaxation, "LARGE", 0)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((3_000, 4))
    labels = features[:, 0] + rng.logistic(size=3_000) > 0
    for offset, single in ((0.0, True), (1e4, False)):
        problem = eb.Problem.create(features + offset * np.asarray([1.0, 1.0, 0.0, 0.0]), labels, 1.0)
        *_, last = eb.iterate(problem, eb.MeanField(tol=5e-3), particles=50)
        assert last.converged
        assert last.control.point.single is single
        assert problem.potential_moments(last.ensemble, closure).residual == pytest.approx(last.residual, abs=5e-4)


def test_newton_leads_to_the_laplace_approximation():
    problem = weighted_problem("binary")
    ensemble = eb.AffineEnsemble.factor(problem.prior.whitened(30, np.random.default_rng(0)))
    point = newton.begin(problem, ensemble, single=False)
    while point.residual > 1e-9:
        point = newton.advance(problem, point)
        assert point.evaluations < 15
    theta = map_estimate(problem).theta
    assert point.ensemble.mean == pytest.approx(theta, abs=1e-7)
    H = whitened_moments(problem, theta).S
    cov = problem.prior.dense_root @ np.linalg.inv(H) @ problem.prior.dense_root.T
    assert newton.laplace(point).cov == pytest.approx(cov, rel=1e-6, abs=1e-9)


def test_newton_shortens_steps_that_do_not_help():
    """Far out on the flat side of separable data a full step goes astray; the potential still falls all the way."""
    features = np.asarray([[30.0], [-30.0], [20.0], [-25.0]])
    problem = eb.Problem.create(features, [1, 0, 0, 1], 1e4)
    ensemble = eb.AffineEnsemble.factor(np.random.default_rng(0).standard_normal((5, 1)) + 40.0)
    point, losses = newton.begin(problem, ensemble, single=False), []
    while not point.done:
        losses.append(float(point.moments.loss))
        point = newton.advance(problem, point)
    assert all(b <= a for a, b in pairwise(losses))
    assert point.residual < newton.NEAR
    assert eb.run(problem, theta=ensemble.theta).info.converged


def test_newton_from_afar_takes_the_length_that_the_potential_asks_for():
    problem = weighted_problem("binary", N=2_000)
    ensemble = eb.AffineEnsemble.factor(problem.prior.whitened(30, np.random.default_rng(0)))
    point = newton.begin(problem, ensemble, single=False)
    assert point.residual > newton.FAR
    length = newton._reach(problem, point)
    step = ensemble.basis @ point.step

    def potential(s):
        theta = (ensemble.mean - s * step)[None, :]
        return float(problem.loss(theta)[0] - problem.prior.log_density(theta)[0])

    assert 1 <= length <= newton.LENGTHS[-1]
    assert potential(length) <= min(potential(s) for s in newton.LENGTHS) + 1e-2 * (potential(0) - potential(length))
    assert newton.advance(problem, point).residual < 0.5 * _full_step(problem, point).residual


def _full_step(problem, point):
    return newton.begin(
        problem,
        eb.AffineEnsemble(
            point.ensemble.mean - point.ensemble.basis @ point.step, point.ensemble.basis, point.ensemble.points
        ),
        single=False,
    )


@pytest.mark.parametrize("kind", ["binary", "softmax", "normal"])
def test_few_pairs_of_particles_lead_most_of_the_way_to_the_equilibrium(kind):
    problem = weighted_problem(kind, N=2_000)
    ensemble = eb.AffineEnsemble.factor(problem.prior.whitened(80, np.random.default_rng(0)))
    point = newton.begin(problem, ensemble, single=False)
    while not point.done:
        point = newton.advance(problem, point)
    begun = newton.start(problem, point)
    assert 1 <= begun.evaluations <= 2
    assert np.array_equal(begun.ensemble.points, ensemble.points)
    before, after = (relaxation.evaluate(problem, x, closure).residual for x in (newton.laplace(point), begun.ensemble))
    assert after < max(0.3 * before, 1e-9)


def test_pairs_depend_on_neither_order_nor_coordinates():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((50, 4))
    turn = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    pairs = newton._pairs(points)
    assert len(pairs) == 2 * newton.PAIRS
    assert pairs.sum(axis=0) == pytest.approx(0, abs=1e-12)
    assert np.linalg.norm(pairs, axis=1) == pytest.approx(2.0)
    assert newton._pairs(rng.permutation(points) @ turn) == pytest.approx(pairs @ turn, abs=1e-12)


def test_features_are_cast_once_unless_they_are_many(monkeypatch):
    features = np.random.default_rng(0).standard_normal((100, 3))
    model = eb.Problem.create(features, np.arange(100) % 2).model
    assert model._in_single.features.dtype == np.float32
    assert model._in_single is model._in_single
    monkeypatch.setattr("enkbayes.core.logits.HELD", 299)
    model = eb.Problem.create(features, np.arange(100) % 2).model
    assert isinstance(model, LinearLogits)
    assert model._in_single is model
