"""One `.safetensors` file that explains itself: arrays, a JSON header that says what they mean, and a checksum of both.

Nothing in a file is ever executed. Who reads one says which kind of header it expects; other files are refused before
their arrays are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

Tensors = dict[str, np.ndarray[Any, Any]]
DTYPES = ("F32", "F64")


def write(path: str | Path, kind: str, header: Mapping[str, Any], tensors: Tensors) -> None:
    """Write the file in one piece: either all of it appears under `path`, or nothing changes there. Of two processes
    that write at once, the last one's file stays, whole.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/x.safetensors", "example", {"unit": "m"}, {"length": np.ones(2)})
    ...     text, tensors, intact = read(f"{folder}/x.safetensors", "example", "an example")
    >>> json.loads(text), tensors["length"].tolist(), intact
    ({'unit': 'm'}, [1.0, 1.0], True)
    """
    text = json.dumps(header, allow_nan=False)
    data = to_bytes(tensors, metadata={kind: text, "sha256": checksum(text, tensors)})
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | Path, kind: str, expected: str) -> tuple[str, Tensors, bool]:
    """Return header text, tensors, and whether the checksum fits; `expected` says what the file should have been."""
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            if not {kind, "sha256"} <= metadata.keys():
                raise ValueError(f"{path} is a safetensors file, but not one of enkbayes; expected {expected}")
            names = list(file.keys())
            for name in names:
                if (dtype := file.get_slice(name).get_dtype()) not in DTYPES:
                    raise ValueError(f"{path} has a tensor {name} of dtype {dtype}; expected F32 or F64")
            text, tensors = metadata[kind], {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file ({error}); expected {expected}") from None
    return text, tensors, metadata["sha256"] == checksum(text, tensors)


def checksum(text: str, tensors: Tensors) -> str:
    """Return the sha256 of a header and of the names, dtypes, shapes and bytes of all tensors."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape};".encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()
