"""The prior of a linear classifier from what its user knows of the features: a precision and a mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.linear_map import LinearMap
from enkbayes.engine.arrays import to_numpy
from enkbayes.inference.empirical_bayes import feature_groups, parameter_groups

AUTO = "auto"


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


def _covariance(dim: int, copies: int, precision: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if precision.shape not in ((), (dim,), (dim, dim)):
        raise ValueError(
            f"prior_precision has shape {precision.shape}; expected a number, ({dim},) with one for each feature, "
            f"or ({dim}, {dim})"
        )
    if precision.ndim < 2:
        if not np.all(precision > 0):
            raise ValueError(f"the smallest prior_precision is {precision.min():g}; expected positive numbers")
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
        values = np.asarray(to_numpy(x), dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {x!r}; expected a number or an array of numbers") from None
    if not np.all(np.isfinite(values)):
        raise ValueError(f"{name} contains NaN or infinite values; expected finite numbers")
    return values


def is_auto(precision: Any) -> bool:
    """Tell whether a precision is to be chosen by evidence."""
    return isinstance(precision, str) and precision == AUTO


def stated(precision: Any, name: str) -> Any:
    """Return a precision that is a number or an array; 1 for one that is still to be chosen."""
    if isinstance(precision, str) and precision != AUTO:
        raise ValueError(f'{name} is {precision!r}; expected positive numbers, or "auto"')
    return 1.0 if is_auto(precision) else precision


def groups_to_choose(
    linear: LinearMap, precision: Any, intercept_precision: Any, groups: Any
) -> np.ndarray[Any, Any] | None:
    """Return the group (P,) of every parameter whose prior is to be chosen, -1 for others; None if there is none."""
    weights, intercept = is_auto(precision), is_auto(intercept_precision) and linear.intercept
    if not (weights or intercept):
        return None
    return parameter_groups(linear, groups, weights=weights, intercept=intercept)


def chosen_precision(precision: Any, chosen: np.ndarray[Any, Any] | None, groups: Any, dim: int) -> Any:
    """Return the precision of the weights: as stated, or the chosen one, a number or an array (D,) over groups."""
    if not is_auto(precision) or chosen is None:
        return precision
    return float(chosen[0]) if groups is None else chosen[feature_groups(dim, groups)]
