"""Features and labels as users pass them: scikit-learn's checks, and one sentence for what these say in several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from enkbayes.core.caller import warn
from enkbayes.core.labels import distinct
from enkbayes.engine.arrays import to_numpy

Array = np.ndarray[Any, Any]
FLAGS = frozenset({"fit_intercept", "warm_start", "progress"})


def validated(estimator: BaseEstimator, X: Any, *labels: Any, **settings: Any) -> Any:
    """Return what scikit-learn's `validate_data` returns, without warnings of sums that overflow in its checks.

    >>> from sklearn.linear_model import LogisticRegression
    >>> validated(LogisticRegression(), [["red", 1.0]])  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: feature 0 of X has text such as 'red'; expected numbers ...
    """
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            features = to_numpy(X) if hasattr(X, "detach") else filled(X)  # a tensor that records gradients
            return validate_data(estimator, features, *map(plain_labels, labels), **settings)
        except (ValueError, TypeError):
            check_features(X)
            raise


def filled(X: Any) -> Any:
    """Return a data frame whose sparse columns leave out another number than zero as a dense one; others as they are.

    >>> import pandas as pd
    >>> filled(pd.DataFrame({"a": pd.arrays.SparseArray([1.0, 2.0])})).dtypes.tolist()
    [dtype('float64')]
    """
    kinds = list(getattr(X, "dtypes", ())) if hasattr(X, "columns") else []
    if all(getattr(kind, "fill_value", 0) == 0 for kind in kinds):
        return X
    return X.astype(
        {name: kind.subtype for name, kind in zip(X.columns, kinds, strict=True) if hasattr(kind, "subtype")}
    )


def check_flags(parameters: Mapping[str, Any]) -> None:
    """Raise a ValueError unless the parameters that are switches are true or false: a text such as "no" is neither.

    >>> check_flags({"fit_intercept": "no"})
    Traceback (most recent call last):
    ValueError: fit_intercept is 'no'; expected True or False
    """
    for name in FLAGS & parameters.keys():
        if not isinstance(parameters[name], bool | np.bool_ | int) or parameters[name] not in (0, 1):
            raise ValueError(f"{name} is {parameters[name]!r}; expected True or False")


def plain_labels(y: Any) -> Any:
    """Return labels as they are, but whole numbers and truth values in an array of objects, or in a column that may
    have missing entries, as an array of their kind. A ValueError says where a column of pandas has one.

    >>> plain_labels(np.asarray([1, 0], dtype=object)).dtype.kind
    'i'
    """
    missing = np.asarray(y.isna()) if hasattr(y, "isna") else np.zeros(0, dtype=bool)
    if missing.any():
        row = int(np.flatnonzero(missing.reshape(len(missing), -1).any(axis=1))[0])
        raise ValueError(f"row {row} of y is missing (NaN); leave out rows without a label")
    dtype = getattr(y, "dtype", None)
    nullable = dtype is not None and not isinstance(dtype, np.dtype) and getattr(dtype, "kind", "") in ("b", "i", "u")
    values = np.asarray(y, dtype=object) if nullable or dtype == np.dtype(object) else None
    if values is None or values.size == 0:
        return y
    for kind in (bool | np.bool_, int | np.integer):
        if all(isinstance(value, kind) for value in values.flat):
            found = np.asarray(values.tolist())
            return found if found.dtype.kind in "biu" else y  # integers beyond 64 bits stay what they are
    return y


def warn_of_offsets(X: Any, estimator: BaseEstimator, farthest: float) -> None:
    """Warn if a feature lies so far from zero that its prior says nothing of its spread: years, kelvins, timestamps.

    Logits that tell values near the mean apart need large weights there, and an intercept that outweighs them.
    `farthest` counts standard deviations between a feature's mean and zero.
    """
    if scipy.sparse.issparse(X) or len(X) < 2:
        return
    x = np.asarray(X, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, spread = x.mean(axis=0), x.std(axis=0)
        varies = (np.ptp(x, axis=0) > 0) & (spread > 0)
        distance = np.abs(mean) / np.where(varies, spread, np.inf)
    worst = int(np.argmax(np.nan_to_num(distance)))
    if distance[worst] > farthest:
        names = getattr(estimator, "feature_names_in_", None)
        name = f"feature {worst}" if names is None else f"column {names[worst]!r}"
        warn(
            f"{name} of X varies by {spread[worst]:.3g} around {mean[worst]:.6g}; predictions are worse than they "
            "could be: subtract its mean, with StandardScaler in a pipeline"
        )


def check_labels(y: Any) -> None:
    """Raise a ValueError unless the labels are classes of one kind."""
    distinct(y)
    check_classification_targets(y)


def check_features(X: Any) -> None:
    """Raise a ValueError that says which feature (N, D) is not made of finite numbers, if one is not. Rows are counted
    from 0.

    >>> check_features(np.asarray([[0.0, 1.0], [2.0, np.nan]]))
    Traceback (most recent call last):
    ValueError: row 1 of feature 1 of X is missing (NaN); fill it in, with SimpleImputer in a pipeline, or leave it out
    """
    names = getattr(X, "columns", None)
    if names is not None and (doubled := [name for name, count in Counter(names).items() if count > 1]):
        raise ValueError(f"X has {Counter(names)[doubled[0]]} columns named {doubled[0]!r}; expected different names")
    if scipy.sparse.issparse(X):
        if not np.all(np.isfinite(X.tocoo().data)):
            raise ValueError("X has entries that are NaN or infinite; expected finite numbers")
        return
    for name, column in _columns(X, names):
        suspect = np.arange(len(column)) if column.dtype.kind in "OUSmM" else np.zeros(0, dtype=int)
        if column.dtype.kind == "f":
            suspect = np.flatnonzero(~np.isfinite(column))
        for row in suspect.tolist():
            _check_entry(name, row, column[row])


def _columns(X: Any, names: Any) -> list[tuple[str, Array]]:
    """Return the features, each with what to call it."""
    if names is not None:
        return [(f"column {name!r} of X", np.asarray(X[name])) for name in names]
    try:
        rows = np.asarray(X, dtype=object if isinstance(X, list | tuple) else None)
    except (ValueError, TypeError):
        return []
    return [(f"feature {i} of X", rows[:, i]) for i in range(rows.shape[1])] if rows.ndim == 2 else []


def _check_entry(name: str, row: int, entry: Any) -> None:
    if isinstance(entry, date | timedelta | np.datetime64 | np.timedelta64):
        raise ValueError(
            f"{name} has dates or durations; expected numbers: convert it, for example to days, or leave it out"
        )
    try:
        number = np.nan if entry is None or str(entry) == "<NA>" else float(entry)
    except ValueError:
        raise ValueError(
            f"{name} has text such as {str(entry)!r}; expected numbers: turn categories into numbers first, with "
            "OneHotEncoder in a pipeline"
        ) from None
    except TypeError:
        return  # scikit-learn's words for it
    if np.isnan(number):
        raise ValueError(
            f"row {row} of {name} is missing (NaN); fill it in, with SimpleImputer in a pipeline, or leave it out"
        )
    if np.isinf(number):
        raise ValueError(f"row {row} of {name} is infinite; expected a finite number")
