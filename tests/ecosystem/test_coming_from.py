"""Both sides of the pages for users of other libraries run, and agree as far as the pages say."""

from pathlib import Path

import numpy as np
import pytest

PAGES = Path(__file__).parents[2] / "docs/coming_from"
pytestmark = pytest.mark.filterwarnings("ignore")


def run(page, without=None):
    """Run the blocks of a page one after the other, but not those with a word; return what they have defined."""
    names = {"__name__": page}
    for part in (PAGES / page).read_text(encoding="utf-8").split("```python\n")[1:]:
        block = part.split("```")[0]
        if without is None or without not in block:
            exec(compile(block, page, "exec"), names)
    return names


def test_logistic_regression():
    names = run("logistic_regression.md")
    theirs, ours = (names[name].predict_proba(names["X"]) for name in ("theirs", "ours"))
    np.testing.assert_array_equal(theirs.argmax(axis=1), ours.argmax(axis=1))
    assert np.abs(theirs - ours).mean() == pytest.approx(0.003, abs=5e-4)
    assert np.corrcoef(names["theirs"].coef_[0], names["ours"].coef_[0])[0, 1] > 0.99


def test_laplace_torch():
    pytest.importorskip("laplace")
    torch = pytest.importorskip("torch")
    names = run("laplace_torch.md")
    labels = names["y"][500:]

    def loss(proba):
        return float(torch.nn.functional.nll_loss(proba.log(), labels))

    theirs, ours, recommended = (names[name].detach() for name in ("their_proba", "our_proba", "recommended_proba"))
    assert (theirs.argmax(1) == ours.argmax(1)).float().mean() > 0.95
    assert max(loss(ours), loss(recommended)) < loss(theirs)


def test_statsmodels(capsys):
    pytest.importorskip("statsmodels")
    names = run("statsmodels.md", without="bambi")
    columns = ["age", "dose"]
    theirs, rows, spread = names["theirs"], names["rows"].loc[columns], names["spread"]
    np.testing.assert_allclose(rows["mean"] / spread, theirs.params[columns], atol=0.2 * theirs.bse[columns].max())
    np.testing.assert_allclose(rows["sd"] / spread, theirs.bse[columns], rtol=0.05)
    interval = theirs.conf_int().loc[columns]
    gap = np.abs(np.c_[rows["low"], rows["high"]] / spread.to_numpy()[:, None] - interval)
    assert np.all(gap.to_numpy() < 0.3 * theirs.bse[columns].to_numpy()[:, None])


def test_bambi():
    pytest.importorskip("bambi")
    names = run("statsmodels.md", without="statsmodels")
    columns = ["age", "dose"]
    theirs, ours, spread = names["sampled"].loc[columns], names["rows"].loc[columns], names["spread"]
    np.testing.assert_array_less(np.abs(ours["mean"] / spread - theirs["mean"]), 0.2 * theirs["sd"])
    np.testing.assert_allclose(ours["sd"] / spread, theirs["sd"], rtol=0.15)


def test_numpyro():
    pytest.importorskip("numpyro")
    names = run("numpyro.md")
    theirs, ours = names["their_draws"], names["our_draws"]
    assert theirs.shape == ours.shape == (4000, 5)
    sd = theirs.std(axis=0)
    assert np.all(np.abs(theirs.mean(axis=0) - ours.mean(axis=0)) < 0.15 * sd)
    np.testing.assert_allclose(ours.std(axis=0), sd, rtol=0.08)
