"""Forgetting: sequential Bayes for data that drift.

Before a batch is learned, the posterior q of the batches before is drawn back towards the prior p0,

    next prior  ~  q^f p0^(1 - f),        0 <= f <= 1,

so that every batch counts f times as much with each batch that follows it (a power prior with decaying weights). For
Gaussians the natural parameters are interpolated. In coordinates u of the prior, theta = m0 + L0 u, with U diag(w) U'
the precision of q and u_q its mean,

    precision  U diag(f w + 1 - f) U',        mean  U diag(f w / (f w + 1 - f)) U' u_q.

f = 1 is plain sequential Bayes, and f = 0 starts again from the prior. The weights w_k of a mixture become w_k^f.

Which factor is right shows before the batch is learned: the log loss of its rows, predicted by the next prior of each
factor. `Forgetting` adds up how much lower it is than without forgetting. The last batch counts fully and earlier ones
less and less, so that a sudden drift shows at once and a slow one after a few batches. A factor below 1 must gain
at least `least` nats, because the differences of a few rows are noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, like, namespace, symmetric, to_numpy
from enkbayes.inference.folds import log_losses

FACTORS = (0.98, 0.95, 0.9, 0.8, 0.65, 0.45, 0.25, 0.1, 0.0)


@dataclass(frozen=True)
class Forgetting:
    """How a forgetting factor is chosen by one-step-ahead log loss, and what is known so far.

    factors : below 1, that are compared with 1
    memory : share of the gains so far that still counts after a batch
    least : gain in nats from which a factor below 1 is chosen
    gains : of each factor so far, in nats
    factor : that of the last batch

    Examples
    --------
    >>> import enkbayes as eb
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((400, 2))
    >>> before, same, other = x[:200, 0] > 0, x[200:, 0] > 0, x[200:, 0] < 0
    >>> posterior = eb.run(eb.Problem.create(x[:200], before))
    >>> [Forgetting().seen(eb.Problem.create(x[200:], labels), posterior).factor for labels in (same, other)]
    [1.0, 0.0]
    """

    factors: tuple[float, ...] = FACTORS
    memory: float = 0.5
    least: float = 1.0
    gains: tuple[float, ...] = ()
    factor: float = 1.0

    def seen(self, problem: Problem, posterior: Posterior | MixturePosterior) -> Forgetting:
        """Return what is known after the rows of a problem, which the posterior has not learned; its prior is the one
        to fall back to.
        """
        plain = _log_loss(problem, posterior)
        line = _Line(posterior, problem.prior)
        found = np.asarray([plain - _log_loss(problem, line.at(factor)) for factor in self.factors])
        gains = self.memory * np.asarray(self.gains or np.zeros(len(found))) + found
        best = int(np.argmax(gains))
        factor = self.factors[best] if gains[best] >= self.least else 1.0
        return replace(self, gains=tuple(map(float, gains)), factor=factor)


def forgotten(posterior: Posterior | MixturePosterior, prior: Gaussian, factor: float) -> Posterior | MixturePosterior:
    """Return q^f p0^(1 - f), the posterior q with a share 1 - f of what it has learned beyond the prior p0 forgotten.

    It is an intermediate result: a Gaussian (of a mixture, several), whose particles are not drawn. Posteriors that
    span fewer directions than there are parameters are returned as they are.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0]] * 8, [1.0] * 8, likelihood=eb.Normal())
    >>> half = forgotten(eb.run(problem), problem.prior, 0.5)
    >>> four = eb.run(eb.Problem.create([[1.0]] * 4, [1.0] * 4, likelihood=eb.Normal()))
    >>> np.allclose(half.cov, four.cov), np.allclose(half.mean, four.mean)
    (True, True)
    """
    return posterior if factor == 1.0 else _Line(posterior, prior).at(factor)


def checked_factor(forget: Any) -> float | None:
    """Return a forgetting factor as a number; None for "auto"."""
    if isinstance(forget, str) and forget == "auto":
        return None
    if isinstance(forget, Real) and 0 <= float(forget) <= 1:
        return float(forget)
    raise ValueError(f'forget is {forget!r}; expected a number from 0 (forget everything) to 1 (nothing), or "auto"')


def remembered(
    problem: Problem, posterior: Posterior | MixturePosterior, factor: float | None, known: Forgetting | None
) -> tuple[Posterior | MixturePosterior, Forgetting]:
    """Return the posterior, part of which is forgotten, as it is before it learns the rows of a problem, and what is
    known of the factor. Forgetting leads back to the prior of the problem. Without a factor, the rows choose it.
    """
    known = Forgetting() if known is None else known
    known = known.seen(problem, posterior) if factor is None else replace(known, factor=factor)
    return forgotten(posterior, problem.prior, known.factor), known


@dataclass(frozen=True, eq=False)
class _Line:
    """The posteriors between one and a prior."""

    posterior: Posterior | MixturePosterior
    prior: Gaussian

    @cached_property
    def parts(self) -> tuple[_Line, ...]:
        """The lines of the components of a mixture."""
        components = self.posterior.components
        return tuple(_Line(component, self.prior) for component in components)

    @cached_property
    def spectrum(self) -> tuple[Array, Array, Array]:
        """The precisions w (P,) of the posterior in the prior's coordinates, its axes U (P, P), and U' u_q (P,)."""
        prior = self.prior
        fitted = self.posterior.fitted.to(prior.mean)  # type: ignore[union-attr]
        half = prior.whiten(prior.whiten(symmetric(fitted.cov)).mT)
        variances, U = namespace(half).linalg.eigh(symmetric(half))
        return 1 / variances, U, U.mT @ prior.whiten(fitted.mean - prior.mean)

    def at(self, factor: float) -> Posterior | MixturePosterior:
        """Return the posterior to the power of a factor times the prior to the power of the rest."""
        if isinstance(self.posterior, MixturePosterior):
            components: Any = tuple(part.at(factor) for part in self.parts)
            weights = np.asarray(self.posterior.weights) ** factor
            return replace(self.posterior, components=components, weights=tuple(map(float, weights / weights.sum())))
        if self.posterior.fitted.freedom < self.prior.dim:
            return self.posterior
        (w, U, u), prior = self.spectrum, self.prior
        precision = factor * w + (1 - factor)
        mean = prior.mean + prior.unwhiten((U @ (factor * w / precision * u))[None, :])[0, :]
        basis = prior.unwhiten((U / namespace(w).sqrt(precision)).mT).mT
        none = like(np.zeros((self.posterior.ensemble.size, prior.dim)), mean)
        ensemble = AffineEnsemble(mean, basis, none)
        return replace(self.posterior, ensemble=ensemble, before=None, gaussian=True, state=None)


def _log_loss(problem: Problem, posterior: Posterior | MixturePosterior) -> float:
    """Return the log loss of all rows in nats, with their weights."""
    proba = to_numpy(posterior.predict_proba(problem.features))
    return float(problem.counts @ log_losses(proba, to_numpy(problem.targets)))
