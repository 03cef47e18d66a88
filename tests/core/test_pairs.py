"""Particles in pairs mean +- x: whitened, the same sums by half the product, nearer to the mean-field limit."""

from dataclasses import replace

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation
from enkbayes.core.gaussian import standard_points
from enkbayes.engine.arrays import like
from oracles.problems import method_problem, weighted_problem


@pytest.mark.parametrize("kind", ["binary", "softmax", "normal"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_pairs_of_particles_have_the_sums_of_particles_in_any_order(kind, library):
    problem = weighted_problem(kind, D=100)  # wide enough that half of a product is worth it
    if library == "torch":
        torch = pytest.importorskip("torch")
        arrays = {name: torch.as_tensor(getattr(problem, name)) for name in ("features", "targets", "weights")}
        problem = replace(problem.with_arrays(**arrays), prior=problem.prior.to(arrays["features"][:0, 0]))
    rng = np.random.default_rng(1)
    points = standard_points(2 * problem.dim, problem.dim, rng)
    mean, basis = like(rng.standard_normal(problem.dim), problem.prior.mean), problem.prior.dense_root * 0.3
    pairs, any_order = (
        eb.AffineEnsemble(mean, basis, like(x, mean)) for x in (points, points[rng.permutation(len(points))])
    )
    assert pairs.antithetic_half is not None
    assert any_order.antithetic_half is None
    for source, tolerance in ((problem, 1e-11), (problem.coarse, 1e-4)):
        one, other = (source.moments(x, Expectation(0.3)) for x in (pairs, any_order))
        for a, b in ((one.S, other.S), (one.g, other.g), (one.loss, other.loss)):
            assert np.abs(np.asarray(a) - np.asarray(b)).max() < tolerance * np.abs(np.asarray(b)).max()


@pytest.mark.parametrize(("size", "dim"), [(20, 10), (21, 10), (12, 10), (22, 10), (2, 1)])
def test_points_are_whitened_and_in_pairs_where_there_are_enough(size, dim):
    x = standard_points(size, dim, np.random.default_rng(0))
    assert np.abs(x.mean(axis=0)).max() < 1e-14
    assert np.abs(x.T @ x / size - np.eye(dim)).max() < 1e-13
    mirrored = size % 2 == 0 and np.array_equal(x[size // 2 :], -x[: size // 2])
    assert mirrored == (size % 2 == 0 and size >= 2 * dim)


def test_pairs_of_particles_are_nearer_to_the_mean_field_limit():
    """About half the error of as many particles without pairs."""
    problem = method_problem("T1")
    limit = eb.run(problem, eb.MeanField(tol=1e-8)).ensemble

    def off(theta):
        mean = eb.run(problem, eb.Equilibrium(tol=1e-8), theta=theta).ensemble.mean
        return np.linalg.norm(np.linalg.solve(limit.basis, mean - limit.mean))

    errors = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        alone = AffineEnsemble.factor(rng.standard_normal((100, problem.dim))).points  # whitened as well
        both = standard_points(100, problem.dim, rng), alone
        errors.append([off(problem.prior.mean + problem.prior.unwhiten(x)) for x in both])
    pairs, alone = np.mean(errors, axis=0)
    assert pairs < 0.7 * alone
