"""The table of coefficients against closed forms, Monte Carlo and maximum likelihood."""

import sys

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.datasets import load_iris

import enkbayes as eb
from enkbayes.core.mixture import MixturePosterior
from enkbayes.inference.contributions import contributions
from enkbayes.inference.summary import Contrasts, summarise

rng = np.random.default_rng(2)
X = rng.standard_normal((3000, 3))
Y = (rng.random(3000) < 1 / (1 + np.exp(-(X @ [0.8, -0.5, 0.4] + 0.3)))).astype(int)


def test_a_flat_prior_gives_maximum_likelihood():
    """The columns that statsmodels' Logit prints: estimates, standard errors of the observed information, intervals."""
    design = np.column_stack([X, np.ones(len(X))])

    def loss(w):
        return np.sum(np.logaddexp(0, design @ w) - Y * (design @ w))

    w = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-8}).x
    p = 1 / (1 + np.exp(-design @ w))
    errors = np.sqrt(np.diag(np.linalg.inv(design.T @ (design * (p * (1 - p))[:, None]))))
    clf = eb.EnsembleClassifier(prior_precision=1e-6, intercept_precision=1e-6, random_state=0).fit(X, Y)
    rows = clf.summary().rows
    assert [row.name for row in rows] == ["x0", "x1", "x2", "intercept"]
    np.testing.assert_allclose([row.mean for row in rows], w, rtol=0.02)
    np.testing.assert_allclose([row.sd for row in rows], errors, rtol=0.02)
    np.testing.assert_allclose([row.low for row in rows], w - 1.959964 * errors, rtol=0.02, atol=0.02 * errors.max())
    np.testing.assert_allclose([row.direction for row in rows], norm.cdf(np.abs(w) / errors), atol=0.01)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return X - X.mean(axis=0), np.array(["a", "b", "c"])[y]


def test_contrasts_of_classes_add_up_to_zero(iris):
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(*iris)
    rows = clf.summary(level=0.8).rows
    assert [(row.name, row.output) for row in rows[:3]] == [("x0", "a"), ("x0", "b"), ("x0", "c")]
    means = np.array([row.mean for row in rows]).reshape(-1, 3)
    np.testing.assert_allclose(means.sum(axis=1), 0, atol=1e-12)
    theta = np.random.default_rng(0).multivariate_normal(clf.posterior_.mean, clf.posterior_.cov, 40_000)
    draws = theta.reshape(len(theta), -1, 3)
    draws = (draws - draws.mean(axis=2, keepdims=True)).reshape(len(theta), -1)
    np.testing.assert_allclose(means.ravel(), draws.mean(axis=0), atol=0.05)
    np.testing.assert_allclose([row.sd for row in rows], draws.std(axis=0), rtol=0.03)
    low, high = np.quantile(draws, [0.1, 0.9], axis=0)
    np.testing.assert_allclose([row.low for row in rows], low, atol=0.07)
    np.testing.assert_allclose([row.high for row in rows], high, atol=0.07)


def test_categories_are_contrasts_and_their_choice_of_zero_does_not_matter():
    """A model with a dummy for every category has the contrasts of the model that leaves the first one out."""
    town = rng.integers(0, 3, 3000)
    dummies = np.eye(3)[town]
    y = (rng.random(3000) < 1 / (1 + np.exp(-(X[:, 0] + np.array([0.5, -0.5, 1.0])[town])))).astype(int)
    flat = {"prior_precision": 1e-4, "intercept_precision": 1e-4, "random_state": 0}
    whole = eb.EnsembleClassifier(**flat).fit(np.column_stack([X[:, :1], dummies]), y)
    reduced = eb.EnsembleClassifier(**flat).fit(np.column_stack([X[:, :1], dummies[:, 1:]]), y)
    names = ["x", "town=a", "town=b", "town=c"]
    contrasts = Contrasts.of(names, intercept=True, categories=[("town", (1, 2, 3))])
    assert contrasts.names == ("x", "town: b - a", "town: c - a", "intercept")
    pairs = zip(summarise(whole.posterior_, contrasts).rows, reduced.summary().rows, strict=True)
    for one, other in pairs:
        assert one.mean == pytest.approx(other.mean, rel=0.01, abs=1e-3)
        assert one.sd == pytest.approx(other.sd, rel=0.01)


def test_a_mixture_and_particles():
    problem = eb.Problem.create(X[:200], Y[:200])
    narrow, wide = (eb.run(problem.with_prior(eb.Gaussian.isotropic(3, v))) for v in (0.01, 10.0))
    contrasts = Contrasts.of("abc", intercept=False)
    mixture = MixturePosterior((narrow, wide), (0.3, 0.7))
    rows = summarise(mixture, contrasts).rows
    np.testing.assert_allclose([row.mean for row in rows], mixture.mean)
    np.testing.assert_allclose([row.sd for row in rows], np.sqrt(mixture.variances))
    for k, row in enumerate(rows):
        z = [(row.low - part.mean[k]) / np.sqrt(part.cov[k, k]) for part in (narrow, wide)]
        assert 0.3 * norm.cdf(z[0]) + 0.7 * norm.cdf(z[1]) == pytest.approx(0.025, abs=1e-9)
    polished = eb.polish(problem, wide, 2, seed=0)
    theta = polished.theta
    counted = summarise(polished, contrasts, level=0.5).rows
    np.testing.assert_allclose([row.low for row in counted], np.quantile(theta, 0.25, axis=0))


