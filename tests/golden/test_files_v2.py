"""Model files in format 2: they predict what they predicted, and know how their prior was averaged."""

from pathlib import Path

import numpy as np
import pytest

import enkbayes as eb
from golden.files_v2.make_files_v2 import cases

FOLDER = Path(__file__).parent / "files_v2"
EXPECTED = np.load(FOLDER / "expected.npz")


@pytest.mark.parametrize("name", ["posterior", "sharper", "softmax", "labels"])
def test_a_model_predicts_as_before(name):
    X = {case: rows for case, rows, _ in cases()}[name]
    clf = eb.load(FOLDER / f"{name}.safetensors")
    np.testing.assert_allclose(clf.predict_proba(X[:5]), EXPECTED[name], rtol=0, atol=1e-12)
    for part in getattr(clf, "estimators_", [clf]):
        tuning = part.tuning_
        assert sum(tuning.weights) == pytest.approx(1.0)
        assert len(tuning.components) == len(part.posterior_.components)
        assert tuning.components[0].prior_weight > 0
        assert tuning.message
        assert np.all(part.prior_precision_ > 0)


def test_sharper_components_stay_sharper():
    clf = eb.load(FOLDER / "sharper.safetensors")
    assert any(each.sharper for each in clf.tuning_.components) == clf.posterior_.held_out


def test_a_model_learns_on_after_it_was_read(tmp_path):
    X, y = {case: (rows, labels) for case, rows, labels in cases()}["posterior"]
    clf = eb.load(FOLDER / "posterior.safetensors").partial_fit(X[:50], y[:50])
    clf.save(tmp_path / "new.safetensors")
    np.testing.assert_array_equal(eb.load(tmp_path / "new.safetensors").predict_proba(X), clf.predict_proba(X))
