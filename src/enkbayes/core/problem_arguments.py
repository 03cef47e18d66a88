"""The arguments of a problem: checked where they come in, and brought into the form that a problem holds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np

from enkbayes.core.arguments import is_whole
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.labels import class_counts, encode, observation_weights, sorted_classes
from enkbayes.core.likelihoods import Bernoulli, Categorical, Likelihood
from enkbayes.engine.arrays import Array, like, namespace, to_numpy
from enkbayes.engine.processes import gather, shared_errors
from enkbayes.engine.rows import CHUNK
from enkbayes.engine.streamed_rows import survey


def targets_of(
    labels: Any, size: int, likelihood: Likelihood | None, classes: Any, reference: Array
) -> tuple[Array, np.ndarray[Any, Any] | None, Likelihood]:
    """Return targets in the library of `reference`, the classes, and the likelihood that fits them."""
    if likelihood is None:
        encoded, known = encode(labels, size, classes)
        likelihood = Bernoulli() if len(known) == 2 else Categorical(len(known))
    else:
        encoded, known = checked_likelihood(likelihood).encode(labels, size, classes)
    return likelihood.targets(encoded, reference), known, likelihood


def prior_for(prior: Gaussian | float, dim: int, meaning: str, reference: Array) -> Gaussian:
    """Return the prior in the library of `reference`, of the dimension that the data ask for."""
    if not isinstance(prior, Gaussian | Real):
        raise ValueError(f"a prior is {prior!r}; expected a Gaussian, or a number for the variance of N(0, variance I)")
    gaussian = prior if isinstance(prior, Gaussian) else Gaussian.isotropic(dim, float(prior))
    if gaussian.dim != dim:
        raise ValueError(
            f"the prior has dimension {gaussian.dim}; expected {dim} ({meaning}) to fit features and labels"
        )
    _check_range(gaussian, reference)
    return gaussian.to(reference)


def _check_range(prior: Gaussian, reference: Array) -> None:
    """Raise a ValueError for a prior so wide or narrow that products of its variances leave the range of the dtype."""
    most = float(namespace(reference).finfo(reference.dtype).max) ** (1 / 3)
    variances = to_numpy(prior.cov if prior.cov.ndim == 1 else namespace(prior.cov).linalg.diagonal(prior.cov))
    mean = float(np.max(np.abs(to_numpy(prior.mean))))
    if np.min(variances) < 1 / most or np.max(variances) > most or mean > most:
        raise ValueError(
            f"the prior has variances from {np.min(variances):.3g} to {np.max(variances):.3g} and means up to "
            f"{mean:.3g}; expected variances between {1 / most:.0e} and {most:.0e}, and means below that, to compute "
            f"in {reference.dtype}"
        )


def weights_of(weights: Any, size: int, reference: Array) -> Array | None:
    """Return observation weights (N,) in the library of `reference`, or None."""
    return None if weights is None else like(observation_weights(weights, size), reference)


def chunk_rows(chunk: int | None, outputs: int | None) -> int:
    """Return how many rows are read at a time: as given, or by default fewer for many outputs."""
    if chunk is None:
        return max(CHUNK // (outputs or 1), 64)
    if not is_whole(chunk, 1):
        raise ValueError(f"chunk is {chunk!r}; expected a positive number of rows")
    return int(chunk)


def has_classes(likelihood: Likelihood | None) -> bool:
    """Return whether targets are classes, as they are by default."""
    return likelihood is None or checked_likelihood(likelihood).n_classes is not None


def checked_likelihood(likelihood: Any) -> Likelihood:
    """Return a likelihood object; raise a ValueError for anything else, the class of a likelihood included."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    got = f"the class {likelihood.__name__}" if isinstance(likelihood, type) else repr(likelihood)
    raise ValueError(f"likelihood is {got}; expected a likelihood object, such as Bernoulli() or Categorical(3)")


def survey_labels(
    source: Iterable[Any], likelihood: Likelihood | None, classes: Any
) -> tuple[int, Any, Array, Any, bool]:
    """Return the number of rows, the classes, the first chunk's features, a label, and whether any row has a positive
    weight; every row is checked.
    """
    found: set[Any] = set()
    seen: list[Any] = []
    positive: list[bool] = []

    def check(labels: Any, weights: Any, row: int) -> None:
        seen[:] = seen or [labels[0]]
        positive.append(weights is None or bool(np.any(observation_weights(weights, len(labels), positive=False) > 0)))
        if likelihood is not None and not has_classes(likelihood):
            likelihood.encode(labels, len(labels))  # raises an error where a label is not one
        elif classes is None:
            found.update(_classes_among(labels, row))

    size, first = survey(source, check)
    if not has_classes(likelihood):
        return size, None, first, seen[0], any(positive)
    if classes is not None:
        sorted_classes(classes)  # raises an error if they are not classes
    known = np.asarray(_sorted(found)) if classes is None else to_numpy(classes)  # in the order of the caller
    if len(known) < 2:
        raise ValueError(f"labels contain a single class, {known[0]}; expected two or more, or classes=[...] with all")
    return size, known, first, seen[0], any(positive)


def _classes_among(labels: Any, row: int) -> set[Any]:
    """Return the classes among labels that begin with a row."""
    try:
        found = set(np.unique(labels).tolist())
    except TypeError:  # text and numbers
        found = set(labels.tolist())
    if any(label is None or (isinstance(label, float) and math.isnan(label)) for label in found):
        raise ValueError(f"some labels from row {row:,} on are missing; drop those rows first")
    return found


def _sorted(found: set[Any]) -> list[Any]:
    try:
        return sorted(found)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in found})
        raise ValueError(f"labels are of several kinds, {', '.join(kinds)}; expected all text or all numbers") from None


def shared_classes(labels: Any, classes: Any = None) -> np.ndarray[Any, Any]:
    """Return `classes`, or without them all that the labels (n,) of all processes have; n may be 0."""
    if classes is not None:
        return np.asarray(classes)
    mine = np.unique(to_numpy(labels)).tolist() if len(labels) else []
    return np.unique(np.asarray([label for part in gather(mine) for label in part]))


def shared_counts(labels: Any, classes: Any, weights: Any = None) -> np.ndarray[Any, Any]:
    """Return the number of rows of each class (K,) on all processes, in sorted order; this one may have none."""
    with shared_errors():
        mine = class_counts(labels, classes, weights)
    return np.asarray(np.sum(gather(mine), axis=0))
