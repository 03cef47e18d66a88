"""From the columns of a table to features: fitted to the training data, stored as JSON in the model file.

Columns of numbers are standardised, and missing numbers are replaced by the median. Columns of text become one 0/1
feature per category of the training data. A missing entry is a category of its own; an unseen category gives zeros
only. Columns that cannot help are not used: see `left_out`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.estimators.columns import (
    CategoryColumn,
    Column,
    NumberColumn,
    as_text,
    column_from_json,
    column_to_json,
    counted,
    finite_numbers,
    fitted_column,
)
from enkbayes.estimators.table import Table, listed, texts


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
        ["column 'age' has 3 missing numbers, replaced by the median of the training data"]
        """
        return [
            f"column {name!r} has {counted(count, 'missing number')}, replaced by the median of the training data"
            for name, count in self.imputed.items()
            if count
        ] + [
            f"column {name!r} has {counted(count, 'entry', 'entries')} whose category is not in the training data; "
            "all features of the column are 0 there"
            for name, count in self.unseen.items()
            if count
        ]


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
                notes.extend(_notes_on_classes(table, target))
                continue
            fitted = fitted_column(table, name, notes)
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
                imputed[column.name] = int(np.sum(np.isnan(finite_numbers(table, column.name))))
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
                f"columns that the model needs are missing: {listed(absent)}; the data have the columns"
                f" {listed(list(table.columns))}"
            )
        return np.concatenate([column.transform(table) for column in self.columns], axis=1)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of strings, numbers and lists, for JSON."""
        return {
            "columns": [column_to_json(column) for column in self.columns],
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
            columns = tuple(column_from_json(dict(column)) for column in document["columns"])
            target = None if document["target"] is None else as_text(document["target"])
            left_out = tuple((as_text(name), as_text(reason)) for name, reason in document["left_out"])
            notes = tuple(as_text(note) for note in document["notes"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the preprocessing in the model file is damaged ({error}); fit the model again") from None
        return cls(columns, target, left_out, notes)


def _notes_on_classes(table: Table, target: str) -> list[str]:
    """Return a remark about classes that differ in upper and lower case only."""
    spelled: dict[str, set[str]] = {}
    for text in texts(table.column(target)):
        spelled.setdefault(text.lower(), set()).add(text)
    return [
        f"the classes {listed(sorted(several))} of column {target!r} differ in upper and lower case only; write them "
        "alike if they are one class"
        for several in spelled.values()
        if len(several) > 1
    ]
