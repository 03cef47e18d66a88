"""The likelihoods: how logits become probabilities, and what an ensemble of logits says of gradient and curvature."""

from __future__ import annotations

from typing import Protocol

from enkbayes.core.expectations import Averages
from enkbayes.core.likelihoods.bernoulli import Bernoulli
from enkbayes.core.likelihoods.categorical import Categorical
from enkbayes.core.likelihoods.normal import Normal
from enkbayes.core.moments import Moments
from enkbayes.engine.arrays import Array


class Likelihood(Protocol):
    """One axis of extension: a new likelihood is one file with these methods. n data, J particles, r coordinates, K
    classes.

    `outputs` is None when a datum has one logit, and K when it has K of them; then every (n, ...) of logits below is
    (n, ..., K), and V (n, r) is (n, K, r).
    """

    @property
    def outputs(self) -> int | None:
        """Logits for each datum: None for a single one."""

    @property
    def exact_closure(self) -> bool:
        """Whether `closure` is exact to round-off rather than by quadrature points."""

    def moments(self, logits: Array, V: Array, targets: Array, weights: Array | None) -> Moments:
        """Return sums over data of averages over the particles' logits (n, J); V (n, r) are the logits of the basis."""

    def closure(self, mean_logits: Array, V: Array, targets: Array, weights: Array | None, refine: int = 0) -> Moments:
        """Return the same sums for Gaussian logits with mean (n,) and covariance V V'.

        A likelihood that averages by quadrature takes 4**refine times its usual number of points.
        """

    def averages(self, logits: Array, targets: Array, *, energy: bool = True) -> Averages:
        """Return loss (n,), slope (n,) and curvature (n,) of each datum, averaged over the particles' logits (n, J),
        which may be overwritten; without `energy` the loss may be NaN. For K logits: slope (n, K), curvature (n, K, K).
        """

    def gaussian_averages(self, mean_logits: Array, cov: Array, targets: Array, refine: int = 0) -> Averages:
        """Return loss (n,), slope (n,) and curvature (n,) of each datum, averaged over Gaussian logits with mean (n,)
        and variance (n,). For K logits: slope (n, K), curvature (n, K, K), mean (n, K), covariance (n, K, K).
        """

    def loss(self, logits: Array, targets: Array, weights: Array | None) -> Array:
        """Return the negative log-likelihood Psi of each particle, (J,), from logits (n, J)."""

    def slope(self, logits: Array, targets: Array, weights: Array | None) -> Array:
        """Return dPsi/dz of each particle's logits: (n, J) from logits (n, J)."""

    def terms(self, logits: Array, targets: Array) -> Array:
        """Return what each datum adds to the Psi of each particle, (n, J), from logits (n, J)."""

    def curvature(self, logits: Array, weights: Array | None) -> Array:
        """Return d2Psi/dz2 of each datum's logits: (n,) from logits (n,), (n, K, K) from logits (n, K)."""

    def probabilities(self, logits: Array) -> Array:
        """Return class probabilities (..., K) of logits (...) or (..., K)."""

    def mean_probabilities(self, logits: Array) -> Array:
        """Return class probabilities (n, K), averaged over the particles' logits (n, J)."""

    def predictive(self, mean_logits: Array, V: Array) -> Array:
        """Return the expected class probabilities (n, K) under Gaussian logits."""


__all__ = ["Bernoulli", "Categorical", "Likelihood", "Normal"]
