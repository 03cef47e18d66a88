"""A weighted average of several posteriors of the same weights, each under a prior of its own width.

    p(theta | data) = sum_k w_k q_k(theta),        p(class | x) = sum_k w_k integral p(class | x, theta) q_k(theta)

Each component q_k is the posterior under a prior of its own, or a point estimate (a Gaussian of rank 0). Predictions
are the weighted averages of the components' predictions. Every component carries J particles; the J particles of the
mixture are taken from them, in pairs, in numbers in proportion to the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from enkbayes.core.arguments import check_count
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.posterior import Info, Posterior
from enkbayes.core.problem import Problem
from enkbayes.core.uncertainty import Uncertainty
from enkbayes.engine.arrays import Array, namespace, symmetric, take_rows

LEAST = 0.05  # weight from which a component can decide whether the mixture has converged


@dataclass(frozen=True, eq=False)
class MixturePosterior:
    """Several posteriors with weights, with the attributes and methods of a `Posterior`.

    Parameters
    ----------
    components : tuple of Posterior
        Of the same weights, with the same number of particles each.
    weights : tuple of float
        Not negative, with the sum 1.
    priors : tuple of Gaussian
        The prior of each component. They, and `prior_weights`, are needed for what compares posterior and data:
        `assess`, `log_evidence`, `polish`. Empty if unknown.
    prior_weights : tuple of float
        The probability of each component before the data, with a sum of at most 1 (below 1 where components of no
        weight have been left out).
    message : str
        How the weights were found.
    held_out : bool
        Whether held-out rows have chosen the scale and the spread of the components, which then predict better than the
        posteriors under their priors, but are not those posteriors.

    Examples
    --------
    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((80, 2))
    >>> narrow, wide = (eb.run(eb.Problem.create(features, features[:, 0] > 0, v), particles=50) for v in (1.0, 9.0))
    >>> posterior = MixturePosterior((narrow, wide), (0.25, 0.75))
    >>> posterior.theta.shape, posterior.predict_proba(features).shape
    ((50, 2), (80, 2))
    >>> average = narrow.predict_proba(features) / 4 + wide.predict_proba(features) * 3 / 4
    >>> bool(np.allclose(posterior.predict_proba(features), average))
    True
    """

    components: tuple[Posterior, ...]
    weights: tuple[float, ...]
    priors: tuple[Gaussian, ...] = ()
    prior_weights: tuple[float, ...] = ()
    message: str = ""
    held_out: bool = False

    def __post_init__(self) -> None:
        count, weights = len(self.components), _numbers(self.weights)
        if not count or weights.shape != (count,) or not np.all(weights >= 0) or abs(weights.sum() - 1) > 1e-6:
            raise ValueError(f"{count} components have the weights {self.weights}; expected {count}, with the sum 1")
        if len(self.priors) not in (0, count) or len(self.prior_weights) != len(self.priors):
            raise ValueError(
                f"{count} components have {len(self.priors)} priors and {len(self.prior_weights)} prior weights; "
                "expected one for each, or none"
            )
        first = self.components[0]
        shapes = {(c.ensemble.size, int(c.mean.shape[0]), c.map, type(c.likelihood)) for c in self.components}
        if len(shapes) > 1 or any(not _same(c.classes, first.classes) for c in self.components):
            raise ValueError("the components differ in particles, parameters, logits or classes; expected the same")

    @cached_property
    def heaviest(self) -> Posterior:
        """The component with the largest weight."""
        return self.components[int(np.argmax(self.weights))]

    @property
    def map(self) -> LinearLogits | None:
        """The logits, those of every component."""
        return self.components[0].map

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the heaviest component."""
        return self.heaviest.likelihood

    @property
    def classes(self) -> np.ndarray[Any, Any] | None:
        """The classes (K,), or None."""
        return self.components[0].classes

    @cached_property
    def members(self) -> np.ndarray[Any, Any]:
        """The component (J,) from which each particle is taken: every particle of the mixture is the one with the same
        number of its component, so that mirrored particles stay mirrored.

        >>> import enkbayes as eb
        >>> posterior = eb.run(eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0]), particles=100)
        >>> np.bincount(MixturePosterior((posterior, posterior), (0.1, 0.9)).members).tolist()
        [10, 90]
        """
        size = self.components[0].ensemble.size
        paired = size % 2 == 0
        counts = proportional(self.weights, size // 2 if paired else size)
        found = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
        return np.concatenate([found, found]) if paired else found

    @cached_property
    def theta(self) -> Array:
        """The particles (J, P)."""
        xp = namespace(self.components[0].mean)
        parts = [(np.flatnonzero(self.members == k), c) for k, c in enumerate(self.components)]
        rows = [(index, take_rows(component.theta, index)) for index, component in parts if len(index)]
        order = np.argsort(np.concatenate([index for index, _ in rows]))
        return take_rows(xp.concat([theta for _, theta in rows], axis=0), order)

    @property
    def mean(self) -> Array:
        """The mean (P,), exact."""
        return self._averaged(lambda component: component.mean)

    @property
    def cov(self) -> Array:
        """The covariance (P, P), exact: the average of the components' and the covariance of their means."""
        mean = self.mean

        def second(component: Posterior) -> Array:
            shift = component.mean - mean
            return component.cov + shift[:, None] * shift[None, :]

        return self._averaged(second)

    @property
    def variances(self) -> Array:
        """The diagonal of cov, (P,)."""
        mean = self.mean
        return self._averaged(lambda component: component.ensemble.variances + (component.mean - mean) ** 2)

    @property
    def distribution(self) -> Gaussian:
        """The Gaussian with the mixture's mean and covariance; the components' own keep more of what the data said."""
        return Gaussian(self.mean, symmetric(self.cov))

    @cached_property
    def ensemble(self) -> AffineEnsemble:
        """The J particles of the mixture as an ensemble."""
        theta = self.theta
        spread = bool(namespace(theta).any(theta != theta[:1, :]))
        return AffineEnsemble.factor(theta) if spread else AffineEnsemble.point(theta[0, :])

    @property
    def gaussian(self) -> bool:
        """Whether predictions integrate over the Gaussians of all components."""
        return all(component.gaussian for component in self.components)

    @cached_property
    def info(self) -> Info:
        """How the runs went: steps and seconds in all, the worst of what decides whether they converged. A component of
        little weight decides nothing; the trace is that of the heaviest.
        """
        infos = [c.info for c in self.components]
        heavy = [info for info, weight in zip(infos, self.weights, strict=True) if weight >= LEAST]
        trouble = "; ".join(dict.fromkeys(info.message for info in heavy if info.message and not info.converged))
        return replace(
            self.heaviest.info,
            steps=sum(info.steps for info in infos),
            seconds=sum(info.seconds for info in infos),
            converged=all(info.converged for info in heavy),
            residual=max((info.residual for info in heavy), key=_nan_first),
            sweeps=min(info.sweeps for info in infos),
            drift=max((info.drift for info in heavy), key=_nan_first),
            message=trouble or self.heaviest.info.message,
        )

    def sample(self, n: int, seed: int = 0) -> Array:
        """Return n independent draws (n, P) of the mixture; see `Posterior.sample`.

        >>> import enkbayes as eb
        >>> posterior = eb.run(eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0]), particles=100)
        >>> MixturePosterior((posterior, posterior), (0.1, 0.9)).sample(7).shape
        (7, 1)
        """
        check_count("n", n)
        rng = np.random.default_rng((int(n), seed, 8))
        shares = np.asarray(self.weights, dtype=np.float64)
        counts = rng.multinomial(n, shares / shares.sum())
        own = rng.integers(2**31, size=len(counts))  # a seed for each component
        parts = [
            c.sample(int(count), int(s)) for c, count, s in zip(self.components, counts, own, strict=True) if count
        ]
        return take_rows(namespace(parts[0]).concat(parts, axis=0), rng.permutation(n))

    def predict_proba(self, features: Array | Callable[[Array], Array], *, noise: Array | None = None) -> Array:
        """Return class probabilities (n, K): the weighted average of what the components predict; see
        `Posterior.predict_proba`.
        """
        return self._averaged(lambda component: component.predict_proba(features, noise=noise), probabilities=True)

    def mean_proba(self, features: Array | Callable[[Array], Array], *, noise: Array | None = None) -> Array:
        """Return class probabilities (n, K), averaged over the J particles."""
        return self._pooled.mean_proba(features, noise=noise)

    def sample_proba(self, features: Array | Callable[[Array], Array], *, noise: Array | None = None) -> Array:
        """Return the class probabilities that each particle predicts, (J, n, K)."""
        return self._pooled.sample_proba(features, noise=noise)

    def predict_uncertainty(
        self, features: Array | Callable[[Array], Array], *, noise: Array | None = None
    ) -> Uncertainty:
        """Split the uncertainty of the particles' average prediction; see `Posterior.predict_uncertainty`."""
        found = self._pooled.predict_uncertainty(features, noise=noise)
        if self.likelihood.n_classes is None:
            return found
        proba = self.predict_proba(features, noise=noise)
        return replace(found, confidence=namespace(proba).max(proba, axis=-1))

    def to_arviz(
        self,
        feature_names: Sequence[str] | None = None,
        *,
        problem: Problem | None = None,
        draws: int | None = None,
        seed: int = 0,
    ) -> Any:
        """Return draws for ArviZ; see `Posterior.to_arviz`."""
        from enkbayes.core.arviz import to_arviz

        theta = self.theta if draws is None else self.sample(draws, seed)
        return to_arviz(theta, self.map, self.classes, feature_names, problem)

    def tempered(self, scale: float) -> MixturePosterior:
        """Return the mixture with all logits multiplied by a number; see `Posterior.tempered`."""
        return replace(self, components=tuple(component.tempered(scale) for component in self.components))

    def with_components(self, components: Iterable[Posterior]) -> MixturePosterior:
        """Return the mixture with other components, which have the same weights and priors."""
        return replace(self, components=tuple(components))

    def problems(self, problem: Problem) -> list[Problem]:
        """Return the problem of each component: these rows under its own prior."""
        if not self.priors:
            raise ValueError("the priors of the components are unknown; expected a mixture with priors=")
        return [problem.with_prior(prior) for prior in self.priors]

    @cached_property
    def _pooled(self) -> Posterior:
        """The particles, as a posterior that averages over them."""
        return replace(self.heaviest, ensemble=self.ensemble, gaussian=False, before=None, info=self.info)

    def _averaged(self, value: Callable[[Posterior], Array], *, probabilities: bool = False) -> Array:
        """Return the weighted average of a value of the components; those of no weight are not computed."""
        parts = [w * value(c) for w, c in zip(self.weights, self.components, strict=True) if w > 0]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        if not probabilities or self.likelihood.n_classes is None:
            return total
        return total / namespace(total).sum(total, axis=-1, keepdims=True)  # 1 within round-off, which float32 shows


def proportional(weights: Sequence[float], size: int) -> np.ndarray[Any, Any]:
    """Return whole numbers (n,) in proportion to weights, with the sum `size` (largest remainders).

    >>> proportional((0.5, 0.3, 0.2), 7).tolist()
    [4, 2, 1]
    """
    shares = np.asarray(weights, dtype=np.float64) / np.sum(weights) * size
    counts = np.floor(shares).astype(int)
    largest = np.argsort(counts - shares, kind="stable")[: size - counts.sum()]
    counts[largest] += 1
    return np.asarray(counts)


def _numbers(weights: Any) -> np.ndarray[Any, Any]:
    """Return weights as an array, which is empty if they are not numbers."""
    try:
        return np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        return np.zeros(0)


def _same(a: Any, b: Any) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def _nan_first(x: float) -> float:
    """Sort NaN, an unknown value, before all others."""
    return -math.inf if math.isnan(x) else x
