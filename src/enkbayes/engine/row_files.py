"""Files of rows, read a chunk at a time and as often as needed: .npy, .npz and .parquet.

`read_npz` and `open_parquet` are the readers of their formats; the tables of the command line use them too. `NpyRows`,
`NpzRows` and `ParquetRows` yield features with labels.
"""

from __future__ import annotations

import errno
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from enkbayes.engine.memory import bytes_in_words, check_fits

CHUNK = 65536  # rows


@dataclass(frozen=True)
class NpyRows:
    """Features (N, D) in an .npy file, and labels (N,) in another or in memory. Features are read a chunk at a time and
    not mapped, so only one chunk is in memory.

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
            header = NpyHeader.read(file, str(path))
            _check_rows(header, len(labels))
            yield from _with_labels(header.chunks(file, self.chunk), labels)


@dataclass(frozen=True)
class NpzRows:
    """Features (N, D) and labels (N,) that are two arrays of an .npz file, compressed or not. Features are read a chunk
    at a time. The labels may also be in memory.

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
        named = [self.labels] if isinstance(self.labels, str) else []
        arrays = npz_headers(self.path)
        for name in (self.features, *named):
            if name not in arrays:
                raise ValueError(
                    f"{self.path} has no array {name!r}; expected one of {list(arrays)}, named by "
                    "NpzRows(path, features=..., labels=...)"
                )
        count = arrays[self.labels].shape[0] if named else len(self.labels)
        _check_rows(arrays[self.features], count)
        chunks = read_npz(self.path, [self.features, *named], self.chunk)
        if named:
            yield from ((features, labels) for features, labels in chunks)
        else:
            yield from _with_labels((features for (features,) in chunks), self.labels)


@dataclass(frozen=True)
class ParquetRows:
    """All columns of a parquet file but `target`, which holds the labels; they must be numbers, or true and false. Read
    a chunk at a time. A missing number is NaN.

    >>> import tempfile
    >>> import pyarrow as pa
    >>> from pyarrow import parquet
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     parquet.write_table(pa.table({"a": [1.0, 2.0], "kind": [0, 1]}), f"{folder}/rows.parquet")
    ...     [(x.tolist(), y.tolist()) for x, y in ParquetRows(f"{folder}/rows.parquet", "kind")]
    [([[1.0], [2.0]], [0, 1])]
    """

    path: str | Path
    target: str
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        _check(self.path, self.chunk)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        with open_parquet(self.path) as file:
            schema = file.schema_arrow
            if self.target not in schema.names:
                raise ValueError(f"{self.path} has no column {self.target!r}; expected one of {schema.names}")
            dtype = self._dtype(schema)
            for batch in file.iter_batches(self.chunk):
                columns = {name: batch.column(name) for name in schema.names}
                labels = columns.pop(self.target).to_numpy(zero_copy_only=False)
                yield np.stack([parquet_numbers(column, dtype) for column in columns.values()], axis=1), labels

    def _dtype(self, schema: Any) -> np.dtype[Any]:
        """Return float32 if it represents the values of all columns, float64 otherwise."""
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
    """Return the rows of an .npz file (arrays X and `target`, default y) or a .parquet file (its column `target`).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/rows.npz", X=np.ones((5, 2)), kind=np.arange(5))
    ...     [x.shape for x, _ in open_rows(f"{folder}/rows.npz", "kind")]
    [(5, 2)]
    """
    kind = Path(path).suffix.lower()
    if kind == ".npz":
        return NpzRows(path, labels=target or "y", chunk=chunk)
    if kind == ".parquet" and target is not None:
        return ParquetRows(path, target, chunk)
    if kind == ".parquet":
        raise ValueError(f"{path} has labels in one of its columns; name the column with target=...")
    raise ValueError(f"{path} is not a file of rows with labels; expected .npz or .parquet, or NpyRows for .npy files")


# the readers of the formats

_UNREADABLE = (
    ValueError,
    TypeError,
    KeyError,
    SyntaxError,
    RecursionError,
    OverflowError,
    MemoryError,
    EOFError,
    tokenize.TokenError,
)
"""What numpy raises for the header of an array that is none."""
_ARCHIVE = (struct.error, NotImplementedError, UnicodeDecodeError, OverflowError)
"""What the reader of zip archives raises for a damaged one, in addition to its own errors."""


