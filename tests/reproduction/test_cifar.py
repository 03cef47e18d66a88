"""CIFAR-10 from the official batches and from the sheets of the archive: the right pixels and labels."""

import hashlib
import io
import json
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from enkbayes.reproduction.datasets import cifar
from enkbayes.reproduction.datasets.cifar import CLASSES, dogs_and_cats, load_cifar10, neither_dogs_nor_cats
from enkbayes.reproduction.datasets.images import Images

BATCHES = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]


def made_up(count, seed):
    random = np.random.default_rng(seed)
    return Images(random.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8), random.integers(0, 10, count))


def records(data):
    """The official layout, written byte by byte: label, red plane, green plane, blue plane."""
    raw = bytearray()
    for image, label in zip(data.images, data.labels, strict=True):
        raw.append(label)
        for channel in range(3):
            for row in range(32):
                raw += bytes(image[row, column, channel] for column in range(32))
    return bytes(raw)


def write_batches(folder, count=3):
    folder.mkdir(parents=True, exist_ok=True)
    parts = [made_up(count, seed) for seed in range(6)]
    for name, part in zip(BATCHES, parts, strict=True):
        (folder / name).write_bytes(records(part))
    return parts


def assert_equal(found, parts):
    assert found.images.dtype == np.uint8
    assert found.labels.dtype == np.int64
    np.testing.assert_array_equal(found.images, np.concatenate([part.images for part in parts]))
    np.testing.assert_array_equal(found.labels, np.concatenate([part.labels for part in parts]))


@pytest.mark.parametrize("inner", [".", "cifar-10-batches-bin"])
def test_official_batches_are_read_in_order(tmp_path, inner):
    parts = write_batches(tmp_path / inner)
    train, test = load_cifar10(tmp_path)
    assert_equal(train, parts[:5])
    assert_equal(test, parts[5:])
    assert (len(train), len(test)) == (15, 3)


def test_channel_planes_become_the_last_axis(tmp_path):
    """One image by hand: a red pixel in the upper right corner, a green one in the lower left, blue elsewhere."""
    write_batches(tmp_path)
    red, green, blue = bytearray(1024), bytearray(1024), bytearray([200] * 1024)
    red[31], blue[31] = 255, 0
    green[31 * 32], blue[31 * 32] = 128, 0
    (tmp_path / "test_batch.bin").write_bytes(bytes([7]) + red + green + blue)
    _, test = load_cifar10(tmp_path)
    assert test.images.shape == (1, 32, 32, 3)
    assert test.images[0, 0, 31].tolist() == [255, 0, 0]
    assert test.images[0, 31, 0].tolist() == [0, 128, 0]
    assert test.images[0, 0, 0].tolist() == test.images[0, 31, 31].tolist() == [0, 0, 200]
    assert test.labels.tolist() == [7]


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes(3073 + 1)])
def test_a_batch_of_another_length_is_refused(tmp_path, content):
    write_batches(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"data_batch_3\.bin has {len(content):,} bytes; expected a multiple of 3,073"
    ):
        load_cifar10(tmp_path)


def test_a_label_above_nine_is_refused(tmp_path):
    write_batches(tmp_path)
    (tmp_path / "data_batch_2.bin").write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(ValueError, match=r"data_batch_2\.bin has the label 10; expected 0 to 9"):
        load_cifar10(tmp_path)


