"""Rows that are read in chunks give what rows in memory give."""

from itertools import pairwise

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.engine import NpyRows, NpzRows, ParquetRows

RNG = np.random.default_rng(11)
FEATURES = RNG.standard_normal((300, 5))
SCORE = FEATURES @ RNG.standard_normal(5) + RNG.standard_normal(300)
LABELS = np.where(SCORE > 0, "yes", "no")
GRADES = np.digitize(SCORE, [-1.0, 1.0])
WEIGHTS = RNG.uniform(0.5, 2, 300)
CUTS = np.split(np.arange(300), [7, 7, 130, 299])  # uneven, one of them empty


class Chunks:
    """Counts how often it is read."""

    def __init__(self, labels, weights=None):
        self.labels, self.weights, self.reads = labels, weights, 0

    def __iter__(self):
        self.reads += 1
        for rows in CUTS:
            tail = () if self.weights is None else (self.weights[rows],)
            yield FEATURES[rows], self.labels[rows], *tail


@pytest.mark.parametrize(
    "sampler", [eb.Equilibrium(), eb.MeanField(), eb.MeanField(rank=2, tol=1e-3), eb.Homotopy(steps=4)]
)
@pytest.mark.parametrize("labels", [LABELS, GRADES])
def test_chunks_are_the_whole(sampler, labels):
    whole = eb.Problem.create(FEATURES, labels, 2.0, intercept=10.0, weights=WEIGHTS)
    chunks = eb.Problem.stream(Chunks(labels, WEIGHTS), 2.0, intercept=10.0, chunk=50)
    one, two = (eb.run(problem, sampler, particles=30, seed=1) for problem in (whole, chunks))
    assert np.max(np.abs(one.theta - two.theta)) < 1e-8
    assert np.array_equal(one.classes, two.classes)


def test_fewer_particles_than_parameters_and_the_map():
    whole, chunks = eb.Problem.create(FEATURES, LABELS), eb.Problem.stream(Chunks(LABELS))
    assert np.allclose(eb.run(whole, particles=3).theta, eb.run(chunks, particles=3).theta, atol=1e-8)


def test_trust_needs_no_more_than_chunks():
    whole, chunks = eb.Problem.create(FEATURES, LABELS), eb.Problem.stream(Chunks(LABELS))
    one, two = (eb.assess(problem, eb.run(problem)) for problem in (whole, chunks))
    assert one.verdict == two.verdict
    assert one.data_rank == two.data_rank == 5
    assert one.shift == pytest.approx(two.shift, abs=1e-6)


def test_a_source_is_read_once_to_look_and_once_a_step():
    source = Chunks(LABELS)
    problem = eb.Problem.stream(source)
    assert source.reads == 1
    problem.loss(np.zeros((2, 5)))
    assert source.reads == 2


