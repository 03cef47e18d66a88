"""Probes: linear classifiers at every layer, and how far they disagree."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.core.problem import Problem  # noqa: E402
from enkbayes.evaluation.baselines import Laplace  # noqa: E402
from enkbayes.evaluation.metrics import mutual_information  # noqa: E402
from enkbayes.nets import BayesianHead, OODScore, Probes  # noqa: E402


def fitted(outputs=3, size=300, ridge=1e-3, **options):
    torch.manual_seed(0)
    x = torch.randn(size, 3)
    y = (x[:, 0] > 0).long() + (outputs > 2) * (x[:, 1] > 0.5).long()
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, max(outputs, 2)))
    loader = [(x[:100], y[:100]), (x[100:], y[100:])]
    head = BayesianHead.fit(model, loader, particles=20, progress=False)
    score = OODScore.fit(head, loader, ridge=ridge, progress=False)
    return x, y, score, Probes.fit(score, loader, progress=False, **options)


@pytest.mark.parametrize("outputs", [2, 3])
def test_a_probe_is_a_laplace_posterior_of_the_whitened_inputs(outputs):
    x, y, score, probes = fitted(outputs, spread=5.0)
    proba = probes.sample_proba(x[:10])
    assert proba.shape == (3, 10, outputs)
    for layer in range(2):
        a = score.whitened(x)[layer].numpy()
        problem = Problem.create(a, y.numpy(), 5.0 / a.shape[1], classes=np.arange(outputs))
        expected = Laplace().fit(problem).predict_proba(a[:10])
        np.testing.assert_allclose(proba[layer], expected, atol=1e-3)
    np.testing.assert_allclose(proba[-1], score.posterior(x[:10]).detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(probes.disagreement(x[:10]), mutual_information(proba))


def test_whitened_inputs_have_unit_second_moments_and_leverage_is_their_mean_square():
    x, _, score, _ = fitted(ridge=0.0)
    for layer, a in enumerate(score.whitened(x)):
        moments = a.T @ a / len(a)
        torch.testing.assert_close(moments, torch.eye(len(moments)).double(), atol=1e-8, rtol=0)
        torch.testing.assert_close(score.leverage(x)[:, layer], (a**2).mean(dim=1))


def test_layers_that_know_the_class_agree_with_the_network_on_training_rows():
    x, y, _, probes = fitted(2)
    right = np.mean(probes.sample_proba(x)[0].argmax(axis=1) == y.numpy())
    assert right > 0.95  # the inputs themselves are linear in the class
    assert np.all(probes.disagreement(x) <= np.log(2))


def test_few_rows_are_read_and_none_is_an_error():
    *_, probes = fitted(rows=50)
    assert probes.sample_proba(torch.zeros(1, 3)).shape == (3, 1, 3)
    with pytest.raises(ValueError, match="rows is 0; expected a whole number, at least 1"):
        fitted(rows=0)
