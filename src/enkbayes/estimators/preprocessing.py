"""From the columns of a table to features: fitted to the training data, stored as JSON in the model file.

Columns of numbers are standardised, and missing numbers are replaced by the median. Columns of text become one 0/1
feature per category of the training data. A missing entry is a category of its own; an unseen category gives zeros
only. Columns that cannot help are not used: see `left_out`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from enkbayes.estimators.table import MISSING, NO_NUMBER, Table, listed, numbers, texts

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
        x = _finite(table, self.name)
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


@dataclass(frozen=True)
class Gaps:
    """Entries that a model has not seen, by column: missing numbers, for which it takes the median of the training
    data, and unknown categories, for which all features of the column are zero.
    """

    imputed: Counter[str]
    unseen: Counter[str]

    def __add__(self, other: Gaps) -> Gaps:
        return Gaps(self.imputed + other.imputed, self.unseen + other.unseen)

    @property
    def sentences(self) -> list[str]:
        """What to tell the user.

        >>> Gaps(Counter(age=3), Counter()).sentences
        ["column 'age' has 3 missing numbers; the median of the training data stands for them"]
        """
        return [
            f"column {name!r} has {_counted(count, 'missing number')}; the median of the training data stands for "
            f"{'it' if count == 1 else 'them'}"
            for name, count in self.imputed.items()
            if count
        ] + [
            f"column {name!r} has {_counted(count, 'entry', 'entries')} with a category that the training data lack; "
            f"{'it counts' if count == 1 else 'they count'} as none of the known ones"
            for name, count in self.unseen.items()
            if count
        ]


def _counted(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"


@dataclass(frozen=True)
class Preprocessing:
    """The features of a model, column by column.

    columns : the columns that are used
    target : the column that is predicted
    left_out : the other columns, each with the reason: it is constant or empty, it numbers the rows, or it has a
        different text in nearly every row, as names and ids do
    notes : remarks for the user

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
        """Fit the preprocessing to the training table; the column `target` is predicted and not a feature."""
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

    @property
    def remarks(self) -> list[str]:
        """What to tell the user: columns that are not used, and the notes."""
        unused = [f"column {name!r} {reason}; it is not used" for name, reason in self.left_out]
        return [*unused, *self.notes]

    @property
    def categories(self) -> list[tuple[str, tuple[int, ...]]]:
        """The columns of categories, each with the numbers of its features."""
        found, start = [], 0
        for column in self.columns:
            count = len(column.features)
            if isinstance(column, CategoryColumn) and count > 1:
                found.append((column.name, tuple(range(start, start + count))))
            start += count
        return found

    @property
    def scaling(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """What is subtracted from each feature, and by what it is divided then, (D,) each."""
        found: list[tuple[float, float]] = []
        for column in self.columns:
            own = (column.mean, column.scale) if isinstance(column, NumberColumn) else (0.0, 1.0)
            found.extend([own] * len(column.features))
        centres, scales = np.asarray(found).reshape(-1, 2).T
        return centres, scales

    def gaps(self, table: Table) -> Gaps:
        """Return how many entries of some rows are replaced: missing numbers, and categories that training lacked."""
        imputed, unseen = {}, {}
        for column in self.columns:
            if isinstance(column, NumberColumn):
                imputed[column.name] = int(np.sum(np.isnan(_finite(table, column.name))))
            else:
                known = set(column.categories)
                unseen[column.name] = sum(text not in known for text in texts(table.column(column.name)))
        return Gaps(Counter(imputed), Counter(unseen))

    def check_size(self, expected: int) -> None:
        """Raise a ValueError unless there are as many features as a model has weights for."""
        if len(self.features) != expected:
            raise ValueError(
                f"the file is damaged: its columns yield {len(self.features)} features, but its weights expect"
                f" {expected}; fit the model again"
            )

    def transform(self, table: Table) -> np.ndarray[Any, Any]:
        """Return the features (n, D) of some rows; columns that were not used in training are ignored."""
        absent = [column.name for column in self.columns if column.name not in table.columns]
        if absent:
            raise ValueError(
                f"the data lack columns that the model needs: {listed(absent)}; their columns are"
                f" {listed(list(table.columns))}"
            )
        return np.concatenate([column.transform(table) for column in self.columns], axis=1)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of strings, numbers and lists, for JSON."""
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
    def described_by(cls, document: Any) -> bool:
        """Return whether a document is what `to_json` writes, and not a dictionary of the user's own."""
        return isinstance(document, dict) and document.keys() == cls(()).to_json().keys()

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Preprocessing:
        """Return the preprocessing that `to_json` described; raise a ValueError if the description is damaged."""
        try:
            columns = tuple(_column_from_json(dict(column)) for column in document["columns"])
            target = None if document["target"] is None else _text(document["target"])
            left_out = tuple((_text(name), _text(reason)) for name, reason in document["left_out"])
            notes = tuple(_text(note) for note in document["notes"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the preprocessing in the model file is damaged ({error}); fit the model again") from None
        return cls(columns, target, left_out, notes)


def _fit_column(table: Table, name: str, notes: list[str]) -> Column | str:
    """Return the fitted column, or the reason not to use it."""
    try:
        x = _finite(table, name)
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
    if len(present) == len(x) > 9 and np.all(np.diff(x) == 1):
        return "numbers the rows"
    # dividing by the largest value avoids overflow, and underflow of the squares of tiny values
    peak = np.max(np.abs(present))
    mean, scale, fill = (float(peak * statistic(present / peak)) for statistic in (np.mean, np.std, np.median))
    if scale <= np.finfo(float).tiny:
        return "is constant"
    if len(present) < len(x):
        notes.append(_note_of_gaps(table.column(name), name, len(x) - len(present), fill))
    return NumberColumn(name, mean, scale, fill)


def _note_of_gaps(values: np.ndarray[Any, Any], name: str, count: int, fill: float) -> str:
    """Say how many numbers are missing, which words were taken for that, and what stands for them."""
    words = sorted(_words(values) & (NO_NUMBER - MISSING))
    read = f" ({listed(words)} among them)" if words else ""
    return f"column {name!r} has {_counted(count, 'missing number')}{read}; the median, {fill:g}, stands for them"


def _words(values: np.ndarray[Any, Any]) -> set[str]:
    """Return the entries of a column of text that are words for a missing number, in lower case."""
    return set() if values.dtype.kind == "f" else {str(v).strip().lower() for v in values} & NO_NUMBER


def _fit_category(table: Table, name: str, notes: list[str]) -> Column | str:
    counts = Counter(texts(table.column(name)).tolist())
    categories = len(counts) - ("" in counts)
    if categories > 20 and 2 * categories > table.rows - counts[""]:
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


def _share_of_numbers(values: np.ndarray[Any, Any]) -> float:
    present = [text for text in texts(values) if text]
    return sum(_is_number(text) for text in present) / max(len(present), 1)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class _NoNumber(ValueError):
    """An entry of a column of numbers that is not a number."""


def _finite(table: Table, name: str) -> np.ndarray[Any, Any]:
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
        raise TypeError(f"{value!r} is not a string")
    return value
