"""Binary labels d in {0, 1} with one logit z: y = sigma(z), loss = softplus(z) - d z."""

from __future__ import annotations

from dataclasses import dataclass

from enkbayes.core.likelihoods.base import Averages, Likelihood, unknown
from enkbayes.core.quadrature import averaged_logit
from enkbayes.engine.arrays import Array, logistic_averages, namespace, sigmoid, softplus


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """The likelihood of logistic regression, P(d = 1) = sigma(<theta, phi>).

    >>> import numpy as np
    >>> Bernoulli().mean(np.asarray([0.0])).tolist()
    [[0.5, 0.5]]
    """

    n_classes = 2

    def loss(self, logits: Array, targets: Array) -> Array:
        """Return softplus(z) - d z (n, J) for logits (n, J)."""
        return softplus(logits) - targets[:, None] * logits

    def slope(self, logits: Array, targets: Array) -> Array:
        """Return y - d (n, J) for logits (n, J)."""
        return sigmoid(logits) - targets[:, None]

    def curvature(self, logits: Array, targets: Array) -> Array:
        """Return y (1 - y) (n, J) for logits (n, J)."""
        return sigmoid(logits) * sigmoid(-logits)

    def mean(self, logits: Array) -> Array:
        """Return the class probabilities (..., 2) for logits (...)."""
        return namespace(logits).stack([sigmoid(-logits), sigmoid(logits)], axis=-1)

    def averages(self, logits: Array, targets: Array, *, energy: bool = True) -> Averages:
        """Return E[softplus(z) - d z], mu[y] - d and mu[R] of each row, (n,) each, from logits (n, J)."""
        xp = namespace(logits)
        loss = xp.mean(softplus(logits), axis=1) - targets * xp.mean(logits, axis=1) if energy else unknown(logits)
        ybar, rbar = logistic_averages(logits)
        return loss, ybar - targets, rbar

    def gaussian_averages(self, mean_logits: Array, targets: Array, *, V: Array, refine: int = 0) -> Averages:
        """Return loss, slope and curvature of each row, (n,) each, by the scale-mixture rule."""
        ybar, rbar, bar_softplus = averaged_logit(mean_logits, namespace(V).vecdot(V, V))
        return bar_softplus - targets * mean_logits, ybar - targets, rbar

    def particle_predictive(self, logits: Array) -> Array:
        """Return mu[1 - y] and mu[y] (n, 2) from logits (n, J), which may be overwritten."""
        ybar, _ = logistic_averages(logits)
        return namespace(ybar).stack([1 - ybar, ybar], axis=-1)

    def predictive(self, mean_logits: Array, *, V: Array) -> Array:
        """Return the expected class probabilities (n, 2) for Gaussian logits."""
        xp = namespace(V)
        v = xp.vecdot(V, V)
        p = xp.stack([averaged_logit(-mean_logits, v)[0], averaged_logit(mean_logits, v)[0]], axis=-1)
        return xp.minimum(p, xp.ones_like(p))  # the rule's weights add up to 1 within round-off only
