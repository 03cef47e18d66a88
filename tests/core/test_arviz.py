"""Particles in ArviZ."""

import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_iris

import enkbayes as eb
from enkbayes.core.arviz import log_likelihood, quiet_arviz
from enkbayes.inference.leave_one_out import leave_one_out_proba


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


def test_log_likelihood_and_observed_classes(arviz_major):
    X, y = load_iris(return_X_y=True)
    labels = np.asarray(["a", "b", "c"])[y]
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0, class_weight={"b": 2.0}).fit(X, labels)
    data = clf.to_arviz(draws=70)
    height = data["log_likelihood"]["y"]
    assert height.dims == ("chain", "draw", "row")
    assert height.shape == (1, 70, 150)
    own = clf.posterior_.likelihood.mean(clf.posterior_.map.particle_logits(X, clf.posterior_.sample(70)))
    expected = np.log(own[np.arange(150), :, y]).T * np.where(labels == "b", 2.0, 1.0)
    np.testing.assert_allclose(height.values[0], expected, atol=1e-10)
    np.testing.assert_array_equal(data["observed_data"]["y"].values, y)
    loaded = pickle.loads(pickle.dumps(clf))
    assert "log_likelihood" not in list(loaded.to_arviz())
    np.testing.assert_array_equal(loaded.to_arviz(X, labels, draws=70)["log_likelihood"]["y"].values, height.values)


@pytest.mark.filterwarnings("ignore:The inplace keyword", "ignore:.*deprecated")
def test_loo_waic_compare_and_a_plot():
    arviz = quiet_arviz() or pytest.skip("ArviZ is not installed")
    if int(arviz.__version__.split(".")[0]) > 0:
        pytest.skip("ArviZ 0.x is not installed")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    y = X[:, 2] + X[:, 3] + rng.standard_normal(300) > 0
    good, bad = (
        eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X[:, columns], y) for columns in ([2, 3], [0, 1])
    )
    draws = {"two": good.to_arviz(draws=1000), "other": bad.to_arviz(draws=1000)}
    loss = -arviz.loo(draws["two"]).elpd_loo / 300
    problem = good.problem_
    left_out = leave_one_out_proba(problem, good.posterior_.ensemble)[np.arange(300), problem.targets.astype(int)]
    assert loss == pytest.approx(-np.log(left_out).mean(), rel=0.02)
    assert -arviz.waic(draws["two"]).elpd_waic / 300 == pytest.approx(loss, rel=0.02)
    assert arviz.compare(draws).index.tolist() == ["two", "other"]
    (ax,) = np.ravel(arviz.plot_forest(draws["two"], var_names=["theta"]))
    assert "intercept" in ax.get_yticklabels()[0].get_text()


def test_memory_is_refused_by_a_number_and_taken_in_parts(monkeypatch):
    X = np.random.default_rng(0).standard_normal((500, 2))
    problem = eb.Problem.create(X, X[:, 0] > 0)
    theta = eb.run(problem).theta
    whole = log_likelihood(problem, theta)
    np.testing.assert_array_equal(log_likelihood(problem, theta, at_once=1500), whole)
    monkeypatch.setattr("enkbayes.engine.memory.available", lambda: 1.2e8)
    with pytest.raises(
        ValueError, match=r"log likelihoods of 500 rows for 20,000 draws need about 240 MB .* pass draws=10,000 or"
    ):
        log_likelihood(problem, np.tile(theta, (100, 1)))


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
