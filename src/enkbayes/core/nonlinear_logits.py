"""Logits that are any function of the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.likelihoods.base import pull_back, weighted
from enkbayes.core.moments import Moments
from enkbayes.engine.arrays import Array, identity, like, namespace
from enkbayes.engine.rows import Rows


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
        self, rows: Rows, ensemble: AffineEnsemble, likelihood: Likelihood, expectation: Expectation
    ) -> Moments:
        """Return E[Psi], g and S of all rows."""
        if expectation.gaussian:
            raise ValueError("nonlinear logits have no Gaussian closure; use Equilibrium() or another particle sampler")
        if expectation.at_mean and self.jacobian is None:
            raise ValueError("derivatives of nonlinear logits at a point need their Jacobian; pass jacobian=")
        theta = ensemble.mean[None, :] if expectation.at_mean else ensemble.theta
        if self.jacobian is None:
            F = self.logits(theta)
            return self._added(F, _slope(F, ensemble.points), rows.targets, rows.weights, likelihood)
        group = max(1, self.chunk // self.size)
        parts = (theta[j : j + group, :] for j in range(0, theta.shape[0], group))
        return reduce(add, (self._gauss_newton(rows, part, theta.shape[0], ensemble, likelihood) for part in parts))

    def _gauss_newton(
        self, rows: Rows, theta: Array, particles: int, ensemble: AffineEnsemble, likelihood: Likelihood
    ) -> Moments:
        """Return mean_j sum_n of some particles: each pair (n, j) counts as a row of weight 1/J with one particle."""
        if self.jacobian is None:
            raise ValueError("the Gauss-Newton form needs a Jacobian")
        xp = namespace(theta)
        F, V = self.logits(theta), self.jacobian(theta, ensemble.basis)
        n, j = F.shape[:2]
        tail = () if self.outputs is None else (self.outputs,)
        ones = xp.ones((n,), dtype=theta.dtype, device=theta.device)
        return self._added(
            xp.reshape(F, (n * j, 1, *tail)),
            xp.reshape(V, (n * j, *tail, ensemble.rank)),
            xp.repeat(rows.targets, j),
            xp.repeat((ones if rows.weights is None else rows.weights) / particles, j),
            likelihood,
        )

    def _added(self, F: Array, V: Array, targets: Array, weights: Array | None, likelihood: Likelihood) -> Moments:
        """Return the moments of logits F (n, J) or (n, J, K), with V in place of the logits of the basis."""
        xp = namespace(F)
        averages = likelihood.averages(xp.asarray(F, copy=True), targets)  # the logits may be the user's own array
        loss, slope, curvature = (weighted(x, weights) for x in averages)
        return Moments(*pull_back(V, (loss, slope, curvature)))

    def loss(self, rows: Rows, theta: Array, likelihood: Likelihood) -> Array:
        """Return Psi (J,) of the particles theta (J, P)."""
        loss = likelihood.loss(self.logits(theta), rows.targets)
        return namespace(loss).sum(weighted(loss, rows.weights), axis=0)

    def loss_and_gradient(self, rows: Rows, theta: Array, likelihood: Likelihood) -> tuple[Array, Array]:
        """Return Psi (J,) and its gradient (J, P), one particle's Jacobian (N, P) or (N, K, P) at a time."""
        if self.jacobian is None:
            raise ValueError("the gradient of nonlinear logits needs their Jacobian; pass jacobian= to the problem")
        xp = namespace(theta)
        F = self.logits(theta)
        slope = weighted(likelihood.slope(F, rows.targets), rows.weights)
        tangents = identity(self.dim, theta)
        gradients = []
        for j in range(theta.shape[0]):
            jacobian = xp.reshape(self.jacobian(theta[j : j + 1, :], tangents), (-1, self.dim))
            gradients.append(xp.reshape(slope[:, j, ...], (-1,)) @ jacobian)
        return xp.sum(weighted(likelihood.loss(F, rows.targets), rows.weights), axis=0), xp.stack(gradients)

    def all_logits(self, rows: Rows, theta: Array) -> Array:
        """Return the logits (N, J) or (N, J, K) of the particles theta (J, P)."""
        return self.logits(theta)

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