@pytest.mark.parametrize("classes", [2, 4])
def test_a_complement_counts_without_the_covariance_being_formed(classes):
    """The structured covariance of a large problem, contrasts of categories and of classes included."""
    rng = np.random.default_rng(2)
    x, labels = rng.standard_normal((60, 12)), np.arange(60) % classes
    posterior = eb.run(eb.Problem.create(x, labels, intercept=100.0), eb.MeanField(rank=3), particles=20, seed=0)
    assert posterior.fitted.complement is not None
    contrasts = Contrasts.of([f"t={i}" for i in range(12)], intercept=True, categories=[("t", tuple(range(4)))])
    outputs = np.eye(1) if classes == 2 else np.eye(classes) - 1 / classes
    functions = np.kron(contrasts.matrix.toarray(), outputs)
    expected = np.sqrt(np.diag(functions @ posterior.fitted.cov @ functions.T))
    np.testing.assert_allclose([row.sd for row in summarise(posterior, contrasts).rows], expected, rtol=1e-10)


def test_thousands_of_features_have_a_table():
    rng = np.random.default_rng(3)
    clf = eb.EnsembleClassifier(prior_precision=1.0, particles=20, random_state=0)
    clf.fit(rng.standard_normal((12, 4_000)), np.arange(12) % 2)
    assert len(str(clf.summary()).splitlines()) == 4_002


def test_point_estimates_have_no_intervals():
    """Held-out rows have chosen scale and spread, which are those of no posterior."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((400, 3))
    y = np.argmax(x @ rng.standard_normal((3, 14)) + 0.5 * rng.standard_normal((400, 14)), axis=1)
    clf = eb.EnsembleClassifier(random_state=0).fit(x, y)
    assert clf.posterior_.held_out
    summary = clf.summary()
    assert all(np.isnan([row.sd, row.low, row.high, row.direction]).all() for row in summary.rows)
    expected = clf.coef_ - clf.coef_.mean(axis=0)
    np.testing.assert_allclose([row.mean for row in summary.rows[: expected.size]], expected.T.ravel())
    assert str(summary).splitlines()[1].split() == ["x0", "0", f"{expected[0, 0]:.4g}", "-", "-", "-", "-"]
    assert str(summary).splitlines()[-1].startswith("Held-out rows chose the scale")
    mean, sd = contributions(clf.posterior_, x[:2], np.asarray([0, 1]), np.asarray([1, 2]), [(0,), (1,), (2,)])
    assert np.isfinite(mean).all()
    assert np.isnan(sd).all()
    with pytest.warns(UserWarning, match="the sampler was not used"):
        eb.EnsembleClassifier("mean-field", random_state=0).fit(x, y)


def test_a_data_frame_needs_pandas(monkeypatch):
    posterior = eb.run(eb.Problem.create(X[:50], Y[:50]))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="a data frame needs pandas; install it with: pip install pandas"):
        summarise(posterior, Contrasts.of("abc", intercept=False)).to_pandas()


def test_units_of_columns():
    """Standardised columns, and their coefficients in the units of the columns, are one model."""
    centres, scales = np.asarray([40.0, -3.0, 0.0]), np.asarray([10.0, 0.5, 1.0])
    standard = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, Y)
    for intercept in (True, False):
        contrasts = Contrasts.of("abc", intercept=intercept).in_units_of(centres, scales)
        weights = np.append(standard.coef_[0], standard.intercept_)[: 3 + intercept]
        found = contrasts.matrix @ weights
        x = centres + scales * X[:5]
        shift = 0 if intercept else standard.coef_[0] @ (centres / scales)
        logits = x @ found[:3] + (found[3] if intercept else -shift)
        np.testing.assert_allclose(logits, X[:5] @ weights[:3] + (weights[3] if intercept else 0.0))


def test_wrong_levels():
    with pytest.raises(ValueError, match="level is 95; expected a probability between 0 and 1"):
        eb.EnsembleClassifier(prior_precision=1.0).fit(X[:50], Y[:50]).summary(level=95)


def test_the_scikit_learn_names(iris):
    from sklearn.feature_selection import RFE, SelectFromModel

    X, y = iris
    two = y != "c"
    for rows, shape in ((two, (1, 4)), (slice(None), (3, 4))):
        clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X[rows], y[rows])
        assert (clf.coef_.shape, clf.intercept_.shape) == (shape, shape[:1])
        scores, proba = clf.decision_function(X[rows]), clf.predict_proba(X[rows])
        best = (scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)
        np.testing.assert_array_equal(clf.classes_[best], clf.predict(X[rows]))
        np.testing.assert_allclose(np.exp(clf.predict_log_proba(X[rows])), proba)
    bare = eb.EnsembleClassifier(prior_precision=1.0, random_state=0)
    assert RFE(bare, n_features_to_select=2).fit(X, y).support_.sum() == 2
    assert SelectFromModel(bare).fit(X, y).get_support().any()


def test_showing_a_classifier_computes_nothing(iris, monkeypatch):
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(*iris)
    for name in ("classifier.assess", "base.log_evidence"):
        monkeypatch.setattr(f"enkbayes.estimators.{name}", lambda *_: pytest.fail("it was computed"))
    assert "EnsembleClassifier" in clf._repr_html_()
    monkeypatch.undo()
    assert clf.trust_.verdict


def test_categories_that_are_no_dummies_are_refused():
    X = np.column_stack([np.arange(12.0), np.arange(12) % 2, 1 - np.arange(12) % 2])
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0)
    clf.fit(pd.DataFrame(X, columns=["age", "town_Bern", "town_Oslo"]), np.arange(12) % 3 == 0)
    assert clf.summary(categories=["town"]).rows[1].name == "town: Oslo - Bern"
    with pytest.raises(ValueError, match="0 features have names such as age_"):
        clf.summary(categories=["age"])
    clf.fit(pd.DataFrame(2 * X, columns=["age", "town_Bern", "town_Oslo"]), np.arange(12) % 3 == 0)
    with pytest.raises(ValueError, match="do not add up to one in every row"):
        clf.summary(categories=["town"])
