"""Atomic file writing: a file appears under its name when all of it has been written, or not at all.

A file is written as a draft next to its destination and renamed when it is on disk. A process holds a lock on its draft
as long as it lives, so that the next one to write in the folder can tell the drafts of dead processes, and removes
them.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

try:
    import fcntl
except ImportError:  # Windows: drafts are not locked, and not cleaned
    fcntl = None  # type: ignore[assignment]

PREFIX = ".enkbayes-"  # of drafts
LONGEST_SUFFIX = 20  # bytes; a draft has the suffix of its destination, which tells matplotlib the format
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}  # errors of writing that do not name the file


def as_path(path: str | Path) -> Path:
    """Return the path of a file, or raise a TypeError for what is no name.

    >>> as_path(None)
    Traceback (most recent call last):
    TypeError: the file name is None; expected text or a Path
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"the file name is {path!r}; expected text or a Path")
    return Path(path)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`. When the block ends without an error, the temporary file replaces
    `path`; otherwise it is removed and `path` stays as it was. If two processes write at once, one of the two files
    stays, complete. A symbolic link stays, and the file that it points to is replaced.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "note.txt") as draft:
    ...         _ = draft.write_text("complete")
    ...     (Path(folder) / "note.txt").read_text()
    'complete'
    """
    end = destination(path)
    remove_abandoned(end.parent)
    draft = _draft_name(end)
    try:
        with _drafted(draft):
            yield draft
            with draft.open("r+b") as file:
                os.fsync(file.fileno())  # on disk before the rename, so that a power cut cannot leave an empty file
            draft.replace(end)
            _sync_folder(end.parent)
    except OSError as error:
        if error.filename == str(draft) or (error.filename is None and error.errno in NO_ROOM):
            raise type(error)(error.errno, error.strerror, str(path)) from None
        raise


@contextmanager
def draft_folder(parent: Path) -> Iterator[Path]:
    """Yield a temporary folder in another one, removed at the end or, if the process is killed, by the next one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent, draft_folder(Path(parent)) as folder:
    ...     folder.is_dir()
    True
    """
    remove_abandoned(parent)
    folder = parent / f"{PREFIX}{uuid4().hex}"
    folder.mkdir()
    lock = None if fcntl is None else os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if lock is not None:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def destination(path: str | Path) -> Path:
    """Return the file that is written under this name: `path`, or where it points as a symbolic link. Raise an OSError
    if its folder does not exist, or if it is a folder, a pipe or a device.

    >>> destination("model.safetensors").name
    'model.safetensors'
    """
    path = as_path(path)
    if "\0" in str(path):
        raise ValueError(f"the file name {str(path)!r} contains a null character; expected a name without it")
    end = Path(os.path.realpath(path))
    for folder in (path.parent, end.parent):
        if not folder.is_dir():
            raise FileNotFoundError(f"the folder {folder} does not exist; create it, or write {path.name} elsewhere")
    try:
        kind = end.lstat().st_mode
    except FileNotFoundError:
        return end
    except OSError as error:  # a name that is too long
        raise type(error)(error.errno, error.strerror, str(path)) from None
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(f"{path} is a folder; expected the name of a file")
    if not stat.S_ISREG(kind):
        raise OSError(f"{path} is a pipe, a device or a broken link; expected the name of a file")
    return end


def check_writable(path: str | Path) -> None:
    """Raise an OSError unless a file can be written at `path`; this creates and removes an empty draft next to it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_writable(f"{folder}/model.safetensors")
    ...     list(Path(folder).iterdir())
    []
    """
    end = destination(path)
    try:
        with _drafted(_draft_name(end)):
            pass
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None


def check_folder_writable(folder: str | Path) -> None:
    """Raise an OSError unless files can be written into a folder, which may be one that does not exist yet.

    >>> check_folder_writable("results/today")
    """
    folder = Path(folder).absolute()
    for parent in (folder, *folder.parents):
        if parent.is_dir():
            check_writable(parent / "probe")
            return
        if parent.exists():
            raise NotADirectoryError(f"{parent} is a file; expected a folder")


def remove_abandoned(folder: Path) -> None:
    """Remove the drafts in a folder whose processes are dead."""
    if fcntl is None:
        return
    for draft in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):  # locked by a living process, or not ours to remove
            access = os.O_RDONLY if draft.is_dir() else os.O_RDWR
            descriptor = os.open(draft, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if draft.is_dir():
                    shutil.rmtree(draft)
                else:
                    draft.unlink(missing_ok=True)
            finally:
                os.close(descriptor)


def _draft_name(end: Path) -> Path:
    suffix = end.suffix if len(os.fsencode(end.suffix)) <= LONGEST_SUFFIX else ""
    return end.with_name(f"{PREFIX}{uuid4().hex}{suffix}")


@contextmanager
def _drafted(draft: Path) -> Iterator[None]:
    """Create an empty draft and lock it; at the end remove it, if it is still there, and release the lock.

    A signal may come at any moment: the name is known before the file exists, and a removal that a signal interrupts is
    done again.
    """
    lock = None
    try:
        try:
            lock = _created(draft)
            yield
        finally:
            _removed(draft)
    finally:
        _removed(draft)
        if lock is not None:
            os.close(lock)


def _created(draft: Path) -> int | None:
    """Create an empty draft; return the descriptor that holds its lock, if the system has locks."""
    while True:
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        if fcntl is None:  # an open file could not be renamed
            os.close(descriptor)
            return None
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if draft.exists():  # it may have been removed as abandoned before it was locked
            return descriptor
        os.close(descriptor)


def _removed(draft: Path) -> None:
    with suppress(OSError):
        draft.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Put the new name on disk, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
