"""Fitted modules as ONNX files: onnxruntime computes what torch computes, for any number of rows."""

import numpy as np
import pytest
import torch
from pages import DOCS, run_page
from torch import nn

from enkbayes.nets import BayesianHead, BayesianNetwork, MultiLabel

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("far_field", [True, False])
@pytest.mark.parametrize(("kind", "outputs"), [(BayesianHead, 1), (BayesianHead, 4), (BayesianNetwork, 3)])
def test_onnxruntime_agrees_with_torch(kind, outputs, far_field, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(300, 8)
    y = (x @ torch.randn(8, max(outputs, 2))).argmax(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs))
    train, held_out = [(x[:200], y[:200])], [(x[200:], y[200:])]
    fitted = kind.fit(model, train, calibration=held_out, far_field=far_field, progress=False)
    fitted.to_onnx(tmp_path / "model.onnx", x[:2])
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for rows in (1, 17, 300):
        (proba,) = session.run(["proba"], {"x": x[:rows].numpy()})
        np.testing.assert_allclose(proba, fitted(x[:rows]).detach().numpy(), atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fit", [MultiLabel.fit_head, MultiLabel.fit_network])
def test_several_labels_are_written_as_one_file(fit, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(300, 4)
    y = (x[:, :2] + 0.5 * torch.randn(300, 2) > 0).float()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    fitted = fit(model, [(x[:200], y[:200])], calibration=[(x[200:], y[200:])], progress=False)
    fitted.to_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for rows in (1, 17, 300):
        (proba,) = session.run(["proba"], {"x": x[:rows].numpy()})
        np.testing.assert_allclose(proba, fitted(x[:rows]).detach().numpy(), atol=1e-5)


def test_an_example_without_rows_is_refused(tmp_path):
    model = nn.Sequential(nn.Linear(2, 3))
    head = BayesianHead.empty(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), *model, nn.Linear(3, 3)))
    with pytest.raises(ValueError, match=r"x is \(1, 2\); expected a tensor"):
        head.to_onnx(tmp_path / "model.onnx", torch.zeros(1, 2))


@pytest.mark.filterwarnings("ignore")
def test_the_how_to_page_runs(tmp_path, monkeypatch):
    names = run_page(DOCS / "how_to/onnx.md", tmp_path, monkeypatch)
    assert names["proba"].shape == (600, 2)
