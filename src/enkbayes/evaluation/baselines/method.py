"""The interface of all methods: a method fits a problem and returns a predictor."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Protocol

from enkbayes.core.caller import warn
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.posterior import Info, Posterior
from enkbayes.core.problem import Problem
from enkbayes.core.uncertainty import Uncertainty
from enkbayes.engine.arrays import Array
from enkbayes.samplers import Sampler
from enkbayes.samplers.run import run


class Predictor(Protocol):
    """The interface of a fitted method; a `Posterior` is a predictor.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> fitted: Predictor = Ensemble("mean-field", eb.MeanField()).fit(problem)
    >>> fitted.predict_proba([[0.0]]).round(1).tolist()
    [[0.5, 0.5]]
    """

    def predict_proba(self, features: Array) -> Array:
        """Return class probabilities (n, K) for features (n, D)."""

    def sample_proba(self, features: Array) -> Array:
        """Return the class probabilities of each member, (J, n, K)."""

    def predict_uncertainty(self, features: Array) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty in nats, and confidence, (n,) each."""


class Method(Protocol):
    """The interface of a method. Methods are frozen dataclasses whose fields are their settings. A method that needs
    optional libraries lists their modules in `needs`, a tuple.

    >>> import enkbayes as eb
    >>> method: Method = Ensemble("mean-field", eb.MeanField())
    >>> method.name
    'mean-field'
    """

    @property
    def name(self) -> str:
        """The name in tables, legends and on the command line."""

    def fit(self, problem: Problem, *, seed: int = 0, progress: bool = False) -> Predictor:
        """Return the fitted predictor. The prior is that of the problem."""


@dataclass(frozen=True)
class Ensemble:
    """A particle sampler as a method: those of this package, and `ALDI`, `ParticleFlow` and `SVGD`.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> method = Ensemble("equilibrium", eb.Equilibrium(), particles=50)
    >>> method.fit(problem).predict_proba([[0.0]]).shape
    (1, 2)
    """

    name: str
    sampler: Sampler
    particles: int = 200

    def fit(self, problem: Problem, *, seed: int = 0, progress: bool = False) -> Posterior:
        """Run the sampler."""
        return run(problem, self.sampler, particles=self.particles, seed=seed, progress=progress)


def fitted(
    problem: Problem,
    ensemble: AffineEnsemble,
    method: Method,
    started: float,
    *,
    gaussian: bool = False,
    likelihood: Likelihood | None = None,
    steps: int = 0,
    converged: bool = True,
    residual: float = math.nan,
    message: str = "",
    report: Any = None,
) -> Posterior:
    """Return the posterior of a method with its own loop. Like `run`, warn if it did not converge.

    `started` is the value of `time.perf_counter()` at the start; `report` becomes `posterior.state`.
    """
    if not converged:
        from sklearn.exceptions import ConvergenceWarning

        warn(f"{type(method).__name__} did not converge: {message}", ConvergenceWarning)
    info = Info(
        sampler=repr(method),
        steps=steps,
        converged=converged,
        residual=residual,
        message=message,
        blend=0.0,
        time=math.nan,
        seconds=time.perf_counter() - started,
    )
    return Posterior(
        ensemble, likelihood or problem.likelihood, problem.linear, problem.classes, gaussian, info, report
    )
