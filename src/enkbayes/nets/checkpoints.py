"""Finished members of a deep ensemble in a folder, one `.safetensors` file each, so that training can go on."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn


def store(network: nn.Module, folder: str | Path | None, member: int, name: str) -> None:
    """Write a finished member in one piece; `name` is the fingerprint of data and settings."""
    if folder is None:
        return
    path = _path(folder, member)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        save_model(network, str(draft), metadata={"recipe": name})
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def restore(network: nn.Module, folder: str | Path | None, member: int, name: str) -> bool:
    """Fill the network from the folder and tell whether it was there; a member of other data or settings is refused."""
    if folder is None or not _path(folder, member).exists():
        return False
    path = _path(folder, member)
    try:
        with safe_open(str(path), framework="pt") as file:
            found = (file.metadata() or {}).get("recipe")
        if found != name:
            raise ValueError(f"{path} was trained on other data or with other settings; use another folder for these")
        load_model(network, str(path))
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or of another network ({error}); remove it to train it again") from None
    return True


def _path(folder: str | Path, member: int) -> Path:
    return Path(folder) / f"member-{member}.safetensors"
