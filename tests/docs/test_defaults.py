"""The data sets of the benchmark of defaults: which ones may be looked at, and disjoint, nested, clean splits."""

import hashlib

import numpy as np
import pandas as pd
import pytest

default_sets = pytest.importorskip("default_sets")


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
    with pytest.raises(ValueError, match="no data set 'irises'; expected one of BreastCancer"):
        default_sets.load("irises")
