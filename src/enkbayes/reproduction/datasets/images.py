"""Images with class numbers, as the loaders return them, and a cache of decoded archives."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.reproduction.datasets.downloads import cache_folder
from enkbayes.storage.files import replacing

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Images:
    """Images (N, H, W, C) of bytes, with C = 3 for colour and C = 1 for grey, and class numbers (N,)."""

    images: Vector
    labels: Vector

    def __len__(self) -> int:
        return len(self.labels)

    def only(self, *classes: int) -> Images:
        """Return the images of some classes, renumbered in the given order.

        >>> data = Images(np.zeros((4, 1, 1, 3), dtype=np.uint8), np.array([5, 3, 0, 5]))
        >>> data.only(5, 3).labels.tolist()
        [0, 1, 0]
        """
        rows, new = np.nonzero(self.labels[:, None] == np.asarray(classes))
        return Images(self.images[rows], new)


def in_colour(data: Images, side: int = 32) -> Images:
    """Return grey images (N, H, W, 1) as colour images (N, side, side, 3), centred on a black background.

    >>> grey = Images(np.full((1, 28, 28, 1), 9, dtype=np.uint8), np.array([0]))
    >>> in_colour(grey).images.shape, in_colour(grey).images[0, 1:4, 16].tolist()
    ((1, 32, 32, 3), [[0, 0, 0], [9, 9, 9], [9, 9, 9]])
    """
    count, height, width, channels = data.images.shape
    if channels != 1:
        raise ValueError(f"the images have {channels} channels; expected 1, that is, grey images")
    if max(height, width) > side:
        raise ValueError(
            f"the images have {height} x {width} pixels; expected at most {side} x {side}: choose a larger side"
        )
    top, left = (side - height) // 2, (side - width) // 2
    images = np.zeros((count, side, side, 3), dtype=data.images.dtype)
    images[:, top : top + height, left : left + width] = data.images
    return Images(images, data.labels)


def decoded_once(name: str, parts: tuple[str, ...], decode: Callable[[], tuple[Images, ...]]) -> tuple[Images, ...]:
    """Return the parts of a data set from NAME.npz in the cache; if that is missing, call `decode` and store it."""
    path = cache_folder() / f"{name}.npz"
    if not path.exists():
        arrays: dict[str, Any] = {}
        for part, data in zip(parts, decode(), strict=True):
            arrays |= {part: data.images, f"{part}_labels": data.labels}
        with replacing(path) as draft, draft.open("wb") as file:
            np.savez(file, **arrays)
    try:
        with path.open("rb") as stored, np.load(stored, allow_pickle=False) as found:
            return tuple(Images(found[part], found[f"{part}_labels"]) for part in parts)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to decode the archive again") from None
