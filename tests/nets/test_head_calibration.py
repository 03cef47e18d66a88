"""A head with calibration data, and its report without them."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.evaluation.metrics import nll  # noqa: E402
from enkbayes.nets import BayesianHead  # noqa: E402
from oracles.heads import fit, loader, mlp  # noqa: E402


def trained(outputs, dtype=torch.float32):
    """A network that has overfitted 60 noisy rows, these rows, and 120 others."""
    torch.manual_seed(1)
    x = torch.randn(180, 4, dtype=dtype)
    centres = torch.randn(4, max(outputs, 2), dtype=dtype)
    y = torch.distributions.Categorical(logits=x @ centres).sample()
    model = mlp(outputs, dtype=dtype)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(150):
        optimiser.zero_grad()
        logits = model(x[:60])
        loss = (
            nn.functional.binary_cross_entropy_with_logits(logits[:, 0], y[:60].to(dtype))
            if outputs == 1
            else nn.functional.cross_entropy(logits, y[:60])
        )
        loss.backward()
        optimiser.step()
    return model, (x[:60], y[:60]), (x[60:120], y[60:120]), (x[120:], y[120:])


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_calibration_data_correct_an_overconfident_network(outputs):
    model, train, held_out, fresh = trained(outputs)
    head = fit(model, loader(*train), calibration=loader(*held_out))
    with torch.no_grad():
        logits = model(fresh[0])
        network = torch.softmax(torch.cat([torch.zeros_like(logits), logits], 1) if outputs == 1 else logits, dim=1)
    assert head.calibration.rows == 60
    assert head.calibration.scale < 0.8
    assert head(fresh[0]).dtype == torch.float32
    assert nll(head(fresh[0]), fresh[1]) < nll(network, fresh[1]) - 0.1
    again = BayesianHead.empty(model)
    again.load_state_dict(head.state_dict())
    torch.testing.assert_close(again(fresh[0]), head(fresh[0]))


def test_calibration_works_with_features_of_ones_own():
    model, train, held_out, fresh = trained(3)
    whole = fit(model, loader(*train), calibration=loader(*held_out))
    with_layer = fit(model, loader(*train), calibration=loader(*held_out), features=model[:-1], layer="2")
    without = fit(model, loader(*train), calibration=loader(*held_out), features=model[:-1])
    torch.testing.assert_close(with_layer(fresh[0]), whole(fresh[0]))
    assert nll(without(fresh[0]), fresh[1]) < 1.1


def test_calibration_data_choose_the_prior_alone():
    model, train, held_out, _ = trained(1)
    with pytest.raises(ValueError, match=r"pass either calibration= or a prior, not both"):
        fit(model, loader(*train), calibration=loader(*held_out), prior_precision=1.0)


def test_without_calibration_data_a_head_stays_near_its_network_and_reports_it():
    model, train, _, fresh = trained(2)
    with pytest.warns(UserWarning, match="nothing corrects the over-confidence"):
        head = fit(model, loader(*train))
    with torch.no_grad():
        network = torch.softmax(model(fresh[0]), dim=1)
    assert (head(fresh[0]) - network).abs().mean() < 0.05
    assert head(fresh[0]).max(1).values.mean() < network.max(1).values.mean()
    assert "pass held-out rows as calibration=" in head.calibration.message
    assert fit(model, loader(*train), prior_precision=1.0).calibration is None
