"""A Bayesian classification problem: logits, targets, likelihood and Gaussian prior. `create` checks; the inside
trusts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation, empirical
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.labels import encode, observation_weights
from enkbayes.core.likelihoods import Bernoulli, Categorical, Likelihood
from enkbayes.core.linear_map import LinearMap
from enkbayes.core.logits import CHUNK, LinearLogits
from enkbayes.core.moments import Moments
from enkbayes.core.nonlinear_logits import NonlinearLogits
from enkbayes.engine.arrays import Array, all_finite, anchor, floating, like, namespace, take_rows
from enkbayes.engine.threads import product


@dataclass(frozen=True, eq=False)
class Problem:
    """The posterior pi(theta) ~ exp(-Psi(theta)) N(theta; m0, P0), with Psi the cross-entropy of the data. Made by
    `create` or `nonlinear`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((50, 3))
    >>> problem = Problem.create(features, features[:, 0] > 0, Gaussian.isotropic(3, 2.0))
    >>> problem.dim, problem.likelihood
    (3, Bernoulli())
    """

    model: LinearLogits | NonlinearLogits
    targets: Array
    likelihood: Likelihood
    prior: Gaussian
    weights: Array | None = None
    classes: np.ndarray[Any, Any] | None = None

    @classmethod
    def create(
        cls,
        features: Array,
        labels: Any,
        prior: Gaussian | float = 1.0,
        *,
        likelihood: Likelihood | None = None,
        intercept: Gaussian | float | None = None,
        weights: Any = None,
        classes: Any = None,
        chunk: int | None = None,
    ) -> Problem:
        """Check the data and return the problem.

        Parameters
        ----------
        features : array (N, D)
            Of any supported library, or a scipy sparse matrix; never copied. float32 is kept, integers become float64.
        labels : array-like (N,)
            Classes of any comparable kind (numbers, strings); real numbers for a likelihood without classes.
        prior : Gaussian or float
            Over the P weights: P = D for two classes, D * K for more, theta.reshape(D, K). A number is the variance of
            N(0, variance I).
        likelihood : Likelihood, optional
            Default: `Bernoulli` for two classes, `Categorical` for more.
        intercept : Gaussian or float, optional
            Adds a constant feature after the others, with this prior (a number: its variance). Default: none.
        weights : array-like (N,), optional
            How often each row counts.
        classes : array-like (K,), optional
            All classes, when the labels may not show every one of them.
        chunk : int, optional
            Rows read at a time; default 4096 (fewer for many classes).
        """
        features = floating(features)
        if features.ndim != 2 or 0 in features.shape:
            raise ValueError(
                f"features have shape {tuple(features.shape)}; expected (N, D) with at least one row and one column"
            )
        if not all_finite(features):
            raise ValueError("features contain NaN or infinite values; impute or drop those rows first")
        reference = anchor(features)
        targets, known, likelihood = _targets(labels, int(features.shape[0]), likelihood, classes, reference)
        outputs = likelihood.outputs
        linear = LinearMap(int(features.shape[1]), outputs, intercept is not None)
        model = LinearLogits(features, linear, _chunk(chunk, outputs))
        law = _prior(prior, int(features.shape[1]) * (outputs or 1), "D * K" if outputs else "D", reference)
        if intercept is not None:
            law = law.stack(_prior(intercept, outputs or 1, "one for each logit", reference))
        return cls(model, targets, likelihood, law, _weights(weights, model.size, reference), known)

    @classmethod
    def nonlinear(
        cls,
        logits: Callable[[Array], Array],
        labels: Any,
        prior: Gaussian,
        jacobian: Callable[[Array, Array], Array] | None = None,
        *,
        likelihood: Likelihood | None = None,
        weights: Any = None,
        classes: Any = None,
        chunk: int | None = None,
    ) -> Problem:
        """Return a problem whose logits are any function of the parameters.

        Parameters
        ----------
        logits : callable
            theta (J, P) -> (N, J) for two classes, (N, J, K) for K.
        labels : array-like (N,)
            As in `create`.
        prior : Gaussian
            Over the P parameters; its array library, dtype and device are those of the whole computation.
        jacobian : callable, optional
            (theta (J, P), tangents (P, r)) -> directional derivatives (N, J, r) or (N, J, K, r). With it the moments
            are averaged Gauss-Newton ones; without it they are derivative-free, valid for logits that are nearly linear
            over the ensemble's spread (see `info.nonlinearity`).
        likelihood, weights, classes : optional
            As in `create`.
        chunk : int, optional
            Pairs of a datum and a particle whose Jacobians are held at a time.

        Examples
        --------
        >>> x = np.linspace(-2, 2, 40)
        >>> logits = lambda theta: np.tanh(x[:, None] * theta[:, 0]) * theta[:, 1]
        >>> problem = Problem.nonlinear(logits, x > 0.1, Gaussian.isotropic(2))
        >>> problem.dim
        2
        """
        probe = logits(prior.mean[None, :])
        if probe.ndim not in (2, 3) or probe.shape[1] != 1:
            raise ValueError(f"logits of one particle have shape {tuple(probe.shape)}; expected (N, 1) or (N, 1, K)")
        size, outputs = int(probe.shape[0]), (int(probe.shape[2]) if probe.ndim == 3 else None)
        if likelihood is None and outputs is not None:
            likelihood = Categorical(outputs)
        targets, known, likelihood = _targets(labels, size, likelihood, classes, prior.mean)
        if likelihood.outputs != outputs:
            expected = "(N, 1)" if likelihood.outputs is None else f"(N, 1, {likelihood.outputs})"
            raise ValueError(
                f"logits of one particle have shape {tuple(probe.shape)}; expected {expected} for {likelihood}"
            )
        model = NonlinearLogits(logits, jacobian, outputs, size, prior.dim, _chunk(chunk, outputs))
        return cls(model, targets, likelihood, prior, _weights(weights, size, prior.mean), known)

    @property
    def size(self) -> int:
        """The number of data N."""
        return self.model.size

    @property
    def dim(self) -> int:
        """The number of parameters P."""
        return self.model.dim

    def moments(
        self, ensemble: AffineEnsemble, expectation: Expectation = empirical, *, single: bool = False
    ) -> Moments:
        """Return E[Psi], g_L and S_L: the likelihood's part, summed over the data; with `single`, products are taken in
        float32 and their sums over chunks of data in the ensemble's precision.
        """
        return self.model.moments(ensemble, self.likelihood, expectation, self.targets, self.weights, single=single)

    def prior_moments(self, ensemble: AffineEnsemble) -> Moments:
        """Return the prior's part: g = basis' P0^{-1} (mean - m0), S = basis' P0^{-1} basis."""
        xp = namespace(ensemble.mean)
        shift, basis = self.prior.whiten(ensemble.mean - self.prior.mean), self.prior.whiten(ensemble.basis)
        loss = (xp.sum(shift**2) + xp.sum(basis**2)) / 2
        return Moments(loss, basis.mT @ shift, product(basis.mT, basis))

    def potential_moments(self, ensemble: AffineEnsemble, expectation: Expectation = empirical) -> Moments:
        """Return the moments of the whole potential: likelihood plus prior."""
        return self.moments(ensemble, expectation) + self.prior_moments(ensemble)

    def loss(self, theta: Array) -> Array:
        """Return Psi (J,) of the particles theta (J, P)."""
        return self.model.loss(theta, self.likelihood, self.targets, self.weights)

    def loss_and_gradient(self, theta: Array) -> tuple[Array, Array]:
        """Return Psi (J,) and grad Psi (J, P) at the particles theta (J, P).

        >>> problem = Problem.create([[2.0]], [1], classes=[0, 1])
        >>> loss, gradient = problem.loss_and_gradient(np.asarray([[0.0]]))
        >>> round(float(loss[0]), 6), gradient.tolist()
        (0.693147, [[-1.0]])
        """
        return self.model.loss_and_gradient(theta, self.likelihood, self.targets, self.weights)

    def with_prior(self, prior: Gaussian) -> Problem:
        """Return the same data with another prior over all P parameters, the intercept's included.

        >>> problem = Problem.create([[1.0], [-1.0]], [1, 0], intercept=100.0)
        >>> problem.with_prior(Gaussian.isotropic(2, 0.5)).prior.cov.tolist()
        [0.5, 0.5]
        """
        return replace(self, prior=_prior(prior, self.dim, "all parameters, intercept included", self.prior.mean))

    def subset(self, rows: np.ndarray[Any, Any]) -> Problem:
        """Return the problem that has only some of the data (rows: integers), with the same prior."""
        if not isinstance(self.model, LinearLogits):
            raise ValueError("mini-batches need linear logits; nonlinear logits are evaluated for all data at once")
        weights = None if self.weights is None else take_rows(self.weights, rows)
        return replace(self, model=self.model.subset(rows), targets=take_rows(self.targets, rows), weights=weights)


