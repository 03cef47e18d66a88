"""The choice of rows to label: information about the pool, not disagreement, and clear errors."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import expit

from enkbayes import EnsembleClassifier, acquire
from enkbayes.inference.acquisition import informative_rows


def two_classes(p):
    return np.stack([1 - p, p], axis=2)


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((240, 4))
    y = X[:, 0] - X[:, 1] + rng.logistic(size=240) > 0
    return EnsembleClassifier(prior_precision=1.0, random_state=0, particles=100).fit(X[:20], y[:20]), X[20:]


def labels_covariance(p):
    """Return the covariance (N, N) of labels of different rows, and their variances (N,), for p (J, N)."""
    return np.cov(p.T, bias=True), p.mean(axis=0) * (1 - p.mean(axis=0))


def test_each_row_has_the_largest_remaining_squared_covariances_with_the_pool():
    """Against Gaussian conditioning on all chosen labels at once; equal leverage, so that no row gets noise."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((30, 3))
    theta = np.linalg.qr(rng.standard_normal((50, 3)))[0] * 8
    theta -= theta.mean(axis=0)
    z = theta @ X.T
    p = expit(2 * z / z.std(axis=0))  # the same variance of the logit in every row
    C, total = labels_covariance(p)
    chosen = informative_rows(two_classes(p), 5)
    for count in range(5):
        s = chosen[:count]
        joint = C[np.ix_(s, s)] + np.diag(total[s] - np.diag(C)[s])
        left = C - C[:, s] @ np.linalg.solve(joint, C[s]) if count else C
        worth = np.delete(np.sum(left**2, axis=1), s)
        assert chosen[count] == np.delete(np.arange(30), s)[np.argmax(worth)]


def test_exchanging_the_classes_changes_nothing():
    rng = np.random.default_rng(2)
    p = rng.uniform(0.2, 0.8, (40, 12))
    binary = informative_rows(two_classes(p), 12)
    assert sorted(binary) == list(range(12))
    flipped = informative_rows(two_classes(1 - p), 12)
    np.testing.assert_array_equal(binary, flipped)


def test_rows_are_distinct_and_the_choice_is_reproducible(fitted):
    clf, pool = fitted
    chosen = acquire(clf, pool, 15)
    assert chosen.shape == (15,)
    assert len(set(chosen.tolist())) == 15
    assert chosen.min() >= 0
    assert chosen.max() < len(pool)
    np.testing.assert_array_equal(chosen, acquire(clf, pool, 15))
    some = acquire(clf, pool, 15, candidates=60, seed=4)
    np.testing.assert_array_equal(some, acquire(clf, pool, 15, candidates=60, seed=4))
    assert set(some.tolist()) != set(acquire(clf, pool, 15, candidates=60, seed=5).tolist())
    assert sorted(acquire(clf, pool[:9], 9).tolist()) == list(range(9))


def test_a_permuted_pool_gives_the_same_rows(fitted):
    clf, pool = fitted
    order = np.random.default_rng(3).permutation(len(pool))
    np.testing.assert_allclose(pool[order][acquire(clf, pool[order], 8)], pool[acquire(clf, pool, 8)])


def test_any_kind_of_table_can_be_the_pool(fitted):
    clf, pool = fitted
    expected = acquire(clf, pool, 5)
    for same in (pool.tolist(), sparse.csr_matrix(pool)):
        np.testing.assert_array_equal(acquire(clf, same, 5), expected)
    named = pd.DataFrame(pool, columns=list("abcd"), index=np.arange(len(pool))[::-1])
    y = pool[:, 0] > 0
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0, particles=50).fit(named, y)
    assert acquire(clf, named, 5).max() < len(pool)


def test_rows_of_the_pool_are_preferred_to_outliers(fitted):
    """Outliers have the largest epistemic uncertainty, and their labels say nothing about the other rows."""
    clf, pool = fitted
    far = 40 * np.random.default_rng(5).standard_normal((20, 4))
    both = np.vstack([pool, far])
    epistemic = np.argsort(-clf.predict_uncertainty(both).epistemic)[:20]
    chosen = acquire(clf, both, 20)
    assert np.mean(epistemic >= len(pool)) > 0.3
    assert np.mean(chosen >= len(pool)) < 0.1


def test_copies_of_a_row_are_not_chosen_together():
    """With almost no noise in the labels, a second label of the same row tells nothing."""
    rng = np.random.default_rng(6)
    p = np.where(rng.standard_normal((60, 4)) > 0, 0.999, 0.001)
    copies = two_classes(np.concatenate([np.repeat(p[:, :1], 20, axis=1), p[:, 1:]], axis=1))
    chosen = informative_rows(copies, 4)
    assert sum(row < 20 for row in chosen) == 1


def test_more_classes_and_a_posterior_work():
    rng = np.random.default_rng(7)
    X = rng.standard_normal((120, 3))
    y = np.argmax(X + 0.5 * rng.standard_normal((120, 3)), axis=1)
    clf = EnsembleClassifier(prior_precision=1.0, random_state=0, particles=50, fit_intercept=False).fit(X[:15], y[:15])
    chosen = acquire(clf, X[15:], 6)
    np.testing.assert_array_equal(chosen, acquire(clf.posterior_, X[15:], 6))


def test_wrong_input_is_answered_in_a_sentence(fitted):
    clf, pool = fitted
    with pytest.raises(TypeError, match="clf is a str; expected a fitted classifier with sample_proba"):
        acquire("clf", pool, 3)
    with pytest.raises(ValueError, match="n is 0; expected a whole number from 1 to 220, the rows of the pool"):
        acquire(clf, pool, 0)
    with pytest.raises(ValueError, match="n is 221; expected a whole number from 1 to 220"):
        acquire(clf, pool, 221)
    with pytest.raises(ValueError, match=r"n is 2\.5; expected a whole number"):
        acquire(clf, pool, 2.5)
    with pytest.raises(ValueError, match=r"the pool has shape \(4,\); expected rows of features"):
        acquire(clf, pool[0], 1)
    with pytest.raises(ValueError, match="candidates is 5; expected at least n = 6"):
        acquire(clf, pool, 6, candidates=5)

    class OneParticle:
        def sample_proba(self, X):
            return np.full((1, len(X), 2), 0.5)

    with pytest.raises(ValueError, match=r"shape \(1, 1, 2\).* at least two particles"):
        acquire(OneParticle(), pool, 2)
