"""One interface for everything that can be compared: a method turns a problem into something that predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from enkbayes.arrays import Array
from enkbayes.posterior import Posterior, Uncertainty
from enkbayes.problem import Problem
from enkbayes.run import run
from enkbayes.samplers import Sampler


class Predictor(Protocol):
    """What a fitted method can do; a `Posterior` is one."""

    def predict_proba(self, features: Array) -> Array:
        """Return class probabilities (n, K) for features (n, D)."""

    def sample_proba(self, features: Array) -> Array:
        """Return the class probabilities of each member, (J, n, K)."""

    def predict_uncertainty(self, features: Array) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty in nats, and confidence, (n,) each."""


class Method(Protocol):
    """A way to fit a problem. Methods are frozen dataclasses whose fields are their settings."""

    @property
    def name(self) -> str:
        """The name in tables, legends and on the command line."""

    def fit(self, problem: Problem, *, seed: int = 0, progress: bool = False) -> Predictor:
        """Return the fitted predictor; the prior is the problem's."""


@dataclass(frozen=True)
class Ensemble:
    """One of the samplers of this package as a method.

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
