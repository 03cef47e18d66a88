"""Writing a table in chunks, as .csv or .parquet; the file appears when it is complete."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from enkbayes.cli.console import emit
from enkbayes.engine.row_files import require_parquet
from enkbayes.storage.files import check_writable, replacing

Columns = dict[str, np.ndarray[Any, Any]]
Append = Callable[[Columns], None]


def check_output(path: str | Path) -> Path:
    """Return the path if a table can be written there; otherwise raise, before any work is done.

    >>> check_output("scores.csv").name
    'scores.csv'
    """
    path = Path(path)
    if path.suffix.lower() not in _WRITERS:
        raise ValueError(f"{path} ends in {path.suffix!r}; expected a name that ends in .csv or .parquet")
    if path.suffix.lower() == ".parquet":
        require_parquet()
    check_writable(path)
    return path


@contextmanager
def table_writer(path: str | Path) -> Iterator[Append]:
    r"""Yield a function that appends columns (name to values (n,)) to the file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with table_writer(Path(folder) / "p.csv") as append:
    ...         append({"class": np.array(["a", "b"]), "confidence": np.array([0.9, 0.75])})
    ...     (Path(folder) / "p.csv").read_text()
    'class,confidence\na,0.9\nb,0.75\n'
    """
    path = check_output(path)
    with replacing(path) as draft, _WRITERS[path.suffix.lower()](draft) as append:
        yield append


@contextmanager
def table_printer() -> Iterator[Append]:
    """Yield a function that prints columns as CSV on standard output."""

    def append(columns: Columns) -> None:
        text = io.StringIO()
        write(text, columns)
        emit(text.getvalue())

    write = _csv_rows()
    yield append


@contextmanager
def _csv(path: Path) -> Iterator[Append]:
    write = _csv_rows()
    with path.open("w", newline="", encoding="utf-8") as file:
        yield lambda columns: write(file, columns)


def _csv_rows() -> Callable[[IO[str], Columns], None]:
    """Return a function that writes columns to a file, with their names before the first rows."""
    empty = True

    def write(file: IO[str], columns: Columns) -> None:
        nonlocal empty
        writer = csv.writer(file, lineterminator="\n")
        if empty:
            writer.writerow(columns)
        empty = False
        writer.writerows(zip(*(_cells(values) for values in columns.values()), strict=True))

    return write


def _cells(values: np.ndarray[Any, Any]) -> list[Any]:
    """Return the entries of a column; a missing number is an empty entry."""
    if values.dtype.kind != "f" or not np.any(np.isnan(values)):
        return list(values.tolist())
    return ["" if np.isnan(x) else x for x in values.tolist()]


@contextmanager
def _parquet(path: Path) -> Iterator[Append]:
    parquet = require_parquet()
    import pyarrow

    writer: Any = None

    def append(columns: Columns) -> None:
        nonlocal writer
        table = pyarrow.table({name: pyarrow.array(values.tolist()) for name, values in columns.items()})
        writer = parquet.ParquetWriter(path, table.schema) if writer is None else writer
        writer.write_table(table)

    try:
        yield append
    finally:
        if writer is not None:
            writer.close()


_WRITERS = {".csv": _csv, ".parquet": _parquet}