def test_a_data_loader_is_a_source():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.as_tensor(FEATURES), torch.as_tensor(GRADES))
    problem = eb.Problem.stream(torch.utils.data.DataLoader(data, batch_size=64))
    found = eb.run(problem, eb.MeanField(), particles=5)
    assert isinstance(found.theta, torch.Tensor)
    alone = eb.run(eb.Problem.create(FEATURES, GRADES), eb.MeanField(), particles=5)
    assert np.max(np.abs(np.asarray(found.mean) - alone.mean)) < 1e-8


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_npy_files(tmp_path, dtype):
    np.save(tmp_path / "x.npy", FEATURES.astype(dtype))
    np.save(tmp_path / "y.npy", GRADES)
    problem = eb.Problem.stream(NpyRows(tmp_path / "x.npy", tmp_path / "y.npy", chunk=64))
    alone = eb.Problem.create(FEATURES.astype(dtype), GRADES)
    theta = RNG.standard_normal((3, problem.dim)).astype(dtype)
    assert np.allclose(problem.loss(theta), alone.loss(theta), rtol=1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
def test_npz_files(tmp_path, save, dtype):
    X = (10 * FEATURES).astype(dtype)
    save(tmp_path / "rows.npz", X=X, y=LABELS, grade=GRADES)
    for source, labels in (
        (NpzRows(tmp_path / "rows.npz", chunk=64), LABELS),
        (NpzRows(tmp_path / "rows.npz"), LABELS),
    ):
        read = list(source)
        np.testing.assert_array_equal(np.concatenate([x for x, _ in read]), X)
        np.testing.assert_array_equal(np.concatenate([y for _, y in read]), labels)
        assert max(len(x) for x, _ in read) <= source.chunk
    problem, alone = eb.Problem.stream(tmp_path / "rows.npz", target="grade"), eb.Problem.create(X, GRADES)
    theta = RNG.standard_normal((3, problem.dim)).astype(problem.prior.mean.dtype)
    assert np.allclose(problem.loss(theta), alone.loss(theta), rtol=1e-5 if dtype == np.float32 else 1e-12)


def test_npz_files_that_cannot_be_read(tmp_path):
    np.savez(tmp_path / "rows.npz", X=FEATURES, y=LABELS, short=LABELS[:5], odd=np.asarray([{}] * 300))
    with pytest.raises(ValueError, match="has no array 'z'; expected one of"):
        eb.Problem.stream(tmp_path / "rows.npz", target="z")
    with pytest.raises(ValueError, match="has 300 rows and there are 5 labels"):
        eb.Problem.stream(tmp_path / "rows.npz", target="short")
    with pytest.raises(ValueError, match=r"'odd' of .* holds Python objects"):
        eb.Problem.stream(tmp_path / "rows.npz", target="odd")
    with pytest.raises(ValueError, match="expected numbers"):
        eb.Problem.stream(NpzRows(tmp_path / "rows.npz", features="odd"))


def test_paths_are_sources(tmp_path):
    pytest.importorskip("pyarrow")
    import pandas as pd

    path = tmp_path / "rows.parquet"
    pd.DataFrame(FEATURES, columns=list("abcde")).assign(grade=LABELS).to_parquet(path)
    theta = RNG.standard_normal((3, 5))
    streamed, whole = eb.Problem.stream(path, target="grade"), eb.Problem.create(FEATURES, LABELS)
    assert np.allclose(streamed.loss(theta), whole.loss(theta))
    with pytest.raises(ValueError, match="name the column with target"):
        eb.Problem.stream(path)
    with pytest.raises(ValueError, match=r"expected \.npz or \.parquet"):
        eb.Problem.stream(tmp_path / "x.npy")
    with pytest.raises(ValueError, match="this source yields its own"):
        eb.Problem.stream(Chunks(LABELS), target="grade")


def test_a_truncated_file_raises(tmp_path):
    np.save(tmp_path / "x.npy", FEATURES)
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole[:-1000])
    with pytest.raises(ValueError, match="ends within its rows 256 and on"):
        eb.Problem.stream(NpyRows(tmp_path / "x.npy", LABELS, chunk=64))


def test_parquet_files(tmp_path):
    pytest.importorskip("pyarrow")
    import pandas as pd

    frame = pd.DataFrame(FEATURES, columns=list("abcde")).assign(grade=LABELS)
    frame.to_parquet(tmp_path / "rows.parquet")
    problem = eb.Problem.stream(ParquetRows(tmp_path / "rows.parquet", "grade", chunk=70))
    assert np.allclose(eb.run(problem).mean, eb.run(eb.Problem.create(FEATURES, LABELS)).mean, atol=1e-8)
    with pytest.raises(ValueError, match="has no column 'x'"):
        eb.Problem.stream(ParquetRows(tmp_path / "rows.parquet", "x"))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"colour": ["red", "blue"] * 150},
            "column 'colour' of .* holds .*string; expected numbers: drop or",
        ),
        ({"day": np.datetime64("2026-01-01")}, "column 'day' of .* holds timestamp"),
        ({"count": [1, None] * 150}, "row 1, column 5 .* is NaN"),
        ({"yes": [True, None] * 150}, "row 1, column 5 .* is NaN"),
    ],
)
def test_parquet_columns_that_are_no_numbers(tmp_path, columns, sentence):
    pytest.importorskip("pyarrow")
    import pandas as pd

    frame = pd.DataFrame(FEATURES, columns=list("abcde")).assign(**columns, grade=LABELS)
    if "count" in columns:
        frame["count"] = frame["count"].astype("Int16")
    frame.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=sentence):
        eb.Problem.stream(tmp_path / "rows.parquet", target="grade")


def test_parquet_columns_of_several_kinds_have_one_dtype(tmp_path):
    pytest.importorskip("pyarrow")
    import pandas as pd

    few = FEATURES[:, :1].astype(np.float32)
    frame = pd.DataFrame(few, columns=["a"]).assign(n=np.arange(300, dtype=np.int16), yes=LABELS == "yes", grade=LABELS)
    frame.to_parquet(tmp_path / "rows.parquet")
    chunks = [x for x, _ in ParquetRows(tmp_path / "rows.parquet", "grade", chunk=100)]
    assert {x.dtype for x in chunks} == {np.dtype(np.float32)}
    assert np.array_equal(np.concatenate(chunks), frame[["a", "n", "yes"]].to_numpy(dtype=np.float32))


