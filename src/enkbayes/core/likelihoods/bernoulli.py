"""Binary labels d in {0, 1} with one logit z: y = sigma(z), Psi = sum_n softplus(z_n) - d_n z_n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from enkbayes.core.expectations import Averages, averaged_logit
from enkbayes.core.likelihoods.one_logit import pull_back
from enkbayes.core.moments import Moments
from enkbayes.engine.arrays import Array, logistic_averages, namespace, sigmoid, softplus


@dataclass(frozen=True)
class Bernoulli:
    """The likelihood of logistic regression, P(d = 1) = sigma(<theta, phi>).

    >>> import numpy as np
    >>> Bernoulli().probabilities(np.asarray([0.0])).tolist()
    [[0.5, 0.5]]
    """

    outputs: ClassVar[None] = None
    exact_closure: ClassVar[bool] = True

    def averages(self, logits: Array, targets: Array, *, energy: bool = True) -> Averages:
        """Return E[softplus(z) - d z], mu[y] - d and mu[R] of each datum, (n,) each, from logits (n, J)."""
        xp = namespace(logits)
        loss = xp.mean(softplus(logits), axis=1) - targets * xp.mean(logits, axis=1) if energy else targets * xp.nan
        ybar, rbar = logistic_averages(logits)
        return loss, ybar - targets, rbar

    def moments(self, logits: Array, V: Array, targets: Array, weights: Array | None) -> Moments:
        """G = V' (mu[y] - d) and S = V' mu[R] V with averages over the particles' logits (n, J)."""
        loss, slope, curvature = self.averages(_copy(logits), targets)
        return pull_back(V, slope, curvature, loss, weights)

    def closure(self, mean_logits: Array, V: Array, targets: Array, weights: Array | None, refine: int = 0) -> Moments:
        """The same sums for logits z_n ~ N(mean_logits_n, |V_n|^2)."""
        loss, slope, curvature = self.gaussian_averages(mean_logits, namespace(V).vecdot(V, V), targets)
        return pull_back(V, slope, curvature, loss, weights)

    def gaussian_averages(self, mean_logits: Array, cov: Array, targets: Array, refine: int = 0) -> Averages:
        """Return loss, slope and curvature of each datum, (n,) each, by the scale-mixture rule."""
        ybar, rbar, bar_softplus = averaged_logit(mean_logits, cov)
        return bar_softplus - targets * mean_logits, ybar - targets, rbar

    def loss(self, logits: Array, targets: Array, weights: Array | None) -> Array:
        """Return Psi (J,) of logits (n, J)."""
        terms = self.terms(logits, targets)
        return namespace(logits).sum(terms if weights is None else weights[:, None] * terms, axis=0)

    def terms(self, logits: Array, targets: Array) -> Array:
        """Return what each datum adds to Psi, (n, J) for logits (n, J)."""
        return softplus(logits) - targets[:, None] * logits

    def slope(self, logits: Array, targets: Array, weights: Array | None) -> Array:
        """Return y - d (n, J) for logits (n, J)."""
        slope = sigmoid(logits) - targets[:, None]
        return slope if weights is None else weights[:, None] * slope

    def curvature(self, logits: Array, weights: Array | None) -> Array:
        """Return y (1 - y) (n,) for logits (n,)."""
        r = sigmoid(logits) * sigmoid(-logits)
        return r if weights is None else weights * r

    def probabilities(self, logits: Array) -> Array:
        """Return (..., 2) for logits (...)."""
        return namespace(logits).stack([sigmoid(-logits), sigmoid(logits)], axis=-1)

    def mean_probabilities(self, logits: Array) -> Array:
        """Return mu[1 - y] and mu[y] (n, 2) from logits (n, J)."""
        ybar, _ = logistic_averages(_copy(logits))
        return namespace(logits).stack([1 - ybar, ybar], axis=-1)

    def predictive(self, mean_logits: Array, V: Array) -> Array:
        """Return E of the class probabilities (n, 2) for Gaussian logits."""
        xp = namespace(V)
        v = xp.vecdot(V, V)
        p = xp.stack([averaged_logit(-mean_logits, v)[0], averaged_logit(mean_logits, v)[0]], axis=-1)
        return xp.minimum(p, xp.ones_like(p))  # the rule's weights add up to 1 within round-off only


def _copy(x: Array) -> Array:
    """Return an array of one's own: the logits may be a user's."""
    return namespace(x).asarray(x, copy=True)
