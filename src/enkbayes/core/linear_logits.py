"""Logits that are linear in the parameters: how the data reach an ensemble.

With V_n = phi_n' basis the logits of the basis for row n, and slope and curvature of the loss in the logits averaged
over the ensemble, the data act through two small sums,

    g = sum_n V_n' slope_n,        S = sum_n V_n' curvature_n V_n,

where slope_n = mu[y_n] - d_n and curvature_n = mu[y_n (1 - y_n)] for logistic regression. `moments_in_basis` adds them
up as they stand. An ensemble that spans all directions needs no logits of its basis: `moments_in_parameters` adds up
gradient and Hessian in the parameters, g = basis' gradient and S = basis' Hessian basis, which gives the same numbers
for fewer products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.likelihoods.base import Averages, pull_back, weighted
from enkbayes.core.low_rank import LowRankGaussian
from enkbayes.core.moments import Moments
from enkbayes.engine import product
from enkbayes.engine.arrays import Array, identity, like, namespace
from enkbayes.engine.rows import Chunk, Rows, Sums, add_up


@dataclass(frozen=True)
class LinearLogits:
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

    def moments(
        self, rows: Rows, ensemble: AffineEnsemble | LowRankGaussian, likelihood: Likelihood, expectation: Expectation
    ) -> Moments:
        """Return E[Psi], g and S of all rows, by the cheaper of two equal sums."""
        whole = ensemble.rank == self.dim and ensemble.complement is None
        add = self.moments_in_parameters if whole else self.moments_in_basis
        return add(rows, ensemble, likelihood, expectation)

    def moments_in_basis(
        self, rows: Rows, ensemble: AffineEnsemble | LowRankGaussian, likelihood: Likelihood, expectation: Expectation
    ) -> Moments:
        """Return the sums in the coordinates of the basis."""

        def contribution(rows: Chunk) -> Sums:
            logits = BasisLogits(*self.gaussian_logits(rows.features, ensemble), ensemble)
            return pull_back(logits.V, expectation.averages(likelihood, logits, rows.targets, rows.weights))

        few = 2**22 // (self.outputs or 1) ** 2  # the curvatures of that many rows, K x K each, fit into memory
        loss, g, S = rows.sum(lambda chunk: add_up(map(contribution, chunk.blocks(few))))
        return Moments(loss, like(g, ensemble.mean), like(S, ensemble.mean))

    def moments_in_parameters(
        self, rows: Rows, ensemble: AffineEnsemble | LowRankGaussian, likelihood: Likelihood, expectation: Expectation
    ) -> Moments:
        """Return the sums in the parameters, E[grad Psi] (P,) and E[Hess Psi] (P, P), in the coordinates of the
        basis.
        """
        seen = ensemble.to(rows.reference)
        columns = expectation.columns(ensemble, self.outputs)

        def contribution(chunk: Chunk) -> Sums:
            def averages(block: Chunk) -> Averages:
                return expectation.averages(likelihood, RowLogits(self, seen, block), block.targets, block.weights)

            loss, slope, curvature = chunk.by_blocks(averages, (self.outputs or 1) * columns)
            gradient = self.pull_back(chunk.features, slope[:, None, ...])[0, :]
            return namespace(loss).sum(loss), gradient, self.pull_back_curvature(chunk.features, curvature)

        cost = self.dim * max(columns, self.dim)
        loss, gradient, hessian = rows.sum(contribution, cost=cost, long=self.outputs is None)
        gradient, hessian = like(gradient, ensemble.mean), like(hessian, ensemble.mean)
        return Moments(loss, ensemble.basis.mT @ gradient, _congruent(ensemble.basis, hessian))

    def all_logits(self, rows: Rows, theta: Array) -> Array:
        """Return the logits (N, J) or (N, J, K) of the particles theta (J, P), for rows in memory."""
        return self.particle_logits(rows.features, theta)

    def nonlinearity(self, ensemble: AffineEnsemble) -> None:
        """Linear logits have none."""

    def loss(self, rows: Rows, theta: Array, likelihood: Likelihood) -> Array:
        """Return Psi (J,) of the particles theta (J, P)."""
        seen = like(theta, rows.reference)

        def contribution(chunk: Chunk) -> Sums:
            loss = likelihood.loss(self.particle_logits(chunk.features, seen), chunk.targets)
            return (namespace(loss).sum(weighted(loss, chunk.weights), axis=0),)

        (loss,) = rows.sum(contribution)
        return like(loss, theta)

    def loss_and_gradient(self, rows: Rows, theta: Array, likelihood: Likelihood) -> tuple[Array, Array]:
        """Return Psi (J,) and its gradient (J, P) at the particles theta (J, P), in one pass over the rows."""
        seen = like(theta, rows.reference)

        def contribution(chunk: Chunk) -> Sums:
            logits = self.particle_logits(chunk.features, seen)
            slope = weighted(likelihood.slope(logits, chunk.targets), chunk.weights)
            loss = weighted(likelihood.loss(logits, chunk.targets), chunk.weights)
            return namespace(loss).sum(loss, axis=0), self.pull_back(chunk.features, slope)

        loss, gradient = rows.sum(contribution)
        return like(loss, theta), like(gradient, theta)

    def project(self, features: Array, columns: Array) -> Array:
        """Return the logits of each column of (P, c), for each row of features (n, D): (n, c), or (n, K, c) for K
        outputs.
        """
        matrix, offset = self.matrix(columns)
        logits = features @ matrix
        if offset is not None:
            logits += offset
        return self.shaped(logits)

    def particle_logits(self, features: Array, theta: Array) -> Array:
        """Return the logits of every particle theta (J, P): (n, J), or (n, J, K)."""
        if self.outputs is not None and self._few(features):
            return self._logits_of_few(features, theta)
        logits = self.project(features, theta.mT)
        return logits if self.outputs is None else logits.mT

    def _few(self, features: Array, most: int = 8) -> bool:
        """Tell whether the rows are so few that rearranging the columns costs more than their products. The symbolic
        number of rows of an exported program counts as many.
        """
        n = features.shape[0]
        return isinstance(n, int) and n <= most and not scipy.sparse.issparse(features)

    def _logits_of_few(self, features: Array, theta: Array) -> Array:
        """Return `particle_logits` (n, J, K) by one product for each particle, which leaves theta as it lies."""
        xp = namespace(theta)
        weights = xp.reshape(theta, (theta.shape[0], -1, self.outputs))
        logits = xp.matmul(features, weights[:, : self.features, :])
        return xp.moveaxis(logits + weights[:, self.features :, :] if self.intercept else logits, 0, 1)

    def gaussian_logits(self, features: Array, ensemble: AffineEnsemble | LowRankGaussian) -> tuple[Array, Array]:
        """Return the mean logits (n,) or (n, K) and the logits V (n, r) or (n, K, r) of the basis."""
        if self._few(features):
            return self.project(features, ensemble.mean[:, None])[..., 0], self.project(features, ensemble.basis)
        columns = namespace(ensemble.mean).concat([ensemble.mean[:, None], ensemble.basis], axis=1)
        logits = self.project(features, columns)
        return logits[..., 0], logits[..., 1:]

    def predictive_logits(self, features: Array, ensemble: AffineEnsemble | LowRankGaussian) -> tuple[Array, Array]:
        """Return the mean logits and columns V with V V' the covariance of the logits, the complement's part
        included.
        """
        mean_logits, V = self.gaussian_logits(features, ensemble)
        if ensemble.complement is None:
            return mean_logits, V
        return mean_logits, namespace(V).concat([V, ensemble.complement.logit_columns(features, V)], axis=-1)

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
        """Return the Hessian (P, P) of a loss whose curvature in each row's logits is (n,) or (n, K, K)."""
        xp = namespace(curvature)
        x = like(features.toarray(), curvature) if scipy.sparse.issparse(features) else features
        if self.intercept:
            x = xp.concat([x, xp.ones((x.shape[0], 1), dtype=x.dtype, device=x.device)], axis=1)
        if self.outputs is None:
            half = xp.sqrt(curvature)[:, None] * x
            return half.mT @ half  # a symmetric product, at half the price where the library notices
        (n, D), K = x.shape, self.outputs
        eye = identity(K, x)
        lower, blocks = xp.tril(curvature) * (1 - eye / 2), []
        for i in range(K):  # the blocks (i, j <= i) in one product, those on the diagonal halved
            scaled = xp.reshape(lower[:, i, : i + 1, None] * x[:, None, :], (n, (i + 1) * D))
            row = xp.permute_dims(xp.reshape(x.mT @ scaled, (D, i + 1, D)), (0, 2, 1))
            rest = xp.zeros((D, D, K - i - 1), dtype=x.dtype, device=x.device)
            blocks.append(xp.concat([row, rest], axis=-1))
        half = xp.reshape(xp.stack(blocks, axis=1), (self.dim, self.dim))
        return half + half.mT

    def matrix(self, columns: Array) -> tuple[Array, Array | None]:
        """Return columns (P, c) as the matrix (D, K c) that features are multiplied with, and the intercept's row."""
        matrix = namespace(columns).reshape(columns, (self.features + self.intercept, -1))
        return matrix[: self.features, :], matrix[self.features, :] if self.intercept else None

    def shaped(self, logits: Array) -> Array:
        """Return logits (n, K c) as (n, c), or (n, K, c)."""
        if self.outputs is None:
            return logits
        n, columns = logits.shape
        return namespace(logits).reshape(logits, (n, self.outputs, columns // self.outputs))


@dataclass(frozen=True, eq=False)
class BasisLogits:
    """The logits of some rows under an ensemble: at its mean (n,) or (n, K), and V (n, r) or (n, K, r) of its basis."""

    mean: Array
    V: Array
    ensemble: Any

    @property
    def particles(self) -> Array:
        """Of every particle: (n, J) or (n, J, K)."""
        points = self.ensemble.points
        if self.mean.ndim == 1:
            return self.mean[:, None] + self.V @ points.mT
        return self.mean[:, None, :] + namespace(self.V).matmul(points, self.V.mT)

    @property
    def gaussian(self) -> tuple[Array, Array]:
        """Mean (n,) or (n, K) of the logits, and V (n, r) or (n, K, r), with covariance V V'."""
        return self.mean, self.V


@dataclass(frozen=True, eq=False)
class RowLogits:
    """The same for the rows of a chunk, computed on first use: averages over particles need no logits of the basis.

    Particles in antithetic pairs mean + x and mean - x share the product for x.
    """

    model: LinearLogits
    ensemble: Any
    rows: Chunk

    @cached_property
    def mean(self) -> Array:
        """At the mean of the ensemble: (n,) or (n, K)."""
        return self.model.project(self.rows.features, self.ensemble.mean[:, None])[..., 0]

    @property
    def particles(self) -> Array:
        """Of every particle: (n, J) or (n, J, K)."""
        half, one = self.ensemble.antithetic_half, self.model.outputs is None
        if half is None or not self.rows.mirrors:
            logits = self._of(self.ensemble.theta.mT)
        elif one:
            logits = self.rows.mirrored_product(self.mean[:, None], *self.model.matrix(self.ensemble.deviations.mT))
        else:
            x, mean = self._of(self.ensemble.deviations.mT), self.mean[:, :, None]
            logits = namespace(x).concat([mean + x, mean - x], axis=-1)
        return logits if one else logits.mT

    @property
    def gaussian(self) -> tuple[Array, Array]:
        """Mean (n,) or (n, K) of the logits, and V (n, r) or (n, K, r), with covariance V V'."""
        return self.mean, self._of(self.ensemble.basis)

    def _of(self, columns: Array) -> Array:
        return self.model.shaped(self.rows.product(*self.model.matrix(columns)))


def _congruent(basis: Array, H: Array) -> Array:
    """Return basis' H basis (r, r); without products for a diagonal basis, as whitened draws of many a prior have."""
    if type(basis) is np.ndarray and basis.shape[0] == basis.shape[1]:
        scale = np.diagonal(basis)
        if np.count_nonzero(basis) == np.count_nonzero(scale):
            return scale[:, None] * H * scale
    return product(basis.mT, product(H, basis))
