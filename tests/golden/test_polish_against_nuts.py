"""Two samples, one distribution? Particles against draws of NUTS, by a permutation test of the energy distance."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import enkbayes as eb
from golden.make_nuts import FOLDER, SAMPLED, real_problem

PERMUTATIONS, LEVEL = 199, 0.01


def energy_test(x, y, rng):
    """The share of random splits of the pooled sample whose energy distance is at least that of x (n, P) and y (m, P);
    small when the distributions differ. Coordinates are whitened by the pooled covariance.
    """
    pooled = np.concatenate([x, y])
    root = np.linalg.cholesky(np.linalg.inv(np.cov(pooled.T)))
    distance = cdist(pooled @ root, pooled @ root)
    first = np.arange(len(pooled)) < len(x)
    signs = np.stack([first, *(rng.permutation(first) for _ in range(PERMUTATIONS))])
    signs = np.where(signs, 1 / len(x), -1 / len(y))
    energy = -np.sum((signs @ distance) * signs, axis=1)  # 2 E|x - y| - E|x - x'| - E|y - y'|
    return np.mean(energy >= energy[0])


@pytest.mark.parametrize("name", SAMPLED)
def test_polished_particles_have_the_distribution_of_nuts(name):
    problem = real_problem(name)
    draws = np.load(FOLDER / f"nuts_{name}.npz")["draws"].astype(np.float64)
    before = eb.run(problem, eb.MeanField(), particles=600)
    after = eb.polish(problem, before, 60)
    assert energy_test(before.theta, draws, np.random.default_rng(0)) < LEVEL
    assert energy_test(after.theta, draws, np.random.default_rng(0)) > LEVEL


def test_the_test_rejects_equals_as_often_as_it_should():
    draws, rng = np.load(FOLDER / "nuts_iris_wide.npz")["draws"].astype(np.float64), np.random.default_rng(0)
    chosen = (rng.permutation(len(draws))[:400] for _ in range(40))
    rejected = [energy_test(draws[rows[:200]], draws[rows[200:]], rng) < 0.1 for rows in chosen]
    assert np.sum(rejected) <= 9  # 4 on average, and 1 % of the time more than 9
