"""Labels of which a row may have any number: targets are multi-hot, (N, K) of zeros and ones.

The K labels of a row are independent given its features, and so are the K logits under the prior. The posterior is
therefore the product of the posteriors of K binary problems, and a classifier of multi-hot labels consists of K binary
classifiers, with a prior of its own for each. Predictions have a column for each label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

import numpy as np
from sklearn.base import clone

from enkbayes.core.uncertainty import Uncertainty
from enkbayes.estimators.validation import plain_labels
from enkbayes.inference.evidence import Evidence
from enkbayes.inference.summary import Summary
from enkbayes.inference.trust import Trust, the_worst
from enkbayes.storage.fingerprint import fingerprint
from enkbayes.storage.model_file import Artefact, LabelArtefacts

Array = np.ndarray[Any, Any]
Method = TypeVar("Method", bound=Callable[..., Any])
Classifier = TypeVar("Classifier", bound=Any)


def is_multi_hot(y: Any) -> bool:
    """Return whether labels have two or more columns, which have to be zeros and ones.

    >>> is_multi_hot([[1, 0, 1], [0, 0, 1]]), is_multi_hot([1, 0, 1])
    (True, False)
    """
    shape: Any = getattr(y, "shape", None)
    if shape is None and isinstance(y, list | tuple):
        if any(isinstance(row, set | frozenset) for row in y) or len({np.shape(row) for row in y}) > 1:
            raise ValueError(
                "labels are lists of different lengths, or sets; expected one class for each row, or a column of zeros "
                "and ones for each label, as MultiLabelBinarizer makes them"
            )
        shape = np.shape(y)
    return shape is not None and len(shape) == 2 and bool(shape[-1] > 1)


def columns(y: Any, names: Array | None = None) -> list[Array]:
    """Return the K columns (N,) of multi-hot labels (N, K); those of a data frame in the order of known `names`."""
    if names is not None and names.dtype.kind == "U" and hasattr(y, "columns"):
        own = {str(name): name for name in y.columns}
        if own.keys() != set(names.tolist()):
            raise ValueError(f"labels have the columns {list(own)}; expected {names.tolist()}, as in the fit")
        y = y[[own[name] for name in names.tolist()]]
    dense = np.asarray(plain_labels(y.toarray() if hasattr(y, "toarray") else np.asarray(y)))
    if dense.ndim != 2 or (names is not None and dense.shape[1] != len(names)):
        expected = "K" if names is None else len(names)
        raise ValueError(f"labels have shape {dense.shape}; expected (n, {expected}) of zeros and ones, one per label")
    if dense.dtype.kind not in "fiub" or not np.all((dense == 0) | (dense == 1)):
        raise ValueError(
            f"labels have {dense.shape[1]} columns with other entries than 0 and 1; expected one class for each row, "
            "or one column of zeros and ones per label"
        )
    return list(np.ascontiguousarray(dense.T))


def means_of(prior_mean: Any, labels: int) -> list[Any]:
    """Return the prior mean of each label: a column of a matrix, or the same for all.

    >>> means_of(np.asarray([[1, 2], [3, 4]]), 2)[0].tolist(), means_of(0.0, 2)
    ([1, 3], [0.0, 0.0])
    """
    means = [prior_mean] * labels if np.ndim(prior_mean) < 2 else list(np.asarray(prior_mean).T)
    if len(means) != labels:
        raise ValueError(f"prior_mean has {len(means)} columns; expected {labels}, one for each label")
    return means


def names_of(y: Any) -> Array:
    """Return the names of the labels: those of the columns of a data frame, otherwise their numbers."""
    given = getattr(y, "columns", None)
    found = columns(y)
    return np.arange(len(found)) if given is None else np.asarray([str(name) for name in given])


@dataclass(frozen=True, eq=False)
class BinaryClassifiers:
    """The binary classifier of each of K labels, and the names of the labels."""

    parts: Sequence[Any]
    names: Array

    @classmethod
    def like(cls, clf: Any, y: Any) -> BinaryClassifiers:
        """Return a classifier with the parameters of `clf` for each column of labels, not fitted yet."""
        means = means_of(clf.prior_mean, len(columns(y)))
        return cls([clone(clf).set_params(prior_mean=mean) for mean in means], names_of(y))

    def with_labels(self, y: Any, y_val: Any = None) -> Iterator[tuple[Any, Array, Array | None, Array]]:
        """Yield each classifier with its column of the labels, that of held-out labels or None, and its two classes."""
        names = self.names if len(self.names) == len(self.parts) else np.arange(len(self.parts))
        held_out = [None] * len(names) if y_val is None else columns(y_val, names)
        for part, own, other in zip(self.parts, columns(y, names), held_out, strict=True):
            yield part, own, other, np.asarray([0, 1], dtype=own.dtype)

    def kept_in(self, clf: Classifier) -> Classifier:
        """Return the classifier of all labels, which keeps those of each. Its fitted attributes are lists with an entry
        for each label.
        """
        parts, known = self.parts, vars(self.parts[0])
        found = {name: known[name] for name in ("n_features_in_", "feature_names_in_") if name in known}
        for name in ("posterior_", "tuning_", "calibration_", "far_field_", "class_weight_"):
            found[name] = [getattr(part, name) for part in parts]
        prints = fingerprint(np.zeros((0, 0)), [str(part.fingerprint_) for part in parts])
        steps = sum(part.n_iter_ for part in parts)
        vars(clf).update(estimators_=list(parts), classes_=self.names, n_iter_=steps, fingerprint_=prints, **found)
        return clf


def by_label(join: Callable[[Any, list[Any]], Any], *, split: str | None = None) -> Callable[[Method], Method]:
    """Return a decorator: for multi-hot labels, the method is that of the classifier of each label, and `join` takes
    the classifier of all labels and the K results. Of the argument named `split`, if there is one and it is given, each
    classifier gets its column.
    """

    def decorated(method: Method) -> Method:
        arguments = signature(method)

        @wraps(method)
        def call(self: Any, *args: Any, **settings: Any) -> Any:
            parts = getattr(self, "estimators_", None)
            if parts is None:
                return method(self, *args, **settings)
            given = arguments.bind(self, *args, **settings).arguments
            of_each = [{"self": part} for part in parts]
            if split is not None and given.get(split) is not None:
                of_each = [
                    own | {split: y} for own, y in zip(of_each, columns(given[split], self.classes_), strict=True)
                ]
            return join(self, [method(**given | own) for own in of_each])

        return call  # type: ignore[return-value]

    return decorated


def kept(clf: Any, parts: Sequence[Any]) -> Any:
    """Return the classifier, which keeps the classifiers of its labels."""
    return BinaryClassifiers(parts, clf.classes_).kept_in(clf)


def in_one_file(clf: Any, parts: Sequence[Artefact]) -> LabelArtefacts:
    """Return the contents of one file."""
    return LabelArtefacts(tuple(parts), clf.classes_)


def side_by_side(clf: Any, parts: Sequence[Array]) -> Array:
    """Return columns (n,) as (n, K)."""
    return np.stack(parts, axis=1)


def of_presence(clf: Any, parts: Sequence[Array]) -> Array:
    """Return the probabilities (..., K) that a row has each label, from those of absence and presence (..., 2)."""
    return np.stack([part[..., 1] for part in parts], axis=-1)


def stacked(clf: Any, parts: Sequence[Array]) -> Array:
    """Return rows (1, D) as (K, D), and numbers (1,) as (K,)."""
    return np.concatenate(parts, axis=0)


def the_first(clf: Any, parts: Sequence[Any]) -> Any:
    """Return what does not depend on the labels."""
    return parts[0]


def for_each(clf: Any, parts: Sequence[Any]) -> list[Any]:
    """Return the results as a list."""
    return list(parts)


def thresholds(clf: Any, parts: Sequence[float]) -> Array:
    """Return numbers as an array (K,)."""
    return np.asarray(parts)


def uncertainties(clf: Any, parts: Sequence[Uncertainty]) -> Uncertainty:
    """Return the uncertainty of every label, (n, K) each."""
    names = ("total", "aleatoric", "epistemic", "confidence")
    each = {name: np.stack([getattr(part, name) for part in parts], axis=1) for name in names}
    far = [part.far_field for part in parts if part.far_field is not None]
    return Uncertainty(**each, far_field=np.stack(far, axis=1) if far else None)


def summaries(clf: Any, parts: Sequence[Summary]) -> Summary:
    """Return one table; the column of classes has the label."""
    rows = [replace(row, output=str(name)) for name, part in zip(clf.classes_, parts, strict=True) for row in part.rows]
    return replace(parts[0], rows=tuple(rows))


def least_trusted(clf: Any, parts: Sequence[Trust]) -> Trust:
    """Return the trust of the label that is to be trusted least."""
    return the_worst(parts)


def joint(clf: Any, parts: Sequence[Evidence]) -> Evidence:
    """Return the evidence of all labels, the product of theirs."""
    worst = max(parts, key=lambda part: math.inf if math.isnan(part.error) else part.error)
    value, error = sum(part.value for part in parts), math.sqrt(sum(part.error**2 for part in parts))
    return replace(worst, value=value, error=error, bound=any(part.bound for part in parts))
