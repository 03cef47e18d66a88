"""One `.safetensors` file that explains itself: arrays, a JSON header that says what they mean, and a checksum of both.

The file's metadata have two entries: the header, under the name of its kind, and `sha256`, the checksum of header and
tensors. Every header has the fields `format`, a number, and `library`, the version of enkbayes that wrote it. A header
of an older format is upgraded when it is read. Nothing in a file is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from enkbayes.storage.files import as_path, replacing

Tensors = dict[str, np.ndarray[Any, Any]]
Header = dict[str, Any]
DTYPES = ("F32", "F64")
READERS = {
    "enkbayes": "a model, which enkbayes.load(path) reads",
    "enkbayes.checkpoint": "the checkpoint of a run, from which the same fit resumes",
    "enkbayes.nets": "a head or network, which load(path, model) of BayesianHead, BayesianNetwork or MultiLabel reads",
}
"""What files of the package are, by the names of their kinds, and what reads them."""


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    name : str
        The metadata entry that holds the header.
    meaning : str
        What such a file is, for messages.
    remedy : str
        What to do about a damaged file.
    format : int
        The format that this version writes.
    upgrades : dict
        From an older format to the function that turns its header into the header of the next format.
    """

    name: str
    meaning: str
    remedy: str
    format: int = 1
    upgrades: Mapping[int, Callable[[Header], Header]] = field(default_factory=dict)


def write(path: str | Path, kind: Kind, header: Mapping[str, Any], tensors: Tensors) -> None:
    """Write a file, all or nothing.

    >>> import tempfile
    >>> kind = Kind("example", "an example", "write it again")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/x.safetensors", kind, {"unit": "m"}, {"length": np.ones(2)})
    ...     header, tensors = read(f"{folder}/x.safetensors", kind)
    >>> header["unit"], tensors["length"].tolist()
    ('m', [1.0, 1.0])
    """
    from enkbayes._version import __version__

    text = json.dumps({"format": kind.format, "library": __version__, **header}, allow_nan=False)
    data = to_bytes(tensors, metadata={kind.name: text, "sha256": checksum(text, tensors)})
    with replacing(path) as draft:
        draft.write_bytes(data)


def read(path: str | Path, kind: Kind) -> tuple[Header, Tensors]:
    """Return the header, in the present format, and the tensors. Raise a ValueError that says what is wrong with a file
    of another kind, of a newer format, or with a checksum that does not match.
    """
    path = as_path(path)
    if path.exists() and not path.is_file():  # opening a pipe would wait for ever
        got = "a folder" if path.is_dir() else "a pipe or a device"
        raise ValueError(f"{path} is {got}; expected {kind.meaning}")
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            if other := [what for name, what in READERS.items() if name in metadata and name != kind.name]:
                raise ValueError(f"{path} holds {other[0]}, and not {kind.meaning}")
            if not {kind.name, "sha256"} <= metadata.keys():
                raise ValueError(f"{path} is a safetensors file, but not one of enkbayes; expected {kind.meaning}")
            names = list(file.keys())
            for name in names:
                if (dtype := file.get_slice(name).get_dtype()) not in DTYPES:
                    raise ValueError(f"{path} has a tensor {name} of dtype {dtype}; expected {' or '.join(DTYPES)}")
            text, tensors = metadata[kind.name], {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file ({error}); expected {kind.meaning}") from None
    header = _header(path, kind, text)
    if metadata["sha256"] != checksum(text, tensors):
        raise ValueError(f"{path} is damaged: its checksum does not match its contents; {kind.remedy}")
    return _upgraded(path, kind, header), tensors


def checksum(text: str, tensors: Tensors) -> str:
    """Return the sha256 of a header and of the names, dtypes, shapes and bytes of all tensors."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape};".encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def _header(path: str | Path, kind: Kind, text: str) -> Header:
    """Return the parsed header of a format that this version reads."""
    try:
        header = json.loads(text, parse_constant=_refuse, parse_float=_number, parse_int=_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its header is not readable ({error}); {kind.remedy}") from None
    version = header.get("format") if isinstance(header, dict) else None
    if type(version) is not int:
        raise ValueError(f"{path} is damaged: its header is not readable (no format number); {kind.remedy}")
    if version > kind.format:
        raise ValueError(
            f"{path} has format {version}, written by enkbayes {header.get('library', 'unknown')}; this version reads "
            f"up to {kind.format}, so upgrade enkbayes to open it"
        )
    if any(old not in kind.upgrades for old in range(version, kind.format)):
        raise ValueError(f"{path} has the unknown format {version}; expected 1 to {kind.format}")
    return dict(header)


def _upgraded(path: str | Path, kind: Kind, header: Header) -> Header:
    for old in range(header["format"], kind.format):
        try:
            header = kind.upgrades[old](header) | {"format": old + 1}
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not {kind.meaning} of format {old}: {error!r}; {kind.remedy}") from None
    return header


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _number(digits: str) -> int | float:
    """Return a number of a header; one beyond the range of floating-point numbers would be infinite later."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"a number of {len(digits)} digits is out of range")
    return int(digits) if digits.lstrip("-").isdigit() else number
