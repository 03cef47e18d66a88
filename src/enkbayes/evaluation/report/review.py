"""The review: a page for the person who decides, with the rows to look at first and what speaks for each prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from enkbayes.evaluation.report.page import render


@dataclass(frozen=True)
class Reason:
    """What a column contributes to the log odds of the predicted class: its value as text, mean and standard deviation,
    NaN if not known.

    Positive contributions speak for the predicted class, negative ones against it.
    """

    column: str
    value: str
    mean: float
    sd: float


@dataclass(frozen=True)
class ReviewedRow:
    """A row of the review.

    number : of the row in the data, from 1
    found : the predicted class
    rival : the class that the reasons speak against
    decision : the predicted class, "abstain", or None where no error was asked for
    confidence : the largest probability
    probabilities : of all classes
    ood_score : how unlike the training rows, None if not known
    kept : columns of the data that were to be copied
    reasons : the most important ones
    """

    number: int
    found: str
    rival: str
    decision: str | None
    confidence: float
    probabilities: tuple[float, ...]
    ood_score: float | None
    kept: tuple[str, ...]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Acceptance:
    """How many rows are accepted if at most a share `max_error` of them may be wrong, or the reason why none can be."""

    max_error: float
    accepted: int | None
    threshold: float | None
    why_not: str = ""


def review_page(
    rows: Sequence[ReviewedRow],
    *,
    title: str,
    total: int,
    unlike: int | None,
    classes: Sequence[str],
    kept: Sequence[str],
    acceptance: Sequence[Acceptance],
    max_error: float | None,
    notes: Sequence[str] = (),
    provenance: str = "",
) -> str:
    """Return the page, which needs no network and no other file.

    Parameters
    ----------
    rows : sequence of ReviewedRow
        The rows to look at, the most urgent first.
    title : str
        Name of the data.
    total, unlike : int
        All rows that were predicted, and how many of them are unlike the training rows (None if not known).
    classes, kept : sequences of str
        Names of the classes, and of the columns that are copied.
    acceptance : sequence of Acceptance
        For several errors.
    max_error : float, optional
        The error that was asked for; it is one of those of `acceptance`.
    notes : sequence of str
        Remarks on the data.
    provenance : str
        Where the predictions come from.

    Examples
    --------
    >>> row = ReviewedRow(7, "<b>", "no", None, 0.6, (0.6, 0.4), None, (), (Reason("age", "70", 0.5, 0.2),))
    >>> page = review_page([row], title="t", total=9, unlike=None, classes=["<b>", "no"], kept=[], acceptance=[],
    ...                    max_error=None)
    >>> page.startswith("<!doctype html>"), "<b>" in page
    (True, False)
    """
    asked: Mapping[float, Acceptance] = {each.max_error: each for each in acceptance}
    return render(
        "review.html.j2",
        title=title,
        total=total,
        unlike=unlike,
        classes=list(classes),
        kept=list(kept),
        acceptance=acceptance,
        asked=None if max_error is None else asked[max_error],
        notes=notes,
        provenance=provenance,
        shown=len(rows),
        data={"rows": [_plain(row) for row in rows], "classes": list(classes), "kept": list(kept)},
    )


def _plain(row: ReviewedRow) -> dict[str, Any]:
    """Return a row for JSON, with as many digits as are shown."""
    found = asdict(row)
    found["confidence"] = round(row.confidence, 4)
    found["probabilities"] = [round(p, 4) for p in row.probabilities]
    found["ood_score"] = None if row.ood_score is None else round(row.ood_score, 2)
    found["reasons"] = [
        [r.column, r.value, round(r.mean, 3), None if math.isnan(r.sd) else round(r.sd, 3)] for r in row.reasons
    ]
    return found
