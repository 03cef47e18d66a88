"""Predictions with independent noise in every logit: z + r, r ~ N(0, v I), with a variance v for each row.

One logit is averaged in closed form, because the noise only adds to its variance. K logits are averaged over points
that are invariant under cyclic permutations of the classes. So where the noise dominates, every class gets exactly 1/K,
with a finite number of points.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from enkbayes.core.gaussian import standard_points
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.quadrature import cholesky, quasi_random_points
from enkbayes.engine.arrays import Array, identity, like, namespace


def takes_noise(likelihood: Likelihood) -> bool:
    """Return whether wide noise in the logits makes all classes equally probable: two classes with one logit, or a
    logit for each class.

    >>> from enkbayes.core.likelihoods import Bernoulli, Categorical, Ordinal
    >>> takes_noise(Bernoulli()), takes_noise(Categorical(5)), takes_noise(Ordinal((-1.0, 1.0)))
    (True, True, False)
    """
    return likelihood.n_classes == (2 if likelihood.outputs is None else likelihood.outputs)


def noisy_predictive(likelihood: Likelihood, mean_logits: Array, V: Array, noise: Array) -> Array:
    """Return class probabilities (n, K) for Gaussian logits with mean (n,) or (n, K) and covariance V V' + noise I.

    V is (n, r) or (n, K, r), and noise is (n,).

    >>> from enkbayes.core.likelihoods import Categorical
    >>> far = noisy_predictive(Categorical(3), np.asarray([[9.0, 0.0, 0.0]]), np.zeros((1, 3, 1)), np.asarray([1e12]))
    >>> far.round(3).tolist()
    [[0.333, 0.333, 0.333]]
    """
    xp = namespace(V)
    if likelihood.outputs is None:
        return likelihood.predictive(mean_logits, V=xp.concat([V, xp.sqrt(noise)[:, None]], axis=-1))
    K = V.shape[1]
    eye = identity(K, V)
    root = cholesky(xp.matmul(V, V.mT) + noise[:, None, None] * eye)
    points = like(cyclic_points(K), V)
    return xp.mean(likelihood.mean(mean_logits[:, None, :] + xp.matmul(points, root.mT)), axis=1)


def noisy_members(logits: Array, noise: Array, least: int = 1, *, symmetric: bool = False, most: int = 16) -> Array:
    """Return logits (n, m J) or (n, m J, K) of J members, (n, J) or (n, J, K), each with m draws of the noise (n,);
    m is the smallest number that makes `least` members. Member j is among the columns j, j + J, j + 2 J ...

    With `symmetric`, and up to `most` classes, the draws are invariant under cyclic permutations of the classes.

    >>> noisy_members(np.zeros((2, 10)), np.asarray([1.0, 4.0]), 50).std(axis=1).round(6).tolist()
    [1.0, 2.0]
    """
    xp, members = namespace(logits), logits.shape[1]
    outputs = 1 if logits.ndim == 2 else logits.shape[2]
    turns = outputs if symmetric and outputs <= most else 1
    copies = max(1, math.ceil(least / (members * turns)))
    repeated = xp.concat([logits] * (copies * turns), axis=1)
    base = _draws(copies * members, outputs)
    points = like(np.concatenate([np.roll(base, shift, axis=1) for shift in range(turns)]), logits)
    sd = xp.sqrt(noise)
    return repeated + (sd[:, None] * points[:, 0] if logits.ndim == 2 else sd[:, None, None] * points)


@lru_cache(maxsize=16)
def cyclic_points(dim: int, log2_size: int = 5, most: int = 16) -> np.ndarray[Any, Any]:
    """Return points (Q, dim) of the standard normal with zero mean and identity second moment, antithetic, and, up to
    `most` coordinates, invariant under cyclic permutations of the coordinates.

    >>> points = cyclic_points(5)
    >>> points.shape, np.bincount(points.argmax(axis=1)).tolist()
    ((160, 5), [32, 32, 32, 32, 32])
    """
    if dim > most:
        return quasi_random_points(dim)
    points = quasi_random_points(dim, log2_size)
    return np.concatenate([np.roll(points, shift, axis=1) for shift in range(dim)])


@lru_cache(maxsize=16)
def _draws(size: int, dim: int) -> np.ndarray[Any, Any]:
    return standard_points(size, dim, np.random.default_rng(13))
