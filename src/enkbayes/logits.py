"""From parameters to logits: linear in features, or any function of the parameters.

Both kinds answer one question, `moments`: what do the data say to this ensemble, in the coordinates of its basis?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np
import scipy.sparse

from enkbayes.arrays import Array, like, namespace, row_slices, take_rows
from enkbayes.ensemble import AffineEnsemble
from enkbayes.expectations import Expectation, empirical
from enkbayes.likelihoods import Likelihood
from enkbayes.moments import Moments, Sums

Piece = tuple[Array, Any, Any]
"""Features (n, D), targets (n,) and weights (n,) or None of some rows."""

Sum = TypeVar("Sum", bound=Any)
"""Something that pieces of the data add to."""


def _rows(x: Array | None, rows: slice) -> Any:
    return None if x is None else x[rows]


@dataclass(frozen=True)
class LinearMap:
    """How P parameters act on D features: K logits (None for a single one), and a constant feature 1 at the end if
    there is an intercept.
    """

    features: int
    outputs: int | None
    intercept: bool

    @property
    def dim(self) -> int:
        """The number of parameters P."""
        return (self.features + self.intercept) * (self.outputs or 1)

    def project(self, features: Array, columns: Array) -> Array:
        """Return the logits of each column of (P, c), for each row of features (n, D): (n, c), or (n, K, c) for K
        outputs.
        """
        xp = namespace(columns)
        K, c = self.outputs or 1, columns.shape[1]
        matrix = xp.reshape(columns, (self.features + self.intercept, K * c))
        logits = features @ matrix[: self.features, :]
        if self.intercept:
            logits = logits + matrix[self.features, :]
        return logits if self.outputs is None else xp.reshape(logits, (features.shape[0], K, c))

    def particle_logits(self, features: Array, theta: Array) -> Array:
        """Return the logits of every particle theta (J, P): (n, J), or (n, J, K)."""
        logits = self.project(features, theta.mT)
        return logits if self.outputs is None else logits.mT

    def pull_back(self, features: Array, slope: Array) -> Array:
        """Return the gradients (J, P) of a loss whose slopes in the particles' logits are (n, J) or (n, J, K)."""
        xp = namespace(slope)
        n, J, K = slope.shape[0], slope.shape[1], self.outputs or 1
        flat = xp.reshape(slope, (n, J * K))
        columns = features.T @ flat
        if self.intercept:
            columns = xp.concat([columns, xp.sum(flat, axis=0)[None, :]], axis=0)
        return xp.reshape(xp.moveaxis(xp.reshape(columns, (-1, J, K)), 1, 0), (J, self.dim))

    def pull_back_curvature(self, features: Array, curvature: Array) -> Array:
        """Return the Hessian (P, P) of a loss whose curvature in each datum's logits is (n,) or (n, K, K)."""
        xp = namespace(curvature)
        x = like(features.toarray(), curvature) if scipy.sparse.issparse(features) else features
        if self.intercept:
            x = xp.concat([x, xp.ones((x.shape[0], 1), dtype=x.dtype, device=x.device)], axis=1)
        if self.outputs is None:
            return x.mT @ (curvature[:, None] * x)
        K = range(self.outputs)
        blocks = {(i, j): x.mT @ (curvature[:, i, j, None] * x) for i in K for j in range(i + 1)}
        full = xp.stack([xp.stack([blocks[max(i, j), min(i, j)] for j in K]) for i in K])
        return xp.reshape(xp.permute_dims(full, (2, 0, 3, 1)), (self.dim, self.dim))

    def gaussian_logits(self, features: Array, ensemble: AffineEnsemble) -> tuple[Array, Array]:
        """Return the mean logits (n,) or (n, K) and the logits V (n, r) or (n, K, r) of the basis."""
        columns = namespace(ensemble.mean).concat([ensemble.mean[:, None], ensemble.basis], axis=1)
        logits = self.project(features, columns)
        return logits[..., 0], logits[..., 1:]

    def predictive_logits(self, features: Array, ensemble: AffineEnsemble) -> tuple[Array, Array]:
        """Return the mean logits and columns V with V V' the covariance of the logits, the complement's part
        included.
        """
        mean_logits, V = self.gaussian_logits(features, ensemble)
        if ensemble.complement is None:
            return mean_logits, V
        return mean_logits, namespace(V).concat([V, ensemble.complement.logit_columns(features, V)], axis=-1)


