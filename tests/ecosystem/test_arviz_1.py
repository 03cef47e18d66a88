"""ArviZ 1.x: loo, compare and summaries of what `to_arviz` returns.

ArviZ 1.x itself needs Python 3.12; `make test-ecosystem` runs this file there, too, if there is one. Elsewhere its
converter (arviz_base) and its statistics (arviz_stats) stand for it.
"""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_iris

import enkbayes as eb
from enkbayes.inference.leave_one_out import leave_one_out_proba

base = pytest.importorskip("arviz_base")
stats = pytest.importorskip("arviz_stats")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def arviz(monkeypatch):
    try:
        import arviz as found
    except ImportError:
        found = None
    if found is None or int(found.__version__.split(".")[0]) < 1:
        parts = {"from_dict": base.from_dict, "loo": stats.loo, "compare": stats.compare, "summary": stats.summary}
        found = SimpleNamespace(__version__="1.0.0", **parts)
        monkeypatch.setitem(sys.modules, "arviz", found)
    return found


def test_loo_compare_and_summary(arviz):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    y = X[:, 2] + X[:, 3] + rng.standard_normal(300) > 0
    good, bad = (
        eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X[:, columns], y) for columns in ([2, 3], [0, 1])
    )
    draws = {"two": good.to_arviz(draws=1000), "other": bad.to_arviz(draws=1000)}
    problem = good.problem_
    left_out = leave_one_out_proba(problem, good.posterior_.ensemble)[np.arange(300), problem.targets.astype(int)]
    assert -arviz.loo(draws["two"]).elpd / 300 == pytest.approx(-np.log(left_out).mean(), rel=0.02)
    assert arviz.compare(draws).index.tolist() == ["two", "other"]
    table = arviz.summary(draws["two"])
    assert table.index.tolist() == ["theta[x0]", "theta[x1]", "theta[intercept]"]
    means = [row.mean for row in good.summary().rows]
    assert np.asarray(table["mean"], dtype=float) == pytest.approx(means, abs=0.05)


def test_plots(arviz):
    if not hasattr(arviz, "plot_forest"):
        pytest.skip("only ArviZ itself has plots")
    rng = np.random.default_rng(1)
    X = rng.standard_normal((90, 2))
    data = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, X[:, 0] > 0).to_arviz(draws=300)
    for plot in (arviz.plot_forest, arviz.plot_dist):
        assert plot(data, backend="matplotlib") is not None


def test_the_verdict_is_that_of_an_environment_without_arviz(arviz, monkeypatch):
    """The figures below are those of every environment: this one, and that of another ArviZ and another Python."""
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(*load_iris(return_X_y=True))
    trust = clf.trust_
    monkeypatch.setitem(sys.modules, "arviz", None)
    assert eb.assess(clf.problem_, clf.posterior_, predictions=True) == trust
    assert (trust.verdict, trust.predictions.verdict) == ("usable", "usable")
    assert (trust.k_hat, trust.shift) == pytest.approx((0.690, 0.204), abs=1e-3)


def test_three_classes_and_labels(arviz):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((90, 2))
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(
        X, np.asarray(["a", "b", "c"])[np.arange(90) % 3]
    )
    assert arviz.summary(clf.to_arviz(draws=500)).index.tolist()[:3] == [f"theta[x0, {name}]" for name in "abc"]
    labels = np.stack([X[:, 0] > 0, X[:, 1] > 0], axis=1).astype(int)
    found = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, labels).to_arviz(draws=500)
    assert len([arviz.loo(each).elpd for each in found]) == 2
