"""Files of rows with labels, read piece by piece and as often as one likes: .npy, .npz and .parquet."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

CHUNK = 65536


@dataclass(frozen=True)
class NpyRows:
    """Features (N, D) in an .npy file, and labels (N,) in another or in memory; read piece by piece and not mapped, so
    that memory stays at one piece.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", np.ones((5, 2), dtype=np.float32))
    ...     [x.shape for x, _ in NpyRows(f"{folder}/x.npy", np.arange(5), chunk=3)]
    [(3, 2), (2, 2)]
    """

    features: str | Path
    labels: Any
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        _check(self.features, self.chunk)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        labels = np.load(self.labels, mmap_mode="r") if isinstance(self.labels, str | Path) else self.labels
        path = Path(self.features)
        with path.open("rb") as file:
            yield from _npy_pieces(file, str(path), labels, self.chunk)


@dataclass(frozen=True)
class NpzRows:
    """Features (N, D) and labels (N,) that are two arrays of an .npz file, compressed or not; the features are read
    piece by piece. The labels may also be in memory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez_compressed(f"{folder}/rows.npz", X=np.ones((5, 2)), y=np.arange(5))
    ...     [(x.shape, y.tolist()) for x, y in NpzRows(f"{folder}/rows.npz", chunk=3)]
    [((3, 2), [0, 1, 2]), ((2, 2), [3, 4])]
    """

    path: str | Path
    features: str = "X"
    labels: Any = "y"
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        _check(self.path, self.chunk)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        wanted = [self.features] + ([self.labels] if isinstance(self.labels, str) else [])
        if Path(self.path).exists() and not zipfile.is_zipfile(self.path):
            raise ValueError(f"{self.path} is not an .npz file; write it with numpy.savez")
        with np.load(self.path) as arrays:  # pickles are refused
            missing = [name for name in wanted if name not in arrays.files]
            if missing:
                raise ValueError(
                    f"{self.path} has no array {missing[0]!r}; expected one of {arrays.files}, named by "
                    "NpzRows(path, features=..., labels=...)"
                )
            labels = arrays[self.labels] if isinstance(self.labels, str) else self.labels
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{self.features}.npy") as file:
            yield from _npy_pieces(file, f"{self.features} of {self.path}", labels, self.chunk)


@dataclass(frozen=True)
class ParquetRows:
    """All columns of a parquet file but `target`, which holds the labels; they must be numbers, or true and false. Read
    piece by piece.
    """

    path: str | Path
    target: str
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        _check(self.path, self.chunk)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise ImportError("parquet files need pyarrow; install it with pip install 'enkbayes[parquet]'") from None
        try:
            file = parquet.ParquetFile(self.path)
        except pyarrow.ArrowInvalid:
            raise ValueError(f"{self.path} is not a parquet file; write it with pandas or pyarrow") from None
        schema = file.schema_arrow
        if self.target not in schema.names:
            raise ValueError(f"{self.path} has no column {self.target!r}; expected one of {schema.names}")
        dtype = self._dtype(schema)
        for batch in file.iter_batches(self.chunk):
            columns = {name: batch.column(name) for name in schema.names}
            labels = columns.pop(self.target).to_numpy(zero_copy_only=False)
            numbers = [column.cast(pyarrow.from_numpy_dtype(dtype), safe=False) for column in columns.values()]
            yield (
                np.stack([x.to_numpy(zero_copy_only=False) for x in numbers], axis=1),
                labels,
            )  # what is missing is NaN

    def _dtype(self, schema: Any) -> np.dtype[Any]:
        """Return float32 where it holds all columns as they are, float64 elsewhere."""
        from pyarrow import types

        kinds = []
        for field in schema:
            if field.name == self.target:
                continue
            if not (types.is_integer(field.type) or types.is_floating(field.type) or types.is_boolean(field.type)):
                raise ValueError(
                    f"column {field.name!r} of {self.path} holds {field.type}; expected numbers: drop or encode it, "
                    "or fit the file with `enkbayes fit`, which does"
                )
            kinds.append(np.dtype(bool) if types.is_boolean(field.type) else field.type.to_pandas_dtype())
        if not kinds:
            raise ValueError(f"{self.path} has no column but {self.target!r}; expected at least one with numbers")
        joint = np.result_type(*kinds)
        return joint if joint in (np.float32, np.float64) else np.dtype(np.float64)


def open_rows(path: str | Path, target: str | None = None, chunk: int = CHUNK) -> NpzRows | ParquetRows:
    """Return the rows of an .npz file (arrays X and `target`, default y) or a .parquet file (its column `target`)."""
    kind = Path(path).suffix.lower()
    if kind == ".npz":
        return NpzRows(path, labels=target or "y", chunk=chunk)
    if kind == ".parquet" and target is not None:
        return ParquetRows(path, target, chunk)
    if kind == ".parquet":
        raise ValueError(f"{path} has labels in one of its columns; say in which with target=...")
    raise ValueError(f"{path} is not a file of rows with labels; expected .npz or .parquet, or NpyRows for .npy files")


def _check(path: Any, chunk: int) -> None:
    if not isinstance(path, str | Path):
        raise ValueError(
            f"the file of rows is a {type(path).__name__}; expected its path: rows in memory, or mapped, go to "
            "Problem.create"
        )
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; expected a positive number of rows")


def _npy_pieces(file: IO[bytes], name: str, labels: Any, chunk: int) -> Iterator[tuple[Any, Any]]:
    """Yield the rows of an array in .npy format, `chunk` at a time, with their labels."""
    try:
        version = np.lib.format.read_magic(file)
    except ValueError:
        raise ValueError(f"{name} is not an .npy file; write it with numpy.save") from None
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    if len(shape) != 2 or by_columns or dtype.hasobject:
        order = "by columns" if by_columns else "by rows"
        raise ValueError(f"{name} holds {dtype} of shape {shape}, {order}; expected numbers (N, D) by rows")
    if len(labels) != shape[0]:
        raise ValueError(f"{name} has {shape[0]:,} rows and there are {len(labels):,} labels; expected one a row")
    for begin in range(0, shape[0], chunk):
        count = min(chunk, shape[0] - begin)
        data = file.read(count * shape[1] * dtype.itemsize)
        if len(data) < count * shape[1] * dtype.itemsize:
            raise ValueError(f"{name} ends within its rows {begin:,} and on; write the file again")
        yield np.frombuffer(data, dtype=dtype).reshape(-1, shape[1]), np.asarray(labels[begin : begin + count])
