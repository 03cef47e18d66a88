"""Splits into training and test rows, the same for every method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Split:
    """Features and class numbers of the training rows, (N, D) and (N,), and of the test rows, (n, D) and (n,).

    >>> Split(np.zeros((3, 2)), np.array([0, 1, 0]), np.zeros((1, 2)), np.array([1])).ratio.__round__(4)
    0.3333
    """

    train: Vector
    train_targets: Vector
    test: Vector
    test_targets: Vector

    @property
    def ratio(self) -> float:
        """The number of test rows per training row, n / N."""
        return len(self.test_targets) / len(self.train_targets)


def stratified_rows(targets: Vector, test_size: float, repeats: int, seed: int) -> list[tuple[Vector, Vector]]:
    """Return `repeats` random pairs of training and test row numbers, stratified by the classes (N,).

    >>> [(len(train), len(test)) for train, test in stratified_rows(np.arange(20) % 2, 0.3, repeats=2, seed=0)]
    [(14, 6), (14, 6)]
    """
    from sklearn.model_selection import StratifiedShuffleSplit

    classes, counts = np.unique(targets, return_counts=True)
    size, test = len(targets), int(np.ceil(test_size * len(targets)))
    if not 0 < test_size < 1:
        raise ValueError(f"the test size is {test_size}; expected a share of the rows between 0 and 1, such as 0.3")
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; expected at least 1")
    if counts.min() < 2:
        raise ValueError(
            f"class {classes[counts.argmin()]} has a single row, which cannot be in both training and test set; remove"
            " it or merge it with another class"
        )
    if min(test, size - test) < len(classes):
        raise ValueError(
            f"{size} rows with test size {test_size:g} leave {size - test} training and {test} test rows; expected at"
            f" least one row of each of the {len(classes)} classes in both"
        )
    return list(StratifiedShuffleSplit(repeats, test_size=test, random_state=seed).split(targets, targets))


def standardised_splits(
    features: Any, targets: Vector, *, test_size: float = 0.3, repeats: int = 1, seed: int = 0
) -> Iterator[Split]:
    """Yield splits of features (N, D) and class numbers (N,).

    Features are standardised with the mean and standard deviation of the training rows; features that are constant
    there become 0.

    >>> split = next(standardised_splits(np.arange(40.0).reshape(20, 2), np.arange(20) % 2))
    >>> bool(np.allclose(split.train.mean(0), 0) and np.allclose(split.train.std(0), 1)), split.test.shape
    (True, (6, 2))
    """
    features = np.asarray(features, dtype=np.float64)
    for train, test in stratified_rows(targets, test_size, repeats, seed):
        mean, scale = features[train].mean(axis=0), features[train].std(axis=0)
        varies = scale > 0
        scaled = np.where(varies, (features - mean) / np.where(varies, scale, 1.0), 0.0)
        yield Split(scaled[train], targets[train], scaled[test], targets[test])
