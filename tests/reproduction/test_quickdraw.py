"""QuickDraw: three classes of two drawings, from numbers to pixels, with clear errors."""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from enkbayes.reproduction.datasets import quickdraw
from enkbayes.reproduction.datasets.quickdraw import CLASSES, load_quickdraw

NAMES = ("The Mona Lisa", "baseball", "baseball bat")
INK = np.random.default_rng(0).integers(0, 1001, (3, 2, 784)) / 1000


def packed(drawings):
    lines = "".join(json.dumps(drawing.tolist()) + "\r\n" for drawing in drawings)  # the archive's line ends
    return gzip.compress(lines.encode())


FILES = {f"{name}.ndjson.gz": packed(ink) for name, ink in zip(NAMES, INK, strict=True)}


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Put an archive with these files into the cache; return its path and its description."""
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()

    def put(files):
        path = tmp_path / "cache" / quickdraw.ARCHIVE.file
        with tarfile.open(path, "w:gz") as archive:
            for name, content in reversed(files.items()):  # the archive's order is not that of the names
                about = tarfile.TarInfo(f"package/src/drawings/{name}")
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
        return path, replace(quickdraw.ARCHIVE, sha256=hashlib.sha256(path.read_bytes()).hexdigest())

    return put


def load(data_dir=None, **options):
    """Load three classes of two drawings."""
    return load_quickdraw(data_dir, classes=NAMES, each=2, **options)


def write(folder, files=FILES):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def assert_read(found):
    assert found.images.dtype == np.uint8
    assert found.labels.dtype == np.int64
    np.testing.assert_array_equal(found.images, np.rint(255 * INK).reshape(6, 28, 28, 1))
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_the_archive_is_decoded_once(cached):
    path, archive = cached(FILES | {"more.ndjson.gz": b"never read"})
    assert_read(load(archive=archive))
    path.unlink()
    assert_read(load(archive=archive))
    assert [path.name for path in path.parent.iterdir()] == ["quickdraw.npz"]


def test_an_archive_without_a_class_is_refused(cached):
    _, archive = cached({name: content for name, content in FILES.items() if not name.startswith("baseball.")})
    with pytest.raises(ValueError, match=r"contains no baseball\.ndjson\.gz; delete it to download it again"):
        load(archive=archive)


def test_a_folder_of_the_packages_files_gives_the_same(tmp_path):
    assert_read(load(write(tmp_path / "given")))


def test_official_bitmaps_give_the_first_drawings(tmp_path):
    bitmaps = np.random.default_rng(1).integers(0, 256, (3, 5, 784)).astype(np.uint8)
    (tmp_path / "given").mkdir()
    for name, rows in zip(NAMES, bitmaps, strict=True):
        np.save(tmp_path / "given" / f"{name}.npy", rows)
    found = load(tmp_path / "given")
    np.testing.assert_array_equal(found.images, bitmaps[:, :2].reshape(6, 28, 28, 1))
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert type(found.images) is np.ndarray  # not a view of a file


@pytest.mark.parametrize(
    "rows", [np.zeros((1, 784), dtype=np.uint8), np.zeros((5, 783), dtype=np.uint8), np.zeros((5, 784)), np.zeros(784)]
)
def test_bitmaps_of_another_shape_or_type_are_refused(tmp_path, rows):
    folder = write(tmp_path / "given")
    (folder / "baseball.ndjson.gz").unlink()
    np.save(folder / "baseball.npy", rows)
    with pytest.raises(ValueError, match=r"baseball\.npy has an array .* of .*; expected \(N, 784\) of uint8 with at"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_a_damaged_bitmap_is_named(tmp_path, content):
    folder = write(tmp_path / "given")
    (folder / "baseball.ndjson.gz").unlink()
    (folder / "baseball.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"baseball\.npy is damaged \(.*\); expected an official numpy bitmap"):
        load(folder)


def test_a_missing_class_is_named(tmp_path):
    folder = write(tmp_path / "given")
    (folder / "baseball bat.ndjson.gz").unlink()
    sentence = r"neither baseball bat\.ndjson\.gz nor baseball bat\.npy; expected one of them for each of the 3 classes"
    with pytest.raises(ValueError, match=sentence):
        load(folder)


@pytest.mark.parametrize(
    "line", ["{", "[1, 2]", json.dumps([2.0] * 784), "[[1], [2, 3]]", '{"a": 1}', "[NaN]", '["x"]']
)
def test_a_line_that_is_not_a_drawing_is_named(tmp_path, line):
    good = json.dumps([0] * 784)
    folder = write(tmp_path / "given", FILES | {"baseball.ndjson.gz": gzip.compress(f"{good}\n{line}\n".encode())})
    with pytest.raises(
        ValueError, match=r"line 2 of .*baseball\.ndjson\.gz is not a drawing; expected a list of 784 numbers"
    ):
        load(folder)


def test_another_number_of_drawings_or_a_damaged_file_is_named(tmp_path):
    folder = write(tmp_path / "given", FILES | {"baseball.ndjson.gz": packed(INK[0, :1])})
    with pytest.raises(ValueError, match=r"baseball\.ndjson\.gz has 1 drawings; expected 2, one per line"):
        load(folder)
    (folder / "baseball.ndjson.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"baseball\.ndjson\.gz is damaged"):
        load(folder)


def test_the_archive_and_the_classes():
    archive = quickdraw.ARCHIVE
    assert archive.package.replace("@", "-") + ".tgz" == archive.file
    assert len(archive.sha256) == 64
    assert "data_dir" in archive.otherwise
    assert len(set(CLASSES)) == 345
    assert list(CLASSES) == sorted(CLASSES)
    assert {"hot dog", "smiley face", "teddy-bear"} < set(CLASSES)  # the first two are broken over lines in the source
