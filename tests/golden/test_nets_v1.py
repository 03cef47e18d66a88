"""Files that the first version of `enkbayes.nets` wrote: state dicts load, and training continues from checkpoints."""

import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

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


def loaded(name, module):
    module.load_state_dict(torch.load(FOLDER / f"{name}.pt", weights_only=True))
    with torch.no_grad():
        # softmax averages of wide logits have had more points since
        atol = 2e-3 if name in ("head_3", "head_low_rank") else 1e-6
        np.testing.assert_allclose(module(NEW).numpy(), EXPECTED[name], rtol=0, atol=atol)
    return module


@pytest.mark.parametrize(("name", "outputs"), [("head_1", 1), ("head_3", 3), ("head_low_rank", 3)])
def test_heads(name, outputs):
    head = loaded(name, BayesianHead.empty(model(outputs)))
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
