"""Particles in ArviZ."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_iris

import enkbayes as eb
from enkbayes.core.arviz import quiet_arviz


@pytest.fixture(params=[0, 1], ids=["arviz0", "arviz1"])
def arviz_major(request, monkeypatch):
    """The installed ArviZ 0.x; and the converter of ArviZ 1.x, which lives in arviz_base, under the name arviz."""
    if request.param == 0:
        arviz = quiet_arviz() or pytest.skip("ArviZ is not installed")
        if int(arviz.__version__.split(".")[0]) > 0:
            pytest.skip("ArviZ 0.x is not installed")
    else:
        base = pytest.importorskip("arviz_base")
        monkeypatch.setitem(sys.modules, "arviz", SimpleNamespace(__version__="1.0.0", from_dict=base.from_dict))
    return request.param


@pytest.mark.parametrize("binary", [True, False])
def test_one_chain_of_particles(arviz_major, binary):
    X, y = load_iris(return_X_y=True)
    labels = y > 0 if binary else np.asarray(["a", "b", "c"])[y]
    posterior = eb.run(eb.Problem.create(X, labels, intercept=100.0), particles=30)
    data = posterior.to_arviz(feature_names=["p", "q", "r", "s"])
    assert type(data).__name__ == ("DataTree" if arviz_major else "InferenceData")
    theta = data["posterior"]["theta"]
    assert theta.dims == ("chain", "draw", "feature") + (() if binary else ("class",))
    assert theta.feature.values.tolist() == ["p", "q", "r", "s", "intercept"]
    if not binary:
        assert theta["class"].values.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(theta.values.reshape(30, -1), posterior.theta)


def test_nonlinear_parameters(arviz_major):
    x = np.linspace(-2, 2, 30)
    problem = eb.Problem.nonlinear(
        lambda theta: np.outer(x, theta[:, 0]) + theta[:, 1], x > 0, eb.Gaussian.isotropic(2)
    )
    posterior = eb.run(problem, particles=20)
    assert posterior.to_arviz()["posterior"]["theta"].dims == ("chain", "draw", "parameter")


def test_errors_say_what_to_do(monkeypatch):
    X, y = load_iris(return_X_y=True)
    posterior = eb.run(eb.Problem.create(X, y), particles=20)
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"enkbayes\[arviz\]"):
        posterior.to_arviz()
    monkeypatch.setitem(sys.modules, "arviz", SimpleNamespace(__version__="1.0.0"))
    with pytest.raises(ValueError, match="feature_names has 1 entries; expected 4"):
        posterior.to_arviz(feature_names=["a"])


def test_the_first_import_of_a_day_is_quiet(tmp_path):
    """ArviZ warns once a day, and notes the day in its cache; a new machine has none."""
    pytest.importorskip("xarray")
    program = (
        "import warnings; warnings.simplefilter('error'); from enkbayes.core.arviz import quiet_arviz; quiet_arviz()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
