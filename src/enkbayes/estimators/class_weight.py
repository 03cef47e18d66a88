"""Weights of classes: how often each row counts, by the class that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from enkbayes.core.labels import encode, observation_weights

Array = np.ndarray[Any, Any]


def class_weights(class_weight: Any, classes: Array, counts: Array | None) -> Array | None:
    """Return the weight of each class (K,), None where all are 1, as scikit-learn defines them.

    Parameters
    ----------
    class_weight : None, dict or "balanced"
        A dict has a weight for each class; classes that it lacks have the weight 1. "balanced" gives all classes the
        same weight in sum, which is that of all rows divided by K.
    classes : array (K,)
        All classes, sorted.
    counts : array (K,) or None
        Rows of each class. None says that they are not known, because the rows come in batches.

    Examples
    --------
    >>> classes = np.asarray(["no", "yes"])
    >>> class_weights("balanced", classes, np.asarray([30, 10])).round(3).tolist()
    [0.667, 2.0]
    >>> class_weights({"yes": 5}, classes, None).tolist()
    [1.0, 5.0]
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, Mapping):
        known = np.asarray(classes).tolist()
        if unknown := [name for name in class_weight if name not in known]:
            raise ValueError(f"class_weight has the key {unknown[0]!r}; expected one of the classes {known}")
        given = [class_weight.get(name, 1.0) for name in known]
        return np.asarray(observation_weights(given, len(known)), dtype=np.float64)
    if not (isinstance(class_weight, str) and class_weight == "balanced"):
        raise ValueError(f'class_weight is {class_weight!r}; expected None, a dict of weights, or "balanced"')
    if counts is None:
        raise ValueError(
            'class_weight="balanced" needs the numbers of rows of all classes, which batches do not have; expected a '
            "dict of weights"
        )
    there = np.asarray(counts, dtype=np.float64)
    return np.where(there > 0, there.sum() / (len(there) * np.where(there > 0, there, 1.0)), 1.0)


def row_weights(weights: Array | None, labels: Any, classes: Array, sample_weight: Any) -> Any:
    """Return how often each row counts (n,): its own weight times that of its class.

    >>> row_weights(np.asarray([1.0, 5.0]), ["b", "a"], np.asarray(["a", "b"]), [2.0, 3.0]).tolist()
    [10.0, 3.0]
    """
    if weights is None:
        return sample_weight
    size = len(labels)
    own = weights[encode(labels, size, classes)[0]] if size else np.zeros(0)
    return own if sample_weight is None else own * observation_weights(sample_weight, size, positive=False)
