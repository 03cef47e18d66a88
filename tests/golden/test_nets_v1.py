"""Files that the first version of `enkbayes.nets` wrote: state dicts load, and training continues from checkpoints."""

import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.core.quadrature import GaussianPoints  # noqa: E402
from enkbayes.evaluation.baselines.deep_ensemble import DeepEnsemble  # noqa: E402
from enkbayes.nets import BayesianHead, BayesianNetwork, OODScore  # noqa: E402
from enkbayes.reproduction.image_training import ImageTraining, train_on_images  # noqa: E402

FOLDER = Path(__file__).parent / "nets_v1"
EXPECTED = np.load(FOLDER / "expected.npz")
X = torch.as_tensor(np.random.default_rng(0).standard_normal((40, 2)), dtype=torch.float32)
NEW = torch.linspace(-2, 2, 10).reshape(5, 2)


def labels(outputs):
    return (X[:, 0] > 0).long() + (outputs > 2) * (X[:, 1] > 0.5).long()


def filled(model):
    """Weights that do not depend on torch's random numbers."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.sin(torch.arange(p.numel()) + 1.0).reshape(p.shape) / 2)
    return model


def model(outputs):
    return filled(nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs)))


def state_of(name, module):
    module.load_state_dict(torch.load(FOLDER / f"{name}.pt", weights_only=True))
    return module


def loaded(name, module):
    module = state_of(name, module)
    with torch.no_grad():
        np.testing.assert_allclose(module(NEW).numpy(), EXPECTED[name], rtol=0, atol=1e-6)
    return module


def by_points(head, refine):
    """The predictions of a softmax head from 2^(8 + 2 refine) points."""
    mean, V = head.map.predictive_logits(head.features(NEW), head.posterior.fitted)
    return torch.softmax(GaussianPoints.of(V, refine).logits(mean), dim=-1).mean(dim=1).numpy()


def test_a_head_with_one_logit():
    loaded("head_1", BayesianHead.empty(model(1)))


@pytest.mark.parametrize("name", ["head_3", "head_low_rank"])
def test_softmax_heads(name):
    """Version 1 had 256 points for every row, and 1,024 for logits as wide as these are nearer to the integral."""
    head = state_of(name, BayesianHead.empty(model(3)))
    with torch.no_grad():
        np.testing.assert_allclose(by_points(head, 0), EXPECTED[name], rtol=0, atol=1e-6)
        np.testing.assert_allclose(head(NEW).numpy(), by_points(head, 1), rtol=0, atol=1e-6)
        exact = by_points(head, 4)
    error, before = (np.abs(proba - exact).max() for proba in (head(NEW).numpy(), EXPECTED[name]))
    assert error < 5e-4
    assert error < before / 2
    if name == "head_low_rank":
        np.testing.assert_allclose(head.sample_proba(NEW).numpy(), EXPECTED["head_low_rank.samples"], rtol=0, atol=1e-6)


def test_networks_and_out_of_distribution_scores():
    other = [(2 * X, labels(3))]
    network = BayesianNetwork.fit(model(3), other, rank=3, particles=8, progress=False)
    loaded("network", network)
    loaded("ood_score", OODScore.fit(network, other, progress=False))


def test_a_finished_member_of_a_deep_ensemble_is_not_trained_again(tmp_path):
    path = Path(shutil.copy(FOLDER / "member-0.safetensors", tmp_path))
    before = path.stat().st_mtime_ns
    method = DeepEnsemble(members=1, hidden=(4,), steps=20, batch_size=16)
    options = {"prior_precision": 0.5, "checkpoint": tmp_path}
    ensemble = method.fit_network(lambda: model(1), X.numpy(), labels(1).numpy(), **options)
    np.testing.assert_allclose(ensemble.predict_proba(NEW.numpy()), EXPECTED["member"], rtol=0, atol=1e-6)
    assert path.stat().st_mtime_ns == before


def test_training_on_images_continues(tmp_path):
    path = Path(shutil.copy(FOLDER / "images.safetensors", tmp_path))
    images = np.random.default_rng(1).integers(0, 256, (16, 8, 8, 3)).astype(np.uint8)
    epochs = []
    found = train_on_images(
        filled(nn.Sequential(nn.Flatten(), nn.Linear(192, 1))),
        images,
        np.arange(16) % 2,
        ImageTraining(epochs=2, batch_size=8),
        checkpoint=path,
        progress=lambda epoch, _: epochs.append(epoch),
    )
    assert epochs == [2]
    np.testing.assert_allclose(found[1].weight.detach().numpy(), EXPECTED["images"], rtol=0, atol=1e-6)
