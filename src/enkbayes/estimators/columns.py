"""Columns of numbers and of categories: what is learnt from their training entries, and the features they become."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np

from enkbayes.estimators.table import MISSING, NO_NUMBER, Table, listed, numbers, texts

UNNAMED = "column_1"  # what a table calls a first column without a name
WRITTEN = re.compile(
    r"[$€£¥]? ?[+-]?[$€£¥]? ?(\d{1,3}([.,' \u00a0\u202f]\d{3})+([.,]\d+)?|\d+([.,]\d+)?)( ?([%$€£¥]|[A-Za-z]{1,3}))?"
)
"""A number as people write it."""
MOST_CATEGORIES = 100
"""Categories of a column that become features; rarer ones count as unseen."""


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: (x - mean) / scale, with `fill` for missing entries.

    >>> NumberColumn("age", mean=40.0, scale=10.0, fill=35.0).transform(Table({"age": np.array([60.0, np.nan])}))
    array([[ 2. ],
           [-0.5]])
    """

    name: str
    mean: float
    scale: float
    fill: float

    @property
    def features(self) -> tuple[str, ...]:
        """The name of the one feature."""
        return (self.name,)

    def transform(self, table: Table) -> np.ndarray[Any, Any]:
        """Return (n, 1)."""
        x = finite_numbers(table, self.name)
        with np.errstate(over="ignore"):
            out = (np.where(np.isnan(x), self.fill, x) - self.mean) / self.scale
        wrong = np.flatnonzero(~np.isfinite(out))
        if len(wrong):
            value = x[wrong[0]]
            trouble = (
                "missing; the model was trained without missing values, so fill it in or remove the row"
                if np.isnan(value)
                else f"{value:g}, too far from the training data; expected values near {self.mean:g}"
            )
            raise ValueError(f"row {table.start + wrong[0] + 1} of column {self.name!r} is {trouble}")
        return out[:, None]


