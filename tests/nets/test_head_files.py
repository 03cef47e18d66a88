"""Heads and networks in files: everything comes back, and no file runs code or is believed unseen."""

import json
import pickle

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import enkbayes as eb
from enkbayes.nets import BayesianHead, BayesianNetwork
from enkbayes.storage.container import checksum

X = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
Y = X.argmax(1)
TRAIN, HELD_OUT = [(X[:50], Y[:50])], [(X[50:], Y[50:])]
NAMES = ["ant", "bee", "cow"]


def model(seed=0, outputs=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, outputs))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "head.safetensors"


def rewrite(path, edit=lambda header: None, tensors=None):
    """Change a file of which only the checks of its contents can object."""
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["enkbayes.nets"])
    edit(header)
    arrays = load_file(path) | (tensors or {})
    text = json.dumps(header)
    sha256 = checksum(text, {name: x.numpy() for name, x in arrays.items()})
    save_file(arrays, path, metadata={"enkbayes.nets": text, "sha256": sha256})


def test_a_head_comes_back_whole(path):
    head = BayesianHead.fit(model(), TRAIN, calibration=HELD_OUT, class_names=NAMES, progress=False)
    assert head.trust.verdict in ("good", "usable", "do not trust")
    head.save(path)
    again = BayesianHead.load(path, model(seed=1))
    torch.testing.assert_close(again(X), head(X), atol=0, rtol=0)
    torch.testing.assert_close(again.sample_proba(X), head.sample_proba(X), atol=0, rtol=0)
    torch.testing.assert_close(again.noise(X), head.noise(X), atol=0, rtol=0)
    assert again.classes.tolist() == NAMES == head.posterior.classes.tolist()
    for name in ("info", "calibration", "far_field_choice", "trust", "input_kind", "likelihood"):
        assert str(getattr(again, name)) == str(getattr(head, name)), name
    assert again.body[1].num_batches_tracked.dtype == torch.int64
    again.save(path)
    torch.testing.assert_close(BayesianHead.load(path, model())(X), head(X), atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_types_of_numbers_come_back(path, dtype):
    cast = [(X.to(dtype), Y)]
    head = BayesianHead.fit(model().to(dtype), cast, progress=False)
    head.save(path)
    again = BayesianHead.load(path, model(seed=1).to(dtype))
    assert {name: x.dtype for name, x in again.state_dict().items()} == {
        name: x.dtype for name, x in head.state_dict().items()
    }
    torch.testing.assert_close(again(X.to(dtype)), head(X.to(dtype)), atol=0, rtol=0)


def test_regressions_several_heads_and_features(path):
    head = BayesianHead.fit(model(outputs=1), [(X, X.sum(1))], regression=True, progress=False)
    head.save(path)
    again = BayesianHead.load(path, model(1, outputs=1))
    torch.testing.assert_close(again.predict_uncertainty(X).total, head.predict_uncertainty(X).total, atol=0, rtol=0)

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 3), nn.Linear(5, 2)

        def forward(self, x):
            h = torch.tanh(self.body(x))
            return {"a": self.a(h), "b": self.b(h)}

    head = BayesianHead.fit(Heads(), TRAIN, layer="a", progress=False)
    head.save(path)
    torch.testing.assert_close(BayesianHead.load(path, Heads())(X), head(X), atol=0, rtol=0)
    features = nn.Sequential(nn.Linear(3, 5), nn.Tanh())
    head = BayesianHead.fit(nn.Sequential(features, nn.Linear(5, 3)), TRAIN, features=features, progress=False)
    head.save(path)
    torch.testing.assert_close(BayesianHead.load(path, features)(X), head(X), atol=0, rtol=0)


def test_a_network_comes_back_whole(path):
    network = BayesianNetwork.fit(
        model(), TRAIN, calibration=HELD_OUT, layers=["0", "3"], rank=3, particles=20, progress=False
    )
    network.save(path)
    again = BayesianNetwork.load(path, model(1))
    torch.testing.assert_close(again(X), network(X), atol=0, rtol=0)
    assert again.weights().keys() == network.weights().keys()
    assert again.calibration == network.calibration
    with pytest.raises(ValueError, match="holds a network; expected a head"):
        BayesianHead.load(path, model())


def test_what_no_file_holds_is_refused(path):
    head = BayesianHead.fit(model(), TRAIN, output=lambda z: z, progress=False)
    with pytest.raises(ValueError, match="output= is a function, which no file holds"):
        head.save(path)
    with pytest.raises(ValueError, match="expected 3 different names"):
        BayesianHead.fit(model(), TRAIN, class_names=["a", "b"], progress=False)
    head = pickle.loads(pickle.dumps(BayesianHead.fit(model(), TRAIN, progress=False)))
    with pytest.raises(ValueError, match="trust needs the data of the fit"):
        _ = head.trust


class Trap:
    """Leaves a trace where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_file_of_a_stranger_runs_no_code(path, tmp_path):
    trace = tmp_path / "trace"
    path.write_bytes(pickle.dumps(Trap(trace)))
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        BayesianHead.load(path, model())
    torch.save({"state": Trap(trace)}, path)
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        BayesianHead.load(path, model())
    assert not trace.exists()


@pytest.mark.parametrize(
    ("edit", "tensors", "message"),
    [
        (lambda h: h["likelihood"].update(type="os:system"), {}, "likelihood"),
        (lambda h: h["likelihood"].update(type="Gaussian"), {}, "likelihood|cannot be loaded"),
        (lambda h: h["linear"]["fields"].update(features=10**12), {}, "expected"),
        (lambda h: h.update(layer="body.nothing"), {}, "no such layer"),
        (lambda h: h.update(output=[1]), {}, "output"),
        (lambda h: h["dtypes"].update(mean="complex64"), {}, "unknown"),
        (lambda h: h["classes"].update(values=["a"]), {}, "classes"),
        (lambda h: h.update(inputs="x"), {}, "cannot be loaded"),
        (lambda h: h.update(info=None), {}, "info"),
        (lambda h: None, {"state.mean": torch.zeros(5)}, "expected"),
        (lambda h: None, {"state.body.0.weight": torch.zeros(2, 2)}, "size mismatch"),
        (lambda h: None, {"state.more": torch.zeros(2)}, "missing or unknown"),
    ],
)
def test_files_that_do_not_fit_are_refused(path, edit, tensors, message):
    BayesianHead.fit(model(), TRAIN, class_names=NAMES, progress=False).save(path)
    rewrite(path, edit, tensors)
    with pytest.raises(ValueError, match=message):
        BayesianHead.load(path, model())


def test_other_models_and_damaged_files_are_refused(path):
    BayesianHead.fit(model(), TRAIN, progress=False).save(path)
    with pytest.raises(ValueError, match=r"cannot be loaded: .*pass the model that was fitted"):
        BayesianHead.load(path, nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="checksum"):
        BayesianHead.load(path, model())


def test_files_of_other_kinds_say_what_reads_them(tmp_path):
    model, x = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(20, 2)
    head = BayesianHead.fit(model, [(x, torch.arange(20) % 2)], progress=False)
    head.save(tmp_path / "head.safetensors")
    with pytest.raises(ValueError, match=r"holds a head or network, which load\(path, model\) of BayesianHead"):
        eb.load(tmp_path / "head.safetensors")
    eb.EnsembleClassifier(prior_precision=1.0).fit(x.numpy(), np.arange(20) % 2).save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"holds a model, which enkbayes.load\(path\) reads, and not a saved head"):
        BayesianHead.load(tmp_path / "model.safetensors", model)
