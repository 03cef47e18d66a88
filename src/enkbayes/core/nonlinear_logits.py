"""Logits that are any function of the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import ClassVar

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.likelihoods.base import weighted
from enkbayes.core.moments import Moments
from enkbayes.engine.arrays import Array, like, namespace


@dataclass(frozen=True, eq=False)
class NonlinearLogits:
    """Logits f(theta) of any kind: `logits(theta (J, P))` gives (N, J), or (N, J, K).

    With `jacobian(theta (J, P), tangents (P, r))`, the directional derivatives (N, J, r) or (N, J, K, r), the moments
    are the averaged Gauss-Newton ones. Without it they are derivative-free: the slope of the logits over the ensemble,
    V = (F - Fbar) points / J, stands in for the Jacobian. That is exact for linear logits and only as good as the
    logits are close to linear over the ensemble's spread; `nonlinearity` measures it.
    """

    single: ClassVar[bool] = False  # the precision is that of the function
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
        *,
        single: bool = False,
    ) -> Moments:
        """Return the sums over all data; the precision is that of the function."""
        if expectation.gaussian:
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
        loss = likelihood.loss(self.logits(theta), targets)
        return namespace(loss).sum(weighted(loss, weights), axis=0)

    def loss_and_gradient(
        self, theta: Array, likelihood: Likelihood, targets: Array, weights: Array | None
    ) -> tuple[Array, Array]:
        """Return Psi (J,) and its gradient (J, P), one particle's Jacobian (N, P) or (N, K, P) at a time."""
        if self.jacobian is None:
            raise ValueError("the gradient of nonlinear logits needs their Jacobian; pass jacobian= to the problem")
        xp = namespace(theta)
        F = self.logits(theta)
        slope = weighted(likelihood.slope(F, targets), weights)
        tangents = xp.eye(self.dim, dtype=theta.dtype, device=theta.device)
        rows = []
        for j in range(theta.shape[0]):
            jacobian = xp.reshape(self.jacobian(theta[j : j + 1, :], tangents), (-1, self.dim))
            rows.append(xp.reshape(slope[:, j, ...], (-1,)) @ jacobian)
        return xp.sum(weighted(likelihood.loss(F, targets), weights), axis=0), xp.stack(rows)

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
