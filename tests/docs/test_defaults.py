"""The data sets of the benchmark of defaults: which ones may be looked at, and disjoint, nested, clean splits."""

import hashlib

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pandas")
import default_methods
import default_page
import default_sets
import defaults


@pytest.fixture
def cache(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path))
    default_sets.load.cache_clear()
    yield tmp_path
    default_sets.load.cache_clear()


def test_the_halves_are_disjoint_and_follow_the_hashes_of_the_names():
    def digest(name):
        return hashlib.sha256(name.encode()).hexdigest()

    development, evaluation = default_sets.DEVELOPMENT, default_sets.EVALUATION
    assert len(development) == len(evaluation) == 18
    assert max(map(digest, development)) < min(map(digest, evaluation))


def test_training_rows_are_nested_and_apart_from_the_test_rows(cache):
    sizes = default_sets.sizes("iris")
    assert sizes == [50, 100]
    small, large = (default_sets.split("iris", n, 3) for n in sizes)
    X, y = default_sets.load("iris")
    assert len(large.y) + len(large.y_test) == len(y) == len(X)
    np.testing.assert_array_equal(small.y, large.y[:50])
    np.testing.assert_array_equal(small.y_test, large.y_test)
    assert np.bincount(np.r_[large.y, large.y_test]).tolist() == [50, 50, 50]
    assert min(np.bincount(small.y)) >= 2
    again = default_sets.split("iris", 50, 3)
    np.testing.assert_array_equal(again.X, small.X)
    assert not np.array_equal(default_sets.split("iris", 50, 4).y, small.y)


def test_rows_are_encoded_from_training_rows_alone(cache, monkeypatch):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"number": rng.normal(3, 2, 90), "letter": rng.choice([*"abc"], 90), "same": 1.0})
    table.loc[:40, "number"] = np.nan
    table.loc[5:20, "letter"] = None
    target = np.array(["rare", *["yes", "no"] * 44, "no"])
    monkeypatch.setitem(default_sets.SOURCES, "made up", lambda: (table, target))
    split = default_sets.split("made up", default_sets.sizes("made up")[-1], 0)
    assert len(split.y) + len(split.y_test) == 89  # without the rare class
    assert split.X.shape[1] == split.X_test.shape[1] == 1 + 4  # a number, three letters and no letter
    np.testing.assert_allclose(split.X.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(split.X.std(axis=0), 1)
    assert np.isfinite(split.X_test).all()
    assert (cache / "defaults" / "made up.parquet").exists()


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="no data set 'irises'; expected one of Athenstaedt, BreastCancer"):
        default_sets.load("irises")


def measured_sets():
    """Results of three methods on two sets: ours is better by a tenth on one and worse by .03 on the other."""

    def row(nll, ece=0.1, splits=(0, 1)):
        figures = {"nll": nll, "ece": [ece] * len(nll), "accuracy": [0.8] * len(nll), "seconds": [0.5] * len(nll)}
        return {"splits": list(splits), **figures}

    good = {
        default_page.OURS: row([0.45, 0.45, 9.0], splits=(0, 1, 2)),
        default_page.REFERENCE: row([0.4, 0.6]),
        default_page.SCALED: row([0.5, 0.5], ece=0.2),
    }
    bad = {default_page.OURS: row([0.23, 0.23]), default_page.REFERENCE: row([0.2, 0.2])}
    bad["Laplace"] = {key: [] for key in bad[default_page.OURS]} | {"failed": ["split 0: it did not work"]}
    return {
        "environment": {"cpu": "one", "default prior_precision": "average"},
        "sets": {"Glass": {"50": good}, "Sonar": {"138": bad}},
    }


def test_targets_follow_from_the_common_splits_of_the_results():
    found = default_page.targets(default_page.pairs_of(measured_sets()))
    measured = [target.measured for target in found]
    assert measured[0] == pytest.approx(np.sqrt(0.9 * 1.15))
    assert measured[1:4] == pytest.approx([0.9, 0.5, 0.03])
    assert measured[4] is None
    assert measured[5] == pytest.approx(-0.1)
    verdicts = ["**missed**", "met", "**missed**", "**missed**", "not measured", "met"]
    assert [target.verdict for target in found] == verdicts


def test_the_page_shows_every_pair_and_every_failure():
    text = default_page.page(measured_sets(), measured_sets())
    assert "| Glass | 50 | 2 | 0.500 | 0.450 | -0.050 |" in text
    assert "| Sonar | 138 | 2 | 0.200 | 0.230 | **+0.030** |" in text
    assert "- Laplace, Sonar, 138 rows, split 0: it did not work" in text
    assert "half of the pairs have at most 2 splits" in text
    assert "Sonar with 138 rows alone" in text
    assert "No figures, because" in text
    assert "\n\n\n" not in text


def test_an_interrupted_run_continues_and_failures_are_kept(cache, monkeypatch):
    calls = []

    def fails(split, seed):
        calls.append("fails")
        raise ValueError("no")

    def even(split, seed):
        calls.append("even")
        return np.full((len(split.y_test), 3), 1 / 3)

    methods = {"fails": default_methods.Method(fails, repeats=1), "even": default_methods.Method(even, repeats=2)}
    monkeypatch.setattr(defaults, "METHODS", methods)
    path = cache / "lines.jsonl"
    defaults.run(("iris",), list(methods), path, float("inf"))
    assert calls.count("fails") == 2  # two sizes, one split each
    assert calls.count("even") == 4
    path.write_text(path.read_text()[:-30])  # half of the last line
    for _ in range(2):
        defaults.run(("iris",), list(methods), path, float("inf"))
        assert calls.count("fails") + calls.count("even") == 7
    sets = defaults.collected(list(defaults.read(path).values()))
    assert sets["iris"]["50"]["fails"]["failed"] == ["split 0: no"]
    assert sets["iris"]["50"]["even"]["nll"] == pytest.approx([np.log(3)] * 2, abs=1e-5)


@pytest.mark.parametrize("method", ["LogisticRegressionCV, temperature", "Laplace", "our default"])
def test_methods_predict_the_classes_of_iris(cache, method):
    split = default_sets.split("iris", 50, 0)
    proba = default_methods.METHODS[method].proba(split, 0)
    assert proba.shape == (50, 3)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert np.mean(proba.argmax(axis=1) == split.y_test) > 0.8
