"""MacKay's probit rule in place of the exact average over Gaussian logits: the class probabilities of the logits

    m / sqrt(1 + pi v / 8),    z ~ N(m, v)

for one logit; for K of them the same with the variance v_k of each, correlations ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from enkbayes.core.likelihoods.bernoulli import Bernoulli
from enkbayes.core.likelihoods.categorical import Categorical
from enkbayes.engine.arrays import Array, namespace


@dataclass(frozen=True)
class ProbitBernoulli(Bernoulli):
    """`Bernoulli` with the probit rule for predictions.

    >>> import numpy as np
    >>> ProbitBernoulli().predictive(np.asarray([1.0]), V=np.asarray([[0.0]])).round(4).tolist()
    [[0.2689, 0.7311]]
    """

    def predictive(self, mean_logits: Array, *, V: Array) -> Array:
        """Return class probabilities (n, 2) for logits z_n ~ N(mean_logits_n, |V_n|^2)."""
        return self.mean(_shrunk(mean_logits, V))


@dataclass(frozen=True)
class ProbitCategorical(Categorical):
    """`Categorical` with the probit rule for predictions."""

    def predictive(self, mean_logits: Array, *, V: Array) -> Array:
        """Return class probabilities (n, K) for logits z_n ~ N(mean_logits_n, V_n V_n')."""
        return self.mean(_shrunk(mean_logits, V))


def _shrunk(mean_logits: Array, V: Array) -> Array:
    xp = namespace(V)
    return mean_logits / xp.sqrt(1 + math.pi / 8 * xp.sum(V * V, axis=-1))
