"""Atomic file writing: a file appears under its name when all of it has been written, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`. When the block ends without an error, the temporary file replaces
    `path`; otherwise it is removed and `path` stays as it was.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "note.txt") as draft:
    ...         _ = draft.write_text("complete")
    ...     (Path(folder) / "note.txt").read_text()
    'complete'
    """
    path = Path(path)
    check_folder(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        # mkstemp creates private files; give the result the permissions of any new file of this user
        mask = os.umask(0)
        os.umask(mask)
        draft.chmod(0o666 & ~mask)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def check_folder(path: Path) -> None:
    """Raise ValueError if the folder of `path` does not exist, or if `path` itself is a folder.

    >>> check_folder(Path("model.safetensors"))
    """
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} does not exist; create it, or write {path.name} elsewhere")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected the name of a file")
