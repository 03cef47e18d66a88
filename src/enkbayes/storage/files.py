"""Atomic file writing: a file appears under its name when all of it has been written, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`. When the block ends without an error, the temporary file replaces
    `path`; otherwise it is removed and `path` stays as it was. If two processes write at once, one of the two files
    stays, complete.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "note.txt") as draft:
    ...         _ = draft.write_text("complete")
    ...     (Path(folder) / "note.txt").read_text()
    'complete'
    """
    path = Path(path)
    check_folder(path)
    draft = path.with_name(f".{path.stem}.{uuid4().hex}{path.suffix}")  # the suffix tells matplotlib the format
    try:
        yield draft
        with draft.open("r+b") as file:
            os.fsync(file.fileno())  # on disk before the rename, so that a power cut cannot leave an empty file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def check_folder(path: str | Path) -> None:
    """Raise an OSError if the folder of `path` does not exist, or if `path` itself is a folder.

    >>> check_folder("model.safetensors")
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist; create it, or write {path.name} elsewhere")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected the name of a file")
