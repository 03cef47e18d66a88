"""Sums over rows: the fast ways give the answers of the plain one."""

import numpy as np
import pytest
import scipy.sparse

import enkbayes as eb
from enkbayes.core.expectations import Expectation, at_mean, closure, empirical
from enkbayes.engine.arrays import logistic_averages
from enkbayes.engine.rows import ArrayRows, CastRows, Chunk
from oracles.problems import logistic_data, weighted_problem


@pytest.mark.parametrize("kind", ["binary", "softmax", "normal"])
@pytest.mark.parametrize("expectation", [empirical, closure, Expectation(0.3), at_mean], ids=repr)
@pytest.mark.parametrize(
    "rows", [64, 4096]
)  # a chunk of more than 64 rows is averaged in several blocks that share their memory
def test_sums_in_the_parameters_are_those_in_the_basis(kind, expectation, rows):
    problem = weighted_problem(kind)
    problem = problem.with_arrays(chunk=rows)
    ensemble = eb.AffineEnsemble.factor(problem.prior.whitened(60, np.random.default_rng(1)) * 0.3)
    fast = problem.moments(ensemble, expectation)
    slow = problem.model.moments_in_basis(problem.rows, ensemble, problem.likelihood, expectation)
    assert fast.g == pytest.approx(slow.g, rel=1e-9, abs=1e-9)
    assert np.abs(fast.S - slow.S).max() < 1e-10 * np.abs(slow.S).max()
    assert float(fast.loss) == pytest.approx(float(slow.loss), rel=1e-10)


def test_a_block_gives_the_rows_of_the_whole_chunk():
    rng = np.random.default_rng(0)
    chunk = Chunk(rng.standard_normal((300, 5)), rng.standard_normal(300), None)
    matrix, offset = rng.standard_normal((5, 7)), rng.standard_normal(7)

    def rowwise(block):
        mirrored = block.mirrored_product(block.targets[:, None], matrix, offset)
        first = mirrored.sum(axis=1)
        return first, block.product(matrix, offset).copy(), np.ones(block.size)

    sums, products, ones = chunk.by_blocks(rowwise, width=14, cached=14 * 80)
    assert products == pytest.approx(chunk.features @ matrix + offset)
    assert sums == pytest.approx(14 * chunk.targets)  # what one half adds the other takes away
    assert len(ones) == 300


@pytest.mark.parametrize("basis", [np.diag([1.0, -2.0, 3.0]), np.diag([1.0, 0.0, 3.0]), np.tri(3)], ids=str)
def test_moments_in_a_diagonal_basis_are_those_in_any(basis):
    rng = np.random.default_rng(0)
    problem = eb.Problem.create(rng.standard_normal((40, 3)), np.arange(40) % 2)
    ensemble = eb.AffineEnsemble(np.zeros(3), basis, rng.standard_normal((9, 3)))
    found = problem.moments(ensemble)
    plain = problem.model.moments_in_basis(problem.rows, ensemble, problem.likelihood, empirical)
    assert found.g == pytest.approx(plain.g)
    assert pytest.approx(plain.S) == found.S


def test_narrow_features_are_read_in_longer_chunks_with_the_same_sums():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((20_000, 3))
    labels = features[:, 0] + rng.logistic(size=20_000) > 0
    long, short = (eb.Problem.create(features, labels, chunk=chunk) for chunk in (None, 500))
    assert [chunk.size for chunk in long.rows.chunks(long=True)] == [20_000]
    assert max(chunk.size for chunk in short.rows.chunks(long=True)) == 500  # somebody wants to save memory
    ensemble = eb.AffineEnsemble.factor(long.prior.whitened(60, rng))
    one, other = (problem.moments(ensemble) for problem in (long, short))
    assert np.abs(one.S - other.S).max() < 1e-12 * np.abs(one.S).max()
    assert np.abs(one.g - other.g).max() < 1e-12 * np.abs(one.S).max()
    classes = eb.Problem.create(features, np.digitize(features[:, 0], [-1, 1]))
    assert max(chunk.size for chunk in classes.rows.chunks(long=True)) < 4096  # K logits take K times the memory


def test_features_of_a_mapped_file_go_the_same_way(tmp_path):
    features = np.random.default_rng(0).standard_normal((300, 4))
    np.save(tmp_path / "x.npy", features)
    mapped, plain = (
        eb.Problem.create(x, features[:, 0] > 0) for x in (np.load(tmp_path / "x.npy", mmap_mode="r"), features)
    )
    assert isinstance(mapped.features, np.memmap)
    ensemble = eb.AffineEnsemble.factor(plain.prior.whitened(30, np.random.default_rng(1)))
    for problems in ((mapped, plain), (mapped.coarse, plain.coarse)):
        one, other = (problem.moments(ensemble) for problem in problems)
        assert np.array_equal(one.S, other.S)
        assert type(one.S) is np.ndarray


def test_sparse_features_give_the_same_sums():
    features = scipy.sparse.random(200, 6, density=0.4, random_state=0, format="csr")
    labels = np.arange(200) % 2
    problems = [eb.Problem.create(x, labels, 1.0, intercept=1.0) for x in (features, features.toarray())]
    ensemble = eb.AffineEnsemble.factor(problems[0].prior.whitened(30, np.random.default_rng(0)))
    for pair, tolerance in ((problems, 1e-12), ([problem.coarse for problem in problems], 1e-5)):
        sparse, dense = (problem.moments(ensemble) for problem in pair)
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
    problem = eb.Problem.nonlinear(lambda particles: mine[:, : len(particles)], labels, eb.Gaussian.isotropic(3))
    problem.moments(eb.AffineEnsemble.factor(theta))
    posterior = eb.run(problem, eb.Homotopy(steps=1), theta=theta)
    posterior.mean_proba(lambda particles: mine[:, : len(particles)])
    posterior.sample_proba(lambda particles: mine[:, : len(particles)])
    assert np.array_equal(mine, before)


@pytest.mark.parametrize("kind", ["binary", "softmax"])
@pytest.mark.parametrize("expectation", [empirical, closure], ids=["empirical", "closure"])
def test_float32_products_are_off_by_round_off_and_add_up_in_double(kind, expectation):
    """In units of the posterior, where S = I: far below any residual at which float32 is used."""
    problem = weighted_problem(kind, N=20_000, D=10)
    ensemble = eb.run(problem, eb.MeanField(tol=1e-3), particles=100).ensemble
    double, single = problem.moments(ensemble, expectation), problem.coarse.moments(ensemble, expectation)
    assert single.S.dtype == np.float64
    scale = 1e-3 / 3
    assert 0 < np.linalg.norm(single.g - double.g) < scale * np.sqrt(problem.dim)
    assert np.linalg.norm(single.S - double.S) < scale * np.sqrt(problem.dim)


def test_features_are_cast_once_unless_they_are_many():
    features = np.random.default_rng(0).standard_normal((100, 3))
    rows = ArrayRows(features, np.arange(100.0) % 2)
    assert rows.coarse.features.dtype == np.float32
    assert rows.coarse is rows.coarse
    cast = ArrayRows(features, np.arange(100.0) % 2, held=299).coarse
    assert isinstance(cast, CastRows)
    assert {chunk.features.dtype for chunk in cast.chunks()} == {np.dtype(np.float32)}
    assert cast.coarse is None
