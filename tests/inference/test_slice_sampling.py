"""Elliptical slice sampling leaves the target invariant and brings other starts to it."""

import numpy as np
import pytest
from scipy.special import expit

import enkbayes as eb
from enkbayes.inference.importance import log_ratio, log_weights
from enkbayes.inference.slice_sampling import numpy_ratio, slice_sweep
from oracles.problems import method_problem

CHAINS = 20_000


def skewed(z):
    """log of prod_i 2 sigma(4 z_i - 1), a strongly skewed distribution whose moments are known by quadrature."""
    return np.sum(np.log(expit(4 * z - 1)), axis=1)


def quadrature(power):
    x = np.linspace(-9, 9, 20001)
    density = np.exp(-(x**2) / 2) * expit(4 * x - 1)
    return np.sum(x**power * density) / np.sum(density)


def draws(rng):
    """Exact draws of the skewed distribution, by rejection from N(0, I)."""
    z = rng.standard_normal((8 * CHAINS, 2))
    kept = z[np.all(rng.random(z.shape) < expit(4 * z - 1), axis=1)]
    return kept[:CHAINS]


def swept(ratio, z, sweeps, rng):
    """Return the chains after some sweeps, and the number of points that were evaluated."""
    evaluated = []

    def counting(z):
        evaluated.append(len(z))
        return ratio(z)

    heights = counting(z)
    for _ in range(sweeps):
        z, heights = slice_sweep(counting, z, heights, rng)
    return z, sum(evaluated)


@pytest.mark.parametrize("start", ["target", "elsewhere"])
def test_a_known_target_is_invariant_and_found(start):
    rng = np.random.default_rng(1)
    z = draws(rng) if start == "target" else rng.standard_normal((CHAINS, 2)) - 3
    assert len(z) == CHAINS
    z, evaluations = swept(skewed, z, 3 if start == "target" else 30, rng)
    for power in (1, 2, 3):
        moments = np.mean(z**power, axis=0)
        error = np.std(z**power, axis=0) / np.sqrt(CHAINS)
        assert np.all(np.abs(moments - quadrature(power)) < 4 * error), power
    assert evaluations > CHAINS


def test_the_transition_is_reversible():
    """E[f(before) g(after)] = E[g(before) f(after)] in equilibrium. This is stronger than invariance."""
    rng = np.random.default_rng(2)
    before = draws(rng)
    after, _ = swept(skewed, before, 1, rng)
    f, g = (lambda z: z[:, 0]), (lambda z: z[:, 0] ** 3)
    difference = f(before) * g(after) - g(before) * f(after)
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(CHAINS)
    assert np.corrcoef(before[:, 0], after[:, 0])[0, 1] < 0.9  # and it moves


def test_a_flat_ratio_is_a_draw_on_the_ellipse_and_costs_one_evaluation():
    z = np.random.default_rng(3).standard_normal((500, 3))
    moved, evaluations = swept(lambda z: np.zeros(len(z)), z, 4, np.random.default_rng(0))
    assert evaluations == 500 * 5
    assert not np.any(np.all(moved == z, axis=1))


def test_points_without_a_value_are_never_taken():
    def ratio(z):
        return np.where(z[:, 0] > 0, 0.0, np.nan)

    z = np.abs(np.random.default_rng(0).standard_normal((300, 2)))
    moved, _ = swept(ratio, z, 5, np.random.default_rng(0))
    assert np.all(moved[:, 0] > 0)


def test_the_ratio_of_a_problem_is_that_of_its_weights_in_every_library():
    torch = pytest.importorskip("torch")
    problem = method_problem("T0")
    posterior = eb.run(problem, eb.MeanField())
    z = np.random.default_rng((5, 3)).standard_normal((40, 2))
    ratio = log_ratio(problem, posterior.ensemble)
    assert np.allclose(ratio(z), log_weights(problem, posterior, 40, 5))
    prior = problem.prior.to(torch.zeros(1, dtype=torch.float64))
    other = eb.Problem.create(torch.as_tensor(problem.features), problem.targets.astype(int), prior)
    same = log_ratio(other, posterior.ensemble.to(prior.mean))
    rngs = np.random.default_rng(0), np.random.default_rng(0)
    moved, n = swept(ratio, z, 3, rngs[0])
    twin, m = swept(numpy_ratio(same, torch.as_tensor(z)), z, 3, rngs[1])
    assert isinstance(same(torch.as_tensor(z)), torch.Tensor)
    assert n == m
    assert np.allclose(moved, twin, atol=1e-10)
