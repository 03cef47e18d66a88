"""The trained members of a deep ensemble, one file each in a folder, so that an interrupted training can continue."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from enkbayes.storage.files import replacing


def store(network: nn.Module, folder: str | Path | None, member: int, name: str) -> None:
    """Write a trained member; `name` is the fingerprint of data and settings."""
    if folder is None:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    with replacing(_path(folder, member)) as draft:
        save_model(network, str(draft), metadata={"recipe": name})


def restore(network: nn.Module, folder: str | Path | None, member: int, name: str) -> bool:
    """Load a member from the folder and return whether it was there; raise if its data or settings were different."""
    if folder is None or not _path(folder, member).exists():
        return False
    path = _path(folder, member)
    try:
        with safe_open(str(path), framework="pt") as file:
            found = (file.metadata() or {}).get("recipe")
        if found != name:
            raise ValueError(f"{path} was trained on other data or with other settings; use another folder")
        load_model(network, str(path))
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or of another network ({error}); remove it to train it again") from None
    return True


def _path(folder: str | Path, member: int) -> Path:
    return Path(folder) / f"member-{member}.safetensors"
