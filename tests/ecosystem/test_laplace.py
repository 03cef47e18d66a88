"""The regression example of laplace-torch, side by side: the same network, the last layer of each library."""

import pytest
import torch
from torch import nn

from enkbayes.nets import BayesianHead

laplace = pytest.importorskip("laplace")
pytestmark = pytest.mark.filterwarnings("ignore")
NOISE = 0.3


def sinusoid(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = 8 * torch.rand(count, 1, generator=generator)
    return x, torch.sin(x) + NOISE * torch.randn(count, 1, generator=generator)


@pytest.fixture(scope="module")
def example():
    torch.manual_seed(711)
    x, y = sinusoid(150, 0)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=150)
    model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(1000):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    return model, loader


def fitted(model, loader, **options):
    la = laplace.Laplace(model, "regression", subset_of_weights="last_layer", hessian_structure="full", **options)
    la.fit(loader)
    return la


def test_variances_agree_where_prior_and_noise_are_the_same(example):
    model, loader = example
    la = fitted(model, loader, prior_precision=2.0, sigma_noise=NOISE)
    head = BayesianHead.fit(
        model,
        loader,
        regression=True,
        prior_precision=2.0,
        intercept_precision=2.0,
        noise_variance=NOISE**2,
        progress=False,
    )
    x = torch.linspace(-5, 13, 300)[:, None]
    mean, variance = la(x)
    found = head.predict_uncertainty(x)
    torch.testing.assert_close(found.epistemic, variance.detach()[:, 0, 0], rtol=1e-3, atol=1e-5)
    inside = (x[:, 0] > 0) & (
        x[:, 0] < 8
    )  # the means are the trained network, and the ridge regression of its features
    torch.testing.assert_close(head(x)[inside], mean.detach()[inside], rtol=0, atol=0.1)


def test_noise_by_evidence_and_densities_of_new_targets(example):
    model, loader = example
    la = fitted(model, loader)
    log_prior, log_sigma = (torch.ones(1, requires_grad=True) for _ in range(2))
    optimiser = torch.optim.Adam([log_prior, log_sigma], lr=1e-1)
    for _ in range(100):
        optimiser.zero_grad()
        loss = -la.log_marginal_likelihood(log_prior.exp(), log_sigma.exp())
        loss.backward()
        optimiser.step()
    head = BayesianHead.fit(model, loader, calibration=[sinusoid(100, 1)], regression=True, progress=False)
    assert float(la.sigma_noise) == pytest.approx(NOISE, rel=0.15)
    assert head.likelihood.variance**0.5 == pytest.approx(NOISE, rel=0.15)
    x, y = sinusoid(1000, 2)
    mean, variance = la(x)
    losses = {
        "laplace-torch": nn.functional.gaussian_nll_loss(mean, y, variance[:, 0] + la.sigma_noise.item() ** 2),
        "enkbayes": nn.functional.gaussian_nll_loss(head(x), y, head.predict_uncertainty(x).total[:, None]),
    }
    assert losses["enkbayes"] < losses["laplace-torch"] + 0.02
    far = torch.tensor([[50.0], [500.0]])
    growth = head.predict_uncertainty(far).total
    assert growth[1] > 10 * growth[0] > 0
