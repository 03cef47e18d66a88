"""Reading .csv, .parquet and .npz as a stream of tables. CSV needs nothing but the standard library and numpy."""

from __future__ import annotations

import csv
import io
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes.engine.memory import check_fits
from enkbayes.engine.row_files import check_names, npz_headers, open_parquet, parquet_numbers, read_npz
from enkbayes.estimators.table import Table

CHUNK = 4096
TEXT = 64  # bytes of a short text and of the reference to it


def stream(path: str | Path, chunk: int = CHUNK) -> Iterator[Table]:
    r"""Yield the rows of a file, `chunk` at a time; memory does not grow with the number of rows, except for arrays of
    an .npz file that are stored by columns.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "ages.csv"
    ...     _ = path.write_text("age,town\n31,Bern\n44,Oslo\n27,Bern\n")
    ...     [table.rows for table in stream(path, chunk=2)]
    [2, 1]
    """
    path = Path(path)
    if path.suffix.lower() not in _READERS:
        raise ValueError(f"{path} ends in {path.suffix!r}; expected a .csv, .parquet or .npz file")
    if not path.is_file():
        raise ValueError(f"{path} {not_a_file(path)}; expected a .csv, .parquet or .npz file")
    rows = 0
    for table in _READERS[path.suffix.lower()](path, chunk):
        rows += table.rows
        yield table
    if rows == 0:
        raise ValueError(f"{path} has no rows; expected at least one row of data")


def read(path: str | Path) -> Table:
    """Return all rows of a file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "set.npz"
    ...     np.savez(path, X=np.eye(3), y=[0, 1, 1])
    ...     list(read(path).columns)
    ['x0', 'x1', 'x2', 'y']
    """
    parts: list[Table] = []
    for part in stream(path, chunk=65536):
        if not parts:
            _check_memory(_bytes_of(part) / max(part.share, 1e-9), path)
        parts.append(part)
    return Table({name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns})


def not_a_file(path: Path) -> str:
    """Return why a path is not a file that can be read, in words that follow its name."""
    if path.is_dir():
        return "is a folder"
    return "is a pipe or a device" if path.exists() else "does not exist"


def _check_memory(needed: float, path: str | Path) -> None:
    remedy = "of the rows fit; take a sample of them, or a larger machine"
    check_fits(needed, f"the rows of {path}", lambda free: f"about {free / needed:.1%} {remedy}")


def _bytes_of(table: Table) -> float:
    """Return the memory of a table whose entries are numbers or text."""
    cells = {name: 8 if values.dtype.kind == "f" else TEXT for name, values in table.columns.items()}
    return float(table.rows * sum(cells.values()))


def _csv(path: Path, chunk: int) -> Iterator[Table]:
    size = max(path.stat().st_size, 1)
    with path.open("rb") as binary, io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as file:
        try:
            head = file.readline()
            if "\0" in head:  # UTF-16 without a mark at its beginning
                raise ValueError(_not_text(path))
            file.seek(0)
            rows = csv.reader(file, delimiter=max(",;\t", key=head.count), strict=True)
            names = _header(next(rows, []), path)
            start = 0
            while block := list(itertools.islice((row for row in rows if row), chunk)):
                _check_width(block, len(names), start, path)
                columns = zip(*block, strict=True)
                share = min(binary.tell() / size, 1.0)
                yield Table({name: _objects(c) for name, c in zip(names, columns, strict=True)}, start, share)
                start += len(block)
        except UnicodeDecodeError:
            raise ValueError(_not_text(path)) from None
        except csv.Error as error:
            raise ValueError(f"{path} is not a readable CSV file: {error}") from None


def _not_text(path: Path) -> str:
    return f"{path} is not UTF-8 text; save it as CSV in UTF-8"


def _header(row: list[str], path: Path) -> list[str]:
    if not any(name.strip() for name in row):
        raise ValueError(f"{path} is empty; expected a line of column names and at least one row of data")
    names = [name.strip() or f"column_{i + 1}" for i, name in enumerate(row)]
    check_names(names, path)
    return names


def _check_width(block: list[list[str]], width: int, start: int, path: Path) -> None:
    for i, row in enumerate(block):
        if len(row) != width:
            raise ValueError(
                f"row {start + i + 1} of {path} has {len(row)} fields; expected {width}, as the first line has"
            )


def _objects(values: Any) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _npz(path: Path, chunk: int) -> Iterator[Table]:
    headers = npz_headers(path)
    names: dict[str, list[str]] = {}
    for array, header in headers.items():
        if len(header.shape) not in (1, 2):
            raise ValueError(f"array {array!r} of {path} has shape {header.shape}; expected (n,) or (n, D)")
        stem = "x" if array in ("features", "X") else array
        names[array] = [array] if len(header.shape) == 1 else [f"{stem}{i}" for i in range(header.shape[1])]
    check_names([name for columns in names.values() for name in columns], path)
    size, start = max((header.shape[0] for header in headers.values()), default=0), 0
    for arrays in read_npz(path, list(headers), chunk):
        columns: dict[str, np.ndarray[Any, Any]] = {}
        for own, part in zip(names.values(), arrays, strict=True):
            values = part.reshape(len(part), -1).T
            columns |= {name: _column(x, name, path) for name, x in zip(own, values, strict=True)}
        start += len(arrays[0])
        yield Table(columns, start - len(arrays[0]), start / size)


def _column(values: np.ndarray[Any, Any], name: str, path: Path) -> np.ndarray[Any, Any]:
    if values.dtype.kind in "fiub":
        with np.errstate(over="ignore", invalid="ignore"):  # of numbers wider than double, and of signalling NaN
            return values.astype(np.float64)
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"column {name!r} of {path} is not UTF-8 text; save it as text in UTF-8") from None
    if values.dtype.kind != "U":
        raise ValueError(f"column {name!r} of {path} has dtype {values.dtype}; expected numbers, truth values or text")
    codes = np.frombuffer(values.tobytes(), np.dtype("u4").newbyteorder(values.dtype.byteorder))
    if np.any(codes > sys.maxunicode):
        raise ValueError(f"column {name!r} of {path} has characters that do not exist; the file is damaged")
    return values.astype(object)


def _parquet(path: Path, chunk: int) -> Iterator[Table]:
    with open_parquet(path) as file:
        size, start = max(file.metadata.num_rows, 1), 0
        for batch in file.iter_batches(batch_size=chunk):
            columns = {name: _arrow(values, name, path) for name, values in zip(batch.schema.names, batch, strict=True)}
            yield Table(columns, start, min((start + batch.num_rows) / size, 1.0))
            start += batch.num_rows


def _arrow(values: Any, name: str, path: Path) -> np.ndarray[Any, Any]:
    import pyarrow.types as kinds

    kind = values.type.value_type if kinds.is_dictionary(values.type) else values.type
    if kinds.is_dictionary(values.type):
        values = values.cast(kind)
    if kinds.is_null(kind):
        return np.full(len(values), np.nan)
    if kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
        return parquet_numbers(values, np.float64)
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return _objects(["" if text is None else text for text in values.to_pylist()])
    raise ValueError(
        f"column {name!r} of {path} has type {kind}; expected numbers, truth values or text: convert or remove it"
    )


_READERS: dict[str, Callable[[Path, int], Iterator[Table]]] = {".csv": _csv, ".parquet": _parquet, ".npz": _npz}
