"""Real targets d = z + noise: the linear-Gaussian test bed, where one exact step must hit the exact posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from enkbayes.core.expectations import Averages
from enkbayes.core.likelihoods.one_logit import pull_back
from enkbayes.core.moments import Moments
from enkbayes.engine.arrays import Array, namespace


@dataclass(frozen=True)
class Normal:
    """Targets d ~ N(z, variance). The gradient is linear in z, so empirical and Gaussian averages coincide.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [1.0]], [1.0, 3.0], likelihood=Normal(variance=2.0))
    >>> eb.run(problem, eb.Homotopy(steps=1)).mean.round(6).tolist()
    [1.0]
    """

    outputs: ClassVar[None] = None
    exact_closure: ClassVar[bool] = True
    variance: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.variance) and self.variance > 0):
            raise ValueError(f"the noise variance is {self.variance}; expected a positive number")

    def averages(self, logits: Array, targets: Array, *, energy: bool = True) -> Averages:
        """Return loss, slope and curvature of each datum, (n,) each, averaged over logits (n, J)."""
        xp = namespace(logits)
        zbar = xp.mean(logits, axis=1)
        loss = xp.mean(self.terms(logits, targets), axis=1) if energy else targets * xp.nan
        return loss, (zbar - targets) / self.variance, xp.ones_like(zbar) / self.variance

    def moments(self, logits: Array, V: Array, targets: Array, weights: Array | None) -> Moments:
        """G = V' (mean z - d) / variance and S = V' V / variance, from logits (n, J)."""
        loss, slope, curvature = self.averages(logits, targets)
        return pull_back(V, slope, curvature, loss, weights)

    def closure(self, mean_logits: Array, V: Array, targets: Array, weights: Array | None, refine: int = 0) -> Moments:
        """The same sums for logits with mean (n,) and variance |V_n|^2."""
        loss, slope, curvature = self.gaussian_averages(mean_logits, namespace(V).sum(V * V, axis=1), targets)
        return pull_back(V, slope, curvature, loss, weights)

    def gaussian_averages(self, mean_logits: Array, cov: Array, targets: Array, refine: int = 0) -> Averages:
        """Return loss, slope and curvature of each datum, (n,) each."""
        slope = (mean_logits - targets) / self.variance
        loss = slope**2 * self.variance + cov / self.variance + math.log(2 * math.pi * self.variance)
        return loss / 2, slope, namespace(slope).ones_like(slope) / self.variance

    def loss(self, logits: Array, targets: Array, weights: Array | None) -> Array:
        """Return Psi (J,) of logits (n, J)."""
        terms = self.terms(logits, targets)
        return namespace(logits).sum(terms if weights is None else weights[:, None] * terms, axis=0)

    def terms(self, logits: Array, targets: Array) -> Array:
        """Return what each datum adds to Psi, (n, J) for logits (n, J)."""
        return ((logits - targets[:, None]) ** 2 / self.variance + math.log(2 * math.pi * self.variance)) / 2

    def slope(self, logits: Array, targets: Array, weights: Array | None) -> Array:
        """Return (z - d) / variance (n, J) for logits (n, J)."""
        slope = (logits - targets[:, None]) / self.variance
        return slope if weights is None else weights[:, None] * slope

    def curvature(self, logits: Array, weights: Array | None) -> Array:
        """Return 1 / variance (n,) for logits (n,)."""
        ones = namespace(logits).ones_like(logits) / self.variance
        return ones if weights is None else weights * ones

    def probabilities(self, logits: Array) -> Array:
        """There are no classes: return the predicted value as one column (..., 1)."""
        return logits[..., None]

    def mean_probabilities(self, logits: Array) -> Array:
        """Return the average prediction (n, 1) from logits (n, J)."""
        return namespace(logits).mean(logits, axis=1)[:, None]

    def predictive(self, mean_logits: Array, V: Array) -> Array:
        """Return the expected value (n, 1)."""
        return mean_logits[:, None]
