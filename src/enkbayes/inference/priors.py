"""The Gaussian prior of a linear classifier, from a precision and a mean for its features."""

from __future__ import annotations

from typing import Any

import numpy as np

from enkbayes.core.arguments import check_positive
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.engine.arrays import as_double, to_numpy
from enkbayes.inference.empirical_bayes import feature_groups, parameter_groups

AUTO, AVERAGE = "auto", "average"


def weight_and_intercept_priors(
    dim: int,
    outputs: int | None,
    *,
    precision: Any = 1.0,
    mean: Any = 0.0,
    intercept_precision: Any = 0.01,
    fit_intercept: bool = True,
) -> tuple[Gaussian, Gaussian | None]:
    """Return the priors of the weights and of the intercept (None without one), for `Problem.create`.

    precision and mean are those of `weight_prior`. A precision of "auto" or "average" counts as 1 until it is chosen. A
    mean with one more row, (D + 1,) or (D + 1, K), also holds the mean of the intercept, in its last row.

    >>> weights, intercept = weight_and_intercept_priors(2, None, mean=[1.0, 2.0, 3.0])
    >>> weights.mean.tolist(), intercept.mean.tolist(), intercept.cov.tolist()
    ([1.0, 2.0], [3.0], [100.0])
    """
    weight_precision = _number_for_auto(precision, "prior_precision")
    constant_precision = _number_for_auto(intercept_precision, "intercept_precision")
    check_positive("intercept_precision", constant_precision)
    logits = outputs or 1
    constant = np.zeros(logits)
    if fit_intercept and np.shape(mean) in ((dim + 1,), (dim + 1, logits)):
        rows = np.asarray(mean, dtype=np.float64)
        mean, constant = rows[:-1], np.broadcast_to(rows[-1], (logits,))
    weights = weight_prior(dim, outputs, weight_precision, mean)
    return weights, Gaussian(constant, 1 / constant_precision) if fit_intercept else None


def weight_prior(dim: int, outputs: int | None, precision: Any = 1.0, mean: Any = 0.0) -> Gaussian:
    """Return the Gaussian over the weights of `dim` features, (D,) for one logit and (D, K) flattened for K outputs.

    Parameters
    ----------
    dim : int
        D, the number of features.
    outputs : int, optional
        K, or None for a single logit.
    precision : float, array (D,) or array (D, D)
        Inverse variance, inverse variances of the features, or inverse covariance between features. The weights of
        different outputs are independent and share it.
    mean : float, array (D,) or array (D, K)
        (D,) is shared by all outputs.

    Examples
    --------
    >>> weight_prior(2, None, precision=[1.0, 4.0]).cov.tolist()
    [1.0, 0.25]
    >>> weight_prior(2, 3, precision=[1.0, 4.0]).cov.tolist()
    [1.0, 1.0, 1.0, 0.25, 0.25, 0.25]
    """
    return Gaussian(_mean(dim, outputs, mean), _covariance(dim, outputs or 1, _numbers(precision, "prior_precision")))


def is_auto(precision: Any) -> bool:
    """Return whether a precision is to be chosen by the evidence."""
    return isinstance(precision, str) and precision == AUTO


def is_average(precision: Any) -> bool:
    """Return whether predictions are to be averaged over the precision."""
    return isinstance(precision, str) and precision == AVERAGE


def groups_to_choose(
    linear: LinearLogits, precision: Any, intercept_precision: Any, groups: Any
) -> np.ndarray[Any, Any] | None:
    """Return the group (P,) of each parameter whose prior is to be chosen by evidence and -1 for the others; None
    without any. An average over the width keeps the ratios of the groups' variances, which the evidence chooses.
    """
    grouped = is_average(precision) and bool(feature_groups(linear.features, groups).any())
    weights, intercept = is_auto(precision) or grouped, is_auto(intercept_precision) and linear.intercept
    if not (weights or intercept):
        return None
    return parameter_groups(linear, groups, weights=weights, intercept=intercept)


def chosen_precision(precision: Any, chosen: np.ndarray[Any, Any] | None, groups: Any, dim: int) -> Any:
    """Return the precision of the weights: as given, or the chosen one, a number or an array (D,) with groups."""
    if not (is_auto(precision) or is_average(precision)) or chosen is None:
        return precision
    if groups is None:
        return float(chosen[0]) if len(chosen) < dim or dim == 1 else chosen
    return chosen[feature_groups(dim, groups)]


def precision_of(prior: Gaussian, parameters: slice) -> Any:
    """Return the inverse variance of some parameters under a prior, where it is one number; otherwise an inverse
    variance for each of them (n,), or their inverse covariance (n, n).

    >>> precision_of(Gaussian(np.zeros(3), np.asarray([0.5, 0.5, 4.0])), slice(2))
    2.0
    """
    cov = as_double(prior.cov)
    if cov.ndim == 2:
        return np.linalg.inv(cov[parameters, parameters])
    found = 1 / cov[parameters]
    return float(found[0]) if np.all(found == found[0]) else found


def _number_for_auto(precision: Any, name: str) -> Any:
    average = is_average(precision) and name == "prior_precision"
    if isinstance(precision, str) and not (is_auto(precision) or average):
        words = (
            '"average", "auto", or positive numbers' if name == "prior_precision" else 'a positive number, or "auto"'
        )
        raise ValueError(f"{name} is {precision!r}; expected {words}")
    return 1.0 if average or is_auto(precision) else precision


def _covariance(dim: int, copies: int, precision: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if precision.shape not in ((), (dim,), (dim, dim)):
        raise ValueError(
            f"prior_precision has shape {precision.shape}; expected a number, ({dim},) with one for each feature, "
            f"or ({dim}, {dim})"
        )
    if precision.ndim < 2:
        if not np.all(precision > 0):
            raise ValueError(f"the smallest prior_precision is {precision.min():g}; expected positive numbers")
        with np.errstate(over="ignore"):  # an infinite variance is refused with its range
            return np.repeat(np.broadcast_to(1 / precision, (dim,)), copies)
    if not np.allclose(precision, precision.T, rtol=1e-6, atol=1e-12):
        raise ValueError("the matrix prior_precision is not symmetric; pass (A + A.T) / 2")
    smallest = float(np.linalg.eigvalsh(precision)[0])
    if smallest <= 0:
        raise ValueError(
            f"the matrix prior_precision is not positive definite (smallest eigenvalue {smallest:g}); "
            "add a small multiple of the identity"
        )
    inverse = np.linalg.inv(precision)
    return np.kron((inverse + inverse.T) / 2, np.eye(copies))


def _mean(dim: int, outputs: int | None, mean: Any) -> np.ndarray[Any, Any]:
    values = _numbers(mean, "prior_mean")
    copies = outputs or 1
    if values.shape not in ((), (dim,), (dim, copies)):
        expected = f"a number, ({dim},) with one for each feature" + (f", or ({dim}, {outputs})" if outputs else "")
        raise ValueError(f"prior_mean has shape {values.shape}; expected {expected}")
    columns = values[:, None] if values.ndim == 1 else values
    return np.broadcast_to(columns, (dim, copies)).reshape(-1)


def _numbers(x: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        given = to_numpy(x)
        values = np.asarray(given, dtype=np.float64) if given.dtype.kind in "fiubO" else None
    except (TypeError, ValueError, OverflowError):
        values = None
    if values is None:
        raise ValueError(f"{name} is {x!r}; expected a number or an array of numbers")
    if not np.all(np.isfinite(values)):
        raise ValueError(f"{name} contains NaN or infinite values; expected finite numbers")
    return values