@dataclass(frozen=True)
class Elsewhere:
    """Stands for features (N, D) that are never in memory at once. Who looks at them anyway is told why not."""

    shape: tuple[int, int]
    why: str

    def __getitem__(self, rows: Any) -> Any:
        raise ValueError(self.why)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise ValueError(self.why)

    def __array_namespace__(self, **_: Any) -> Any:
        raise ValueError(self.why)


@dataclass(frozen=True, eq=False)
class LinearLogits:
    """The logits of features (N, D) under a linear map.

    The features are never copied: they are read `chunk` rows at a time, so memory is O(chunk (J + r)) for any N.
    """

    features: Array
    map: LinearMap
    chunk: int

    @property
    def size(self) -> int:
        """The number of data N."""
        return int(self.features.shape[0])

    @property
    def dim(self) -> int:
        """The number of parameters P."""
        return self.map.dim

    @property
    def slices(self) -> Iterator[slice]:
        """The rows that are read at a time."""
        return row_slices(self.size, self.chunk)

    def pieces(self, targets: Array | None, weights: Array | None) -> Iterator[Piece]:
        """Yield all data once, `chunk` rows at a time."""
        for rows in self.slices:
            yield self.features[rows, :], _rows(targets, rows), _rows(weights, rows)

    def total(self, parts: Iterable[Sum]) -> Sum:
        """Return the sum over all data of what each piece adds."""
        return reduce(add, parts)

    def moments(
        self,
        ensemble: AffineEnsemble,
        likelihood: Likelihood,
        expectation: Expectation,
        targets: Array,
        weights: Array | None,
    ) -> Moments:
        """Return the sums over all data, added up piece by piece."""

        def part(piece: Piece) -> Moments:
            features, *observed = piece
            mean_logits, V = self.map.gaussian_logits(features, ensemble)
            return expectation(likelihood, mean_logits, V, ensemble.points, *observed)

        return self.total(map(part, self.pieces(targets, weights)))

    def loss(self, theta: Array, likelihood: Likelihood, targets: Array, weights: Array | None) -> Array:
        """Return Psi (J,) of the particles theta (J, P)."""

        def part(piece: Piece) -> Array:
            features, *observed = piece
            return likelihood.loss(self.map.particle_logits(features, theta), *observed)

        return self.total(map(part, self.pieces(targets, weights)))

    def loss_and_gradient(
        self, theta: Array, likelihood: Likelihood, targets: Array, weights: Array | None
    ) -> tuple[Array, Array]:
        """Return Psi (J,) and its gradient (J, P) at the particles theta (J, P), in one pass over the features."""

        def part(piece: Piece) -> Sums:
            features, *observed = piece
            logits = self.map.particle_logits(features, theta)
            gradient = self.map.pull_back(features, likelihood.slope(logits, *observed))
            return Sums((likelihood.loss(logits, *observed), gradient))

        loss, gradient = self.total(map(part, self.pieces(targets, weights))).parts
        return loss, gradient

    def hessian(self, theta: Array, likelihood: Likelihood, weights: Array | None) -> Array:
        """Return the Hessian of Psi (P, P) at theta (P,), block by block of the K logits."""

        def part(piece: Piece) -> Array:
            features, _, counts = piece
            logits = self.map.particle_logits(features, theta[None, :])[:, 0, ...]
            return self.map.pull_back_curvature(features, likelihood.curvature(logits, counts))

        return self.total(map(part, self.pieces(None, weights)))

    def subset(self, rows: np.ndarray[Any, Any]) -> LinearLogits:
        """Return the same map on some of the rows."""
        return replace(self, features=take_rows(self.features, rows))


