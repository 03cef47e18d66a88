"""Real targets d = z + noise: linear regression, where one exact step must hit the exact posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.core.arguments import check_positive
from enkbayes.core.likelihoods.base import Averages, Likelihood
from enkbayes.engine.arrays import Array, namespace


@dataclass(frozen=True)
class Normal(Likelihood):
    """Targets d ~ N(z, variance). The gradient is linear in z, so empirical and Gaussian averages coincide.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [1.0]], [1.0, 3.0], likelihood=Normal(variance=2.0))
    >>> eb.run(problem, eb.Homotopy(steps=1)).mean.round(6).tolist()
    [1.0]
    """

    variance: float = 1.0

    def __post_init__(self) -> None:
        check_positive("the noise variance", self.variance)

    @property
    def parameters(self) -> np.ndarray[Any, Any]:
        """The logarithm (1,) of the variance."""
        return np.log([self.variance])

    def with_parameters(self, parameters: np.ndarray[Any, Any]) -> Normal:
        """Return the likelihood with another variance."""
        return Normal(math.exp(parameters[0]))

    def loss(self, logits: Array, targets: Array) -> Array:
        """Return (z - d)^2 / (2 variance) + log(2 pi variance) / 2 (n, J) for logits (n, J)."""
        return ((logits - targets[:, None]) ** 2 / self.variance + math.log(2 * math.pi * self.variance)) / 2

    def slope(self, logits: Array, targets: Array) -> Array:
        """Return (z - d) / variance (n, J) for logits (n, J)."""
        return (logits - targets[:, None]) / self.variance

    def curvature(self, logits: Array, targets: Array) -> Array:
        """Return 1 / variance (n, J) for logits (n, J)."""
        return namespace(logits).ones_like(logits) / self.variance

    def mean(self, logits: Array) -> Array:
        """Return the expected target as one column (..., 1)."""
        return logits[..., None]

    def noise_variance(self, logits: Array) -> Array:
        """Return the variance (...) for logits (...)."""
        return namespace(logits).full_like(logits, self.variance)

    def variance_of_mean(self, mean_logits: Array, *, V: Array) -> Array:
        """Return the variance (n,) of the expected target."""
        return namespace(V).vecdot(V, V)

    def gaussian_averages(self, mean_logits: Array, targets: Array, *, V: Array, refine: int = 0) -> Averages:
        """Return loss, slope and curvature of each row, (n,) each."""
        xp = namespace(V)
        slope = (mean_logits - targets) / self.variance
        loss = slope**2 * self.variance + xp.vecdot(V, V) / self.variance + math.log(2 * math.pi * self.variance)
        return loss / 2, slope, xp.ones_like(slope) / self.variance

    def predictive(self, mean_logits: Array, *, V: Array) -> Array:
        """Return the expected target (n, 1)."""
        return mean_logits[:, None]
