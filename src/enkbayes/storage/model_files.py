"""One `.safetensors` file for a fitted model: arrays, and a JSON header that says what they mean.

Tensors: `mean` (P,), `basis` (P, r), `points` (J, r), so theta_j = mean + basis @ points_j; the same three with the
prefix `fitted.` for the Gaussian that polished particles came from; and `parameter.NAME` for the parameters of an
estimator that are arrays. Metadata: `enkbayes`, the header as JSON, and `sha256`, the checksum of
header and tensors. Nothing in a file is ever executed; every type, shape and dtype is checked before it is used.

The header is described in `header.py`. A later format adds its upgrade to `UPGRADES`, so older files stay readable.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from enkbayes.storage import containers
from enkbayes.storage.header import FORMAT, Artefact, decode, encode
from enkbayes.storage.records import typed

UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Format -> the function that turns its header into the next format's."""

KIND = "enkbayes"  # the name of the header in the file's metadata


def write(artefact: Artefact, path: str | Path) -> None:
    """Write the file in one piece: either all of it appears under `path`, or nothing changes there."""
    header, tensors = encode(artefact)
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist; create it before saving a model there")
    try:
        containers.write(path, KIND, header, tensors)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the preprocessing cannot be written as JSON ({error}); use numbers, text, lists, dicts"
        ) from None


def read(path: str | Path) -> Artefact:
    """Return what the file holds; a ValueError says what is wrong with a file that is not in order."""
    text, tensors, intact = containers.read(path, KIND, "a saved model")
    header = _header(path, text)
    if not intact:
        raise ValueError(f"{path} is damaged: its checksum does not fit its contents; write it again from the model")
    try:
        return decode(header, tensors)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a valid model of format {FORMAT}: {error}") from None


def _header(path: str | Path, text: str) -> dict[str, Any]:
    """Return the header, brought up to the present format."""
    try:
        header = json.loads(text)
        version = typed(header, "format", int)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its header is not readable ({error})") from None
    if version > FORMAT:
        library = header.get("library", "unknown")
        raise ValueError(
            f"{path} has format {version}, written by enkbayes {library}; this version reads up to {FORMAT}, "
            "so upgrade enkbayes to open it"
        )
    for old in range(version, FORMAT):
        if old not in UPGRADES:
            raise ValueError(f"{path} has the unknown format {version}; expected 1 to {FORMAT}")
        header = UPGRADES[old](header)
    return dict(header)
