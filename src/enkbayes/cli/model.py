"""A model file as the commands use it: a classifier, and how it reads the columns of a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.cli.tables import Preprocessing, Table, not_a_file
from enkbayes.estimators.columns import NumberColumn
from enkbayes.estimators.preprocessing import Gaps
from enkbayes.estimators.table import listed, texts

if TYPE_CHECKING:
    from enkbayes.estimators.classifier import EnsembleClassifier

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TableModel:
    """A fitted classifier and its preprocessing. A model saved from Python has none: its columns are used unchanged."""

    classifier: EnsembleClassifier
    preprocessing: Preprocessing | None

    @classmethod
    def load(cls, path: Path) -> TableModel:
        """Read a model file."""
        from enkbayes.estimators.classifier import EnsembleClassifier
        from enkbayes.storage.model_file import LabelArtefacts, read

        if not path.is_file():
            raise ValueError(f"{path} {not_a_file(path)}; expected a model file written by enkbayes fit")
        artefact = read(path)
        if isinstance(artefact, LabelArtefacts):
            raise ValueError(
                f"{path} predicts {len(artefact.names)} labels for each row, and the commands predict one class; use "
                "it in Python: enkbayes.load(path).predict_proba(X)"
            )
        classifier = EnsembleClassifier.from_artefact(artefact)
        if artefact.preprocessing is None:
            return cls(classifier, None)
        preprocessing = Preprocessing.from_json(dict(artefact.preprocessing))
        preprocessing.check_size(classifier.n_features_in_)
        return cls(classifier, preprocessing)

    @property
    def classes(self) -> list[str]:
        """The classes as text, in the order of the probabilities."""
        return [str(name) for name in texts(np.asarray(self.classifier.classes_))]

    def reject_threshold(self, max_error: float) -> float:
        """Return the confidence above which decisions are wrong at most `max_error` of the time, by the rows that the
        model remembers.
        """
        try:
            return float(self.classifier.reject_threshold(max_error=max_error))
        except AttributeError:
            raise ValueError(
                "--max-error needs confidences of held-out rows, and the model file has none; fit again with enkbayes "
                "fit in one process, or call clf.remember() before clf.save()"
            ) from None

    def features(self, table: Table, target: str | None = None) -> Vector:
        """Return the features (n, D) of some rows; the column `target` is not a feature."""
        preprocessing = self.preprocessing or self._unchanged([name for name in table.columns if name != target])
        return preprocessing.transform(table)

    def columns(self, table: Table) -> list[tuple[str, tuple[int, ...]]]:
        """Return the columns of a table that the model uses, each with the numbers of its features."""
        found, start = [], 0
        for column in (self.preprocessing or self._unchanged(list(table.columns))).columns:
            count = len(column.features)
            found.append((column.name, tuple(range(start, start + count))))
            start += count
        return found

    def gaps(self, table: Table) -> Gaps:
        """Return which entries of some rows are replaced."""
        return Gaps(Counter(), Counter()) if self.preprocessing is None else self.preprocessing.gaps(table)

    def ood_score(self, features: Vector) -> Vector | None:
        """Return how unlike the training rows features (n, D) are, (n,); None if the model does not remember that."""
        return None if self.classifier.far_field_ is None else self.classifier.ood_score(features)

    def class_numbers(self, labels: Vector, start: int) -> Vector:
        """Return the class number of each label (n,); an unknown class raises a ValueError."""
        place = {name: i for i, name in enumerate(self.classes)}
        for i, label in enumerate(labels):
            if label not in place:
                raise ValueError(
                    f"row {start + i + 1} has the class {str(label)!r}, which the model does not know; expected one of"
                    f" {listed(self.classes)}"
                )
        return np.array([place[label] for label in labels])

    def _unchanged(self, names: list[str]) -> Preprocessing:
        expected = self.classifier.n_features_in_
        known = getattr(self.classifier, "feature_names_in_", None)
        if known is not None:
            names = [str(name) for name in known]
        elif len(names) != expected:
            raise ValueError(f"the data have {len(names)} columns; expected {expected}, as in training")
        return Preprocessing(tuple(NumberColumn(name, 0.0, 1.0, math.nan) for name in names))


def following(tables: Iterator[Table], bar: Any) -> Iterator[Table]:
    """Yield the tables and update the progress bar after each."""
    for table in tables:
        yield table
        bar(table.share)