@dataclass(frozen=True, eq=False)
class NonlinearLogits:
    """Logits f(theta) of any kind: `logits(theta (J, P))` gives (N, J), or (N, J, K).

    With `jacobian(theta (J, P), tangents (P, r))`, the directional derivatives (N, J, r) or (N, J, K, r), the moments
    are the averaged Gauss-Newton ones. Without it they are derivative-free: the slope of the logits over the ensemble,
    V = (F - Fbar) points / J, stands in for the Jacobian. That is exact for linear logits and only as good as the
    logits are close to linear over the ensemble's spread; `nonlinearity` measures it.
    """

    logits: Callable[[Array], Array]
    jacobian: Callable[[Array, Array], Array] | None
    outputs: int | None
    size: int
    dim: int
    chunk: int

    def moments(
        self,
        ensemble: AffineEnsemble,
        likelihood: Likelihood,
        expectation: Expectation,
        targets: Array,
        weights: Array | None,
    ) -> Moments:
        """Return the sums over all data."""
        if expectation is not empirical:
            raise ValueError("nonlinear logits have no Gaussian closure; use Equilibrium() or another particle sampler")
        if self.jacobian is None:
            F = self.logits(ensemble.theta)
            return likelihood.moments(F, _slope(F, ensemble.points), targets, weights)
        group = max(1, self.chunk // self.size)
        theta = ensemble.theta
        parts = (theta[j : j + group, :] for j in range(0, ensemble.size, group))
        return reduce(add, (self._gauss_newton(part, ensemble, likelihood, targets, weights) for part in parts))

    def _gauss_newton(
        self, theta: Array, ensemble: AffineEnsemble, likelihood: Likelihood, targets: Array, weights: Array | None
    ) -> Moments:
        """Return mean_j sum_n of some particles: each pair (n, j) is a datum of weight 1/J, seen by one particle."""
        if self.jacobian is None:
            raise ValueError("the Gauss-Newton form needs a Jacobian")
        xp = namespace(theta)
        F, V = self.logits(theta), self.jacobian(theta, ensemble.basis)
        n, j = F.shape[:2]
        tail = () if self.outputs is None else (self.outputs,)
        ones = xp.ones((n,), dtype=theta.dtype, device=theta.device)
        return likelihood.moments(
            xp.reshape(F, (n * j, 1, *tail)),
            xp.reshape(V, (n * j, *tail, ensemble.rank)),
            xp.repeat(targets, j),
            xp.repeat((ones if weights is None else weights) / ensemble.size, j),
        )

    def loss(self, theta: Array, likelihood: Likelihood, targets: Array, weights: Array | None) -> Array:
        """Return Psi (J,) of the particles theta (J, P)."""
        return likelihood.loss(self.logits(theta), targets, weights)

    def loss_and_gradient(
        self, theta: Array, likelihood: Likelihood, targets: Array, weights: Array | None
    ) -> tuple[Array, Array]:
        """Return Psi (J,) and its gradient (J, P), one particle's Jacobian (N, P) or (N, K, P) at a time."""
        if self.jacobian is None:
            raise ValueError("the gradient of nonlinear logits needs their Jacobian; pass jacobian= to the problem")
        xp = namespace(theta)
        F = self.logits(theta)
        slope = likelihood.slope(F, targets, weights)
        tangents = xp.eye(self.dim, dtype=theta.dtype, device=theta.device)
        rows = []
        for j in range(theta.shape[0]):
            jacobian = xp.reshape(self.jacobian(theta[j : j + 1, :], tangents), (-1, self.dim))
            rows.append(xp.reshape(slope[:, j, ...], (-1,)) @ jacobian)
        return likelihood.loss(F, targets, weights), xp.stack(rows)

    def nonlinearity(self, ensemble: AffineEnsemble) -> float:
        """Return ||F - Fbar - V points'|| / ||F - Fbar||: 0 for linear logits, 1 when the slope explains nothing.

        NaN for J <= P + 1 particles, through which a linear function always passes.
        """
        if ensemble.rank >= ensemble.size - 1:
            return math.nan
        xp = namespace(ensemble.mean)
        F = self.logits(ensemble.theta)
        deviations = F - xp.mean(F, axis=1, keepdims=True)
        V = _slope(F, ensemble.points)
        fitted = V @ ensemble.points.mT if F.ndim == 2 else xp.matmul(ensemble.points, V.mT)
        total = float(xp.sum(deviations**2))
        return math.sqrt(float(xp.sum((deviations - fitted) ** 2)) / total) if total > 0 else 0.0


def _slope(F: Array, points: Array) -> Array:
    """Return the least-squares slope V (N, r) or (N, K, r) of logits F (N, J) or (N, J, K) on the points (J, r)."""
    xp = namespace(F)
    if F.ndim == 2:
        return (F - xp.mean(F, axis=1, keepdims=True)) @ points / points.shape[0]
    return xp.matmul((F - xp.mean(F, axis=1, keepdims=True)).mT, like(points, F)) / points.shape[0]
