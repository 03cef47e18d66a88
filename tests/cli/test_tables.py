"""Tables: reading, preprocessing, writing."""

import csv
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_iris

from enkbayes.cli.tables import Preprocessing, Table, check_classes, class_labels, read, stream, table_writer
from enkbayes.engine.row_files import ParquetRows
from enkbayes.estimators.table import texts
from enkbayes.storage.files import replacing


def text(*values):
    return np.array(values, dtype=object)


def write_csv(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


# reading


def test_csv_npz_and_parquet_give_the_same_features(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    x, y = load_iris(return_X_y=True)
    names = [f"x{i}" for i in range(4)]
    write_csv(tmp_path / "a.csv", [*names, "y"], [[*map(repr, row.tolist()), k] for row, k in zip(x, y, strict=True)])
    np.savez(tmp_path / "a.npz", X=x, y=y)
    columns = dict(zip(names, x.T, strict=True)) | {"y": y}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    tables = [read(tmp_path / f"a.{ext}") for ext in ("csv", "npz", "parquet")]
    features = [Preprocessing.fit(table, "y").transform(table) for table in tables]
    np.testing.assert_array_equal(features[0], features[1])
    np.testing.assert_array_equal(features[0], features[2])
    np.testing.assert_allclose(features[0].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(features[0].std(axis=0), 1)
    for table in tables:
        np.testing.assert_array_equal(class_labels(table, "y"), y.astype(str))


def test_parquet_nulls_booleans_dictionaries(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "n": pyarrow.array([1, None, 3]),
        "b": pyarrow.array([True, False, None]),
        "t": pyarrow.array(["u", None, "v"]),
        "d": pyarrow.array(["p", "q", None]).dictionary_encode(),
        "e": pyarrow.nulls(3),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    table = read(tmp_path / "a.parquet")
    np.testing.assert_array_equal(table.columns["n"], [1, np.nan, 3])
    np.testing.assert_array_equal(table.columns["b"], [1, 0, np.nan])
    assert table.columns["t"].tolist() == ["u", "", "v"]
    assert table.columns["d"].tolist() == ["p", "q", ""]
    assert dict(Preprocessing.fit(table).left_out) == {"e": "is empty"}


def test_parquet_columns_of_dates_are_refused_by_name(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    column = pyarrow.array([0, 1], type=pyarrow.timestamp("s"))
    parquet.write_table(pyarrow.table({"when": column}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"'when' .* timestamp"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_separators_quotes_and_byte_order_mark(tmp_path, separator):
    path = tmp_path / "a.csv"
    path.write_text(f'\ufeffa{separator}b\n1{separator}"x{separator}\ny"\n\n2{separator}z\n', encoding="utf-8")
    table = read(path)
    assert table.columns["a"].tolist() == ["1", "2"]
    assert table.columns["b"].tolist() == [f"x{separator}\ny", "z"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"a,b\n", "no rows"),
        ("a.csv", b"a,b\n1,2\n3\n", "row 2 .* has 1 fields; expected 2"),
        ("a.csv", b"a,a\n1,2\n", "several columns called 'a'"),
        ("a.csv", b"a,b\n\xff\xfe,2\n", "not UTF-8"),
        ("a.csv", "a,b\n1,2\n".encode("utf-16-be"), "not UTF-8"),
        ("a.csv", b'a,b\n"x"y,2\n', "not a readable CSV"),
        ("a.npz", b"no zip", "is not an .npz file"),
        ("a.parquet", b"no parquet", "not a readable parquet"),
        ("a.xlsx", b"", "ends in '.xlsx'"),
    ],
)
def test_unreadable_files_are_explained(tmp_path, name, content, sentence):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path / name)


def test_npz_refuses_objects_and_unequal_lengths(tmp_path):
    np.savez(tmp_path / "object.npz", a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="Python objects"):
        read(tmp_path / "object.npz")
    np.savez(tmp_path / "lengths.npz", a=[1, 2], b=[1])
    with pytest.raises(ValueError, match="lengths"):
        read(tmp_path / "lengths.npz")


@pytest.mark.parametrize("order", ["<", ">"])
def test_npz_refuses_characters_that_do_not_exist(tmp_path, order):
    codes = np.array([ord("a"), 0x110000], dtype=f"{order}u4")
    np.savez(tmp_path / "a.npz", a=codes.view(f"{order}U1"))
    with pytest.raises(ValueError, match=r"column 'a' of .* has characters that do not exist; the file is damaged"):
        read(tmp_path / "a.npz")
    codes[1] -= 1
    np.savez(tmp_path / "a.npz", a=codes.view(f"{order}U1"))
    assert read(tmp_path / "a.npz").columns["a"].tolist() == ["a", chr(0x10FFFF)]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_arrays_may_be_stored_by_columns(tmp_path, save):
    x, names = np.arange(30.0).reshape(10, 3), np.asarray(list("abcdefghij"))
    save(tmp_path / "a.npz", X=np.asfortranarray(x), name=names, row=x[:, :1])
    for chunk in (3, 10, 100):
        tables = list(stream(tmp_path / "a.npz", chunk=chunk))
        assert [table.start for table in tables] == list(range(0, 10, chunk))
        assert tables[-1].share == 1.0
        columns = {name: np.concatenate([table.columns[name] for table in tables]) for name in tables[0].columns}
        assert list(columns) == ["x0", "x1", "x2", "name", "row0"]
        np.testing.assert_array_equal(np.stack([columns[f"x{i}"] for i in range(3)], axis=1), x)
        assert columns["name"].tolist() == names.tolist()


def test_npz_files_that_are_damaged_or_ambiguous(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(1000.0))
    whole = bytearray(path.read_bytes())
    whole[300:310] = b"0123456789"
    path.write_bytes(bytes(whole))
    with pytest.raises(ValueError, match=r"a\.npz is damaged .*; write it again with numpy.savez"):
        read(path)
    np.savez(path, a=np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match=r"array 'a' .* has shape \(2, 2, 2\); expected \(n,\) or \(n, D\)"):
        read(path)
    np.savez(path, X=np.zeros((2, 2)), x1=np.zeros(2))
    with pytest.raises(ValueError, match="several columns called 'x1'"):
        read(path)


def test_parquet_columns_need_different_names(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table([pyarrow.array([1, 2])] * 3, names=["a", "b", "a"]), path)
    with pytest.raises(ValueError, match="several columns called 'a'; expected different names"):
        read(path)
    with pytest.raises(ValueError, match="several columns called 'a'; expected different names"):
        list(ParquetRows(path, "b"))


def test_chunks_have_the_row_numbers_of_the_file(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["a"], [[i] for i in range(25)])
    tables = list(stream(path, chunk=10))
    assert [(t.start, t.rows) for t in tables] == [(0, 10), (10, 10), (20, 5)]
    assert tables[-1].share == 1.0


def test_streaming_memory_does_not_grow_with_rows(tmp_path):
    def peak(rows):
        path = write_csv(tmp_path / f"{rows}.csv", ["a", "b"], [[i * 0.5, "red"] for i in range(rows)])
        tracemalloc.start()
        total = sum(table.rows for table in stream(path, chunk=500))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert total == rows
        return most

    assert peak(20_000) < 1.2 * peak(2_000)


# preprocessing


def test_numbers_are_standardised_and_missing_ones_get_the_median():
    table = Table({"a": text("1", "NA", "3", "?", "8", "")})
    out = Preprocessing.fit(table).transform(table)[:, 0]
    known = np.array([1.0, 3.0, 8.0])
    np.testing.assert_allclose(out[[0, 2, 4]], (known - known.mean()) / known.std())
    np.testing.assert_allclose(out[[1, 3, 5]], (3 - known.mean()) / known.std())


def test_booleans_are_numbers():
    table = Table({"a": text("True", "false", "", "TRUE")})
    preprocessing = Preprocessing.fit(table)
    assert preprocessing.features == ("a",)
    assert preprocessing.columns[0].mean == pytest.approx(2 / 3)


def test_categories_unseen_and_missing():
    preprocessing = Preprocessing.fit(Table({"town": text("Bern", "", "Oslo", "Bern")}))
    assert preprocessing.features == ("town=", "town=Bern", "town=Oslo")
    out = preprocessing.transform(Table({"town": text("Oslo", "Rome", "NA", " Bern ")}))
    np.testing.assert_array_equal(out, [[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]])


def test_columns_that_cannot_help_are_not_used_and_the_reason_is_given():
    n = 60
    table = Table(
        {
            "row": np.arange(5.0, 5.0 + n),
            "name": text(*(f"person {i}" for i in range(n))),
            "same": np.full(n, 0.1),
            "word": text(*["x"] * n),
            "none": text(*["NA"] * n),
            "good": np.random.default_rng(0).standard_normal(n),
        }
    )
    preprocessing = Preprocessing.fit(table)
    assert preprocessing.features == ("good",)
    assert [name for name, _ in preprocessing.left_out] == ["row", "name", "same", "word", "none"]
    # so they are not needed for predictions
    assert preprocessing.transform(Table({"good": np.zeros(3)})).shape == (3, 1)


def test_many_categories_keep_the_most_frequent():
    values = [f"c{i:03d}" for i in range(150) for _ in range(3 if i < 100 else 2)]
    preprocessing = Preprocessing.fit(Table({"c": text(*values)}))
    assert preprocessing.features == tuple(f"c=c{i:03d}" for i in range(100))
    assert "150 categories" in preprocessing.notes[0]


def test_a_table_without_usable_columns_is_an_error():
    with pytest.raises(ValueError, match="'a' is constant"):
        Preprocessing.fit(Table({"a": np.ones(3), "y": np.arange(3.0)}), "y")


def test_infinite_values_name_row_and_column():
    table = Table({"a": text("1", "2", "-inf")})
    with pytest.raises(ValueError, match="row 3 of column 'a' is infinite"):
        Preprocessing.fit(table)
    fitted = Preprocessing.fit(Table({"a": np.array([1.0, 2.0])}))
    with pytest.raises(ValueError, match="row 103 of column 'a' is infinite"):
        fitted.transform(Table(table.columns, start=100))


def test_a_typo_among_numbers_is_reported_and_not_made_a_category():
    with pytest.raises(ValueError, match="row 4 of column 'a' is 'abc'"):
        Preprocessing.fit(Table({"a": text("1", "2", "3", "abc", *map(str, range(30)))}))


def test_text_where_training_had_numbers_is_an_error():
    fitted = Preprocessing.fit(Table({"a": np.array([1.0, 2.0])}))
    with pytest.raises(ValueError, match="row 2 of column 'a' is 'red'; expected a number"):
        fitted.transform(Table({"a": text("1", "red")}))
    with pytest.raises(ValueError, match="columns that the model needs are missing: 'a'"):
        fitted.transform(Table({"b": np.ones(1)}))


def test_extreme_numbers_are_refused():
    huge = Table({"a": np.array([-1.7e308, 1.7e308])})
    np.testing.assert_allclose(Preprocessing.fit(huge).transform(huge), [[-1], [1]])
    fitted = Preprocessing.fit(Table({"a": np.array([0.0, 1e-200, 0.0])}))
    with pytest.raises(ValueError, match="too far"):
        fitted.transform(Table({"a": np.array([1e300])}))


words = st.text(st.characters(blacklist_categories=("Cs",)), max_size=6)
cells = st.one_of(words, st.floats(-1e6, 1e6).map(repr), st.sampled_from(["", "NA", "nan", "?", "true"]))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
@given(st.lists(st.tuples(cells, cells), min_size=2, max_size=12), st.lists(st.tuples(words, cells), max_size=4))
def test_preprocessing_survives_json_and_its_features_are_finite(rows, more):
    def table(rows):
        return Table({name: text(*column) for name, column in zip("ab", zip(*rows, strict=True), strict=True)})

    try:
        preprocessing = Preprocessing.fit(table(rows))
    except ValueError:
        return
    again = Preprocessing.from_json(json.loads(json.dumps(preprocessing.to_json())))
    assert again == preprocessing
    out = again.transform(table(rows))
    assert out.dtype == np.float64
    assert out.shape == (len(rows), len(preprocessing.features))
    assert np.all(np.isfinite(out))
    np.testing.assert_array_equal(out, np.concatenate([again.transform(table([row])) for row in rows]))
    if more:
        try:
            unseen = again.transform(table(more))
        except ValueError:
            return
        assert np.all(np.isfinite(unseen))


@pytest.mark.parametrize(
    "damage",
    [
        {},
        {"columns": [{"kind": "oracle", "name": "a"}]},
        {"columns": [{"kind": "number", "name": "a", "mean": 0, "scale": 0, "fill": 0}]},
        {"columns": [{"kind": "number", "name": "a", "mean": 0, "scale": float("nan"), "fill": 0}]},
        {"columns": [{"kind": "category", "name": 3, "categories": ["u"]}]},
        {"columns": 3},
    ],
)
def test_damaged_descriptions_are_refused(damage):
    document = {"target": None, "left_out": [], "notes": []} | damage
    with pytest.raises(ValueError, match="damaged"):
        Preprocessing.from_json(document)


# classes


def test_labels_are_the_same_classes_in_every_format():
    assert class_labels(Table({"y": np.array([1.0, 2.0])}), "y").tolist() == ["1", "2"]
    assert class_labels(Table({"y": text("1", "2.0")}), "y").tolist() == ["1", "2"]
    assert class_labels(Table({"y": text(" no ", "007")}), "y").tolist() == ["no", "007"]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (["a", "a"], "single class, 'a'"),
        (["0.5", "0.25", "0.5"], "real numbers such as 0.25"),
        (["a", "b", "c"], "3 different values in as many rows"),
    ],
)
def test_targets_that_are_not_classes_are_refused(labels, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_classes(np.array(labels), "y")


def test_missing_labels_and_columns_are_named():
    with pytest.raises(ValueError, match="row 12 has no class in column 'y'"):
        class_labels(Table({"y": text("a", "?")}, start=10), "y")
    with pytest.raises(ValueError, match="target 'z' is not in the data; the columns are 'y'"):
        class_labels(Table({"y": text("a")}), "z")


@given(st.sampled_from(["", "NA", "n/a", "NaN", "null", "?"]), st.sampled_from(["", " ", "\t"]))
def test_missing_markers_ignore_case_and_space(marker, space):
    entries = text(space + marker.lower() + space, space + marker.upper() + space, "0")
    assert texts(entries).tolist() == ["", "", "0"]


# writing


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_written_tables_read_back(tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with table_writer(tmp_path / name) as append:
        append({"class": np.array(["a", "b,"]), "p": np.array([0.1, 1 / 3])})
        append({"class": np.array(["cc"]), "p": np.array([1e-300])})
    table = read(tmp_path / name)
    assert table.columns["class"].tolist() == ["a", "b,", "cc"]
    assert table.columns["p"].astype(float).tolist() == [0.1, 1 / 3, 1e-300]


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")

    def fail(append):
        append({"a": np.ones(3)})
        raise RuntimeError("half way")

    (tmp_path / name).write_text("old")
    with pytest.raises(RuntimeError, match="half way"), table_writer(tmp_path / name) as append:
        fail(append)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "old"


def test_outputs_are_checked_before_any_work(tmp_path):
    with pytest.raises(ValueError, match=r"ends in '\.txt'"), table_writer(tmp_path / "p.txt"):
        pass
    with pytest.raises(FileNotFoundError, match=r"folder .* does not exist"), replacing(tmp_path / "no" / "p.csv"):
        pass


@pytest.mark.parametrize(
    ("word", "shown"),
    [("1.000000000000000000e+00", "1"), ("-1.2e+01", "-12"), ("1.5e+00", "1.5e+00"), ("2e5a", "2e5a")],
)
def test_whole_numbers_as_numpy_writes_them_are_classes_without_decimals(word, shown):
    table = Table({"y": np.array([word, "0.000000000000000000e+00"], dtype=object)})
    assert class_labels(table, "y").tolist() == [shown, "0"]


WRITTEN = {
    "decimal commas": "0,{:03d}",
    "thousands": "{:d},250",
    "apostrophes": "{:d}'250",
    "currencies": "${:d}.50",
    "per cent": "{:d} %",
    "units": "{:d}.5 kg",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_numbers_in_other_spellings_are_not_left_out_as_text(name):
    entries = [WRITTEN[name].format(100 + i) for i in range(50)]
    table = Table({"a": np.asarray(entries, dtype=object), "b": np.arange(50) % 7.0})
    with pytest.raises(ValueError, match=r"column 'a' has numbers such as .*; expected them with a decimal point"):
        Preprocessing.fit(table)


@pytest.mark.parametrize(
    "spelling", ["2020-01-{:02d}", "{:02d}.02.2020", "12:{:02d}", "10.0.0.{:d}", "k{:d}", "{:d} ab{:d}"]
)
def test_dates_addresses_and_ids_are_left_out(spelling):
    entries = [spelling.format(i, i) for i in range(50)]
    found = Preprocessing.fit(Table({"a": np.asarray(entries, dtype=object), "b": np.arange(50) % 7.0}))
    assert [name for name, _ in found.left_out] == ["a"]


@pytest.mark.parametrize(("spelling", "reason"), [("2020-{:02d}-{:02d}", "has dates; turn them"), ("a{}-{}", "as ids")])
def test_what_is_left_out_says_why(spelling, reason):
    entries = [spelling.format(1 + i // 28, 1 + i % 28) for i in range(200)]
    found = Preprocessing.fit(Table({"a": np.asarray(entries, dtype=object), "b": np.arange(200) % 7.0}))
    ((name, said),) = found.left_out
    assert name == "a"
    assert reason in said


def test_a_column_that_is_mostly_numbers_is_not_left_out_as_text():
    entries = np.asarray([str(0.5 * i) if i % 4 else "about 3" for i in range(50)], dtype=object)
    with pytest.raises(ValueError, match="row 1 of column 'a' is 'about 3'; expected a number"):
        Preprocessing.fit(Table({"a": entries, "b": np.arange(50) % 7.0}))


def test_an_index_in_any_order_numbers_the_rows():
    order = np.random.default_rng(0).permutation(50)
    columns = {"column_1": 3.0 * order, "n": order + 1.0, "b": np.arange(50) % 7.0, "ids": 3.0 * order}
    found = Preprocessing.fit(Table(columns))
    assert found.left_out == (("column_1", "numbers the rows"), ("n", "numbers the rows"))


def test_classes_that_differ_in_case_only_are_noted():
    labels = np.asarray(["Yes", "no", "yes"] * 10, dtype=object)
    found = Preprocessing.fit(Table({"b": np.arange(30) % 7.0, "y": labels}), "y")
    (note,) = found.notes
    assert note.startswith("the classes 'Yes', 'yes' of column 'y' differ in upper and lower case only; write them")
    with pytest.raises(ValueError, match="target 'Y' is not in the data; did you mean 'y'"):
        Table({"y": labels}).column("Y", "target")


def test_a_signalling_nan_is_missing_without_a_warning(tmp_path, recwarn):
    """A damaged file of the campaign had one: its cast to double made numpy warn."""
    numbers = np.ones(3, dtype=np.float32)
    numbers.view(np.uint32)[1] = 0x7F800001
    np.savez(tmp_path / "a.npz", x=numbers, y=np.asarray([1, 2, 3]))
    assert np.isnan(read(tmp_path / "a.npz").columns["x"][1])
    assert not recwarn.list