def _targets(
    labels: Any, size: int, likelihood: Likelihood | None, classes: Any, reference: Array
) -> tuple[Array, np.ndarray[Any, Any] | None, Likelihood]:
    """Return targets in the library of `reference`, the classes, and the likelihood that fits them."""
    if likelihood is None:
        encoded, known = encode(labels, size, classes)
        likelihood = Bernoulli() if len(known) == 2 else Categorical(len(known))
    else:
        encoded, known = likelihood.encode(labels, size, classes)
    return likelihood.targets(encoded, reference), known, likelihood


def _prior(prior: Gaussian | float, dim: int, meaning: str, reference: Array) -> Gaussian:
    """Return the prior in the library of `reference`, of the dimension that the data ask for."""
    if not isinstance(prior, Gaussian | Real):
        raise ValueError(f"a prior is {prior!r}; expected a Gaussian, or a number for the variance of N(0, variance I)")
    law = prior if isinstance(prior, Gaussian) else Gaussian.isotropic(dim, float(prior))
    if law.dim != dim:
        raise ValueError(f"the prior has dimension {law.dim}; expected {dim} ({meaning}) to fit features and labels")
    return law.to(reference)


def _weights(weights: Any, size: int, reference: Array) -> Array | None:
    return None if weights is None else like(observation_weights(weights, size), reference)


def _chunk(chunk: int | None, outputs: int | None) -> int:
    if chunk is None:
        return max(CHUNK // (outputs or 1), 64)
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; expected a positive number of rows")
    return int(chunk)
