"""MNIST and Fashion-MNIST from the official files and from archives made here: the right pixels, clear errors."""

import gzip
import hashlib
import io
import os
import struct
import sys
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from enkbayes.reproduction.datasets import idx
from enkbayes.reproduction.datasets.idx import FASHION_CLASSES, FILES, load_fashion_mnist, load_mnist
from enkbayes.reproduction.datasets.images import Images

LOADERS = {"MNIST": load_mnist, "FASHION": load_fashion_mnist}


def made_up(count, seed):
    random = np.random.default_rng(seed)
    return Images(random.integers(0, 256, (count, 28, 28, 1)).astype(np.uint8), random.integers(0, 10, count))


TRAIN, TEST = made_up(5, 0), made_up(3, 1)


def images_file(data):
    return struct.pack(">IIII", 2051, len(data), 28, 28) + data.images.tobytes()


def labels_file(data):
    return struct.pack(">II", 2049, len(data)) + bytes(data.labels.tolist())


def contents():
    return dict(zip(FILES, [make(part) for part in (TRAIN, TEST) for make in (images_file, labels_file)], strict=True))


def write(folder, files, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)


def assert_read(found):
    for part, expected in zip(found, (TRAIN, TEST), strict=True):
        assert part.images.dtype == np.uint8
        assert part.labels.dtype == np.int64
        assert part.images.flags.writeable
        np.testing.assert_array_equal(part.images, expected.images)
        np.testing.assert_array_equal(part.labels, expected.labels)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("load", "inner"),
    [(load_mnist, "."), (load_mnist, "MNIST/raw"), (load_fashion_mnist, "."), (load_fashion_mnist, "FashionMNIST/raw")],
)
def test_official_files_are_read(tmp_path, load, inner, packed):
    write(tmp_path / inner, contents(), packed)
    assert_read(load(tmp_path))


def test_rows_run_downwards(tmp_path):
    pixels = bytearray(784)
    pixels[27], pixels[27 * 28] = 255, 128  # upper right, lower left
    one = {FILES[2]: struct.pack(">IIII", 2051, 1, 28, 28) + pixels, FILES[3]: struct.pack(">II", 2049, 1) + b"\x07"}
    write(tmp_path, contents() | one)
    _, test = load_mnist(tmp_path)
    assert (test.images[0, 0, 27, 0], test.images[0, 27, 0, 0], test.images.sum()) == (255, 128, 383)
    assert test.labels.tolist() == [7]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (FILES[0], b"", r"train-images-idx3-ubyte has 0 bytes; expected an idx file, whose header has 16 bytes"),
        (FILES[1], bytes(7), r"train-labels-idx1-ubyte has 7 bytes; expected an idx file, whose header has 8 bytes"),
        (FILES[2], labels_file(made_up(9, 0)), r"begins with the number 2049; expected 2051, the magic number of idx"),
        (FILES[3], images_file(TEST), r"begins with the number 2051; expected 2049, .* files with 1 axes"),
        (
            FILES[2],
            images_file(TEST)[:-1],
            r"t10k-images.* has 2,367 bytes; expected 2,368 according to its header: replace",
        ),
        (FILES[3], labels_file(TEST) + b"x", r"t10k-labels.* has 12 bytes; expected 11 according to its header"),
        (FILES[0], struct.pack(">IIII", 2051, 5, 2, 3) + bytes(30), r"has images of 2 x 3 pixels; expected 28 x 28"),
        (FILES[0], images_file(TEST), r"has 3 images and .* 5 labels; expected equally many.*: take both files"),
        (FILES[3], struct.pack(">II", 2049, 3) + b"\x00\x0a\x01", r"has the label 10; expected 0 to 9, one of ten"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, name, content, sentence):
    write(tmp_path, contents() | {name: content})
    with pytest.raises(ValueError, match=sentence) as caught:
        load_mnist(tmp_path)
    assert str(tmp_path / name) in str(caught.value)


def test_files_without_images_are_refused(tmp_path):
    none = Images(np.zeros((0, 28, 28, 1), dtype=np.uint8), np.zeros(0, dtype=np.int64))
    write(tmp_path, contents() | {FILES[0]: images_file(none), FILES[1]: labels_file(none)})
    with pytest.raises(ValueError, match=r"has 0 images and .* 0 labels; expected equally many, and at least one"):
        load_mnist(tmp_path)


