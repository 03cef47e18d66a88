"""The distance of rows to the classes of the training rows."""

import numpy as np
import pytest
from sklearn.covariance import LedoitWolf

from enkbayes.inference.class_distance import FLOOR, ClassDistance, ClassScore, direction


def data(seed=0, size=300, d=4, classes=3):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, size)
    return rng.standard_normal((size, d)) @ rng.standard_normal((d, d)) + 4 * rng.standard_normal((classes, d))[y], y


def test_the_distance_by_hand():
    """Loops over classes and rows, with scikit-learn's covariance."""
    X, y = data()
    new = 2 * data(seed=1, size=20)[0]
    found = ClassDistance.fit(X, y, rows=5.0, least=0.0)
    spread = X.std(axis=0)
    Z, new_z = (X - X.mean(axis=0)) / spread, (new - X.mean(axis=0)) / spread
    means = np.stack([Z[y == k].mean(axis=0) for k in range(3)])
    within = Z - means[y]
    fitted = LedoitWolf(assume_centered=True).fit(within)
    covariance = within.T @ within / (300 - 3)
    covariance = (1 - fitted.shrinkage_) * covariance + fitted.shrinkage_ * np.trace(covariance) / 4 * np.eye(4)
    values, axes = np.linalg.eigh(covariance)
    expected = []
    for z in new_z:
        squares = []
        for k in range(3):
            variance = (np.sum((within[y == k] @ axes) ** 2 / values, axis=0) + 5) / (np.sum(y == k) + 5)
            squares.append(np.mean(((z - means[k]) @ axes) ** 2 / values / variance))
        expected.append(np.log(min(squares) + FLOOR))
    np.testing.assert_allclose(found.distance(new), expected, rtol=1e-9)


def test_it_grows_along_every_ray_and_does_not_depend_on_units():
    X, y = data()
    found = ClassDistance.fit(X, y)
    rays = np.random.default_rng(2).standard_normal((50, 4))
    far = [found.distance(t * rays) for t in (1e2, 1e3, 1e4)]
    np.testing.assert_allclose(far[2] - far[1], 2 * np.log(10), atol=0.1)
    assert np.all(far[1] > far[0])
    units = np.asarray([1e-3, 1.0, 50.0, 1e4])
    same = ClassDistance.fit(units * X + 7 * units, y)
    np.testing.assert_allclose(same.distance(units * X + 7 * units), found.distance(X), atol=1e-6)


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.ones((20, 3)), np.arange(20) % 2),
        (np.zeros((5, 2)), np.zeros(5)),
        (np.ones((1, 3)), np.ones(1)),
        (np.random.default_rng(0).standard_normal((10, 40)), np.arange(10)),
    ],
    ids=["constant", "zeros", "one row", "more columns than rows, and a class of each row"],
)
def test_few_or_constant_rows_give_finite_distances(X, y):
    score = ClassScore.fit([X], y).calibrated([X])
    found = score([np.concatenate([X, 1e3 * X + 1, np.zeros_like(X)])])
    assert np.all(np.isfinite(found))
    assert found[len(X) : 2 * len(X)].mean() > found[: len(X)].mean()


def test_rows_between_classes_are_unusual_though_the_whole_surrounds_them():
    rng = np.random.default_rng(0)
    y = np.arange(600) % 2
    X = 0.5 * rng.standard_normal((600, 3)) + np.where(y == 0, -5, 5)[:, None]
    score = ClassScore.fit([X[:400]], y[:400]).calibrated([X[400:]])
    assert score([np.zeros((1, 3))])[0] > score([X[400:]]).max()


def test_rows_of_another_direction_are_unusual_though_they_are_short():
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.standard_normal((600, 1)))
    X = lengths * (np.asarray([1.0, 1.0, 1.0]) + 0.05 * rng.standard_normal((600, 3)))
    score = ClassScore.fit([X[:400]], np.zeros(400)).calibrated([X[400:]])
    turned = np.asarray([[1.0, -0.2, 1.0]]) * 0.5
    assert score([turned])[0] > score([X[400:]]).max()
    np.testing.assert_allclose(np.linalg.norm(direction(X), axis=1), 1)


def test_held_out_rows_set_the_scale():
    X, y = data(size=900)
    layers = [X, np.tanh(X[:, :2])]
    score = ClassScore.fit([a[:600] for a in layers], y[:600]).calibrated([a[600:] for a in layers])
    found = score([a[600:] for a in layers])
    assert abs(found.mean()) < 1e-9
    assert abs(found.std() - 1) < 1e-9


def test_few_rows_find_short_rows_of_no_class_and_rows_far_away():
    """Rows of the classes are longer than unusual ones, as the features of networks are: lengths mislead there."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((5, 400)) * (rng.uniform(size=(5, 400)) < 0.2)

    def rows(size):
        y = rng.integers(0, 5, size)
        return means[y] + 0.8 * rng.standard_normal((size, 400)), y

    X, y = rows(100)
    new, other = rows(200)[0], 0.4 * rng.standard_normal((200, 400))
    auroc, far = {}, {}
    for few in (False, True):
        score = ClassScore.fit([X[:80]], y[:80], few=few).calibrated([X[80:]])
        auroc[few] = np.mean(score([other])[:, None] > score([new])[None, :])
        far[few] = [score([t * new]).mean() for t in (1, 3, 1e3, 1e6)]
    assert auroc[True] > auroc[False] + 0.1
    assert auroc[True] > 0.9
    assert np.all(np.diff(far[True]) > 1)  # without bound
