"""Forgetting: the power prior against refits with decayed weights, and the choice of its factor."""

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.mixture import MixturePosterior
from enkbayes.inference.forgetting import Forgetting, forgotten

rng = np.random.default_rng(0)
X = rng.standard_normal((400, 3))
W = np.asarray([1.0, -1.0, 0.5])
D = X @ W + rng.standard_normal(400)
Y = (D > 0).astype(int)
PRIOR = eb.Gaussian(np.asarray([0.2, 0.0, -0.3]), np.asarray([[1.0, 0.3, 0.0], [0.3, 2.0, 0.1], [0.0, 0.1, 0.5]]))


@pytest.mark.parametrize("factor", [0.0, 0.3, 0.9, 1.0])
def test_batches_with_a_factor_are_one_fit_with_decayed_weights(factor):
    """Exact for a Gaussian likelihood."""
    posterior = None
    for rows in np.split(np.arange(400), 4):
        problem = eb.Problem.create(X[rows], D[rows], PRIOR, likelihood=eb.Normal())
        if posterior is not None:
            problem = problem.with_prior(forgotten(posterior, PRIOR, factor).distribution)
        posterior = eb.run(problem)
    weights = np.repeat(factor ** np.arange(3, -1, -1), 100)
    whole = eb.run(eb.Problem.create(X, D, PRIOR, likelihood=eb.Normal(), weights=weights))
    np.testing.assert_allclose(posterior.mean, whole.mean, atol=1e-5)
    np.testing.assert_allclose(posterior.cov, whole.cov, atol=1e-5)


def test_a_mixture_forgets_in_every_component_and_in_its_weights():
    parts = tuple(eb.run(eb.Problem.create(X, Y, v)) for v in (0.1, 1.0))
    mixture = MixturePosterior(parts, (0.2, 0.8))
    prior = eb.Gaussian.isotropic(3)
    found = forgotten(mixture, prior, 0.5)
    for one, part in zip(found.components, parts, strict=True):
        np.testing.assert_allclose(one.mean, forgotten(part, prior, 0.5).mean)
    assert found.weights == pytest.approx((1 / 3, 2 / 3))
    assert found.predict_proba(X[:5]).shape == (5, 2)
    assert forgotten(mixture, prior, 1.0) is mixture


def test_a_sudden_drift_shows_at_once_and_a_slow_one_after_some_batches():
    posterior = eb.run(eb.Problem.create(X, Y))
    x = rng.standard_normal((50, 3))
    same, other, nearly = (
        eb.Problem.create(x, x @ w + rng.logistic(size=50) / 2 > 0) for w in (2 * W, -2 * W, W * [2, 0.3, 2])
    )
    assert Forgetting().seen(same, posterior).factor == 1.0
    assert Forgetting().seen(other, posterior).factor < 0.1
    slow, hasty = Forgetting(least=1e9), Forgetting(memory=0.0, least=1e9)
    for _ in range(3):
        slow, hasty = slow.seen(nearly, posterior), hasty.seen(nearly, posterior)
    assert np.allclose(slow.gains, 1.75 * np.asarray(hasty.gains))
    assert slow.factor == hasty.factor == 1.0
