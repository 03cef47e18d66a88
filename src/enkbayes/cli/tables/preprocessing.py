"""From the columns of a table to features: fitted once on the training data, stored as JSON with the model.

Numbers are standardised, missing ones are replaced by the median; text becomes one 0/1 feature for each category seen
in training, where a missing entry is a category too and an unseen one is all zeros. Columns that cannot help are left
out: see `left_out`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from enkbayes.cli.tables.table import Table, listed, numbers, texts

MOST_CATEGORIES = 100


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: (x - mean) / scale, with `fill` in place of missing entries.

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
        x = _finite(table, self.name)
        with np.errstate(over="ignore"):
            out = (np.where(np.isnan(x), self.fill, x) - self.mean) / self.scale
        wrong = np.flatnonzero(~np.isfinite(out))
        if len(wrong):
            value = x[wrong[0]]
            trouble = (
                "missing; the model was trained without missing values"
                if np.isnan(value)
                else f"{value:g}, too far from the training data; expected values near {self.mean:g}"
            )
            raise ValueError(f"row {table.start + wrong[0] + 1} of column {self.name!r} is {trouble}")
        return out[:, None]


@dataclass(frozen=True)
class CategoryColumn:
    """A column of text: one feature for each category, 1 where the entry is that category; "" is a missing entry.

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


@dataclass(frozen=True)
class Preprocessing:
    """The features of a model, column by column.

    `left_out` pairs the columns of the training data that are not used with the reason: they are constant, empty,
    number the rows, or have a different text in nearly every row, as names and ids do. `notes` says what else a user
    should know.

    Examples
    --------
    >>> table = Table({"age": np.array([30.0, 40.0, np.nan]), "town": np.array(["Bern", "Oslo", "Bern"], dtype=object)})
    >>> preprocessing = Preprocessing.fit(table)
    >>> preprocessing.features
    ('age', 'town=Bern', 'town=Oslo')
    >>> preprocessing.transform(Table({"age": np.array([45.0]), "town": np.array(["Rome"], dtype=object)}))
    array([[2., 0., 0.]])
    >>> Preprocessing.from_json(preprocessing.to_json()) == preprocessing
    True
    """

    columns: tuple[Column, ...]
    target: str | None = None
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def fit(cls, table: Table, target: str | None = None) -> Preprocessing:
        """Learn from the training table; `target` names the column that is predicted and so is no feature."""
        columns: list[Column] = []
        left_out: list[tuple[str, str]] = []
        notes: list[str] = []
        for name in table.columns:
            if name == target:
                continue
            fitted = _fit_column(table, name, notes)
            if isinstance(fitted, str):
                left_out.append((name, fitted))
            else:
                columns.append(fitted)
        if not columns:
            reasons = ", ".join(f"{name!r} {reason}" for name, reason in left_out[:8])
            raise ValueError(
                f"no column can be used as a feature ({reasons or 'there is only the target'}); expected at least one"
            )
        return cls(tuple(columns), target, tuple(left_out), tuple(notes))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the D features."""
        return tuple(name for column in self.columns for name in column.features)

    def transform(self, table: Table) -> np.ndarray[Any, Any]:
        """Return features (n, D) of some rows; columns that training did not use are ignored."""
        absent = [column.name for column in self.columns if column.name not in table.columns]
        if absent:
            raise ValueError(
                f"the model needs columns the data do not have: {listed(absent)}; the data have"
                f" {listed(list(table.columns))}"
            )
        return np.concatenate([column.transform(table) for column in self.columns], axis=1)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of texts, numbers and lists only."""
        columns = [{"kind": _KIND_NAMES[type(column)], **asdict(column)} for column in self.columns]
        for column in columns:
            column.update({key: list(value) for key, value in column.items() if isinstance(value, tuple)})
        return {
            "columns": columns,
            "target": self.target,
            "left_out": [list(pair) for pair in self.left_out],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Preprocessing:
        """Return what `to_json` described, checked; a damaged description is a ValueError."""
        try:
            columns = tuple(_column_from_json(dict(column)) for column in document["columns"])
            target = None if document["target"] is None else _text(document["target"])
            left_out = tuple((_text(name), _text(reason)) for name, reason in document["left_out"])
            notes = tuple(_text(note) for note in document["notes"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"the model's preprocessing is damaged ({error}); expected what enkbayes fit writes, fit it again"
            ) from None
        return cls(columns, target, left_out, notes)


def _fit_column(table: Table, name: str, notes: list[str]) -> Column | str:
    """Return the fitted column, or the reason to leave it out."""
    try:
        x = _finite(table, name)
    except _NoNumber:
        # a column of numbers with a slip in it is no column of categories: let the user see the slip
        if _share_of_numbers(table.column(name)) > 0.9:
            raise
        return _fit_category(table, name, notes)
    known = x[~np.isnan(x)]
    if len(known) == 0:
        return "is empty"
    if np.all(known == known[0]):
        return "is constant"
    if len(known) == len(x) > 9 and np.all(np.diff(x) == 1):
        return "numbers the rows"
    # relative to the largest value nothing overflows, and squares of tiny values do not vanish
    peak = np.max(np.abs(known))
    mean, scale, fill = (float(peak * statistic(known / peak)) for statistic in (np.mean, np.std, np.median))
    return NumberColumn(name, mean, scale, fill) if scale > np.finfo(float).tiny else "is constant"


def _fit_category(table: Table, name: str, notes: list[str]) -> Column | str:
    counts = Counter(texts(table.column(name)).tolist())
    known = len(counts) - ("" in counts)
    if known > 20 and 2 * known > table.rows - counts[""]:
        return "has a different text in nearly every row, as ids and names do"
    if len(counts) == 1:
        return "is constant"
    if len(counts) > MOST_CATEGORIES:
        notes.append(
            f"column {name!r} has {len(counts)} categories; the {MOST_CATEGORIES} most frequent are kept, the others"
            " count as unseen"
        )
    kept = sorted(counts, key=lambda text: (-counts[text], text))[:MOST_CATEGORIES]
    return CategoryColumn(name, tuple(sorted(kept)))


def _share_of_numbers(values: np.ndarray[Any, Any]) -> float:
    known = [text for text in texts(values) if text]
    return sum(_is_number(text) for text in known) / max(len(known), 1)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class _NoNumber(ValueError):
    """An entry that is no number where one was expected."""


def _finite(table: Table, name: str) -> np.ndarray[Any, Any]:
    """Return a column of numbers, NaN where missing; text and infinite values are errors."""
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


_KIND_NAMES: dict[type[Column], str] = {NumberColumn: "number", CategoryColumn: "category"}


def _column_from_json(column: dict[str, Any]) -> Column:
    if column["kind"] == "category":
        categories = tuple(_text(category) for category in column["categories"])
        return CategoryColumn(_text(column["name"]), categories)
    if column["kind"] != "number":
        raise ValueError(f"kind {column['kind']!r}")
    mean, scale, fill = (float(column[key]) for key in ("mean", "scale", "fill"))
    if not (math.isfinite(mean) and scale > 0 and math.isfinite(fill)):
        raise ValueError(f"column {column['name']!r} is not finite")
    return NumberColumn(_text(column["name"]), mean, scale, fill)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
