"""A head with hundreds of classes predicts what its posterior predicts, without a K x K matrix for each row."""

import numpy as np
import torch
from torch import nn

import enkbayes as eb
from enkbayes.nets import BayesianHead


def test_a_head_predicts_what_its_posterior_predicts():
    torch.manual_seed(0)
    model, x = nn.Linear(3, 210), torch.randn(250, 3)
    labels = torch.arange(250) % 210
    head = BayesianHead.fit(
        model, [(x, labels)], prior_precision=0.5, sampler=eb.MeanField(rank=2, tol=1e-1), progress=False
    )
    found = head(x[:10]).numpy()
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    draws = head.posterior.mean_proba(x[:10].double().numpy() if head.mean.dtype == torch.float64 else x[:10])
    point = torch.softmax(head.map.gaussian_logits(x[:10], head.posterior.ensemble)[0], dim=1).numpy()
    distance = np.abs(found - np.asarray(draws)).sum(axis=1).mean()
    assert distance < 0.5 * np.abs(point - np.asarray(draws)).sum(axis=1).mean()
    noisy = head.proba_given(x[:10], torch.full((10,), 1e6)).numpy()
    assert noisy.max() < 0.02  # where noise is all there is, every class is about as probable
