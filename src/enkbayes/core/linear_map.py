"""How parameters act on features: logits forwards, gradients and curvature backwards."""

from __future__ import annotations

from dataclasses import dataclass

import scipy.sparse

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.engine.arrays import Array, like, namespace


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

    def project(self, features: Array, columns: Array, out: Array | None = None) -> Array:
        """Return the logits of each column of (P, c), for each row of features (n, D): (n, c), or (n, K, c) for K
        outputs; in the memory of `out` (n, K c), if it is given.
        """
        xp = namespace(columns)
        n, K, c = features.shape[0], self.outputs or 1, columns.shape[1]
        matrix = xp.reshape(columns, (self.features + self.intercept, K * c))
        weights = matrix[: self.features, :]
        logits = features @ weights if out is None else xp.matmul(features, weights, out=out)
        if self.intercept:
            logits += matrix[self.features, :]
        return logits if self.outputs is None else xp.reshape(logits, (n, K, c))

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
            half = xp.sqrt(curvature)[:, None] * x
            return half.mT @ half  # a symmetric product, at half the price where the library notices
        (n, D), K = x.shape, self.outputs
        eye = xp.eye(K, dtype=x.dtype, device=x.device)
        lower, blocks = xp.tril(curvature) * (1 - eye / 2), []
        for i in range(K):  # the blocks (i, j <= i) in one product, those on the diagonal halved
            scaled = xp.reshape(lower[:, i, : i + 1, None] * x[:, None, :], (n, (i + 1) * D))
            row = xp.permute_dims(xp.reshape(x.mT @ scaled, (D, i + 1, D)), (0, 2, 1))
            rest = xp.zeros((D, D, K - i - 1), dtype=x.dtype, device=x.device)
            blocks.append(xp.concat([row, rest], axis=-1))
        half = xp.reshape(xp.stack(blocks, axis=1), (self.dim, self.dim))
        return half + half.mT

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
