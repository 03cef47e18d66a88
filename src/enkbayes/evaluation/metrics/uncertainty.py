"""The uncertainty of each prediction."""

from __future__ import annotations

from typing import Any

import numpy as np

from enkbayes.core.uncertainty import Uncertainty
from enkbayes.engine import arrays
from enkbayes.engine.arrays import as_double
from enkbayes.evaluation.metrics.inputs import Vector, probabilities


def confidence(proba: Any) -> Vector:
    """Return the largest probability of each row (n,).

    >>> confidence([0.25, 0.5, 1.0])
    array([0.75, 0.5 , 1.  ])
    """
    return np.asarray(np.max(probabilities(proba), axis=1))


def entropy(proba: Any) -> Vector:
    """Return the entropy -sum_k p_k log p_k of each row (n,), in nats: between 0 and log K.

    >>> entropy([[0.5, 0.5], [0.9, 0.1]]).round(4)
    array([0.6931, 0.3251])
    """
    return np.asarray(arrays.entropy(probabilities(proba)))


def mutual_information(sample_proba: Any) -> Vector:
    """Return the mutual information between prediction and parameters (n,), in nats: the disagreement of the members.

    It is the entropy of the average prediction minus the average entropy of the predictions, which is the epistemic
    part of the total uncertainty.

    Parameters
    ----------
    sample_proba : array (J, n, K), or (J, n)
        Predictions of the J members of an ensemble, as `sample_proba` returns them; (J, n) contains probabilities of
        class 1.

    Examples
    --------
    >>> agree, disagree = [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]  # each: two members, two classes
    >>> mutual_information(np.stack([agree, disagree], axis=1)).round(4)
    array([0.    , 0.6931])
    """
    return np.asarray(Uncertainty.of_members(_members(sample_proba)).epistemic)


def logit_variance(sample_proba: Any) -> Vector:
    """Return the variance of the logits over the members of an ensemble (n,), averaged over the classes.

    Logits are log p_k minus their mean over k, so that a shift of all K logits has no effect.

    Parameters
    ----------
    sample_proba : array (J, n, K), or (J, n)
        As for `mutual_information`.

    Examples
    --------
    >>> logits = np.asarray([[-1.0], [1.0]])  # two members, one row
    >>> logit_variance(1 / (1 + np.exp(-2 * logits))).round(4)
    array([1.])
    """
    log_p = np.log(np.maximum(_members(sample_proba), np.finfo(np.float64).tiny))
    return np.asarray(np.var(log_p - np.mean(log_p, axis=2, keepdims=True), axis=0).mean(axis=1))


def _members(sample_proba: Any) -> Vector:
    """Return the predictions of members as (J, n, K) and check them."""
    p = as_double(sample_proba)
    if p.ndim not in (2, 3) or len(p) == 0:
        raise ValueError(
            f"sample_proba has shape {p.shape}; expected (J, n, K), or (J, n) for two classes, with J >= 1"
        )
    members, rows = p.shape[:2]
    return probabilities(p.reshape(members * rows, *p.shape[2:]), "sample_proba").reshape(members, rows, -1)
