"""Networks with several labels for each row: K posteriors that are those of K binary fits."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from enkbayes.nets import BayesianHead, BayesianNetwork, MultiLabel

K = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, K)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(120, 4, generator=generator)
    return x, (x[:, :K] + 0.7 * torch.randn(120, K, generator=generator) > 0).float()


TRAIN, HELD_OUT, NEW = [batch(0)], [batch(1)], batch(2)
MODEL = Net()


def alone(k):
    """The network with logit k alone."""
    model = copy.deepcopy(MODEL)
    model.out = nn.Linear(8, 1)
    with torch.no_grad():
        model.out.weight.copy_(MODEL.out.weight[k : k + 1])
        model.out.bias.copy_(MODEL.out.bias[k : k + 1])
    return model


def column(batches, k):
    return [(x, y[:, k]) for x, y in batches]


def losses(proba, y):
    """The log loss of each label."""
    return [float(nn.functional.binary_cross_entropy(proba[:, k], y[:, k])) for k in range(K)]


@pytest.mark.parametrize("options", [{}, {"prior_precision": 2.0}, {"calibration": HELD_OUT}])
def test_a_head_is_k_binary_heads(options):
    labels = MultiLabel.fit_head(MODEL, TRAIN, progress=False, **options)
    proba = labels(NEW[0])
    assert proba.shape == (120, K)
    for k, loss in enumerate(losses(proba, NEW[1])):
        own = {name: column(x, k) if name == "calibration" else x for name, x in options.items()}
        head = BayesianHead.fit(alone(k), column(TRAIN, k), progress=False, **own)
        expected = nn.functional.binary_cross_entropy(head(NEW[0])[:, 1], NEW[1][:, k])
        assert loss == pytest.approx(float(expected), abs=1e-6)
        torch.testing.assert_close(labels.sample_proba(NEW[0])[:, :, k], head.sample_proba(NEW[0])[:, :, 1])
        found, one = labels.predict_uncertainty(NEW[0]), head.predict_uncertainty(NEW[0])
        torch.testing.assert_close(found.epistemic[:, k], one.epistemic, atol=1e-6, rtol=1e-4)


def test_a_network_is_k_binary_networks():
    options = {"rank": 3, "particles": 20, "progress": False}
    labels = MultiLabel.fit_network(MODEL, TRAIN, **options)
    for k, loss in enumerate(losses(labels(NEW[0]), NEW[1])):
        network = BayesianNetwork.fit(MODEL, column(TRAIN, k), output=lambda z, k=k: z[:, k], **options)
        expected = nn.functional.binary_cross_entropy(network(NEW[0])[:, 1], NEW[1][:, k])
        assert loss == pytest.approx(float(expected), abs=1e-6)
    assert labels.predict_uncertainty(NEW[0]).far_field is None


def test_the_body_runs_once_and_states_and_exports_work():
    labels = MultiLabel.fit_head(MODEL, TRAIN, calibration=HELD_OUT, progress=False)
    calls = []
    handle = labels.members[0].body.hidden.register_forward_hook(lambda *_: calls.append(1))
    before = labels(NEW[0])
    handle.remove()
    assert len(calls) == 1
    assert labels.predict_uncertainty(NEW[0]).far_field.shape == (120, K)
    far = labels(1e4 * NEW[0][:5])
    assert (far - 0.5).abs().max() < 0.05
    again = MultiLabel(BayesianHead.empty(alone(k)) for k in range(K))
    again.load_state_dict(labels.state_dict())
    torch.testing.assert_close(again(NEW[0]), before)
    program = torch.export.export(labels, (NEW[0],), strict=False)
    torch.testing.assert_close(program.module()(NEW[0]), before)


def test_labels_that_do_not_fit_are_refused():
    x, y = TRAIN[0]
    with pytest.raises(ValueError, match="has 3 logits, and a row of the labels 2 entries"):
        MultiLabel.fit_head(MODEL, [(x, y[:, :2])], progress=False)
    with pytest.raises(ValueError, match=r"returns \(120, 3\); expected logits \(n, 2\)"):
        MultiLabel.fit_network(MODEL, [(x, y[:, :2])], rank=2, progress=False)
    with pytest.raises(ValueError, match=r"shape \(120,\); expected \(n, K\)"):
        MultiLabel.fit_head(MODEL, [(x, y[:, 0])], progress=False)
    with pytest.raises(ValueError, match=r"labels are real numbers such as 0.5; expected the classes"):
        MultiLabel.fit_head(MODEL, [(x, y / 2)], progress=False)
    with pytest.raises(ValueError, match="for several labels in a row use MultiLabel"):
        BayesianHead.fit(MODEL, TRAIN, progress=False)
    assert np.isfinite(losses(MultiLabel.fit_head(MODEL, TRAIN, progress=False)(x), y)).all()
