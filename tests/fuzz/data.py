"""Features, labels and weights of fuzz cases, plain and hostile, by name."""

import numpy as np
import pandas as pd
import scipy.sparse

FEATURES = {
    "plain": lambda x, rng: x,
    "wide": lambda x, rng: rng.standard_normal((len(x), 30)),
    "one column": lambda x, rng: x[:, :1],
    "few rows": lambda x, rng: x[:6],
    "float32": lambda x, rng: x.astype(np.float32),
    "float16": lambda x, rng: x.astype(np.float16),
    "integers": lambda x, rng: np.round(3 * x).astype(int),
    "booleans": lambda x, rng: x > 0,
    "constant": lambda x, rng: np.ones_like(x),
    "zero": lambda x, rng: np.zeros_like(x),
    "collinear": lambda x, rng: np.hstack([x, x, x[:, :1] - x[:, 1:2]]),
    "duplicated rows": lambda x, rng: np.repeat(x[:6], len(x) // 6 + 1, axis=0)[: len(x)],
    "far away": lambda x, rng: x + 1e8,
    "farther away": lambda x, rng: x + 1e15,
    "large": lambda x, rng: 1e6 * x,
    "huge": lambda x, rng: 1e150 * x,
    "largest": lambda x, rng: np.sign(x) * 1.7e308,
    "small": lambda x, rng: 1e-8 * x,
    "tiny": lambda x, rng: 1e-300 * x,
    "scales": lambda x, rng: x * np.logspace(-12, 12, x.shape[1]),
    "raw units": lambda x, rng: np.column_stack([40 + 12 * x[:, 0], 5e4 * np.exp(x[:, 1]), x[:, 2] > 0]),
    "huge offsets": lambda x, rng: 1e5 * np.arange(1, x.shape[1] + 1) + 0.01 * x,
    "far in one column": lambda x, rng: x + [1e12, 0, 0][: x.shape[1]],
    "small counts": lambda x, rng: rng.poisson(0.2, x.shape),
    "outlier": lambda x, rng: np.where(np.arange(len(x))[:, None] == 3, 1e12, x),
    "float32 huge": lambda x, rng: (1e30 * x).astype(np.float32),
    "nan": lambda x, rng: np.where(np.arange(len(x))[:, None] == 2, np.nan, x),
    "infinite": lambda x, rng: np.where(np.arange(len(x))[:, None] == 2, np.inf, x),
    "objects": lambda x, rng: x.astype(object),
    "text": lambda x, rng: x.astype(str),
    "complex": lambda x, rng: x + 1j,
    "mixed objects": lambda x, rng: np.where(x > 1, None, x.astype(object)),
    "vector": lambda x, rng: x[:, 0],
    "cube": lambda x, rng: x[:, :, None],
    "no rows": lambda x, rng: x[:0],
    "one row": lambda x, rng: x[:1],
    "no columns": lambda x, rng: x[:, :0],
    "sparse": lambda x, rng: scipy.sparse.csr_matrix(np.where(x > 0, x, 0)),
    "sparse csc": lambda x, rng: scipy.sparse.csc_array(np.where(x > 0, x, 0)),
    "sparse huge": lambda x, rng: scipy.sparse.csr_matrix(1e100 * np.where(x > 0, x, 0)),
    "list": lambda x, rng: x.tolist(),
    "ragged": lambda x, rng: [row[: 1 + i % 3] for i, row in enumerate(x.tolist())],
    "frame": lambda x, rng: pd.DataFrame(x, columns=[f"c{i}" for i in range(x.shape[1])]),
    "frame with text": lambda x, rng: pd.DataFrame(x).assign(town=np.where(x[:, 0] > 0, "Bern", "Oslo")),
    "frame with dates": lambda x, rng: pd.DataFrame(x).assign(day=pd.date_range("2020", periods=len(x))),
    "frame with a name twice": lambda x, rng: pd.DataFrame(x, columns=["a", "b", "a"]),
    "nullable": lambda x, rng: pd.DataFrame(np.round(3 * x)).astype("Int64"),
    "nullable with gaps": lambda x, rng: pd.DataFrame(np.round(3 * x)).astype("Int64").mask(x > 1),
    "years": lambda x, rng: np.round(2020 + 3 * x),
    "sparse coo": lambda x, rng: scipy.sparse.coo_array(np.where(x > 0, x, 0)),
    "sparse bsr": lambda x, rng: scipy.sparse.bsr_matrix(np.where(x > 0, x, 0)),
    "sparse dia": lambda x, rng: scipy.sparse.dia_array(np.where(x > 0, x, 0)),
    "sparse with nan": lambda x, rng: scipy.sparse.csr_array(np.where(x > 0, np.nan, 0)),
    "read-only": lambda x, rng: frozen(x),
    "fortran": lambda x, rng: np.asfortranarray(x),
    "big-endian": lambda x, rng: x.astype(">f8"),
    "masked": lambda x, rng: np.ma.masked_array(x, x > 1),
    "dates": lambda x, rng: x.astype("M8[s]"),
    "none": lambda x, rng: None,
    "number": lambda x, rng: 3.0,
}

LABELS = {
    "plain": lambda y, rng: y,
    "two": lambda y, rng: (y > 0).astype(int),
    "separable": lambda y, rng: np.arange(len(y)) % 2,
    "one odd row": lambda y, rng: (np.arange(len(y)) == 0).astype(int),
    "text": lambda y, rng: np.asarray(["a", "b", "ç"])[y],
    "text objects": lambda y, rng: np.asarray(["a", "b", "ç"], dtype=object)[y],
    "empty text": lambda y, rng: np.asarray(["", " ", "\n"])[y],
    "booleans": lambda y, rng: y > 0,
    "floats": lambda y, rng: y.astype(float),
    "real": lambda y, rng: y + 0.5 * rng.random(len(y)),
    "negative": lambda y, rng: y - 5,
    "huge numbers": lambda y, rng: y * 2**60,
    "unsigned": lambda y, rng: y.astype(np.uint8),
    "many": lambda y, rng: np.arange(len(y)),
    "one class": lambda y, rng: np.zeros_like(y),
    "nan": lambda y, rng: np.where(y == 0, np.nan, y),
    "none": lambda y, rng: None,
    "with None": lambda y, rng: np.where(y == 0, None, y.astype(object)),
    "numbers and text": lambda y, rng: np.where(y == 0, "a", y.astype(object)),
    "objects": lambda y, rng: y.astype(object),
    "big integers": lambda y, rng: np.asarray([int(v) + 10**30 for v in y], dtype=object),
    "short": lambda y, rng: y[:-1],
    "column": lambda y, rng: y[:, None],
    "one-hot": lambda y, rng: np.eye(3)[y],
    "multi-hot": lambda y, rng: multi_hot(y),
    "absent label": lambda y, rng: np.column_stack([y > 0, np.zeros_like(y)]).astype(int),
    "label of every row": lambda y, rng: np.column_stack([y > 0, np.ones_like(y)]).astype(int),
    "multi-hot frame": lambda y, rng: pd.DataFrame(multi_hot(y), columns=["dog", "cat"]),
    "nullable multi-hot": lambda y, rng: pd.DataFrame(multi_hot(y)).astype("Int64"),
    "multi-hot with gaps": lambda y, rng: pd.DataFrame(multi_hot(y)).astype("Int64").mask(multi_hot(y) > 0),
    "sparse multi-hot": lambda y, rng: scipy.sparse.csr_matrix(multi_hot(y)),
    "several classes": lambda y, rng: np.column_stack([y, y]),
    "lists of labels": lambda y, rng: [list(range(int(v))) for v in y],
    "sets of labels": lambda y, rng: [set(range(int(v))) for v in y],
    "objects of booleans": lambda y, rng: (y > 0).astype(object),
    "nullable": lambda y, rng: pd.Series(y, dtype="Int64"),
    "nullable with gaps": lambda y, rng: pd.Series(y, dtype="Int64").mask(y > 1),
    "list": lambda y, rng: y.tolist(),
    "tuples": lambda y, rng: [(int(v), 1) for v in y],
    "complex": lambda y, rng: y + 1j,
    "dates": lambda y, rng: y.astype("M8[D]"),
    "bytes": lambda y, rng: np.asarray([b"a", b"b", b"c"])[y],
    "number": lambda y, rng: 1,
    "series": lambda y, rng: pd.Series(y),
    "categories": lambda y, rng: pd.Series(np.asarray(["a", "b", "c"])[y], dtype="category"),
}

WEIGHTS = {
    "ones": lambda n, rng: np.ones(n),
    "random": lambda n, rng: rng.random(n),
    "integers": lambda n, rng: rng.integers(1, 4, n),
    "huge": lambda n, rng: np.full(n, 1e300),
    "large": lambda n, rng: np.full(n, 1e12),
    "tiny": lambda n, rng: np.full(n, 1e-300),
    "small": lambda n, rng: np.full(n, 1e-12),
    "spread": lambda n, rng: np.logspace(-200, 200, n),
    "half zero": lambda n, rng: np.arange(n) % 2,
    "one row": lambda n, rng: (np.arange(n) == 1).astype(float),
    "zero": lambda n, rng: np.zeros(n),
    "negative": lambda n, rng: -np.ones(n),
    "nan": lambda n, rng: np.full(n, np.nan),
    "infinite": lambda n, rng: np.full(n, np.inf),
    "objects": lambda n, rng: np.ones(n, dtype=object),
    "objects with None": lambda n, rng: np.asarray([None, *[1.0] * (n - 1)], dtype=object),
    "text": lambda n, rng: ["1"] * n,
    "complex": lambda n, rng: np.ones(n) + 1j,
    "number": lambda n, rng: 2.0,
    "short": lambda n, rng: np.ones(max(n - 1, 0)),
    "column": lambda n, rng: np.ones((n, 1)),
    "booleans": lambda n, rng: np.arange(n) % 2 == 0,
    "list": lambda n, rng: [1.0] * n,
    "word": lambda n, rng: "balanced",
}

ROWS = {
    "training": lambda x: x,
    "one": lambda x: x[:1],
    "far": lambda x: 1e6 * np.ones((2, 3)),
    "huge": lambda x: 1e300 * np.ones((2, 3)),
    "nan": lambda x: np.full((2, 3), np.nan),
    "narrow": lambda x: np.ones((2, 2)),
    "vector": lambda x: np.ones(3),
    "none": lambda x: None,
    "text": lambda x: [["a", "b", "c"]],
    "objects": lambda x: np.ones((2, 3), dtype=object),
    "sparse": lambda x: scipy.sparse.csr_matrix(np.eye(3)),
    "no rows": lambda x: np.ones((0, 3)),
    "float32": lambda x: np.ones((2, 3), dtype=np.float32),
    "integers": lambda x: np.ones((2, 3), dtype=int),
    "read-only": lambda x: frozen(np.ones((2, 3))),
    "list": lambda x: [[0.0, 1.0, 2.0]],
}


def frozen(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def multi_hot(y):
    return np.column_stack([y > 0, y > 1]).astype(int)


def plain_rows(seed, size=24):
    """Return features (N, 3), labels (N,) of three classes, and the generator of what follows."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, 3))
    y = np.digitize(x[:, 0] + 0.7 * rng.standard_normal(size), [-0.4, 0.5])
    y[:3] = [0, 1, 2]
    return x, y, rng
