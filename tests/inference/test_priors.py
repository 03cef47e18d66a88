"""Priors of linear classifiers, and posteriors that become priors."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import enkbayes as eb
from enkbayes.inference.priors import weight_prior


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris])
def test_precision_is_one_over_c(load):
    """scikit-learn's solution with C = 1 / precision is the most probable point of the posterior."""
    X, y = load(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    solution = LogisticRegression(C=1 / 3.0, fit_intercept=False, tol=1e-10, max_iter=1000).fit(X, y).coef_
    outputs = None if len(solution) == 1 else len(solution)
    theta = solution.T.reshape(-1)
    problem = eb.Problem.create(X, y, weight_prior(X.shape[1], outputs, precision=3.0))
    steps = 1e-4 * np.eye(len(theta))

    def potential(points):
        return problem.loss(points) - problem.prior.log_density(points)

    slope = (potential(theta + steps) - potential(theta - steps)) / 2e-4
    at_zero = (potential(steps) - potential(-steps)) / 2e-4
    assert np.abs(slope).max() < 1e-4 * np.abs(at_zero).max()


def test_a_matrix_couples_features_and_not_outputs():
    precision = np.asarray([[2.0, 1.0], [1.0, 2.0]])
    prior = weight_prior(2, 3, precision, mean=[[1, 2, 3], [4, 5, 6]])
    np.testing.assert_allclose(prior.cov.reshape(2, 3, 2, 3)[:, 1, :, 1], np.linalg.inv(precision))
    np.testing.assert_allclose(prior.cov.reshape(2, 3, 2, 3)[:, 1, :, 2], 0)
    np.testing.assert_array_equal(prior.mean, [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(weight_prior(2, 3, mean=[1, 2]).mean, [1, 1, 1, 2, 2, 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": 0.0}, "smallest prior_precision is 0"),
        ({"precision": [1.0, np.nan]}, "prior_precision contains NaN"),
        ({"precision": [1.0, 2.0, 3.0]}, r"prior_precision has shape \(3,\)"),
        ({"precision": [[1.0, 2.0], [0.0, 1.0]]}, "not symmetric"),
        ({"precision": [[1.0, 2.0], [2.0, 1.0]]}, "not positive definite"),
        ({"precision": None}, "prior_precision"),
        ({"mean": [1.0, 2.0, 3.0]}, r"prior_mean has shape \(3,\)"),
        ({"mean": "x"}, "prior_mean is 'x'"),
    ],
)
def test_wrong_priors_are_explained(arguments, message):
    with pytest.raises(ValueError, match=message):
        weight_prior(2, None, **arguments)


def test_sequential_bayes_is_exact_for_a_gaussian_likelihood():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    labels = X @ [1.0, -2.0, 0.5] + 0.3 * rng.standard_normal(60)
    noise = eb.Normal(0.09)
    whole = eb.run(eb.Problem.create(X, labels, likelihood=noise, intercept=10.0), particles=20)
    first = eb.run(eb.Problem.create(X[:25], labels[:25], likelihood=noise, intercept=10.0), particles=20)
    rest = eb.Problem.create(X[25:], labels[25:], likelihood=noise, intercept=10.0).with_prior(first.distribution)
    both = eb.run(rest, particles=20)
    np.testing.assert_allclose(both.mean, whole.mean, atol=1e-8)
    np.testing.assert_allclose(both.cov, whole.cov, atol=1e-8)


def test_laws_and_priors_that_do_not_fit():
    X, y = load_iris(return_X_y=True)
    problem = eb.Problem.create(X, y, intercept=1.0)
    with pytest.raises(ValueError, match="8 particles span 7 of 15 parameters"):
        _ = eb.run(problem, eb.Homotopy(), particles=8).distribution
    with pytest.raises(ValueError, match="dimension 12; expected 15"):
        problem.with_prior(eb.Gaussian.isotropic(12))


def test_numbers_of_numpy_are_numbers():
    """GridSearchCV over numpy.logspace passes them."""
    assert weight_prior(2, None, precision=np.float64(4.0), mean=np.float32(1.0)).cov.tolist() == [0.25, 0.25]
