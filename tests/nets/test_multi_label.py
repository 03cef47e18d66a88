"""Networks with several labels for each row: K posteriors that are those of K binary fits."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from enkbayes.nets import BayesianHead, BayesianNetwork, MultiLabel
from enkbayes.nets.files import KIND
from enkbayes.storage import container

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


def members(**options):
    return MultiLabel.fit_network(MODEL, TRAIN, rank=3, particles=20, progress=False, **options)


@pytest.mark.parametrize("kind", ["head", "network", "calibrated network"])
def test_a_file_holds_all_labels_and_the_body_once(kind, tmp_path):
    if kind == "head":
        labels = MultiLabel.fit_head(
            MODEL, TRAIN, calibration=HELD_OUT, class_names=["cat", "dog", "hat"], progress=False
        )
    else:
        labels = members(calibration=HELD_OUT if kind == "calibrated network" else None)
    verdict = labels.trust
    labels.save(tmp_path / "labels.safetensors")
    again = MultiLabel.load(tmp_path / "labels.safetensors", Net())
    torch.testing.assert_close(again(NEW[0]), labels(NEW[0]), rtol=0, atol=0)
    found, before = again.predict_uncertainty(NEW[0]), labels.predict_uncertainty(NEW[0])
    torch.testing.assert_close(found.epistemic, before.epistemic, rtol=0, atol=0)
    assert (found.far_field is None) == (kind == "network")
    assert again.classes.tolist() == labels.classes.tolist()
    assert repr((again.trust, again.info, again.calibration)) == repr((verdict, labels.info, labels.calibration))
    assert verdict.verdict == max(
        (m.trust.verdict for m in labels.members), key=["good", "usable", "do not trust"].index
    )
    assert all(member.body is again.members[0].body for member in again.members)
    _, tensors = container.read(tmp_path / "labels.safetensors", KIND)
    assert sum("body.hidden.weight" in name for name in tensors) == 1
    with pytest.raises(ValueError, match="holds a labels; expected a head"):
        BayesianHead.load(tmp_path / "labels.safetensors", Net())
    with pytest.raises(ValueError, match="pass the model that was fitted, or one like it"):
        MultiLabel.load(tmp_path / "labels.safetensors", nn.Linear(4, 3))


def test_a_damaged_header_is_refused(tmp_path):
    labels = MultiLabel.fit_head(MODEL, TRAIN, progress=False)
    labels.save(tmp_path / "labels.safetensors")
    header, tensors = container.read(tmp_path / "labels.safetensors", KIND)
    for change in (
        {"members": header["members"][:2]},
        {"members": 3},
        {"members": [{}] * 3},
        {"shared": None},
        {"shared": False},
        {"classes": None},
        {"output": []},
    ):
        container.write(tmp_path / "bad.safetensors", KIND, header | change, tensors)
        with pytest.raises(ValueError, match="cannot be loaded"):
            MultiLabel.load(tmp_path / "bad.safetensors", Net())


def test_each_label_has_the_threshold_of_its_own_head():
    labels = MultiLabel.fit_head(MODEL, TRAIN, calibration=HELD_OUT, progress=False)
    thresholds = labels.reject_threshold([NEW], max_error=0.3, confidence=0.8)
    for k in range(K):
        expected = labels.members[k].reject_threshold(column([NEW], k), max_error=0.3, confidence=0.8)
        assert thresholds[k] == pytest.approx(expected, abs=1e-6)
    accepted = labels.predict_uncertainty(NEW[0]).confidence.numpy() > thresholds
    right = (labels(NEW[0]) > 0.5).numpy() == NEW[1].numpy()
    assert 1 - right[accepted].mean() < 0.3
    with pytest.raises(ValueError, match="a row of the labels has 2 entries; expected 3"):
        labels.reject_threshold([(NEW[0], NEW[1][:, :2])])
    assert labels.noise(NEW[0]).shape == (120, K)
    assert MultiLabel.fit_head(MODEL, TRAIN, far_field=False, progress=False).noise(NEW[0]) is None


@pytest.mark.parametrize("fit", [MultiLabel.fit_head, partial(MultiLabel.fit_network, rank=2, particles=10)])
def test_views_are_chosen_for_all_labels_and_averaged(fit):
    def noisy(x, generator):
        return x + 0.8 * torch.randn(x.shape, generator=generator)

    x, y = HELD_OUT[0]
    sharp = copy.deepcopy(MODEL)
    with torch.no_grad():
        sharp.out.weight.mul_(8)  # so far too confident that views help
    options = {"calibration": HELD_OUT, "far_field": False, "progress": False}
    labels = fit(sharp, TRAIN, views=noisy, most_views=4, **options)
    plain = fit(sharp, TRAIN, **options)
    assert labels.views_choice.losses[0][1] == pytest.approx(np.mean(losses(plain(x), y)), abs=1e-5)
    labels.set_views(torch.tensor([2.0, 1.0]))
    expected = torch.stack([plain(seen) for seen in labels.views(x, 2)]).mean(dim=0)
    torch.testing.assert_close(labels(x), expected)
    found = labels.predict_uncertainty(x)
    torch.testing.assert_close(found.total, -(expected * expected.log() + (1 - expected) * (1 - expected).log()))
    torch.testing.assert_close(found.confidence, torch.maximum(expected, 1 - expected))
    with pytest.raises(ValueError, match="expected calibration= together with views="):
        fit(MODEL, TRAIN, views=noisy, progress=False)


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
