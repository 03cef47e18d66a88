"""Run the Python of a page, block after block, as a reader would."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
OPTIONAL = ("torch", "onnxruntime", "pandas")


def run_page(path, folder, monkeypatch, given=None):
    """Run all blocks in a folder, with some names given; return all names. Skip pages whose libraries are missing."""
    text = path.read_text(encoding="utf-8")
    for library in OPTIONAL:
        if re.search(rf"^(import|from) {library}\b", text, re.MULTILINE):
            pytest.importorskip(library)
    monkeypatch.chdir(folder)
    names = {"__name__": path.stem, **(given or {})}
    for number, block in enumerate(text.split("```python\n")[1:], 1):
        exec(compile(block.split("```")[0], f"{path.name}, block {number}", "exec"), names)
    return names
