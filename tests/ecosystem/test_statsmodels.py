"""Under a flat prior the table of coefficients is that of statsmodels, within 2 %."""

import numpy as np
import pandas as pd
import pytest

import enkbayes as eb
from enkbayes.cli.app import app
from enkbayes.estimators.preprocessing import Preprocessing
from enkbayes.estimators.table import Table
from enkbayes.inference.summary import Contrasts, summarise

sm = pytest.importorskip("statsmodels.api")
smf = pytest.importorskip("statsmodels.formula.api")

FLAT = {"prior_precision": 1e-6, "intercept_precision": 1e-6, "random_state": 0}
rng = np.random.default_rng(5)
N = 8000
FRAME = pd.DataFrame({"age": rng.standard_normal(N), "dose": rng.standard_normal(N)})
FRAME["town"] = rng.choice(["Bern", "Oslo", "Rome"], N)
LOGIT = 1.2 * FRAME.age - 0.9 * FRAME.dose + FRAME.town.map({"Bern": 0.6, "Oslo": -0.8, "Rome": 1.5})
FRAME["ill"] = (rng.random(N) < 1 / (1 + np.exp(-LOGIT))).astype(int)


def assert_close(rows, means, errors, intervals):
    """Compare means, standard deviations and ends of intervals, all within 2 %; of ends, 2 % of the interval."""
    np.testing.assert_allclose([row.mean for row in rows], means, rtol=0.02)
    np.testing.assert_allclose([row.sd for row in rows], errors, rtol=0.02)
    ends = np.asarray([(row.low, row.high) for row in rows])
    intervals = np.asarray(intervals)
    assert np.all(np.abs(ends - intervals) < 0.02 * np.ptp(intervals, axis=1)[:, None])


def test_two_classes():
    X = FRAME[["age", "dose"]]
    theirs = sm.Logit(FRAME.ill, sm.add_constant(X)).fit(disp=0)
    rows = eb.EnsembleClassifier(**FLAT).fit(X, FRAME.ill).summary(level=0.9).rows
    assert [row.name for row in rows] == ["age", "dose", "intercept"]
    order = ["age", "dose", "const"]
    assert_close(rows, theirs.params[order], theirs.bse[order], theirs.conf_int(0.1).loc[order])


def test_categories_are_treatment_contrasts():
    """A dummy for each category, and the contrasts with the first one, are the formula C(town)."""
    theirs = smf.logit("ill ~ age + dose + C(town)", FRAME).fit(disp=0)
    table = Table.from_frame(FRAME[["age", "dose", "town"]])
    preprocessing = Preprocessing.fit(table)
    posterior = eb.EnsembleClassifier(**FLAT).fit(preprocessing.transform(table), FRAME.ill).posterior_
    contrasts = Contrasts.of(preprocessing.features, intercept=True, categories=preprocessing.categories)
    named = {row.name: row for row in summarise(posterior, contrasts).rows}
    clf = eb.EnsembleClassifier(**FLAT).fit(pd.get_dummies(FRAME[["age", "dose", "town"]]), FRAME.ill)
    ours = {row.name: row for row in clf.summary(categories=["town"]).rows}
    names = {"town: Oslo - Bern": "C(town)[T.Oslo]", "town: Rome - Bern": "C(town)[T.Rome]"}
    order = list(names.values())
    for rows in (named, ours):
        found = [rows[name] for name in names]
        assert set(rows) == {"age", "dose", "intercept", *names}
        assert_close(found, theirs.params[order], theirs.bse[order], theirs.conf_int().loc[order])
    constant = (ours["intercept"].mean, ours["intercept"].sd)
    assert constant == pytest.approx((theirs.params["Intercept"], theirs.bse["Intercept"]), rel=0.02)


def test_three_classes_are_contrasts_with_their_average():
    """statsmodels has contrasts with the first class; their distances from the average class are ours."""
    X = FRAME[["age", "dose"]].to_numpy()
    heights = X @ np.asarray([[1.5, 0.0, -1.5], [-0.8, 1.6, -0.8]]) + rng.gumbel(size=(N, 3))
    y = np.argmax(heights, axis=1)
    theirs = sm.MNLogit(y, sm.add_constant(X)).fit(disp=0)
    size = theirs.params.shape[0]  # parameters of a class: constant, age, dose
    centre = np.vstack([np.zeros(2), np.eye(2)]) - 1 / 3  # of (0, b1, b2)
    means = theirs.params @ centre.T
    function = np.kron(centre, np.eye(size))  # the parameters of a class stand together
    errors = np.sqrt(np.diag(function @ theirs.cov_params() @ function.T)).reshape(3, size).T
    rows = eb.EnsembleClassifier(**FLAT).fit(X, y).summary().rows
    ours = np.asarray([(row.mean, row.sd) for row in rows]).reshape(3, 3, 2)  # name, class
    order = [1, 2, 0]  # the constant is last
    np.testing.assert_allclose(ours[:, :, 1], errors[order], rtol=0.02)
    big = np.abs(means[order]) > 0.5
    np.testing.assert_allclose(ours[:, :, 0][big], means[order][big], rtol=0.02)
    np.testing.assert_allclose(ours[:, :, 0], means[order], atol=0.02)
    np.testing.assert_allclose(ours[:, :, 0].sum(axis=1), 0, atol=1e-10)


def test_the_command_prints_the_same_table(tmp_path, capsys):
    """`enkbayes show` has coefficients per standard deviation of a column."""
    FRAME.to_csv(tmp_path / "train.csv", index=False)
    model, train = str(tmp_path / "model.safetensors"), str(tmp_path / "train.csv")
    settings = ["--prior-precision", "1e-6", "--seed", "0", "--quiet"]
    app(["fit", train, "--target", "ill", "--out", model, *settings], standalone_mode=False)
    capsys.readouterr()
    app(["show", model], standalone_mode=False)
    assert "town: Oslo - Bern" in capsys.readouterr().out
    clf = eb.load(model)
    columns = FRAME[["age", "dose"]]
    scaled = FRAME.assign(**((columns - columns.mean()) / columns.std(ddof=0)))
    theirs = smf.logit("ill ~ age + dose + C(town)", scaled).fit(disp=0)
    rows = {row.name: row for row in clf.summary().rows}
    for name, other in {"age": "age", "town: Oslo - Bern": "C(town)[T.Oslo]"}.items():
        assert rows[name].mean == pytest.approx(theirs.params[other], rel=0.02)
        assert rows[name].sd == pytest.approx(theirs.bse[other], rel=0.02)