def test_a_missing_batch_is_named(tmp_path):
    write_batches(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(ValueError, match=r"contains no data_batch_4\.bin; expected the official binary batches"):
        load_cifar10(tmp_path)
    with pytest.raises(ValueError, match=r"contains no data_batch_1\.bin"):
        load_cifar10(tmp_path / "nowhere")


def test_dogs_are_class_0_and_cats_class_1():
    images = np.arange(10, dtype=np.uint8)[:, None, None, None] * np.ones((1, 32, 32, 3), dtype=np.uint8)
    data = Images(images, np.arange(10))
    pair, others = dogs_and_cats(data), neither_dogs_nor_cats(data)
    assert [CLASSES[k] for k in pair.images[:, 0, 0, 0]] == ["cat", "dog"]  # in the order of the data
    assert pair.labels.tolist() == [1, 0]
    assert [CLASSES[k] for k in others.images[:, 0, 0, 0]] == [k for k in CLASSES if k not in {"cat", "dog"}]
    assert others.labels.tolist() == list(range(8))
    assert len(pair) + len(others) == len(data)


def test_classes_that_do_not_occur_give_no_images():
    data = made_up(6, 0)
    none = Images(data.images, np.zeros(6, dtype=np.int64)).only(9, 3)
    assert none.images.shape == (0, 32, 32, 3)
    assert none.labels.shape == (0,)
    assert none.labels.dtype == np.int64  # the fingerprint of a training reads the dtype


def png(images):
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.fromarray(images.reshape(len(images), 1024, 3)).save(file, "PNG")
    return file.getvalue()


def archive_members(parts):
    """The files of the archive: sheets with one image per row, and labels under its own spelling."""
    names = [*(f"data_batch_{k}.png" for k in range(1, 6)), "test_batch.png"]
    members = {f"package/{name}": png(part.images) for name, part in zip(names, parts, strict=True)}
    labels = np.concatenate([part.labels for part in parts[:5]]).tolist()
    members["package/train_lables.json"] = json.dumps(labels).encode()
    members["package/test_lables.json"] = json.dumps(parts[5].labels.tolist()).encode()
    return members


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Put an archive of these members into the cache; return its path and its description."""
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("ENKBAYES_DATA", str(cache))

    def put(members):
        path = cache / cifar.ARCHIVE.file
        with tarfile.open(path, "w:gz") as archive:
            for name, content in members.items():
                about = tarfile.TarInfo(name)
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
        return path, described(path)

    return put


def described(path):
    return replace(cifar.ARCHIVE, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def test_sheets_of_the_archive_are_decoded_once(cached):
    parts = [made_up(4, seed) for seed in range(6)]
    path, archive = cached(archive_members(parts))
    train, test = load_cifar10(archive=archive)
    assert_equal(train, parts[:5])
    assert_equal(test, parts[5:])
    path.unlink()  # from here on only the decoded file is left
    assert [file.name for file in path.parent.iterdir()] == ["cifar10.npz"]
    again, test = load_cifar10(archive=archive)
    assert_equal(again, parts[:5])
    assert_equal(test, parts[5:])
    assert again.images.flags.writeable  # torch warns about read-only arrays


def test_archive_and_official_batches_agree(cached, tmp_path):
    parts = write_batches(tmp_path / "official")
    _, archive = cached(archive_members(parts))
    for ours, theirs in zip(load_cifar10(archive=archive), load_cifar10(tmp_path / "official"), strict=True):
        np.testing.assert_array_equal(ours.images, theirs.images)
        np.testing.assert_array_equal(ours.labels, theirs.labels)


def test_pillows_guard_is_put_back_and_does_not_stop_a_large_sheet(cached, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 10)
    parts = [made_up(1, seed) for seed in range(6)]
    _, archive = cached(archive_members(parts))
    assert_equal(load_cifar10(archive=archive)[1], parts[5:])
    assert image.MAX_IMAGE_PIXELS == 10


def test_pillows_guard_is_put_back_after_a_damaged_sheet(cached, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 10)
    members = archive_members([made_up(1, seed) for seed in range(6)])
    _, archive = cached(members | {"package/data_batch_1.png": b"no picture"})
    with pytest.raises(Exception, match="cannot identify"):
        load_cifar10(archive=archive)
    assert image.MAX_IMAGE_PIXELS == 10


@pytest.mark.parametrize("name", ["data_batch_5.png", "train_lables.json", "test_batch.png", "test_lables.json"])
def test_an_archive_without_a_file_is_refused(cached, name):
    members = archive_members([made_up(1, seed) for seed in range(6)])
    del members[f"package/{name}"]
    path, archive = cached(members)
    with pytest.raises(ValueError, match=f"contains no {name}; delete it to download it again"):
        load_cifar10(archive=archive)
    assert not (path.parent / "cifar10.npz").exists()


def test_odd_members_of_an_archive_write_nothing(cached, tmp_path):
    parts = [made_up(1, seed) for seed in range(6)]
    odd = {"../escaped.txt": b"x", str(tmp_path / "absolute.txt"): b"x", "package/more.py": b"raise SystemExit"}
    path, archive = cached(odd | archive_members(parts))
    before = set(tmp_path.rglob("*"))
    assert_equal(load_cifar10(archive=archive)[1], parts[5:])
    assert set(tmp_path.rglob("*")) - before == {path.parent / "cifar10.npz"}


def test_a_member_that_points_elsewhere_is_not_followed(cached, tmp_path):
    (tmp_path / "secret.json").write_text("[0]")
    path, _ = cached(archive_members([made_up(1, seed) for seed in range(6)]))
    with tarfile.open(path) as old, tarfile.open(tmp_path / "new.tgz", "w:gz") as new:
        for member in old.getmembers():
            link = member.name == "package/test_lables.json"
            file = None if link else old.extractfile(member)
            if link:
                member.type, member.linkname, member.size = tarfile.SYMTYPE, str(tmp_path / "secret.json"), 0
            new.addfile(member, file)
    (tmp_path / "new.tgz").replace(path)
    with pytest.raises(ValueError, match=r"contains no test_lables\.json"):
        load_cifar10(archive=described(path))


@pytest.mark.parametrize("content", [b"", b"no zip file", b"PK\x03\x04 cut off"])
def test_a_damaged_decoded_file_is_named(cached, content):
    path, archive = cached(archive_members([made_up(1, seed) for seed in range(6)]))
    (path.parent / "cifar10.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"cifar10\.npz is damaged .*; delete it to decode the archive again"):
        load_cifar10(archive=archive)


def test_a_decoded_file_with_a_wrong_byte_or_a_part_missing_is_named(cached):
    path, archive = cached(archive_members([made_up(1, seed) for seed in range(6)]))
    load_cifar10(archive=archive)
    path = path.parent / "cifar10.npz"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1  # a pixel of the first image
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"cifar10\.npz is damaged"):
        load_cifar10(archive=archive)
    np.savez(path, train=np.zeros(3))
    with pytest.raises(ValueError, match=r"cifar10\.npz is damaged"):
        load_cifar10(archive=archive)


def test_the_archive_names_a_version_and_an_alternative():
    archive = cifar.ARCHIVE
    assert archive.package.replace("@", "-") + ".tgz" == archive.file
    assert len(archive.sha256) == 64
    assert "test_batch.bin" in archive.otherwise
    assert "--data-dir" in archive.otherwise
