"""The most probable weights of a softmax: the same as other methods find, from anywhere, for any kind of rows."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression

import enkbayes as eb
from enkbayes.solvers.laplace import whitened_moments
from enkbayes.solvers.softmax_path import Eigenbasis, SoftmaxSearch, diagonal_covariance, fits

TIGHT = SoftmaxSearch(tol=1e-7)


def many(N=240, D=6, K=8, seed=0):
    """Features of unequal size around a mean that is not zero, and labels of a softmax."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((N, D)) * np.geomspace(0.3, 3.0, D) + 0.5
    logits = features @ rng.standard_normal((D, K))
    labels = np.argmax(logits + rng.gumbel(size=(N, K)), axis=1)
    labels[:K] = np.arange(K)
    return features, labels


def mode(problem, search=TIGHT):
    return search.mode(problem, Eigenbasis.of(problem)).theta


def test_mode_is_that_of_scikit_learn():
    features, labels = many()
    theirs = LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000, fit_intercept=False).fit(features, labels)
    ours = mode(eb.Problem.create(features, labels, 2.0)).reshape(features.shape[1], -1)
    assert ours == pytest.approx(theirs.coef_.T, abs=1e-5)


@pytest.mark.parametrize("intercept", [None, 9.0])
def test_gradient_vanishes_at_the_mode(intercept):
    features, labels = many()
    weights = np.linspace(0.5, 2.0, len(labels))
    prior = eb.Gaussian(np.full(48, 0.2), np.repeat(np.geomspace(0.5, 2.0, 6), 8))
    problem = eb.Problem.create(features, labels, prior, intercept=intercept, weights=weights)
    assert np.linalg.norm(whitened_moments(problem, mode(problem)).g) < 1e-4


def test_path_ends_where_a_cold_search_ends():
    features, labels = many()
    problems = [eb.Problem.create(features, labels, v, intercept=100.0) for v in (0.1, 1.0, 10.0)]
    for problem, warm in zip(problems, TIGHT.path(problems), strict=True):
        assert warm.theta == pytest.approx(mode(problem), abs=1e-4)


@pytest.mark.parametrize("kind", ["sparse", "torch", "stream", "float32", "axes"])
def test_any_kind_of_rows_has_the_same_mode(kind):
    features, labels = many()
    create = eb.Problem.create
    expected = mode(create(features, labels, 2.0, intercept=9.0))
    if kind == "stream":
        problem = eb.Problem.stream(
            [(features[:100], labels[:100]), (features[100:], labels[100:])], 2.0, intercept=9.0
        )
    else:
        convert = {"sparse": scipy.sparse.csr_array, "float32": np.float32}.get(kind, np.asarray)
        if kind == "torch":
            convert = pytest.importorskip("torch").asarray
        problem = create(convert(features), labels, 2.0, intercept=9.0)
    basis = Eigenbasis.of(problem, most=0 if kind == "axes" else 4096)
    search = SoftmaxSearch(tol=1e-3) if kind == "float32" else TIGHT
    assert search.mode(problem, basis).theta == pytest.approx(expected, abs=2e-2 if kind == "float32" else 1e-4)


def test_weights_count_rows():
    features, labels = many()
    counts = np.random.default_rng(1).integers(1, 4, len(labels))
    repeated = eb.Problem.create(np.repeat(features, counts, axis=0), np.repeat(labels, counts), 2.0)
    weighted = eb.Problem.create(features, labels, 2.0, weights=counts)
    assert mode(weighted) == pytest.approx(mode(repeated), abs=1e-4)
    assert Eigenbasis.of(weighted).logit_variance == pytest.approx(Eigenbasis.of(repeated).logit_variance, rel=1e-6)


def test_covariance_is_that_of_a_diagonal_hessian():
    features, labels = many(D=1, K=3)
    problem = eb.Problem.create(features, labels, 2.0, intercept=9.0)
    basis, theta = Eigenbasis.of(problem), np.zeros(problem.dim)
    variances = diagonal_covariance(problem, basis, theta).cov(np.zeros((problem.dim, 0)))
    curvature = len(labels) * (1 / 3) * (2 / 3)
    spread = np.sum((features - features.mean()) ** 2) * (1 / 3) * (2 / 3)
    slope, at_mean = 1 / (spread + 1 / 2.0), 1 / (curvature + 1 / 9.0)
    assert np.diag(variances)[:3] == pytest.approx(np.full(3, slope), rel=1e-5)
    # the curvature of the prior of the intercept counts only at the mean of the features
    assert np.diag(variances)[3:] == pytest.approx(np.full(3, at_mean + slope * features.mean() ** 2), rel=1e-3)


def test_what_does_not_fit_is_recognised():
    features, labels = many()
    uneven = eb.Gaussian(np.zeros(48), np.linspace(0.5, 2.0, 48))
    assert fits(eb.Problem.create(features, labels))
    assert not fits(eb.Problem.create(features, labels, uneven))
    assert not fits(eb.Problem.create(features, labels > 3))


def test_the_basis_of_another_width_needs_no_other_pass_over_the_rows():
    features, labels = many()
    narrow, wide = (eb.Problem.create(features, labels, width, intercept=9.0) for width in (0.5, 8.0))
    scaled, own = Eigenbasis.of(narrow).scaled_to(wide), Eigenbasis.of(wide)
    np.testing.assert_allclose(scaled.values, own.values, rtol=1e-10)
    np.testing.assert_allclose(scaled.roots, own.roots)
    assert scaled.logit_variance == pytest.approx(own.logit_variance)
