"""`enkbayes fit --far-field` makes the model unsure of rows unlike the training data, and costs nothing elsewhere."""

import json

import numpy as np
from sklearn.datasets import load_iris
from typer.testing import CliRunner

from enkbayes.cli import app
from enkbayes.cli.tables import read


def ok(*words):
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="enkbayes")
    assert result.exit_code == 0, result.stderr
    return result


def test_far_field_variance_is_chosen_stored_and_shown(tmp_path):
    x, y = load_iris(return_X_y=True)
    far = x.mean(axis=0) + 20 * x.std(axis=0) * np.random.default_rng(0).standard_normal((60, 4))
    np.savez(tmp_path / "train.npz", features=x[::2], labels=y[::2])
    np.savez(tmp_path / "near.npz", features=x[1::2])
    np.savez(tmp_path / "far.npz", features=far)
    confidence, loss = {}, {}
    for words in ((), ("--far-field",)):
        call = ("fit", tmp_path / "train.npz", "--target", "labels", "--prior-precision", "1", *words)
        facts = json.loads(ok(*call, "--out", tmp_path / "m.safetensors", "--json").stdout)
        assert (facts["far_field"] is None) == (not words)
        for name in ("near", "far"):
            ok("predict", tmp_path / "m.safetensors", tmp_path / f"{name}.npz", "--out", tmp_path / "p.csv")
            columns = read(tmp_path / "p.csv").columns
            confidence[name, words] = columns["confidence"].astype(float).mean()
            if name == "near":
                proba = np.stack([columns[f"p_{k}"].astype(float) for k in range(3)], axis=1)
                loss[words] = -np.log(proba[np.arange(75), y[1::2]]).mean()
    assert confidence["far", ()] > 0.8
    assert confidence["far", ("--far-field",)] < 0.45
    assert loss["--far-field",] < loss[()] + 0.01
    assert "far field" in ok(*call, "--out", tmp_path / "m.safetensors").stdout