@dataclass(frozen=True)
class CategoryColumn:
    """A column of text: one feature per category, 1 where the entry is that category; "" is a missing entry.

    >>> CategoryColumn("size", ("L", "S")).transform(Table({"size": np.array(["S", "XL"], dtype=object)}))
    array([[0., 1.],
           [0., 0.]])
    """

    name: str
    categories: tuple[str, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(f"{self.name}={category}" for category in self.categories)

    def transform(self, table: Table) -> np.ndarray[Any, Any]:
        """Return (n, number of categories)."""
        place = {category: i for i, category in enumerate(self.categories)}
        found = np.array([place.get(text, -1) for text in texts(table.column(self.name))])
        return np.asarray(found[:, None] == np.arange(len(place)), dtype=np.float64)


Column = NumberColumn | CategoryColumn


def fitted_column(table: Table, name: str, notes: list[str]) -> Column | str:
    """Return the fitted column, or the reason not to use it."""
    try:
        x = finite_numbers(table, name)
    except _NoNumber:
        # a column of numbers with a typo is not a column of categories: report the typo
        if _share_of_numbers(table.column(name)) > 0.9:
            raise
        return _fit_category(table, name, notes)
    present = x[~np.isnan(x)]
    if len(present) == 0:
        return "is empty" if _words(table.column(name)) <= MISSING else _fit_category(table, name, notes)
    if np.all(present == present[0]):
        return "is constant"
    if _numbers_the_rows(x, unnamed=name == UNNAMED):
        return "numbers the rows"
    # dividing by the largest value avoids overflow, and underflow of the squares of tiny values
    peak = np.max(np.abs(present))
    mean, scale, fill = (float(peak * statistic(present / peak)) for statistic in (np.mean, np.std, np.median))
    if scale <= np.finfo(float).tiny:
        return "is constant"
    if len(present) < len(x):
        notes.append(_note_of_gaps(table.column(name), name, len(x) - len(present), fill))
    return NumberColumn(name, mean, scale, fill)


def _numbers_the_rows(x: np.ndarray[Any, Any], *, unnamed: bool) -> bool:
    """Return whether more than nine numbers are those of rows: consecutive ones in any order, or different whole ones
    in a first column without a name, the index that pandas writes.

    >>> _numbers_the_rows(np.asarray([4.0, 9, 2, 3, 5, 6, 7, 8, 1, 10]), unnamed=False)
    True
    """
    steps = np.diff(np.sort(x)) if len(x) > 9 else np.zeros(1)
    return bool(np.all(steps == 1) or (unnamed and np.all(steps >= 1) and np.all(x % 1 == 0)))


def _note_of_gaps(values: np.ndarray[Any, Any], name: str, count: int, fill: float) -> str:
    """Say how many numbers are missing, which words were read as missing, and what replaces them."""
    words = sorted(_words(values) & (NO_NUMBER - MISSING))
    read = f" ({listed(words)} among them)" if words else ""
    return f"column {name!r} has {counted(count, 'missing number')}{read}, replaced by the median, {fill:g}"


def _words(values: np.ndarray[Any, Any]) -> set[str]:
    """Return the entries of a column of text that are words for a missing number, in lower case."""
    return set() if values.dtype.kind == "f" else {str(v).strip().lower() for v in values} & NO_NUMBER


def _fit_category(table: Table, name: str, notes: list[str]) -> Column | str:
    counts = Counter(texts(table.column(name)).tolist())
    categories = len(counts) - ("" in counts)
    if categories > 20 and 2 * categories > table.rows - counts[""]:
        _check_not_numbers(table, name)
        if sum(map(_is_date, counts)) > 0.9 * len(counts):
            return "has dates; turn them into numbers, such as days since a fixed date, if they matter"
        return "has a different text in nearly every row, as ids and names do"
    if len(counts) == 1:
        return "is constant"
    if len(counts) > MOST_CATEGORIES:
        notes.append(
            f"column {name!r} has {len(counts)} categories; only the {MOST_CATEGORIES} most frequent are used, the"
            " others count as unseen"
        )
    if share := _share_of_numbers(table.column(name)):
        others = listed(sorted(text for text in counts if text and not _is_number(text)), most=3)
        notes.append(
            f"column {name!r} has numbers in {share:.0%} of its entries and text such as {others} in the others; each "
            f"of its {len(counts)} different entries is a category: remove the text if it means a missing number"
        )
    kept = sorted(counts, key=lambda text: (-counts[text], text))[:MOST_CATEGORIES]
    return CategoryColumn(name, tuple(sorted(kept)))


def _check_not_numbers(table: Table, name: str) -> None:
    """Raise a ValueError if a column that would be left out as text is one of numbers, most of them, or all of them
    written in another way: with decimal commas, separators, a currency or a unit.
    """
    if _share_of_numbers(table.column(name)) > 0.5:
        finite_numbers(table, name)  # reports the first entry that is no number
    present = [text for text in texts(table.column(name)) if text]
    written = [text for text in present if WRITTEN.fullmatch(text)]
    if len(written) > 0.9 * len(present) and len({re.sub(r"[^A-Za-z]", "", text) for text in written}) == 1:
        raise ValueError(
            f"column {name!r} has numbers such as {written[0]!r}; expected them with a decimal point and without "
            "separators, currencies and units, as 1234.5: write them so, or remove the column"
        )


def _share_of_numbers(values: np.ndarray[Any, Any]) -> float:
    present = [text for text in texts(values) if text]
    return sum(_is_number(text) for text in present) / max(len(present), 1)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


class _NoNumber(ValueError):
    """An entry of a column of numbers that is not a number."""


def finite_numbers(table: Table, name: str) -> np.ndarray[Any, Any]:
    """Return a column of numbers, NaN where missing; raise a ValueError for text and infinite values."""
    try:
        x = numbers(table.column(name))
    except ValueError as error:
        row = _row_of(table.column(name), str(error))
        raise _NoNumber(
            f"row {table.start + row + 1} of column {name!r} is {str(error)!r}; expected a number, or an empty entry if"
            " it is missing"
        ) from None
    infinite = np.flatnonzero(np.isinf(x))
    if len(infinite):
        raise ValueError(
            f"row {table.start + infinite[0] + 1} of column {name!r} is infinite; expected a finite number, or an empty"
            " entry if it is missing"
        )
    return x


def _row_of(values: np.ndarray[Any, Any], text: str) -> int:
    return next(i for i, value in enumerate(values) if value == text)


def column_to_json(column: Column) -> dict[str, Any]:
    """Return a dictionary of strings, numbers and lists."""
    described = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(column).items()}
    return {"kind": "number" if isinstance(column, NumberColumn) else "category", **described}


def column_from_json(column: dict[str, Any]) -> Column:
    """Return the column that `column_to_json` described; raise an error if the description is damaged."""
    if column["kind"] == "category":
        categories = tuple(as_text(category) for category in column["categories"])
        return CategoryColumn(as_text(column["name"]), categories)
    if column["kind"] != "number":
        raise ValueError(f"kind {column['kind']!r}")
    mean, scale, fill = (float(column[key]) for key in ("mean", "scale", "fill"))
    if not (math.isfinite(mean) and scale > 0 and math.isfinite(fill)):
        raise ValueError(f"column {column['name']!r} is not finite")
    return NumberColumn(as_text(column["name"]), mean, scale, fill)


def as_text(value: Any) -> str:
    """Return a string as it is; raise a TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def counted(count: int, one: str, more: str = "") -> str:
    """Return a number and its noun.

    >>> counted(1, "row"), counted(2000, "row"), counted(2, "entry", "entries")
    ('1 row', '2,000 rows', '2 entries')
    """
    return f"{count:,} {one if count == 1 else more or one + 's'}"
