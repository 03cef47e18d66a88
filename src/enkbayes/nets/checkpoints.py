"""Checkpoints that appear in one piece, and the finished members of a deep ensemble, one file each in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn


@contextmanager
def in_one_piece(path: Path) -> Iterator[str]:
    """Yield the name of a draft next to `path`, whose folder is made if need be; the draft takes the place of `path`
    when the block ends well, and goes away when it does not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with in_one_piece(Path(folder) / "new" / "note.txt") as draft:
    ...         _ = Path(draft).write_text("all of it")
    ...     [path.name for path in Path(folder).rglob("*.txt")]
    ['note.txt']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        yield str(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def store(network: nn.Module, folder: str | Path | None, member: int, name: str) -> None:
    """Write a finished member in one piece; `name` is the fingerprint of data and settings."""
    if folder is None:
        return
    with in_one_piece(_path(folder, member)) as draft:
        save_model(network, draft, metadata={"recipe": name})


def restore(network: nn.Module, folder: str | Path | None, member: int, name: str) -> bool:
    """Fill the network from the folder and tell whether it was there; a member of other data or settings is refused."""
    if folder is None or not _path(folder, member).exists():
        return False
    path = _path(folder, member)
    try:
        with safe_open(str(path), framework="pt") as file:
            found = (file.metadata() or {}).get("recipe")
        if found != name:
            raise ValueError(f"{path} was trained on other data or with other settings; use another folder for these")
        load_model(network, str(path))
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or of another network ({error}); remove it to train it again") from None
    return True


def _path(folder: str | Path, member: int) -> Path:
    return Path(folder) / f"member-{member}.safetensors"
