"""What every likelihood shares: from the terms of one row to sums over an ensemble.

A likelihood is one class in one file. It states, for the logit z of a row (or its K logits) and its target d,

    loss        -log p(d | z)
    slope       d loss / dz
    curvature   d^2 loss / dz^2, or its expectation over d where the loss is not convex
    mean        what is predicted for z: the class probabilities, or E[d | z]

`Likelihood` derives the rest: averages over particles and over Gaussian logits, their sums over rows in the coordinates
of a basis, and predictions. A likelihood overrides a derived method where it knows a closed form or a faster way.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from enkbayes.core.labels import encode, real_targets
from enkbayes.core.quadrature import GaussianPoints, averaged_over_nodes, averaged_over_points
from enkbayes.engine.arrays import Array, like, namespace, take_rows

Averages = tuple[Array, Array, Array]
"""Loss (n,), slope (n,) or (n, K), and curvature (n,) or (n, K, K) of each row, averaged over its logits."""


class Likelihood:
    """The base class of all likelihoods; n rows, J particles, r coordinates of a basis, K logits, C predicted values.

    A subclass defines `loss`, `slope`, `curvature` and `mean`. It sets `outputs` to K if a row has K logits; then each
    shape (n, J) of logits below is (n, J, K), and V (n, r) is (n, K, r). It sets `n_classes` if targets are classes.
    A frozen dataclass makes its parameters part of its equality, its repr and its model files.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import enkbayes as eb
    >>> @dataclass(frozen=True)
    ... class Exponential(eb.Likelihood):
    ...     '''Waiting times d > 0 with rate exp(z).'''
    ...
    ...     def loss(self, logits, targets):
    ...         return targets[:, None] * np.exp(logits) - logits
    ...
    ...     def slope(self, logits, targets):
    ...         return targets[:, None] * np.exp(logits) - 1
    ...
    ...     def curvature(self, logits, targets):
    ...         return targets[:, None] * np.exp(logits)
    ...
    ...     def mean(self, logits):
    ...         return np.exp(-logits)[..., None]
    >>> problem = eb.Problem.create([[1.0]] * 50, [0.5] * 50, likelihood=Exponential())
    >>> eb.run(problem, eb.MeanField()).predict_proba([[1.0]]).round(2).tolist()
    [[0.52]]
    """

    outputs: int | None = None
    """Logits of a row: K, or None for a single one without an axis of its own."""

    n_classes: int | None = None
    """How many classes the targets have; None where they are real numbers."""

    shift_invariant: ClassVar[bool] = False
    """Whether the same number added to all K logits changes nothing, as in a softmax."""

    @property
    def exact_closure(self) -> bool:
        """Whether averages over Gaussian logits are exact to round-off, rather than by quasi-random points."""
        return self.outputs is None

    def loss(self, logits: Array, targets: Array) -> Array:
        """Return -log p(target | logits) of each row and particle, (n, J), from logits (n, J) and targets (n,)."""
        raise NotImplementedError(f"{type(self).__name__} does not define loss(logits, targets)")

    def slope(self, logits: Array, targets: Array) -> Array:
        """Return the derivative of the loss in the logits: (n, J), or (n, J, K) for K logits."""
        raise NotImplementedError(f"{type(self).__name__} does not define slope(logits, targets)")

    def curvature(self, logits: Array, targets: Array) -> Array:
        """Return the second derivative of the loss in the logits: (n, J), or (n, J, K, K) for K logits."""
        raise NotImplementedError(f"{type(self).__name__} does not define curvature(logits, targets)")

    def mean(self, logits: Array) -> Array:
        """Return what is predicted for logits (...) or (..., K): class probabilities (..., C), or E[d | z] (..., 1)."""
        raise NotImplementedError(f"{type(self).__name__} does not define mean(logits)")

    def noise_variance(self, logits: Array) -> Array:
        """Return the variance of a real target given its logit: (...) from logits (...)."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define noise_variance(logits), which predict_uncertainty needs; "
            "define it, or use predict_proba and sample_proba"
        )

    def variance_of_mean(self, mean_logits: Array, *, V: Array) -> Array | None:
        """Return the variance (n,) of a target's mean under logits N(mean_logits, V V'), where it has a closed form."""
        return None

    @property
    def parameters(self) -> np.ndarray[Any, Any]:
        """Unconstrained parameters (p,) of the likelihood that `fit_likelihood` chooses; by default there are none."""
        return np.zeros(0)

    def with_parameters(self, parameters: np.ndarray[Any, Any]) -> Likelihood:
        """Return the likelihood with other parameters (p,)."""
        return self

    def encode(self, labels: Any, size: int, classes: Any = None) -> tuple[np.ndarray[Any, Any], Any]:
        """Return targets (size,) as class numbers or real numbers, and the classes (C,) or None, from what a user
        passes.
        """
        if self.n_classes is None:
            return real_targets(labels, size, type(self).__name__), None
        numbers, known = encode(labels, size, classes)
        if len(known) != self.n_classes:
            raise ValueError(
                f"labels have {len(known)} classes, which does not fit {self}; expected {self.n_classes} classes"
            )
        return numbers, known

    def targets(self, encoded: np.ndarray[Any, Any], reference: Array) -> Array:
        """Return encoded targets (n,) in the library of `reference`: the classes of K logits as integers, all other
        targets as floating-point numbers.
        """
        whole = self.outputs is not None and self.n_classes is not None
        return like(encoded, reference, dtype=namespace(reference).int64 if whole else None)

    def averages(self, logits: Array, targets: Array, *, energy: bool = True) -> Averages:
        """Return loss, slope and curvature of each row, averaged over the particles' logits (n, J), which may be
        overwritten; without `energy` the loss may be NaN.
        """
        xp = namespace(logits)
        loss = xp.mean(self.loss(logits, targets), axis=1) if energy else unknown(logits)
        return loss, xp.mean(self.slope(logits, targets), axis=1), xp.mean(self.curvature(logits, targets), axis=1)

    def gaussian_averages(self, mean_logits: Array, targets: Array, *, V: Array, refine: int = 0) -> Averages:
        """Return loss, slope and curvature of each row, averaged over Gaussian logits with mean (n,) and covariance
        V V'.

        One logit is averaged by a trapezoid rule that resolves its width; K logits by 4**refine times 256 quasi-random
        points.
        """
        if self.outputs is not None:
            return self.averages(GaussianPoints.of(V, refine).logits(mean_logits), targets)

        def terms(logits: Array, rows: Any) -> Averages:
            some = take_rows(targets, rows)
            return self.loss(logits, some), self.slope(logits, some), self.curvature(logits, some)

        loss, slope, curvature = averaged_over_nodes(terms, mean_logits, V)
        return loss, slope, curvature

    def particle_predictive(self, logits: Array) -> Array:
        """Return the average (n, C) of `mean` over the particles' logits (n, J), which may be overwritten."""
        return namespace(logits).mean(self.mean(logits), axis=1)

    def predictive(self, mean_logits: Array, *, V: Array) -> Array:
        """Return the average (n, C) of `mean` over Gaussian logits with mean (n,) and covariance V V'."""
        if self.outputs is not None:
            return averaged_over_points(self.mean, mean_logits, V)
        return averaged_over_nodes(lambda logits, _: (self.mean(logits),), mean_logits, V)[0]


