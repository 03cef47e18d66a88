"""Write the lists of public names: python docs/api/write_pages.py. A test checks that they are complete."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from pathlib import Path

HERE = Path(__file__).parent
PAGES = {
    "enkbayes": ("enkbayes",),
    "nets": ("enkbayes.nets",),
    "inference": ("enkbayes.inference",),
    "engine": ("enkbayes.engine",),
    "evaluation": tuple(
        f"enkbayes.evaluation.{part}" for part in ("metrics", "plots", "baselines", "compare", "report")
    ),
}


def page(title: str, modules: tuple[str, ...]) -> str:
    """Return the page of some modules, one list of names each."""
    parts = [f"# {modules[0] if len(modules) == 1 else 'enkbayes.evaluation'}\n"]
    for name in modules:
        module = importlib.import_module(name)
        public = public_names(name)
        rows = "\n".join(f"   {n}" for n in public)
        data = "".join(f"\n.. autodata:: {n}\n   :no-value:\n" for n in constants(name))
        heading = f"\n## {name}\n" if len(modules) > 1 else ""
        summary = first_paragraph(module.__doc__ or "")
        parts.append(
            f"{heading}\n{summary}\n\n```{{eval-rst}}\n.. currentmodule:: {name}\n\n.. autosummary::\n"
            f"   :toctree: generated\n   :nosignatures:\n\n{rows}\n{data}```\n"
        )
    return "".join(parts)


def first_paragraph(docstring: str) -> str:
    """Return the first paragraph of a docstring, in lines of at most 120 characters."""
    return textwrap.fill(" ".join(docstring.partition("\n\n")[0].split()), 120)


def public_names(name: str) -> list[str]:
    """Return the public classes and functions of a module that are not found in a module before it."""
    module, front = importlib.import_module(name), importlib.import_module("enkbayes")
    here = [
        n
        for n in sorted(module.__all__, key=str.lower)
        if inspect.isclass(thing := getattr(module, n)) or inspect.isfunction(thing)
    ]
    return here if name == "enkbayes" else [n for n in here if n not in front.__all__]


def constants(name: str) -> list[str]:
    """Return the other public names of a module."""
    module = importlib.import_module(name)
    things = {n: getattr(module, n) for n in module.__all__ if not n.startswith("__")}
    return sorted(n for n, thing in things.items() if not (inspect.isclass(thing) or inspect.isfunction(thing)))


if __name__ == "__main__":
    for stem, modules in PAGES.items():
        (HERE / f"{stem}.md").write_text(page(stem, modules), encoding="utf-8")
