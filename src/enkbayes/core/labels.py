"""Labels, classes and observation weights as users pass them: checked once, with errors that explain what is wrong."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from enkbayes.core.arguments import is_number
from enkbayes.engine.arrays import to_numpy

ALL_ZERO = "all weights are zero; expected at least one positive weight"
MIXED = "labels mix text with numbers or missing values; every row needs a class of one kind"
MOST = 1e100  # weight of a row: sums of squares stay in the range of floating-point numbers


def encode(labels: Any, size: int, classes: Any = None) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return class numbers (N,) and the sorted classes (K,) of labels of any comparable kind.

    >>> encode(["b", "a", "b"], 3)
    (array([1, 0, 1]), array(['a', 'b'], dtype='<U1'))
    """
    values = _vector(labels, "labels", size)
    given = labels if isinstance(labels, list | tuple) else values if values.dtype.kind == "O" else ()
    if len({isinstance(value, str) for value in given}) > 1 or any(value is None for value in given):
        raise ValueError(MIXED)
    values = _storable(values, "labels")
    if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
        raise ValueError("labels contain NaN or infinite values; every row needs a class")
    if classes is None:
        known, numbers = np.unique(values, return_inverse=True)
        if len(known) < 2:
            raise ValueError(
                f"labels contain a single class, {known[0]}; expected two or more, or classes=[...] with all"
            )
        if values.dtype.kind == "f" and not np.all(known == np.round(known)):
            raise ValueError(
                f"labels are real numbers such as {known[0]:g}; expected classes, or likelihood=Normal(...)"
            )
        return numbers, known
    known = sorted_classes(classes)
    if len(known) < 2:
        raise ValueError(f"classes has {len(known)} distinct entries; expected at least two")
    if len(values) and not _alike(values, known):
        raise ValueError(
            f"labels are values such as {values.tolist()[0]!r}, and classes are {known.tolist()}; expected both as "
            "text or both as numbers"
        )
    numbers = np.minimum(np.searchsorted(known, values), len(known) - 1)
    _check_known(values[known[numbers] != values], known)
    return numbers, known


def _check_known(unexpected: np.ndarray[Any, Any], known: np.ndarray[Any, Any]) -> None:
    """Raise a ValueError if there are labels that are not among the known classes."""
    if not len(unexpected):
        return
    if unexpected.dtype.kind == "f" and np.any(unexpected != np.round(unexpected)):
        fraction = unexpected[unexpected != np.round(unexpected)][0]
        raise ValueError(
            f"labels are real numbers such as {fraction:g}; expected the classes {known.tolist()}, or a regression"
        )
    raise ValueError(f"label {unexpected.tolist()[0]!r} is not among the given classes {known.tolist()}")


def sorted_classes(classes: Any) -> np.ndarray[Any, Any]:
    """Return the distinct classes, sorted, or raise a ValueError if some are missing or not of one kind.

    >>> sorted_classes(["b", "a", "b"]).tolist()
    ['a', 'b']
    """
    values = to_numpy(classes)
    if values.ndim != 1:
        raise ValueError(f"classes has shape {values.shape}; expected a list of all classes")
    given = classes if isinstance(classes, list | tuple) else values.tolist() if values.dtype.kind == "O" else ()
    missing = any(value is None for value in given) or (values.dtype.kind == "f" and np.any(np.isnan(values)))
    if missing or len({isinstance(value, str) for value in given}) > 1:
        raise ValueError(f"classes is {values.tolist()}; expected all text or all numbers, and none missing")
    return np.unique(_storable(values, "classes"))


def distinct(labels: Any) -> np.ndarray[Any, Any]:
    """Return the classes among labels, sorted, or raise a ValueError if they are not of one kind.

    >>> distinct([3, 1, 3]).tolist()
    [1, 3]
    """
    try:
        return np.unique(labels)
    except TypeError:
        raise ValueError(MIXED) from None


def class_counts(labels: Any, classes: Any, weights: Any = None) -> np.ndarray[Any, Any]:
    """Return the number of rows of each class (K,), in sorted order; weights (n,) say how often each row counts.

    >>> class_counts(["b", "a", "b"], ["a", "b", "c"]).tolist()
    [1.0, 2.0, 0.0]
    """
    if not len(labels):
        return np.zeros(len(classes))
    numbers, known = encode(labels, len(labels), classes)
    counts = np.ones(len(numbers)) if weights is None else observation_weights(weights, len(numbers), positive=False)
    return np.bincount(numbers, counts, minlength=len(known))


