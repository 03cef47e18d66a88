"""A model as the command line sees it: a classifier and the columns it reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.cli.tables import NumberColumn, Preprocessing, Table
from enkbayes.cli.tables.table import listed, texts

if TYPE_CHECKING:
    from enkbayes.estimators.classifier import EnsembleClassifier

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TableModel:
    """A fitted classifier, and how it reads tables; a model saved from Python reads numbers as they are."""

    classifier: EnsembleClassifier
    preprocessing: Preprocessing | None

    @classmethod
    def load(cls, path: Path) -> TableModel:
        """Open a model file."""
        from enkbayes.estimators.classifier import EnsembleClassifier
        from enkbayes.storage.model_file import read

        if not path.is_file():
            trouble = "is a folder" if path.is_dir() else "is not there"
            raise ValueError(f"{path} {trouble}; expected a model that enkbayes fit has written")
        artefact = read(path)
        classifier = EnsembleClassifier.from_artefact(artefact)
        if artefact.preprocessing is None:
            return cls(classifier, None)
        preprocessing = Preprocessing.from_json(dict(artefact.preprocessing))
        if len(preprocessing.features) != classifier.n_features_in_:
            raise ValueError(
                f"{path} is damaged: its columns make {len(preprocessing.features)} features and its weights expect"
                f" {classifier.n_features_in_}; fit the model again"
            )
        return cls(classifier, preprocessing)

    @property
    def classes(self) -> list[str]:
        """The classes as text, in the order of the probabilities."""
        return [str(name) for name in texts(np.asarray(self.classifier.classes_))]

    def features(self, table: Table, target: str | None = None) -> Vector:
        """Return features (n, D) of some rows; `target` is no feature."""
        preprocessing = self.preprocessing or self._as_they_are([name for name in table.columns if name != target])
        return preprocessing.transform(table)

    def proba(self, table: Table, target: str | None = None) -> Vector:
        """Return class probabilities (n, K)."""
        return self.classifier.predict_proba(self.features(table, target))

    def class_numbers(self, labels: Vector, start: int) -> Vector:
        """Return which class each label (n,) is; a class the model does not know is an error."""
        place = {name: i for i, name in enumerate(self.classes)}
        for i, label in enumerate(labels):
            if label not in place:
                raise ValueError(
                    f"row {start + i + 1} has the class {str(label)!r}, which the model does not know; its classes are"
                    f" {listed(self.classes)}"
                )
        return np.array([place[label] for label in labels])

    def _as_they_are(self, names: list[str]) -> Preprocessing:
        expected = self.classifier.n_features_in_
        known = getattr(self.classifier, "feature_names_in_", None)
        if known is not None:
            names = [str(name) for name in known]
        elif len(names) != expected:
            raise ValueError(f"the data have {len(names)} columns; expected {expected} as in training, without names")
        return Preprocessing(tuple(NumberColumn(name, 0.0, 1.0, math.nan) for name in names))


def following(tables: Iterator[Table], bar: Any) -> Iterator[Table]:
    """Pass tables on, and show the share of the file that is done after each."""
    for table in tables:
        yield table
        bar(table.share)
