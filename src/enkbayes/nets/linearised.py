"""Temperature and prior width of a network's posterior, chosen by held-out rows where the network is linearised.

In a subspace w = w* + directions u the logits are, to first order,

    z_n(u) = (f_n + V_n u) / T,    f_n = f_n(w*),    V_n = df_n/dw directions,    u ~ N(0, v I),

a linear model with a few parameters, so that every candidate for v costs a moment. As in
`enkbayes.inference.calibration`, the width is stated as the spread v mean |V_n|^2 of the logits, candidates are judged
by the log loss of held-out rows in cross-validation, and chosen is the largest gain over temperature scaling (v = 0)
less one standard error. So a posterior that held-out rows do not ask for is so narrow that it changes nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import to_numpy
from enkbayes.inference.calibration import (
    FEWEST,
    MARGIN,
    NARROW,
    SPREADS,
    TEMPERATURE,
    Calibration,
    Candidate,
    Score,
    temperature_scale,
)
from enkbayes.samplers import Equilibrium
from enkbayes.samplers.run import run

Vector = np.ndarray[Any, Any]
FOLDS = 5
COARSE = Equilibrium(tol=1e-2)


@dataclass(frozen=True, eq=False)
class Linearised:
    """Trained logits f (n,) or (n, K) of some rows, their slopes V (n, r) or (n, K, r), and class numbers (n,)."""

    trained: torch.Tensor
    slopes: torch.Tensor
    labels: Vector

    @property
    def outputs(self) -> int:
        """The number of classes."""
        return self.trained.shape[1] if self.trained.ndim == 2 else 2

    def rows(self, keep: Vector) -> Linearised:
        """Return some of the rows."""
        index = torch.as_tensor(keep)
        return Linearised(self.trained[index], self.slopes[index], self.labels[keep])

    def logits(self, theta: torch.Tensor) -> torch.Tensor:
        """Return f + V u, (n, J) or (n, J, K), of particles u (J, r)."""
        moved = (self.slopes @ theta.T).movedim(-1, 1)
        return self.trained[:, None] + moved

    def variance(self, spread: float) -> float:
        """Return the prior variance v under which the logits have this spread.

        >>> Linearised(torch.zeros(2), torch.tensor([[1.0, 1.0], [2.0, 0.0]]), np.array([0, 1])).variance(6.0)
        2.0
        """
        outputs = 1 if self.trained.ndim == 1 else self.outputs
        return spread / (float((self.slopes**2).sum()) / (len(self.labels) * outputs) or 1.0)

    def problem(self, scale: float, variance: float) -> Problem:
        """Return the problem of u, its logits multiplied by `scale`."""
        prior = Gaussian(torch.zeros(self.slopes.shape[-1], dtype=self.slopes.dtype), variance)
        return Problem.nonlinear(
            lambda theta: scale * self.logits(theta), self.labels, prior, classes=np.arange(self.outputs)
        )

    def scale(self) -> float:
        """Return the inverse temperature of the trained logits that suits the rows."""
        only = Gaussian(torch.ones(1, dtype=self.trained.dtype), 1.0)

        def scaled(theta: torch.Tensor) -> torch.Tensor:
            return self.trained[:, None] * theta[:, 0].reshape((1, -1) + (1,) * (self.trained.ndim - 1))

        return temperature_scale(
            Problem.nonlinear(scaled, self.labels, only, classes=np.arange(self.outputs)), only.mean
        )

    def fit(self, scale: float, variance: float, particles: int, seed: int) -> Posterior:
        """Return the posterior of u."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # judged by what it predicts, or a mere start
            return run(self.problem(scale, variance), COARSE, particles=particles, seed=seed)


def choose(linear: Linearised, particles: int, seed: int) -> Calibration:
    """Return the spread of the logits and the inverse temperature that held-out rows choose."""
    scale, count = linear.scale(), len(linear.labels)  # first, for it checks the labels
    if count < FEWEST:
        words = f"{count} held-out rows are too few to compare: {TEMPERATURE}"
        return Calibration(TEMPERATURE, scale, (), count, words)
    folds = _folds(linear.labels, seed)
    scores = tuple(_scores([_Part.of(linear, folds == fold) for fold in range(FOLDS)], particles, seed))
    best = max(scores, key=lambda score: score.bound(MARGIN))
    words = f"{best.candidate}, chosen by {count} held-out rows where the network is linearised"
    if best.gain > 0:
        words += f" (gain {best.gain:.4f}, standard error {best.error:.4f})"
    return Calibration(best.candidate, scale, scores, count, words)


def _folds(labels: Vector, seed: int) -> Vector:
    """Return the fold (n,) of each row, the classes in the same shares in all of them; any class may be rare."""
    order = np.random.default_rng((seed, 5)).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    folds = np.empty(len(labels), dtype=int)
    folds[order] = np.arange(len(labels)) % FOLDS
    return folds


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows that are known, the inverse temperature that suits them, and rows to be predicted."""

    known: Linearised
    scale: float
    new: Linearised

    @classmethod
    def of(cls, linear: Linearised, outside: Vector) -> _Part:
        known = linear.rows(np.flatnonzero(~outside))
        return cls(known, known.scale(), linear.rows(np.flatnonzero(outside)))


def _scores(parts: list[_Part], particles: int, seed: int) -> Iterator[Score]:
    """Yield the scores of temperature scaling, then of wider and wider priors while they improve."""
    plain = _losses(parts, None, particles, seed)
    yield Score(TEMPERATURE, float(plain.mean()), 0.0, 0.0)
    before = -math.inf
    for spread in SPREADS:
        gains = plain - _losses(parts, spread, particles, seed)
        gain = float(gains.mean())
        yield Score(Candidate(spread), float(plain.mean()) - gain, gain, float(gains.std()) / math.sqrt(len(gains)))
        if not gain > before:
            break
        before = gain


def _losses(parts: list[_Part], spread: float | None, particles: int, seed: int) -> Vector:
    """Return the log loss (n,) of every row, part by part, predicted without its part; no spread is temperature
    scaling.
    """
    losses = []
    for part in parts:
        known, new = part.known, part.new
        if spread is None:
            theta = known.slopes.new_zeros(1, known.slopes.shape[-1])
            likelihood = known.problem(part.scale, NARROW).likelihood
        else:
            posterior = known.fit(part.scale, known.variance(spread), particles, seed)
            theta, likelihood = posterior.theta, posterior.likelihood
        proba = to_numpy(likelihood.probabilities(part.scale * new.logits(theta)).mean(dim=1))
        own = proba[np.arange(len(new.labels)), new.labels.astype(int)]
        losses.append(-np.log(np.maximum(own, np.finfo(own.dtype).tiny)))
    return np.concatenate(losses)