def test_a_missing_or_damaged_file_is_named(tmp_path):
    write(tmp_path, contents(), packed=True)
    (tmp_path / f"{FILES[1]}.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte\.gz is damaged \(.*\); expected a gzip file"):
        load_mnist(tmp_path)
    (tmp_path / f"{FILES[1]}.gz").unlink()
    sentence = rf"contains neither {FILES[1]} nor {FILES[1]}\.gz; expected the official idx files"
    with pytest.raises(ValueError, match=sentence):
        load_fashion_mnist(tmp_path)
    with pytest.raises(ValueError, match=f"nowhere contains neither {FILES[0]} nor"):
        load_mnist(tmp_path / "nowhere")


def tar(members, mode):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return file.getvalue()


def ar(members):
    """An ar archive: headers of 60 characters, files padded to even offsets."""
    raw = b"!<arch>\n"
    for name, content in members.items():
        raw += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        raw += content + b"\n" * (len(content) % 2)
    return raw


def npm_archive(files):
    return tar({f"package/data/{name}": content for name, content in files.items()}, "w:gz")


def debian_archive(files):
    inner = {f"./usr/share/datasets/fashion-mnist/{name}.gz": gzip.compress(raw) for name, raw in files.items()}
    return ar({"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": tar(inner, "w:xz")})


MAKERS = {"MNIST": npm_archive, "FASHION": debian_archive}


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Put an archive with this content into the cache; return its path and its description."""
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path))

    def put(which, content):
        archive = getattr(idx, which)
        (tmp_path / archive.file).write_bytes(content)
        return tmp_path / archive.file, replace(archive, sha256=hashlib.sha256(content).hexdigest())

    return put


@pytest.mark.parametrize("which", LOADERS)
def test_the_archive_is_decoded_once(cached, which):
    path, archive = cached(which, MAKERS[which](contents()))
    assert_read(LOADERS[which](archive=archive))
    path.unlink()  # from here on only the decoded file is left
    assert_read(LOADERS[which](archive=archive))
    assert [path.name for path in path.parent.iterdir()] == [
        {"MNIST": "mnist.npz", "FASHION": "fashion_mnist.npz"}[which]
    ]


@pytest.mark.parametrize("which", LOADERS)
def test_an_archive_without_a_file_is_refused(cached, which):
    files = contents()
    del files[FILES[3]]
    path, archive = cached(which, MAKERS[which](files))
    with pytest.raises(ValueError, match=rf"contains no {FILES[3]}(\.gz)?; delete it to download it again") as caught:
        LOADERS[which](archive=archive)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("content", [b"", b"no archive", ar({}), ar({"debian-binary": b"2.0\n", "data.tar.zst": b""})])
def test_a_debian_package_without_data_is_refused(cached, content):
    _, archive = cached("FASHION", content)
    with pytest.raises(ValueError, match=r"\.deb contains no data\.tar\.xz; delete it to download it again"):
        load_fashion_mnist(archive=archive)


@pytest.mark.parametrize("which", LOADERS)
def test_without_a_client_the_message_names_the_remedy(tmp_path, monkeypatch, which):
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"could not be downloaded: (npm|apt-get) is not installed; ") as caught:
        LOADERS[which]()
    assert "official idx files (train-images-idx3-ubyte.gz" in str(caught.value)
    assert "data_dir" in str(caught.value)
    assert ("run `sudo apt-get update` and try again" in str(caught.value)) == (which == "FASHION")


@pytest.mark.skipif(os.name == "nt", reason="the fake client is a script with a first line that names its interpreter")
def test_a_failed_download_never_refreshes_the_package_list(tmp_path, monkeypatch):
    """Not even as root, which is the user in many containers."""
    (tmp_path / "bin").mkdir()
    client = tmp_path / "bin" / "apt-get"
    note = f"open({str(tmp_path / 'calls')!r}, 'a').write(sys.argv[1] + '\\n')"
    client.write_text(f"#!{sys.executable} -IS\nimport sys\n{note}\nsys.exit('E: Unable to locate package')\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"E: Unable to locate package.*run `sudo apt-get update` and try again"):
        load_fashion_mnist()
    assert (tmp_path / "calls").read_text().split() == ["download"]


def test_the_archives_name_a_version():
    assert idx.MNIST.package.replace("@", "-") + ".tgz" == idx.MNIST.file
    assert idx.FASHION.package.replace("=", "_") + "_all.deb" == idx.FASHION.file
    assert {len(archive.sha256) for archive in (idx.MNIST, idx.FASHION)} == {64}
    assert len(set(FASHION_CLASSES)) == 10
