"""Temperature and prior width of a network's posterior, chosen by held-out rows where the network is linearised.

In a subspace w = w* + directions u the logits are, to first order,

    z_n(u) = (f_n + V_n u) / T,    f_n = f_n(w*),    V_n = df_n/dw directions,    u ~ N(0, v I),

a linear model with few parameters, so every candidate for v is cheap. The width is given as the spread v mean |V_n|^2
of the logits, and `enkbayes.inference.held_out` chooses it by the log loss of held-out rows, here in cross-validation.
Temperature scaling is the limit v = 0. So if the held-out rows do not support a posterior, it is so narrow that it
changes nothing.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import to_numpy
from enkbayes.inference.folds import log_losses, stratified_folds
from enkbayes.inference.held_out import NARROW, SPREADS, TEMPERATURE, Calibration, Candidate
from enkbayes.inference.held_out import choose as choose_candidate
from enkbayes.inference.temperature import temperature_scale
from enkbayes.samplers import Equilibrium
from enkbayes.samplers.run import run

Vector = np.ndarray[Any, Any]
COARSE = Equilibrium(tol=1e-2)  # fits that are only compared, or the start of another


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
        """Return the inverse temperature of the trained logits that minimises the loss of the rows."""
        only = Gaussian(torch.ones(1, dtype=self.trained.dtype), 1.0)

        def scaled(theta: torch.Tensor) -> torch.Tensor:
            return self.trained[:, None] * theta[:, 0].reshape((1, -1) + (1,) * (self.trained.ndim - 1))

        return temperature_scale(
            Problem.nonlinear(scaled, self.labels, only, classes=np.arange(self.outputs)), only.mean
        )

    def fit(self, scale: float, variance: float, particles: int, seed: int) -> Posterior:
        """Return the posterior of u."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the held-out loss judges it, or it is only a start
            return run(self.problem(scale, variance), COARSE, particles=particles, seed=seed)


def choose(linear: Linearised, particles: int, seed: int, *, folds: int = 5) -> Calibration:
    """Return the spread of the logits and the inverse temperature that held-out rows choose, in cross-validation."""
    scale, count = linear.scale(), len(linear.labels)  # first, because it checks the labels
    parts = [_Fold.of(linear, rows) for rows in _folds(linear.labels, folds, seed)]

    def losses(candidate: Candidate) -> Vector:
        return np.concatenate([part.losses(candidate, particles, seed) for part in parts])

    calibration = choose_candidate([Candidate(spread) for spread in SPREADS], losses, lambda _: scale, count)
    return replace(calibration, message=f"{calibration.message}, where the network is linearised")


def held_out_logits(
    linear: Linearised, calibration: Calibration, particles: int, seed: int, *, folds: int = 5
) -> tuple[Vector, Vector]:
    """Return mean (n,) or (n, K) and a root (n, J) or (n, K, J) of the covariance of the logits of every row, predicted
    from the rows of the other folds by the chosen candidate.
    """
    mean = np.zeros(tuple(linear.trained.shape))
    root = np.zeros((*mean.shape, 1 if calibration.chosen == TEMPERATURE else particles))
    for rows in _folds(linear.labels, folds, seed):
        fold = _Fold.of(linear, rows)
        logits = to_numpy(calibration.scale * fold.new.logits(fold.theta(calibration.chosen, particles, seed)[0]))
        mean[rows] = logits.mean(axis=1)
        root[rows] = np.moveaxis(logits - logits.mean(axis=1, keepdims=True), 1, -1) / np.sqrt(logits.shape[1])
    return mean, root


def _folds(labels: Vector, count: int, seed: int) -> list[Vector]:
    """Return the rows of each fold."""
    fold = stratified_folds(labels, count, np.random.default_rng((seed, 5)))
    return [np.flatnonzero(fold == number) for number in range(count)]


@dataclass(frozen=True, eq=False)
class _Fold:
    """Held-out rows to be predicted, and the other rows."""

    new: Linearised
    others: Linearised

    @classmethod
    def of(cls, linear: Linearised, rows: Vector) -> _Fold:
        return cls(linear.rows(rows), linear.rows(np.setdiff1d(np.arange(len(linear.labels)), rows)))

    @cached_property
    def scale(self) -> float:
        """The inverse temperature of the other rows."""
        return self.others.scale()

    def theta(self, candidate: Candidate, particles: int, seed: int) -> tuple[torch.Tensor, Likelihood]:
        """Return particles (J, r) of the posterior of the other rows, and its likelihood."""
        others = self.others
        if candidate == TEMPERATURE:
            nothing = others.slopes.new_zeros(1, others.slopes.shape[-1])
            return nothing, others.problem(self.scale, NARROW).likelihood
        posterior = others.fit(self.scale, others.variance(candidate.spread), particles, seed)
        return posterior.theta, posterior.likelihood

    def losses(self, candidate: Candidate, particles: int, seed: int) -> Vector:
        """Return the log loss (n,) of the rows of this fold, predicted by the posterior of the others."""
        new = self.new
        theta, likelihood = self.theta(candidate, particles, seed)
        proba = to_numpy(likelihood.mean(self.scale * new.logits(theta)).mean(dim=1))
        return log_losses(proba, new.labels)
