"""Heads with far-field variance by the leverage of outputs alone, as version 0.2 first wrote them, load unchanged."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.nets import BayesianHead  # noqa: E402

FOLDER = Path(__file__).parent / "nets_far_field"
EXPECTED = np.load(FOLDER / "expected.npz")
NEW = torch.linspace(-2, 2, 10).reshape(5, 2) * torch.tensor([[1.0], [1.0], [3.0], [10.0], [100.0]])


def model(outputs):
    return nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, outputs))


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kind", ["file", "state"])
def test_heads_without_directions(outputs, kind):
    if kind == "file":
        head = BayesianHead.load(FOLDER / f"head_{outputs}.safetensors", model(outputs))
    else:
        head = BayesianHead.empty(model(outputs))
        head.load_state_dict(torch.load(FOLDER / f"head_{outputs}.pt", weights_only=True))
    noise, proba = EXPECTED[f"noise_{outputs}"], EXPECTED[f"head_{outputs}"]
    assert noise.max() > 1e6
    assert noise.min() == 0
    np.testing.assert_allclose(head.noise(NEW).numpy(), noise, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(head(NEW).detach().numpy(), proba, rtol=0, atol=1e-6)
    again = BayesianHead.empty(model(outputs))
    again.load_state_dict(head.state_dict())
    assert torch.equal(again(NEW), head(NEW))
