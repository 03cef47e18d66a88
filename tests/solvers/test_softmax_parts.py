"""Fits to several parts of the rows at once: the same as fits to one part after the other, for any kind of rows."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

import enkbayes as eb
from enkbayes.solvers.softmax_parts import Parts, PartSearch
from enkbayes.solvers.softmax_path import Eigenbasis, SoftmaxSearch, within_classes

TIGHT = SoftmaxSearch(tol=1e-6)
CLOSE = PartSearch(tol=1e-3, most=200)
WIDTHS = (1.0, 25.0)


def rows(N=200, D=5, K=6, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((N, D)) * np.geomspace(0.3, 3.0, D) + 0.3
    labels = np.argmax(features @ rng.standard_normal((D, K)) + rng.gumbel(size=(N, K)), axis=1)
    labels[: 2 * K] = np.arange(2 * K) % K
    return features, labels


def parts_of(problem, left_out, search=CLOSE, bases=None):
    kept = [problem.subset(np.flatnonzero(left_out != part)) for part in range(left_out.max() + 1)]
    return Parts(problem, left_out, tuple(map(Eigenbasis.of, kept)) if bases is None else bases, search), kept


def at_width(problem, width, basis):
    linear = problem.linear_logits("a test")
    cov = np.asarray(problem.prior.cov, dtype=float).copy()
    cov[: linear.features * linear.outputs] *= width / basis.logit_variance
    return problem.with_prior(eb.Gaussian(problem.prior.mean, cov))


def centred(logits):
    """What all classes share is in no probability."""
    return logits - logits.mean(axis=1, keepdims=True)


def one_by_one(parts, kept, width):
    """Return the logits of the rows that are left out, by separate fits."""
    linear = parts.problem.linear_logits("a test")
    found = np.empty((parts.problem.size, parts.classes))
    for part, (own, basis) in enumerate(zip(kept, parts.bases, strict=True)):
        posed = at_width(own, width, basis)
        theta = TIGHT.mode(posed, basis.scaled_to(posed)).theta
        mine = np.flatnonzero(parts.left_out == part)
        found[mine] = linear.project(parts.problem.features[mine, :], theta[:, None])[:, :, 0]
    return found[parts.rows_left_out]


@pytest.mark.parametrize("intercept", [None, 9.0])
@pytest.mark.parametrize("mean", [0.0, 0.3])
def test_the_same_as_fits_one_after_the_other(intercept, mean):
    features, labels = rows()
    prior = eb.Gaussian(np.full(30, mean), np.repeat(np.geomspace(0.5, 2.0, 5), 6))
    weights = np.linspace(0.5, 2.0, len(labels))
    problem = eb.Problem.create(features, labels, prior, intercept=intercept, weights=weights)
    parts, kept = parts_of(problem, np.arange(200) % 3)
    for width, fits in zip(WIDTHS, parts.path(WIDTHS), strict=True):
        assert centred(fits.logits) == pytest.approx(centred(one_by_one(parts, kept, width)), abs=0.02)


def test_rows_that_no_part_leaves_out():
    problem = eb.Problem.create(*rows(), intercept=100.0)
    left_out = np.where(np.arange(200) < 40, 0, -1)
    parts, kept = parts_of(problem, left_out)
    (fits,) = parts.path((5.0,))
    assert fits.logits.shape == (40, 6)
    assert centred(fits.logits) == pytest.approx(centred(one_by_one(parts, kept, 5.0)), abs=0.02)


@pytest.mark.parametrize("kind", ["sparse", "axes"])
def test_other_kinds_of_rows_are_fitted_the_same(kind):
    features, labels = rows()
    problem, left_out = eb.Problem.create(features, labels, 2.0, intercept=9.0), np.arange(200) % 2
    expected = next(parts_of(problem, left_out)[0].path((5.0,)))
    bases = None
    if kind == "sparse":
        problem = eb.Problem.create(scipy.sparse.csr_array(features), labels, 2.0, intercept=9.0)
    else:
        bases = tuple(Eigenbasis.of(problem.subset(np.flatnonzero(left_out != part)), most=2) for part in (0, 1))
    found = next(parts_of(problem, left_out, bases=bases)[0].path((5.0,)))
    assert centred(found.logits) == pytest.approx(centred(expected.logits), abs=0.02)
    if kind == "sparse":
        assert found.variances == pytest.approx(expected.variances, rel=0.02)


def test_large_logits_do_not_overflow():
    features, labels = rows()
    centres = 300 * np.eye(6)[:, :5]
    problem = eb.Problem.create(features + centres[labels], labels, intercept=100.0)
    for fits in parts_of(problem, np.arange(200) % 2, PartSearch())[0].path((1.0, 1e8)):
        assert np.all(np.isfinite(fits.logits))


def test_another_shape_of_the_prior_is_that_of_turned_features():
    features, labels = rows()
    problem = eb.Problem.create(features, labels)
    basis = Eigenbasis.of(problem)
    T = within_classes(problem, basis)
    shaped = basis.shaped(T)
    assert shaped.logit_variance == pytest.approx(basis.logit_variance)
    turned = eb.Problem.create(features @ shaped.shape, labels)
    expected = TIGHT.mode(turned, Eigenbasis.of(turned)).theta.reshape(5, 6)
    found = TIGHT.mode(problem, shaped).theta.reshape(5, 6)
    assert found == pytest.approx(shaped.shape @ expected, abs=1e-4)
    narrow = at_width(problem, 0.5, shaped)
    assert shaped.scaled_to(narrow).logit_variance == pytest.approx(0.5)


def test_no_shape_where_every_row_has_its_own_class():
    rng = np.random.default_rng(0)
    alone = eb.Problem.create(rng.standard_normal((3, 4)), np.arange(3))
    assert within_classes(alone, Eigenbasis.of(alone)) is None


def test_a_search_that_may_take_no_steps_returns_its_start():
    problem = eb.Problem.create(*rows(), intercept=100.0)
    parts, _ = parts_of(problem, np.arange(200) % 2, replace(CLOSE, most=0))
    assert np.all(next(parts.path((1.0,))).V == 0)
