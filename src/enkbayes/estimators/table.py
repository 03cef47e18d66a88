"""A table: named columns of equal length, from a file or a data frame, and how entries are parsed."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.engine.row_files import check_names

MISSING = frozenset({"", "na", "n/a", "nan", "null", "?", "<na>", "#n/a"})
NO_NUMBER = MISSING | {
    *("none", "nil", "-", "--", "---", ".", "..", "??", "*", "n.a.", "n. a.", "n.d.", "nd", "-nan", "nat", "#na"),
    *("#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!", "missing", "unknown", "undefined", "void"),
    *("not available", "not applicable", "no data", "no value", "-1.#ind", "1.#qnan", "1.#ind", "-1.#qnan"),
}
"""What programs and people write for a number that is missing. In a column of text, and of classes, most of these words
may be categories, so only MISSING counts there.
"""
_TRUTH = {"true": 1.0, "false": 0.0}
_WHOLE = re.compile(r"[+-]?\d+\.0*")
_SCIENTIFIC = re.compile(r"[+-]?\d\.\d+[eE][+-]\d+")  # as numpy.savetxt writes numbers


@dataclass(frozen=True, eq=False)
class Table:
    """Some rows of a file.

    columns : name to values, float64 or text
    start : the number of rows before them in the file
    share : the share of the file that has been read up to their end

    Examples
    --------
    >>> Table({"age": np.array([31.0, 44.0]), "town": np.array(["Bern", "Oslo"], dtype=object)}).rows
    2
    """

    columns: dict[str, np.ndarray[Any, Any]]
    start: int = 0
    share: float = 1.0

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @classmethod
    def from_frame(cls, frame: Any) -> Table:
        """Return the columns of a pandas or polars data frame, as if they had been read from a file.

        >>> import pandas
        >>> frame = pandas.DataFrame({"age": [31, None], "town": ["Bern", None]})
        >>> Table.from_frame(frame).columns["age"].tolist(), Table.from_frame(frame).columns["town"].tolist()
        ([31.0, nan], ['Bern', ''])
        """
        names = [str(name) for name in frame.columns]
        check_names(names, "the data frame")
        return cls({name: _entries(frame[key], name) for name, key in zip(names, frame.columns, strict=True)})

    def take(self, rows: slice | np.ndarray[Any, Any]) -> Table:
        """Return some rows, given as a slice or by their numbers. A slice keeps the row numbers of the file.

        >>> Table({"age": np.array([31.0, 44.0, 27.0])}).take(slice(1, 3)).columns["age"].tolist()
        [44.0, 27.0]
        """
        start = self.start + (rows.start or 0) if isinstance(rows, slice) else 0
        return Table({name: values[rows] for name, values in self.columns.items()}, start)

    def column(self, name: str, what: str = "column") -> np.ndarray[Any, Any]:
        """Return a column by name; if there is none, raise a ValueError that lists the columns."""
        if name not in self.columns:
            close = [own for own in self.columns if own.lower() == name.lower()]
            close = close or difflib.get_close_matches(name, self.columns, n=2)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else ""
            hint = hint or f"the columns are {listed(list(self.columns))}"
            raise ValueError(f"{what} {name!r} is not in the data; {hint}")
        return self.columns[name]


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return the first few names, separated by commas, for a message.

    >>> listed(["a", "b"]), listed("abcdefghij", most=2)
    ("'a', 'b'", "'a', 'b' and 8 more")
    """
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def numbers(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a column as float64 (n,), NaN where it is missing (see NO_NUMBER); true and false count as 1 and 0. Raise
    a ValueError whose only argument is the first entry that is not a number.

    >>> numbers(np.array(["1.5", "NA", "true"], dtype=object))
    array([1.5, nan, 1. ])
    """
    if values.dtype.kind == "f":
        return values
    try:
        return values.astype(np.float64)
    except ValueError:
        return np.array([_number(text) for text in values], dtype=np.float64)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        word = text.strip().lower()
    if word in NO_NUMBER:
        return math.nan
    if word not in _TRUTH:
        raise ValueError(text)
    return _TRUTH[word]


def is_frame(data: Any) -> bool:
    """Return whether data are a data frame with named columns.

    >>> is_frame(np.zeros((2, 2)))
    False
    """
    return hasattr(data, "columns") and hasattr(data, "__getitem__") and not isinstance(data, Table)


def _entries(values: Any, name: str) -> np.ndarray[Any, Any]:
    """Return a column of a data frame as float64, or as text with "" where it is missing."""
    kind = np.dtype(values.dtype).kind if isinstance(values.dtype, np.dtype) else ""
    if kind in ("f", "i", "u", "b"):
        return np.asarray(values, dtype=np.float64)
    if kind in ("M", "m", "c"):
        raise ValueError(
            f"column {name!r} of the data frame has dtype {values.dtype}; expected numbers, truth values or text:"
            " convert or remove it"
        )
    entries = values.tolist() if hasattr(values, "tolist") else list(values)
    gaps = [x is None or str(x) == "<NA>" or x != x for x in entries]  # noqa: PLR0124
    if all(gap or isinstance(x, bool | int | float | np.number) for x, gap in zip(entries, gaps, strict=True)):
        return np.array([math.nan if gap else float(x) for x, gap in zip(entries, gaps, strict=True)])
    found = np.empty(len(entries), dtype=object)
    found[:] = ["" if gap else str(x) for x, gap in zip(entries, gaps, strict=True)]
    return found


def texts(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a column as stripped text (n,), "" where it is missing; 3.0 and "3.0" are both "3".

    >>> texts(np.array([3.0, np.nan])), texts(np.array([" red ", "?", "3.0"], dtype=object))
    (array(['3', ''], dtype=object), array(['red', '', '3'], dtype=object))
    """
    words = (repr(float(v)) for v in values) if values.dtype.kind == "f" else (str(v).strip() for v in values)
    out = np.empty(len(values), dtype=object)
    out[:] = ["" if word.lower() in MISSING else _whole(word) for word in words]
    return out


def _whole(word: str) -> str:
    if _WHOLE.fullmatch(word):
        return word.partition(".")[0]
    if _SCIENTIFIC.fullmatch(word) and (value := float(word)).is_integer() and abs(value) < 2**53:
        return str(int(value))
    return word


def class_labels(table: Table, target: str) -> np.ndarray[Any, Any]:
    """Return the classes (n,) in column `target` as text; raise a ValueError if one is missing.

    >>> class_labels(Table({"y": np.array([1.0, 0.0])}), "y")
    array(['1', '0'], dtype='<U1')
    """
    labels = texts(table.column(target, "target"))
    missing = np.flatnonzero(labels == "")
    if len(missing):
        raise ValueError(
            f"row {table.start + missing[0] + 1} has no class in column {target!r}; fill it in or remove the row"
        )
    return labels.astype(str)


def check_classes(labels: np.ndarray[Any, Any], target: str) -> None:
    """Raise a ValueError if the target does not hold classes: a single value, real numbers, or as many values as rows.

    >>> check_classes(np.array(["a", "b", "a"]), "y")
    """
    classes = np.unique(labels)
    if len(classes) < 2:
        raise ValueError(f"target {target!r} has a single class, {str(classes[0])!r}; expected two or more")
    try:
        real = classes[classes.astype(np.float64) % 1 != 0]
    except ValueError:
        real = classes[:0]
    if len(real):
        raise ValueError(f"target {target!r} contains real numbers such as {real[0]}; expected classes")
    if len(classes) == len(labels) > 2:
        raise ValueError(
            f"target {target!r} has {len(classes)} different values in as many rows; expected classes that repeat"
        )