def pull_back(V: Array, averages: Averages) -> tuple[Array, Array, Array]:
    """Return the sums over rows in the coordinates of a basis with logits V (n, r) or (n, K, r): the loss,

    g = sum_n V_n' slope_n (r,)    and    S = sum_n V_n' curvature_n V_n (r, r).
    """
    xp, rank = namespace(V), V.shape[-1]
    loss, slope, curvature = averages
    pulled = curvature[:, None] * V if V.ndim == 2 else xp.matmul(curvature, V)
    flat = xp.reshape(V, (-1, rank))
    return xp.sum(loss), flat.mT @ xp.reshape(slope, (-1,)), flat.mT @ xp.reshape(pulled, (-1, rank))


def weighted(x: Array, weights: Array | None) -> Array:
    """Return x (n, ...) with each row times its weight (n,), or x itself without weights.

    >>> weighted(np.ones((2, 2)), np.asarray([1.0, 3.0])).tolist()
    [[1.0, 1.0], [3.0, 3.0]]
    """
    return x if weights is None else x * namespace(x).reshape(weights, (-1, *(1 for _ in x.shape[1:])))


def unknown(logits: Array) -> Array:
    """Return NaN for each row (n,) of logits (n, ...), in place of a loss that is not needed."""
    return namespace(logits).full((logits.shape[0],), np.nan, dtype=logits.dtype, device=logits.device)
