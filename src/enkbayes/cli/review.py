"""The review of `enkbayes predict --review`: which of many rows a person should look at first, and why.

Rows come in chunks. All of them are counted, and the most doubtful ones are kept. The doubt about a row is the
probability that its class is wrong, 1 - confidence; for a row unlike the training rows it is at least that of a guess,
1 - 1 / K.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.estimators.table import texts

if TYPE_CHECKING:
    from enkbayes.cli.model import TableModel
    from enkbayes.cli.tables import Table
    from enkbayes.evaluation.report.review import Acceptance, ReviewedRow

Vector = np.ndarray[Any, Any]
Columns = dict[str, Vector]

MOST = 2000  # rows on the page
REASONS = 10  # columns that are named for each row
UNLIKE = 3.0  # score from which a row is unlike the training rows: three standard deviations of theirs
ERRORS = (0.01, 0.02, 0.05, 0.1)  # for which the page says how many rows are accepted, besides the one asked for


@dataclass(eq=False)
class Review:
    """What a review shows, collected chunk by chunk.

    max_error, threshold : the error that was asked for, and its threshold on the confidence
    keep : columns of the data to copy
    """

    model: TableModel
    max_error: float | None
    threshold: float | None
    keep: list[str]
    most: int = MOST
    total: int = 0
    unlike: int | None = None
    _limits: list[tuple[float, float | None, str]] = field(default_factory=list)
    _accepted: Vector = field(default_factory=lambda: np.zeros(0))
    _rows: list[tuple[tuple[float, float, int], ReviewedRow]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for error in sorted({*ERRORS, *([] if self.max_error is None else [self.max_error])}):
            if error == self.max_error:
                self._limits.append((error, self.threshold, ""))
                continue
            try:
                self._limits.append((error, self.model.reject_threshold(error), ""))
            except ValueError as reason:
                self._limits.append((error, None, str(reason)))
        self._accepted = np.zeros(len(self._limits), dtype=int)

    def add(self, table: Table, features: Vector, found: Columns) -> None:
        """Add the predictions of a chunk of rows."""
        sure, scores = found["confidence"], found.get("ood_score")
        self._accepted += [0 if limit is None else int(np.sum(sure > limit)) for _, limit, _ in self._limits]
        doubt = 1 - sure
        if scores is not None:
            far = scores > UNLIKE
            self.unlike = (self.unlike or 0) + int(np.sum(far))
            doubt = np.where(far, np.maximum(doubt, 1 - 1 / len(self.model.classes)), doubt)
        score = np.zeros(len(sure)) if scores is None else scores
        order = np.lexsort((np.arange(len(sure)), -score, -doubt))[: self.most]
        if len(self._rows) == self.most:
            order = order[doubt[order] >= -self._rows[-1][0][0]]
        chosen = self._reviewed(table, features, found, order)
        keys = [(-float(doubt[i]), -float(score[i]), self.total + int(i)) for i in order]
        self._rows = sorted([*self._rows, *zip(keys, chosen, strict=True)], key=lambda pair: pair[0])[: self.most]
        self.total += len(sure)

    def page(self, title: str, notes: list[str], provenance: str) -> str:
        """Return the page."""
        from enkbayes.evaluation.report.review import review_page

        return review_page(
            [row for _, row in self._rows],
            title=title,
            total=self.total,
            unlike=self.unlike,
            classes=self.model.classes,
            kept=self.keep,
            acceptance=self._acceptance(),
            max_error=self.max_error,
            notes=notes,
            provenance=provenance,
        )

    def _acceptance(self) -> list[Acceptance]:
        from enkbayes.evaluation.report.review import Acceptance

        return [
            Acceptance(error, None if limit is None else int(count), limit, why)
            for (error, limit, why), count in zip(self._limits, self._accepted, strict=True)
        ]

    def _reviewed(self, table: Table, features: Vector, found: Columns, order: Vector) -> list[ReviewedRow]:
        """Return some rows of a chunk with what speaks for and against their classes."""
        from enkbayes.evaluation.report.review import Reason, ReviewedRow
        from enkbayes.inference.contributions import contributions

        if not len(order):
            return []
        classes, columns = self.model.classes, self.model.columns(table)
        proba = np.stack([found[f"p_{name}"][order] for name in classes], axis=1)
        ranked = np.argsort(-proba, axis=1, kind="stable")
        posterior = self.model.classifier.posterior_
        mean, sd = contributions(posterior, features[order], ranked[:, 0], ranked[:, 1], [own for _, own in columns])
        values = {name: texts(table.column(name)[order]) for name, _ in columns}
        kept = [texts(table.column(name)[order]) for name in self.keep]
        rows = []
        for i, place in enumerate(order.tolist()):
            largest = np.argsort(-np.abs(mean[i]), kind="stable")[:REASONS]
            reasons = tuple(
                Reason(columns[c][0], values[columns[c][0]][i] or "(missing)", float(mean[i, c]), float(sd[i, c]))
                for c in largest.tolist()
                if mean[i, c] != 0 or sd[i, c] > 0
            )
            rows.append(
                ReviewedRow(
                    number=table.start + place + 1,
                    found=classes[ranked[i, 0]],
                    rival=classes[ranked[i, 1]],
                    decision=str(found["decision"][place]) if "decision" in found else None,
                    confidence=float(found["confidence"][place]),
                    probabilities=tuple(proba[i].tolist()),
                    ood_score=float(found["ood_score"][place]) if "ood_score" in found else None,
                    kept=tuple(str(column[i]) for column in kept),
                    reasons=reasons,
                )
            )
        return rows