@dataclass(frozen=True)
class NpyHeader:
    """What precedes the numbers of an array in .npy format."""

    name: str
    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]

    @classmethod
    def read(cls, file: IO[bytes], name: str) -> NpyHeader:
        """Read the header from the start of a file; `name` is what messages call the array."""
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, by_columns, dtype = read(file)
        except _UNREADABLE:
            raise ValueError(f"{name} is not an .npy file; write it with numpy.save") from None
        if any(length < 0 for length in shape) or dtype.itemsize == 0 or (0 in shape[1:]):
            raise ValueError(f"{name} has shape {shape} and dtype {dtype}; expected at least one number in a row")
        return cls(name, shape, by_columns, dtype)

    @property
    def size(self) -> int:
        """The bytes of the numbers, as the header claims them."""
        return math.prod(self.shape) * self.dtype.itemsize

    def chunks(self, file: IO[bytes], chunk: int) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the rows that follow the header, `chunk` at a time; an array stored by columns is read at once."""
        if self.dtype.hasobject:
            raise ValueError(f"{self.name} holds Python objects; expected numbers or text")
        rows, at_once = self.shape[0], self.by_columns and len(self.shape) > 1
        if at_once:
            whole = self._numbers(file, 0, rows).reshape(self.shape[::-1]).T
        for begin in range(0, rows, chunk):
            count = min(chunk, rows - begin)
            if at_once:
                yield whole[begin : begin + count]
            else:
                yield self._numbers(file, begin, count).reshape(count, *self.shape[1:])

    def _numbers(self, file: IO[bytes], begin: int, count: int) -> np.ndarray[Any, Any]:
        """Read the numbers of so many rows, which begin at a row of this number."""
        numbers = count * int(np.prod(self.shape[1:], dtype=np.int64))
        size = numbers * self.dtype.itemsize
        check_fits(size, f"{count:,} rows of {self.name}", lambda _: "take fewer rows at a time")
        data = file.read(size)
        if len(data) < size:
            raise ValueError(f"{self.name} ends within its rows {begin:,} and on; write the file again")
        return np.frombuffer(data, dtype=self.dtype, count=numbers)


def npz_headers(path: str | Path) -> dict[str, NpyHeader]:
    """Return the arrays of an .npz file by name, without their numbers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/rows.npz", X=np.ones((5, 2)), y=np.arange(5))
    ...     {name: header.shape for name, header in npz_headers(f"{folder}/rows.npz").items()}
    {'X': (5, 2), 'y': (5,)}
    """
    headers = {}
    with _archive(path) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        check_names(names, path, "arrays")
        for name, member in zip(names, members, strict=True):
            if member.flag_bits & 1:
                raise ValueError(f"array {name!r} of {path} is encrypted; write the file again with numpy.savez")
            with archive.open(member) as file:
                header = NpyHeader.read(file, f"array {name!r} of {path}")
            if not header.dtype.hasobject and header.size > member.file_size:
                raise ValueError(
                    f"array {name!r} of {path} needs {bytes_in_words(header.size)} by its header, and the file holds"
                    f" {bytes_in_words(member.file_size)}; write the file again"
                )
            headers[name] = header
    return headers


def check_names(names: Sequence[str], path: str | Path, what: str = "columns") -> None:
    """Refuse a file whose columns or arrays have a name twice: one of the two would be lost.

    >>> check_names(["a", "b", "a"], "ages.csv")
    Traceback (most recent call last):
        ...
    ValueError: ages.csv has several columns called 'a'; expected different names
    """
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
        raise ValueError(f"{path} has several {what} called {twice[0]!r}{more}; expected different names")


def read_npz(path: str | Path, names: Sequence[str], chunk: int) -> Iterator[tuple[np.ndarray[Any, Any], ...]]:
    """Yield rows of the named arrays of an .npz file together, `chunk` at a time; they must have the same length."""
    headers = npz_headers(path)
    for name in names:
        if not headers[name].shape:
            raise ValueError(f"array {name!r} of {path} is a single number; expected rows")
    lengths = {headers[name].shape[0] for name in names}
    if len(lengths) > 1:
        raise ValueError(f"the arrays of {path} have lengths {sorted(lengths)}; expected one length")
    with _archive(path) as archive, ExitStack() as stack:
        sources = []
        for name in names:
            member = f"{name}.npy" if f"{name}.npy" in archive.namelist() else name
            file = stack.enter_context(archive.open(member))
            sources.append(NpyHeader.read(file, headers[name].name).chunks(file, chunk))
        yield from zip(*sources, strict=True)


@contextmanager
def _archive(path: str | Path) -> Iterator[zipfile.ZipFile]:
    """Open an .npz file, which is a zip archive; explain one that is damaged."""
    if Path(path).exists() and not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz file; write it with numpy.savez")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, *_ARCHIVE, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a negative offset, not an error of the disk
            raise
        raise ValueError(f"{path} is damaged ({error}); write it again with numpy.savez") from None


def require_parquet() -> Any:
    """Return pyarrow.parquet, or say how to install it."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError("parquet files need pyarrow; install it with: pip install 'enkbayes[parquet]'") from None
    return pyarrow.parquet


@contextmanager
def open_parquet(path: str | Path) -> Iterator[Any]:
    """Open a parquet file, a `pyarrow.parquet.ParquetFile`; refuse one that cannot be read, or has two columns of the
    same name.
    """
    parquet = require_parquet()
    import pyarrow

    try:
        with parquet.ParquetFile(path) as file:
            check_names(file.schema_arrow.names, path)
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk; arrow's own errors have no number
            raise
        words = next(iter(str(error).splitlines()), "no reason was given").rstrip(": ")
        raise ValueError(f"{path} is not a readable parquet file: {words}") from None


def parquet_numbers(column: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return a column of numbers, or of true and false, as a floating array (n,); a missing entry is NaN."""
    import pyarrow

    numbers = column.cast(pyarrow.from_numpy_dtype(dtype), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, dtype=dtype)


def _check(path: Any, chunk: int) -> None:
    if not isinstance(path, str | Path):
        raise ValueError(
            f"the file of rows is a {type(path).__name__}; expected its path: rows in memory, or mapped, go to "
            "Problem.create"
        )
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; expected a positive number of rows")


def _check_rows(header: NpyHeader, labels: int) -> None:
    """Refuse an array that is not features by rows, one row for each label."""
    shape, dtype, name = header.shape, header.dtype, header.name
    if len(shape) != 2 or header.by_columns or dtype.hasobject:
        order = "by columns" if header.by_columns else "by rows"
        raise ValueError(f"{name} holds {dtype} of shape {shape}, {order}; expected numbers (N, D) by rows")
    if labels != shape[0]:
        raise ValueError(f"{name} has {shape[0]:,} rows and there are {labels:,} labels; expected one for each row")


def _with_labels(chunks: Iterator[np.ndarray[Any, Any]], labels: Any) -> Iterator[tuple[Any, Any]]:
    begin = 0
    for features in chunks:
        end = begin + len(features)
        yield features, np.asarray(labels[begin:end])
        begin = end
