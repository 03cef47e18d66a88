"""Error bars of the evidence hold what they promise, on skewed posteriors whose evidence a grid gives."""

import math

import numpy as np
import pytest
from scipy.special import log_expit, logsumexp

import enkbayes as eb
from enkbayes.inference.evidence import importance_sampling


def separable(rows, variance, dim):
    """Return a problem that is the product of `dim` equal ones with one parameter and `rows` successes, and its log
    evidence by a grid.
    """
    theta = np.linspace(-8, 12, 200_001) * math.sqrt(variance)
    heights = rows * log_expit(theta) - theta**2 / 2 / variance - math.log(2 * math.pi * variance) / 2
    alone = logsumexp(heights) + math.log(theta[1] - theta[0])
    return eb.Problem.create(np.repeat(np.eye(dim), rows, axis=0), np.ones(rows * dim), variance, classes=[0, 1]), (
        dim * alone
    )


@pytest.mark.parametrize(("rows", "variance", "dim"), [(3, 4.0, 1), (5, 25.0, 5), (3, 100.0, 2), (10, 4.0, 10)])
def test_two_standard_errors_hold_the_truth_of_skewed_posteriors(rows, variance, dim):
    problem, truth = separable(rows, variance, dim)
    posterior = eb.run(problem, eb.MeanField(), particles=2)
    found = [importance_sampling(problem, posterior, seed=seed) for seed in range(30)]
    scores = np.asarray([(evidence.value - truth) / evidence.error for evidence in found])
    assert np.mean(np.abs(scores) < 1.96) >= 0.8  # 95 % are expected; the draws of the fitted Gaussian alone give 70 %
    assert abs(np.mean(scores)) < 0.7
    assert np.std(scores) < 1.5


def test_an_exact_gaussian_needs_no_defence():
    problem = eb.Problem.create([[1.0]], [3.0], likelihood=eb.Normal())
    evidence = importance_sampling(problem, eb.run(problem))
    assert evidence.value == pytest.approx(-9 / 4 - math.log(4 * math.pi) / 2, abs=1e-9)
    assert evidence.error < 1e-6
