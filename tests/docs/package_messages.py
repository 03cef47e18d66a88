"""Every message of an error or a warning in the source of the package, with … for what is filled in at run time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ANY = "…"
SILENT = {"Exit", "NotImplemented", "AssertionError", "StopIteration"}
"""Calls that raise without a message for users."""


def texts(node: ast.expr | None, names: dict[str, list[ast.expr]]) -> list[str]:
    """Return what an expression may say, one text for each of its branches."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            said = [""]
            for value in values:
                branches = texts(value, names) if isinstance(value, ast.Constant) else inner(value, names)
                said = [one + other for one in said for other in branches]
            return said
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [one + other for one in texts(left, names) for other in texts(right, names)]
        case ast.IfExp(body=body, orelse=orelse):
            return texts(body, names) + texts(orelse, names)
        case ast.Name(id=name) if name in names:
            return [text for value in names[name] for text in texts(value, {})]
        case _:
            return [ANY]


def inner(value: ast.expr, names: dict[str, list[ast.expr]]) -> list[str]:
    """Return what a field of an f-string may say: the text of a constant or of a choice of texts, or anything."""
    assert isinstance(value, ast.FormattedValue)
    found = texts(value.value, {}) if isinstance(value.value, ast.IfExp) else [ANY]
    return found if len(found) <= 3 else [ANY]


def assigned(tree: ast.AST) -> dict[str, list[ast.expr]]:
    """Return the expressions that are assigned to each plain name."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return found


def message_of(node: ast.AST) -> ast.expr | None:
    """Return the message of a raise or of a warning."""
    match node:
        case ast.Raise(exc=ast.Call(func=function, args=[message, *rest])) if not rest:
            name = ast.unparse(function).rpartition(".")[2]
            return None if name in SILENT else message
        case ast.Call(func=function, args=[message, *_]) if ast.unparse(function) in ("warn", "warnings.warn"):
            return message
    return None


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each message.

    >>> list(messages("raise ValueError(f'tau is {tau}; expected {low}')"))
    [(1, 'tau is …; expected …')]
    >>> list(messages("TEXT = 'no rows'\\nraise ValueError(TEXT if few else 'too many')"))
    [(2, 'no rows'), (2, 'too many')]
    """
    tree = ast.parse(source)
    names = assigned(tree)
    for node in ast.walk(tree):
        if (message := message_of(node)) is not None:
            for text in texts(message, names):
                if len(re.findall(r"[A-Za-z]{2,}", text)) > 1:  # else a frame around the message of another error
                    yield node.lineno, re.sub(f"{ANY}({ANY})+", ANY, text)


def of_package(root: Path) -> dict[str, str]:
    """Return every message by its text, with a place where it is found."""
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        for line, text in messages(path.read_text(encoding="utf-8")):
            found.setdefault(text, f"{path.relative_to(root).as_posix()}:{line}")
    return found
