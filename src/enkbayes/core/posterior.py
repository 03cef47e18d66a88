"""What a run returns: particles, and what they predict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from enkbayes.core.arguments import check_count
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Categorical, Likelihood
from enkbayes.core.likelihoods.many_classes import VERY_MANY, predictive
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.logit_noise import noisy_members, noisy_predictive
from enkbayes.core.numerics import in_range
from enkbayes.core.uncertainty import Uncertainty
from enkbayes.engine.arrays import (
    Array,
    all_finite,
    anchor,
    floating,
    like,
    namespace,
    part_of,
    row_slices,
    symmetric,
    take_rows,
)
from enkbayes.engine.memory import check_fits

CHUNK = 4096  # rows
MEMBERS = 256  # at least so many predictions are averaged where logits have noise
MOST_NUMBERS = 2**26  # logits of all particles for the rows of a chunk


@dataclass(frozen=True)
class Info:
    """How a run went.

    converged: whether the sampler met its own stopping rule (a homotopy: whether it reached s = 1). residual:
    natural-gradient norm, NaN for homotopies, which have no equilibrium. blend: weight of Gaussian expectations in the
    averages. nonlinearity: for nonlinear logits, the share of their spread that no linear function explains. trace: the
    run step by step, (steps, residual, trace of P), thinned where it is long. sweeps: moves of every particle by
    `polish`; drift: the share of the climb in log posterior that came in the second half of them, 0 within noise.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> info = eb.run(problem).info
    >>> info.converged, info.message
    (True, '')
    """

    sampler: str
    steps: int
    converged: bool
    residual: float
    message: str
    blend: float
    time: float
    seconds: float
    nonlinearity: float | None = None
    trace: tuple[tuple[int, float, float], ...] = field(default=(), repr=False)
    sweeps: int = 0
    drift: float = math.nan


@dataclass(frozen=True, eq=False)
class Posterior:
    """Samples of the posterior and the Gaussian they came from.

    `gaussian` tells whether predictions integrate over the fitted Gaussian; their accuracy then does not depend on the
    number of particles. Otherwise they average over the particles. `fitted` is that Gaussian, as an ensemble: the
    posterior's own, or, for particles that `polish` has moved away from it, the one they came from (`before`).
    `sample_proba(...)` always shows the particles one by one.

    Examples
    --------
    >>> import enkbayes as eb
    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((80, 2))
    >>> posterior = eb.run(eb.Problem.create(features, features[:, 0] > 0), particles=50)
    >>> posterior.theta.shape, posterior.predict_proba(features).shape, posterior.sample_proba(features).shape
    ((50, 2), (80, 2), (50, 80, 2))
    """

    ensemble: AffineEnsemble
    likelihood: Likelihood
    map: LinearLogits | None
    classes: np.ndarray[Any, Any] | None
    gaussian: bool
    info: Info
    state: Any = None
    before: AffineEnsemble | None = None

    @property
    def fitted(self) -> AffineEnsemble:
        """The ensemble whose N(mean, basis basis') was fitted."""
        return self.ensemble if self.before is None else self.before

    @property
    def components(self) -> tuple[Posterior, ...]:
        """The posterior itself; a `MixturePosterior` has several."""
        return (self,)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of the one component, 1."""
        return (1.0,)

    @property
    def held_out(self) -> bool:
        """Whether held-out rows have chosen scale and spread, as in a `MixturePosterior`; here they have not."""
        return False

    def problems(self, problem: Any) -> tuple[Any, ...]:
        """Return the problem of the one component."""
        return (problem,)

    def with_components(self, components: Iterable[Posterior]) -> Posterior:
        """Return the given component, the only one; a `MixturePosterior` keeps its weights."""
        (only,) = components
        return only

    @property
    def has_gaussian(self) -> bool:
        """Whether `fitted` is a Gaussian that was fitted, and not one made up from noisy particles."""
        return self.gaussian or self.before is not None

    @property
    def theta(self) -> Array:
        """The particles (J, P)."""
        return self.ensemble.theta

    @property
    def mean(self) -> Array:
        """The mean (P,)."""
        return self.ensemble.mean

    @property
    def cov(self) -> Array:
        """The covariance (P, P)."""
        return self.ensemble.cov

    @property
    def variances(self) -> Array:
        """The diagonal of cov, (P,)."""
        return self.ensemble.variances

    @property
    def distribution(self) -> Gaussian:
        """N(mean, cov): today's posterior, ready to be the prior of tomorrow's data (`Problem.with_prior`).

        An ensemble of J <= P particles spans J - 1 directions and determines no distribution on the others, so this
        raises an error. Polished particles have the Gaussian that they came from.

        >>> import enkbayes as eb
        >>> features = np.random.default_rng(0).standard_normal((80, 2))
        >>> problem = eb.Problem.create(features, features[:, 0] > 0)
        >>> eb.run(problem, particles=50).distribution.dim
        2
        """
        dim = int(self.mean.shape[0])
        source = self.fitted  # J polished particles say less of the covariance than the Gaussian that they came from
        spanned = source.freedom
        if spanned < dim:
            raise ValueError(
                f"{self.ensemble.size} particles span {spanned} of {dim} parameters, so N(mean, cov) is singular; "
                f"use more than {dim} particles, or MeanField()"
            )
        return Gaussian(source.mean, symmetric(source.cov))

    def tempered(self, scale: float) -> Posterior:
        """Return the posterior with all logits multiplied by a number, for logits that are linear in the parameters.

        >>> import enkbayes as eb
        >>> posterior = eb.run(eb.Problem.create([[1.0], [-1.0]], [1, 0]), particles=20)
        >>> bool(np.allclose(posterior.tempered(2.0).theta, 2 * posterior.theta))
        True
        """
        if scale == 1.0:
            return self
        before = None if self.before is None else self.before.scaled(scale)
        return replace(self, ensemble=self.ensemble.scaled(scale), before=before)

    def sample(self, n: int, seed: int = 0) -> Array:
        """Return n independent draws (n, P) of the posterior.

        They are fresh draws of the fitted Gaussian. The particles `theta` are not: they come in mirrored pairs whose
        mean and covariance are exactly those of the Gaussian, which makes averages over them more accurate than over
        independent draws, but no test that expects independent draws may use them. Polished particles, and those of a
        sampler without a Gaussian, are drawn at random, without repetition while n <= J.

        >>> import enkbayes as eb
        >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
        >>> posterior = eb.run(problem)
        >>> draws = posterior.sample(10_000, seed=1)
        >>> draws.shape, bool(abs(draws.mean() - posterior.mean[0]) < 0.03)
        ((10000, 1), True)
        """
        check_count("n", n)
        rng = np.random.default_rng((int(n), seed, 7))
        if self.before is None and self.has_gaussian:
            fitted = self.ensemble
            return fitted.gaussian.unwhiten(like(rng.standard_normal((n, fitted.freedom)), fitted.mean))
        J = self.ensemble.size
        return take_rows(self.theta, rng.choice(J, n, replace=n > J))

    def predict_proba(self, features: Array | Callable[[Array], Array], *, noise: Array | None = None) -> Array:
        """Return class probabilities (n, K), averaged over the posterior, for features (n, D).

        If the particles are draws of a fitted Gaussian this is the closed-form integral over it, whatever their number.
        It is as accurate as their average (`mean_proba`), or more accurate, in every case of
        `benchmarks/predictive.py`. Against NUTS on breast cancer it is off by .0002, the average of J = 20, 50, 200
        particles by .0009, .0005, .0003. On the test problems of `docs/understand/trust.md` it is off by .0002 on T1,
        against .0036, .0014, .0007, and by .028 on T4, the hardest, against .056, .039, .031. Polished particles
        (`polish`) are averaged as soon as the error of the Gaussian exceeds their noise.

        For a nonlinear problem pass the function theta (J, P) -> logits (n, J) or (n, J, K) of the new data instead of
        features. `noise` (n,) is the variance of independent noise in every logit; see `core.logit_noise`.
        """
        if self.map is None or not self.gaussian:
            return self.mean_proba(features, noise=noise)
        return self._by_chunk(features, self._gaussian_proba, axis=0, ensemble=self.fitted, noise=noise)

    def mean_proba(self, features: Array | Callable[[Array], Array], *, noise: Array | None = None) -> Array:
        """Return class probabilities (n, K), averaged over the J particles: the paper's way, whose error falls like
        J^(-1/2).

        >>> import enkbayes as eb
        >>> features = np.random.default_rng(0).standard_normal((80, 2))
        >>> posterior = eb.run(eb.Problem.create(features, features[:, 0] > 0), particles=50)
        >>> bool(np.allclose(posterior.mean_proba(features), posterior.sample_proba(features).mean(axis=0)))
        True
        """

        def average(rows: Array, ensemble: AffineEnsemble, noise: Array | None) -> Array:
            logits = self._particle_logits(rows, ensemble)
            if self.map is None:  # the array may be the caller's own
                logits = namespace(logits).asarray(logits, copy=True)
            if noise is not None:
                logits = noisy_members(logits, noise, MEMBERS, symmetric=True)
            return self.likelihood.particle_predictive(logits)

        return self._by_chunk(features, average, axis=0, noise=noise)

    def sample_proba(self, features: Array | Callable[[Array], Array], *, noise: Array | None = None) -> Array:
        """Return the class probabilities that each particle predicts, (J, n, K), with one draw of the noise each."""
        if self.map is not None and hasattr(features, "__len__"):
            rows = features.shape[0] if hasattr(features, "shape") else len(features)  # sparse matrices have no length
            each = 16.0 * self.ensemble.size * (self.likelihood.n_classes or 1)  # the parts, and their concatenation
            check_fits(
                each * rows,
                f"the predictions of {self.ensemble.size:,} particles for {rows:,} rows",
                lambda free: f"pass at most about {int(free / each):,} rows at a time",
            )
        return self._by_chunk(features, self._particle_proba, axis=1, noise=noise)

    def predict_uncertainty(
        self, features: Array | Callable[[Array], Array], *, noise: Array | None = None
    ) -> Uncertainty:
        """Split the uncertainty of the particles' average prediction into an aleatoric and an epistemic part: entropies
        for classes, variances for real targets (see `Uncertainty`). `noise` (n,) is epistemic.

        >>> import enkbayes as eb
        >>> problem = eb.Problem.create([[1.0], [2.0]], [1.0, 3.0], likelihood=eb.Normal(variance=2.0))
        >>> found = eb.run(problem, particles=100).predict_uncertainty([[0.0], [3.0]])
        >>> found.aleatoric.tolist(), found.epistemic.round(3).tolist()
        ([2.0, 2.0], [0.0, 2.571])
        """
        parts = self._entropies if self.likelihood.n_classes is not None else self._variances
        both = self._by_chunk(features, parts, axis=0, noise=noise)
        xp = namespace(both)
        aleatoric, epistemic = both[:, 0], both[:, 1]
        if self.likelihood.n_classes is not None:
            confidence = xp.max(self.predict_proba(features, noise=noise), axis=-1)
        else:
            confidence = xp.full_like(aleatoric, xp.nan)
        return Uncertainty(
            aleatoric + epistemic, aleatoric, epistemic, confidence, None if noise is None else both[:, 2]
        )

    def _entropies(self, rows: Array, ensemble: AffineEnsemble, noise: Array | None) -> Array:
        """Return aleatoric and epistemic entropy of some rows, and how much of the latter is due to noise: (n, 3)."""
        logits = self._particle_logits(rows, ensemble)
        found = plain = self._of_members(logits)
        if noise is not None:
            found = self._of_members(noisy_members(logits, noise, MEMBERS))
        xp = namespace(found.total)
        gain = xp.maximum(found.epistemic - plain.epistemic, xp.zeros_like(found.epistemic))
        return xp.stack([found.aleatoric, found.epistemic, gain], axis=-1)

    def _of_members(self, logits: Array) -> Uncertainty:
        proba = self.likelihood.mean(logits)
        return Uncertainty.of_members(namespace(proba).moveaxis(proba, 1, 0))

    def _variances(self, rows: Array, ensemble: AffineEnsemble, noise: Array | None) -> Array:
        """Return the variance of the targets' noise, that of their means, and how much of the latter is due to noise in
        the logits: (n, 3). The second is that of the fitted Gaussian where it has a closed form, otherwise that of the
        particles.
        """
        logits = self._particle_logits(rows, ensemble)
        xp = namespace(logits)
        aleatoric = xp.mean(self.likelihood.noise_variance(logits), axis=1)
        spread = None
        if self.gaussian and self.map is not None and self.before is None:
            mean_logits, V = self.map.predictive_logits(rows, ensemble)
            spread = self.likelihood.variance_of_mean(mean_logits, V=V)
        if spread is None:
            spread = xp.var(self.likelihood.mean(logits)[..., 0], axis=1)
        gain = xp.zeros_like(spread) if noise is None else noise
        return xp.stack([aleatoric, spread + gain, gain], axis=-1)

    def to_arviz(
        self,
        feature_names: Sequence[str] | None = None,
        *,
        problem: Any = None,
        draws: int | None = None,
        seed: int = 0,
    ) -> Any:
        """Return draws for ArviZ: one chain of `theta`, an InferenceData (ArviZ 0.x) or a DataTree (1.x).

        The dimensions of `theta` are (chain, draw, feature), and class after them when there are K logits; a posterior
        of nonlinear logits has (chain, draw, parameter). The intercept is the last feature.

        The draws are the particles, or, with `draws`, so many independent ones (`sample`), of which `arviz.loo` should
        have 1,000 or more. With the problem that was fitted, the log likelihood of every row and the observed targets
        are there as well, as `arviz.loo`, `waic` and `compare` need them; memory is that of rows x draws numbers.

        >>> import enkbayes as eb
        >>> features = np.random.default_rng(0).standard_normal((80, 2))
        >>> posterior = eb.run(eb.Problem.create(features, features[:, 0] > 0, intercept=100.0), particles=50)
        >>> theta = posterior.to_arviz(feature_names=["length", "width"])["posterior"]["theta"]
        >>> theta.dims, theta.feature.values.tolist()
        (('chain', 'draw', 'feature'), ['length', 'width', 'intercept'])
        """
        from enkbayes.core.arviz import to_arviz

        theta = self.theta if draws is None else self.sample(draws, seed)
        return to_arviz(theta, self.map, self.classes, feature_names, problem)

    def _particle_proba(self, rows: Array, ensemble: AffineEnsemble, noise: Array | None) -> Array:
        """Return (J, n, K) for some rows, or for a function that gives logits."""
        logits = self._particle_logits(rows, ensemble)
        proba = self.likelihood.mean(logits if noise is None else noisy_members(logits, noise))
        return namespace(proba).moveaxis(proba, 1, 0)

    def _particle_logits(self, rows: Array, ensemble: AffineEnsemble) -> Array:
        return rows(ensemble.theta) if self.map is None else _finite(self.map.particle_logits(rows, ensemble.theta))

    def _gaussian_proba(self, rows: Array, ensemble: AffineEnsemble, noise: Array | None) -> Array:
        """Return (n, K), the integral over the Gaussian, for some rows."""
        very_many = isinstance(self.likelihood, Categorical) and self.likelihood.outputs >= VERY_MANY
        complement = ensemble.complement
        many = very_many and (noise is None or complement is not None)
        logits_of = self.map.gaussian_logits if many else self.map.predictive_logits  # type: ignore[union-attr]
        mean_logits, V = logits_of(rows, ensemble)
        _finite(mean_logits)
        _finite(namespace(V).vecdot(V, V))
        spread = V.shape[-1] > 0 or (many and complement is not None)
        if not spread and noise is None:  # a point estimate
            return self.likelihood.mean(namespace(V).expand_dims(mean_logits, axis=1))[:, 0, :]
        if many and complement is not None:
            return predictive(rows, mean_logits, V, complement, noise=noise)
        if noise is not None:
            return noisy_predictive(self.likelihood, mean_logits, V, noise)
        return self.likelihood.predictive(mean_logits, V=V)

    def _by_chunk(
        self,
        features: Any,
        function: Callable[[Array, AffineEnsemble, Array | None], Array],
        *,
        axis: int,
        ensemble: AffineEnsemble | None = None,
        noise: Array | None = None,
    ) -> Array:
        """Apply a function to chunks of checked features, with an ensemble (default: the particles') and noise in their
        library, and join the results.
        """
        ensemble = self.ensemble if ensemble is None else ensemble
        if self.map is None:
            if not callable(features):
                raise ValueError("this posterior has nonlinear logits; pass the function theta (J, P) -> logits (n, J)")
            return function(features, ensemble, noise)
        features = floating(features)
        if features.ndim != 2 or features.shape[1] != self.map.features:
            raise ValueError(
                f"features have shape {tuple(features.shape)}; expected (n, {self.map.features}) as in training"
            )
        if not all_finite(features):
            raise ValueError("features contain NaN or infinite values; impute or drop those rows first")
        ensemble = ensemble.to(anchor(features))
        noise = None if noise is None else like(noise, ensemble.mean)
        size, K = int(features.shape[0]), self.map.outputs or 1
        rows_at_once = min(max(CHUNK // K, 64), max(MOST_NUMBERS // (K * ensemble.size), 1))
        chunks = row_slices(size, rows_at_once)
        with in_range("the prediction"):
            parts = [function(features[rows, :], ensemble, part_of(noise, rows)) for rows in chunks]
        return namespace(ensemble.mean).concat(parts, axis=axis) if parts else function(features, ensemble, noise)


def _finite(logits: Array) -> Array:
    """Return logits, or their variances, that are finite."""
    if not all_finite(logits):
        raise ValueError("the logits of some rows overflow; scale their features as those of the training data")
    return logits