def test_files_of_another_kind_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    for name in ("x.npy", "x.npz", "x.parquet"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
    for source in (NpyRows(tmp_path / "x.npy", LABELS), NpzRows(tmp_path / "x.npz")):
        with pytest.raises(ValueError, match=r"is not an \.np. file; write it with numpy\.save"):
            eb.Problem.stream(source)
    with pytest.raises(ValueError, match="is not a readable parquet file"):
        eb.Problem.stream(tmp_path / "x.parquet", target="y")
    with pytest.raises(ValueError, match="chunk is 0; expected a positive number of rows"):
        NpyRows(tmp_path / "x.npy", LABELS, chunk=0)
    with pytest.raises(ValueError, match="is a ndarray; expected its path"):
        NpyRows(FEATURES, LABELS)


def test_what_needs_all_rows_says_so():
    problem = eb.Problem.stream(Chunks(LABELS))
    with pytest.raises(ValueError, match="read in chunks"):
        eb.polish(problem, eb.run(problem), 2)
    with pytest.raises(ValueError, match="read in chunks"):
        eb.run(problem, eb.Equilibrium(batch=10))


def nan():
    broken = FEATURES.copy()
    broken[140, 1] = np.nan
    return [(broken[:100], LABELS[:100]), (broken[100:], LABELS[100:])]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (nan(), r"row 140, column 1 \(counted from 0\) is NaN"),
        ([], "yields no rows"),
        ([(FEATURES, LABELS[:10])], "expected \\(n, D\\) and n labels"),
        ([(FEATURES[:5], LABELS[:5]), (FEATURES[5:, :3], LABELS[5:])], "expected 5 columns"),
        ([FEATURES], r"chunk 0 is a ndarray; .*\(rows in memory go to Problem.create\)"),
        ([(FEATURES, np.asarray([None, *"ab" * 149, "a"]))], "some labels from row 0 on are missing"),
        ([(FEATURES, np.where(np.arange(300) % 2, 1.0, np.nan))], "some labels from row 0 on are missing"),
        ([(FEATURES, np.asarray([1, *"ab" * 149, "a"], dtype=object))], "of several kinds, int, str"),
        ([(FEATURES[:9], ["a"] * 9), (FEATURES[9:], np.arange(291))], "of several kinds, int, str"),
        (None, "the source is a NoneType; expected what can be iterated"),
        ([(FEATURES, np.zeros(300))], "labels contain a single class"),
    ],
)
def test_bad_sources_get_one_sentence(source, sentence):
    with pytest.raises(ValueError, match=sentence):
        eb.Problem.stream(source)


def test_a_generator_can_be_read_only_once():
    problem = eb.Problem.stream(chunk for chunk in Chunks(LABELS))
    with pytest.raises(ValueError, match="can be read repeatedly"):
        eb.run(problem)


def test_npy_of_another_shape_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(FEATURES))
    with pytest.raises(ValueError, match="by columns; expected numbers"):
        eb.Problem.stream(NpyRows(tmp_path / "x.npy", LABELS))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_stream_is_cut_as_rows_in_memory_are_and_gives_the_same_bits(dtype):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((20_000, 60)).astype(dtype)  # large enough for even parts and longer chunks
    labels = features[:, 0] + rng.logistic(size=20_000) > 0
    bounds = [0, 100, 7_000, 7_001, 15_000, 20_000]
    parts = [(features[a:b], labels[a:b]) for a, b in pairwise(bounds)]
    memory, streamed = eb.Problem.create(features, labels, 2.0), eb.Problem.stream(parts, 2.0)
    one, other = (eb.run(problem, eb.Equilibrium(tol=1e-4), particles=100) for problem in (memory, streamed))
    assert np.array_equal(one.theta, other.theta)


def test_weights_of_some_parts_are_one_in_the_others():
    rng = np.random.default_rng(0)
    features, labels, weights = rng.standard_normal((60, 2)), np.arange(60) % 2, rng.uniform(0.5, 2, 60)
    weights[:20] = 1.0
    parts = [(features[:20], labels[:20]), (features[20:], labels[20:], weights[20:])]
    memory, streamed = eb.Problem.create(features, labels, weights=weights), eb.Problem.stream(parts)
    assert eb.run(streamed).mean == pytest.approx(eb.run(memory).mean, abs=1e-10)


@pytest.mark.parametrize(("sampler", "tolerance"), [(eb.Equilibrium(), 1e-5), (eb.Equilibrium(float32=False), 1e-10)])
@pytest.mark.parametrize("K", [2, 3])
def test_rows_in_another_order_differ_by_round_off(sampler, tolerance, K):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((20_000, 16))
    labels = np.argmax(features @ rng.standard_normal((16, K)) + rng.gumbel(size=(20_000, K)), axis=1)
    alone = eb.run(eb.Problem.create(features, labels), sampler)
    order = rng.permutation(20_000).reshape(40, -1)
    found = eb.run(eb.Problem.stream([(features[rows], labels[rows]) for rows in order]), sampler)
    sds = np.sqrt(alone.ensemble.variances)
    assert np.max(np.abs(found.mean - alone.mean) / sds) < tolerance
    assert np.max(np.abs(np.sqrt(found.ensemble.variances) / sds - 1)) < tolerance