def announced(labels: Any, classes: Any, before: Any) -> np.ndarray[Any, Any]:
    """Return all classes of a sequence of batches, and check that this batch keeps to those of the batches before.

    `before` is None for the first batch, which announces them by `classes` or by its labels.

    >>> announced([1, 0], [0, 1, 2], None).tolist()
    [0, 1, 2]
    """
    given = None if classes is None else sorted_classes(classes)
    known = np.asarray(before) if before is not None else distinct(labels) if given is None else given
    if before is not None and given is not None and not np.array_equal(given, known):
        raise ValueError(f"classes is {given.tolist()}; expected {known.tolist()} as on the first call")
    unexpected = np.setdiff1d(distinct(labels), known) if _alike(labels, known) else np.asarray(labels)
    if len(unexpected):
        raise ValueError(
            f"y has the class {unexpected.tolist()[0]!r}, which is not among {known.tolist()}; "
            "announce all classes on the first call of partial_fit by classes=[...]"
        )
    if len(known) < 2:
        raise ValueError(f"the first batch has the single class {known[0]}; pass classes=[...] with all classes")
    return known


def real_targets(labels: Any, size: int, likelihood: str) -> np.ndarray[Any, Any]:
    """Return real targets (N,) for a likelihood of this name."""
    values = _vector(labels, "labels", size)
    if values.dtype.kind not in "fiub":
        raise ValueError(f"labels have dtype {values.dtype}; expected real numbers for the {likelihood} likelihood")
    if not np.all(np.isfinite(values)):
        raise ValueError("labels contain NaN or infinite values; expected finite numbers")
    return values


def observation_weights(weights: Any, size: int, *, positive: bool = True) -> np.ndarray[Any, Any]:
    """Return non-negative observation weights (N,). Only some of many rows (without `positive`) may all have zero."""
    values = _vector(weights, "weights", size)
    if values.dtype.kind == "O" and all(is_number(value) for value in values.tolist()):
        values = values.astype(np.float64)  # numbers in a column of objects
    if values.dtype.kind not in "fiub" or not np.all(np.isfinite(values)):
        raise ValueError(
            "weights contain values that are not finite numbers; expected one non-negative number for each row"
        )
    if np.any(values < 0):
        raise ValueError(f"the smallest weight is {values.min():g}; expected non-negative weights")
    if positive and not np.any(values > 0):
        raise ValueError(ALL_ZERO)
    if np.max(values, initial=0) > MOST:
        raise ValueError(f"the largest weight is {values.max():g}; expected at most {MOST:g}: divide all by a constant")
    return values


def _vector(x: Any, name: str, size: int) -> np.ndarray[Any, Any]:
    try:
        values = to_numpy(x)
    except ValueError:
        raise ValueError(f"{name} are lists of different lengths; expected one entry for each row") from None
    if values.ndim != 1:
        raise ValueError(f"{name} have shape {values.shape}; expected ({size},), one entry for each row of features")
    if len(values) != size:
        raise ValueError(f"{name} have {len(values)} entries, features have {size} rows; expected the same number")
    return values


def _storable(values: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Return labels or classes as numbers, truth values or text, which model files can hold: objects as an array of
    their kind.

    >>> _storable(np.asarray([1, 0], dtype=object), "labels").dtype.kind
    'i'
    """
    if values.dtype.kind == "O" and not all(isinstance(value, str) for value in values):
        with suppress(ValueError):  # of lists of different lengths
            values = np.asarray(values.tolist())
    if values.dtype.kind not in "fiubUO":
        raise ValueError(f"{name} have dtype {values.dtype}; expected numbers or text")
    if values.ndim != 1 or (values.dtype == object and not all(isinstance(value, str) for value in values)):
        raise ValueError(f"{name} are objects such as {values[0]!r}; expected numbers of at most 64 bits, or text")
    return values


def _alike(labels: Any, classes: np.ndarray[Any, Any]) -> bool:
    """Return whether labels and classes are both text, both numbers, or can be put in order for another reason."""
    one, other = (np.asarray(x).tolist()[0] for x in (labels, classes))
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str)
    try:
        return isinstance(one < other, bool)
    except TypeError:
        return False
