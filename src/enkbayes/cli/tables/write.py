"""Writing a table piece by piece, as .csv or .parquet; the file appears only when all of it is there."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes.cli.tables.read import require_parquet

Columns = dict[str, np.ndarray[Any, Any]]
Append = Callable[[Columns], None]


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it takes the place of `path` when the block ends well, and goes away
    when it does not.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "note.txt") as draft:
    ...         _ = draft.write_text("all of it")
    ...     (Path(folder) / "note.txt").read_text()
    'all of it'
    """
    path = Path(path)
    check_folder(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        # mkstemp makes private files; the result gets the rights any new file of this user has
        mask = os.umask(0)
        os.umask(mask)
        draft.chmod(0o666 & ~mask)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def check_folder(path: Path) -> None:
    """Refuse a path whose folder is not there, or that is a folder itself.

    >>> check_folder(Path("model.safetensors"))
    """
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} is not there; create it, or write {path.name} elsewhere")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected the name of a file")


def check_output(path: str | Path) -> Path:
    """Return the path if a table can be written there, or say why not, before any work is done.

    >>> check_output("scores.csv").name
    'scores.csv'
    """
    path = Path(path)
    if path.suffix.lower() not in _WRITERS:
        raise ValueError(f"{path} ends in {path.suffix!r}; expected a name that ends in .csv or .parquet")
    if path.suffix.lower() == ".parquet":
        require_parquet()
    check_folder(path)
    return path


@contextmanager
def table_writer(path: str | Path) -> Iterator[Append]:
    r"""Yield a function that appends columns (name to values (n,)) to the file.

    Examples
    --------
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
def _csv(path: Path) -> Iterator[Append]:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        empty = True

        def append(columns: Columns) -> None:
            nonlocal empty
            if empty:
                writer.writerow(columns)
            empty = False
            writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))

        yield append


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
