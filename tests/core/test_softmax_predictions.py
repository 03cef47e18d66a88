"""Predictions of a softmax against plain Monte Carlo, for narrow and for wide logits."""

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.likelihoods import Categorical
from enkbayes.core.likelihoods.many_classes import predictive
from enkbayes.core.low_rank import Complement, Frame
from enkbayes.core.quadrature import averaged_over_points


def by_draws(mean, root, pairs, seed=5):
    """Return class probabilities (n, K) over antithetic draws of the logits."""
    x = np.random.default_rng(seed).standard_normal((pairs, root.shape[-1]))
    found = []
    for m, L in zip(mean, root, strict=True):
        z = np.concatenate([m + x @ L.T, m - x @ L.T])
        e = np.exp(z - z.max(axis=1, keepdims=True))
        found.append(np.mean(e / e.sum(axis=1, keepdims=True), axis=0))
    return np.asarray(found)


@pytest.mark.parametrize(("sd", "error"), [(0.3, 5e-4), (1.0, 1.5e-3), (3.0, 3e-3), (10.0, 7e-3)])
@pytest.mark.parametrize("K", [3, 10])
def test_the_error_is_small_for_every_width(K, sd, error):
    rng = np.random.default_rng(0)
    mean, A = 2 * rng.standard_normal((6, K)), rng.standard_normal((6, K, K)) / np.sqrt(K)
    root = sd * np.linalg.cholesky(A @ A.transpose(0, 2, 1) / 2 + np.eye(K) / 2)
    found = Categorical(K).predictive(mean, V=root)
    np.testing.assert_allclose(found, by_draws(mean, root, 2**16), atol=error)
    np.testing.assert_array_equal(found[2:4], Categorical(K).predictive(mean[2:4], V=root[2:4]))


def test_many_classes_with_wide_logits():
    K, D, rank = 250, 4, 3
    rng = np.random.default_rng(1)
    frame = Frame(np.eye(D), np.linalg.qr(rng.standard_normal((K, K)))[0], intercept=False)
    B = np.linalg.qr(rng.standard_normal((D * K, rank)))[0]
    variance, tightening = rng.uniform(0.5, 1.0, D * K) * 9, np.full(rank, 4.0)
    basis = frame.parameters((B * variance[:, None] ** 0.5 / tightening**0.5).T).T
    complement = Complement(frame, variance, tightening, seed=0)
    features = np.concatenate([0.05 * np.ones((1, D)), rng.standard_normal((3, D))])
    V = np.stack([np.einsum("d,dkr->kr", x, basis.reshape(D, K, rank)) for x in features])
    mean = 3 * rng.standard_normal((4, K))
    truth = by_draws(mean, np.concatenate([V, complement.logit_columns(features, V)], axis=-1), 2**15)
    distance = np.abs(predictive(features, mean, V, complement) - truth).sum(axis=1) / 2
    assert distance[0] < 0.002
    assert distance.max() < 0.05  # 256 pairs are off by .13


def test_a_shift_common_to_all_classes_needs_no_more_points():
    """It changes no prediction, so rows whose logits vary together are as cheap as others."""
    points = []

    def probabilities(logits):
        points.append(logits.shape[1])
        return eb.Categorical(3).mean(logits)

    V = np.asarray([[[0.1, 0.0, 0.0], [0.0, 0.1, 0.0], [0.0, 0.0, 0.1]]])
    found = [averaged_over_points(probabilities, np.zeros((1, 3)), V + shift) for shift in (0.0, 30.0)]
    assert points == [256, 256]
    np.testing.assert_allclose(found[1], found[0], atol=1e-3)
