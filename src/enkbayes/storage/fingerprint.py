"""The fingerprint of training data: equal data have equal fingerprints."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import scipy.sparse

from enkbayes.engine.arrays import Array, row_slices, to_numpy

CHUNK = 65536  # rows


def fingerprint(features: Array, labels: Any, weights: Any = None, previous: str = "") -> str:
    """Return the sha256 of shapes, dtypes and every byte of features (N, D), labels (N,) and weights (N,).

    All bytes are read, a chunk of rows at a time. That costs less than one step of a run, while a sample of the rows
    could not distinguish data that differ in one row. To chain batches, pass the fingerprint of the earlier data as
    `previous`.

    >>> x = np.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> fingerprint(x, ["a", "b"]) == fingerprint(x.copy(), ["a", "b"]) != fingerprint(x, ["b", "a"])
    True
    """
    digest = hashlib.sha256(previous.encode())
    parts = [features.data, features.indices, features.indptr] if scipy.sparse.issparse(features) else [features]
    for part in (np.asarray(features.shape), *parts, _plain(labels), *([] if weights is None else [_plain(weights)])):
        digest.update(f"{part.dtype} {tuple(part.shape)};".encode())
        for rows in row_slices(int(part.shape[0]), CHUNK):
            digest.update(np.ascontiguousarray(to_numpy(part[rows])).tobytes())
    return digest.hexdigest()


def _plain(x: Any) -> np.ndarray[Any, Any]:
    """Return labels as an array whose bytes are its values; objects, whose bytes are addresses, become text."""
    values = to_numpy(x)
    return values.astype(str) if values.dtype.kind == "O" else values
