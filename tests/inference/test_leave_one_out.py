"""Leave-one-out from one fit, against really leaving rows out."""

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.inference.leave_one_out import cavity, leave_one_out_losses
from enkbayes.solvers.laplace import laplace
from enkbayes.solvers.map_estimate import map_estimate

SPREADS = (0.03, 0.3, 3.0)


def problem(classes, size=80, dim=4, variance=1.0, weights=None):
    rng = np.random.default_rng(classes)
    features = rng.standard_normal((size, dim))
    logits = features @ rng.standard_normal((dim, classes))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return eb.Problem.create(features, labels, variance, weights=weights)


def fit(problem):
    return eb.run(problem, eb.MeanField(), particles=50)


def own_losses(posterior, part):
    proba = posterior.predict_proba(part.features)
    return -np.log(proba[np.arange(part.size), part.targets.astype(int)])


def really_left_out(problem):
    size = problem.size
    return np.concatenate(
        [
            own_losses(fit(problem.subset(np.delete(np.arange(size), n))), problem.subset(np.asarray([n])))
            for n in range(size)
        ]
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_nearly_equals_fits_without_the_row(classes):
    """Errors are small compared with what a row gains by being fitted to, and with the differences between priors."""
    exact, quick = [], []
    for variance in SPREADS:
        task = problem(classes, size=40, variance=variance)
        posterior = fit(task)
        left_out, losses = really_left_out(task), leave_one_out_losses(task, posterior.ensemble)
        seen = own_losses(posterior, task)
        assert np.linalg.norm(losses - left_out) < 0.15 * np.linalg.norm(seen - left_out)
        exact.append(left_out.mean())
        quick.append(losses.mean())
    assert np.max(np.abs(np.diff(exact) - np.diff(quick))) < 0.1 * np.max(np.abs(np.diff(exact)))


def test_a_cavity_is_the_gaussian_without_the_factor():
    rng = np.random.default_rng(0)
    n, K = 6, 3
    roots = rng.standard_normal((2, n, K, K))
    other, L = (np.eye(K) + root @ root.mT for root in roots)  # precisions of all other factors, and of the row's own
    shift, own = rng.standard_normal((2, n, K))
    V = np.linalg.inv(other + L)
    mu = (V @ (shift + own)[:, :, None])[:, :, 0]
    g = (L @ mu[:, :, None])[:, :, 0] - own
    mean, root = cavity(mu, V, g, L)
    np.testing.assert_allclose(root @ root.mT, np.linalg.inv(other), rtol=1e-6)
    np.testing.assert_allclose(mean, np.linalg.solve(other, shift[:, :, None])[:, :, 0], rtol=1e-6, atol=1e-9)


def test_a_row_that_would_take_more_than_there_is_leaves_a_finite_cavity():
    one = np.ones((1, 1))
    mean, root = cavity(0 * one, one[None], one, 2 * one[None])
    np.testing.assert_allclose([mean.item(), root.item() ** 2], [100.0, 100.0])


def test_a_row_without_features_is_predicted_as_before():
    task = eb.Problem.create(np.asarray([[0.0, 0.0], [1.0, 2.0], [3.0, 1.0]]), [0, 1, 2])
    np.testing.assert_allclose(leave_one_out_losses(task, fit(task).ensemble)[0], np.log(3), rtol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_row_of_weight_zero_is_predicted_as_any_new_row(classes):
    weights = np.repeat([1.0, 0.0], 40)
    task = problem(classes, weights=weights)
    posterior = fit(task)
    losses = leave_one_out_losses(task, posterior.ensemble)
    np.testing.assert_allclose(losses[40:], own_losses(posterior, task)[40:], rtol=1e-3)
    assert np.mean(losses[:40] > own_losses(posterior, task)[:40]) > 0.9


@pytest.mark.parametrize("classes", [2, 3])
def test_a_weight_is_that_many_rows(classes):
    """A row of weight 3 leaves with all of it."""
    weights = np.where(np.arange(40) == 7, 3.0, 1.0)
    task = problem(classes, size=40, weights=weights)
    rest = task.subset(np.delete(np.arange(40), 7))
    expected = own_losses(fit(rest), task.subset(np.asarray([7])))
    posterior = fit(task)
    got, seen = leave_one_out_losses(task, posterior.ensemble)[7], own_losses(posterior, task)[7]
    assert abs(got - expected[0]) < 0.25 * abs(seen - expected[0])


def test_chunks_do_not_matter():
    task = problem(3, size=150)
    ensemble = fit(task).ensemble
    whole = leave_one_out_losses(task, ensemble)
    np.testing.assert_allclose(leave_one_out_losses(task, ensemble, chunk=1), whole, rtol=1e-9)


def test_a_structured_covariance_will_do():
    task = problem(3, size=60, dim=10)
    full, structured = fit(task), eb.run(task, eb.MeanField(rank=8), particles=50)
    assert structured.ensemble.complement is not None
    a, b = (leave_one_out_losses(task, posterior.fitted) for posterior in (full, structured))
    np.testing.assert_allclose(a.mean(), b.mean(), rtol=0.05)


def test_a_laplace_fit_has_the_slope_and_the_curvature_of_its_mode():
    """With the averages of a mean-field Gaussian instead, the mean log loss is 3 times that of refits."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 100))
    labels = rng.integers(0, 2, 60)

    def mode(part):
        return laplace(part, map_estimate(part).theta)

    def loss(part, gaussian, row):
        logit, V = part.linear_logits("x").gaussian_logits(row[0], gaussian)
        return -np.log(part.likelihood.predictive(logit, V=V)[0, int(row[1])])

    task = eb.Problem.create(features, labels, 3.0)
    exact = []
    for n in range(0, 60, 3):
        part = task.subset(np.delete(np.arange(60), n))
        exact.append(loss(part, mode(part), (features[[n]], labels[n])))
    rows = np.arange(0, 60, 3)
    point, averaged = (leave_one_out_losses(task, mode(task), point=point)[rows].mean() for point in (True, False))
    assert abs(point - np.mean(exact)) < 0.15 * np.mean(exact)
    assert abs(averaged - np.mean(exact)) > 2 * abs(point - np.mean(exact))
