"""Advice on the number of particles: the smallest ensemble whose average prediction is close enough to its Gaussian.

`predict_proba` integrates over the fitted Gaussian and does not depend on J. Everything that uses the particles one by
one does: `sample_proba`, the epistemic uncertainty, the size of files. The error of their average follows from the
spectrum of a coarse mean-field fit, a few Newton-like steps. For one row, a probability is a function f of the standard
coordinate x of its logit, with the expansion f = c0 + c1 He1 + c2 He2 + rest in Hermite polynomials. The particles are
centred, so the average of the linear term is exact. They are whitened in the J - 1 leading directions, which hold the
share s of the variance of the logit, so that of the quadratic term only 1 - s^2 remains:

    variance of the average = ( c2^2 (1 - s^2) + rest^2 ) / J.

If there are at least twice as many particles as directions, they come in pairs mean +- x. Then s = 1, odd terms are
averaged exactly, and the even ones have J / 2 independent samples: rest^2 / J becomes even^2 / (J / 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.core.problem import Problem
from enkbayes.core.quadrature import quasi_random_points
from enkbayes.engine.arrays import to_numpy
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Advice:
    """The advised number of particles, the error to expect from their average, and how many directions are informed.

    error is the mean absolute difference, over rows and classes, between the average probability of the particles and
    the Gaussian predictive. informed is the number of directions in which the data at least halve the prior variance.

    Examples
    --------
    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((200, 3))
    >>> advice = eb.advise(eb.Problem.create(features, features[:, 0] > 0.2))
    >>> advice.informed, advice.parameters, advice.error <= 0.01
    (3, 3, True)
    """

    particles: int
    error: float
    informed: int
    parameters: int

    @property
    def sentence(self) -> str:
        """The advice in words."""
        return (
            f"{self.particles} particles average within {self.error:.2g} of the Gaussian predictive; the data inform "
            f"{self.informed} of {self.parameters} parameters (predict_proba does not depend on the number)"
        )


def advise(problem: Problem, error: float = 0.01, *, seed: int = 0, most: int = 10**6) -> Advice:
    """Return the smallest number of particles whose average prediction has at most this error on the data.

    Parameters
    ----------
    problem : Problem
        With linear logits.
    error : float
        The mean absolute error of the average probability of the particles.
    seed : int
        Seed of the choice of rows, if there are many.
    most : int
        The largest number of particles that is tried.

    Examples
    --------
    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((200, 3))
    >>> problem = eb.Problem.create(features, features[:, 0] + 0.5 * features[:, 1] > 0.2)
    >>> few, many = advise(problem, 0.01).particles, advise(problem, 0.001).particles
    >>> 2 <= few < many
    True
    """
    problem.linear_logits("advice on the number of particles")
    if not 0 < error < 1:
        raise ValueError(f"error is {error}; expected a number between 0 and 1")
    spectrum = Spectrum.of(problem, seed)
    low, high = 2, 2
    while spectrum.error(high) > error and high < most:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if spectrum.error(middle) > error else (low, middle)
    best = low if spectrum.error(low) <= error else high
    if spectrum.pairs(best):
        best += best % 2
    return Advice(best, spectrum.error(best), spectrum.informed, problem.dim)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """What a coarse fit says about n rows: the quadratic, higher even and higher odd parts (n, K) of the variance of
    their probabilities, the share (n, r) of the variance of their logits in the first 1, 2, ... directions, the most
    informed first, and the number of informed directions.
    """

    quadratic: Vector
    even: Vector
    odd: Vector
    shares: Vector
    informed: int

    @classmethod
    def of(cls, problem: Problem, seed: int = 0, *, tol: float = 0.05, most_rows: int = 500) -> Spectrum:
        """Return the spectrum of a mean-field fit with this residual, from at most so many rows."""
        linear = problem.linear_logits("advice on the number of particles")
        ensemble = run(problem, MeanField(tol=tol), particles=2, seed=seed).ensemble
        rows = np.random.default_rng(seed).permutation(problem.size)[:most_rows]
        mean_logits, V = (to_numpy(x) for x in linear.predictive_logits(problem.rows.take(rows), ensemble))
        prior_share = to_numpy((problem.prior.whiten(ensemble.basis) ** 2).sum(axis=0))
        if V.ndim == 2:
            V, mean_logits = V[:, None, :], mean_logits[:, None]
        powers = np.cumsum(np.sum(V**2, axis=1), axis=1)
        return cls(*_hermite(problem, mean_logits, V), powers / powers[:, -1:], int(np.sum(prior_share < 0.5)))

    def pairs(self, particles: int) -> bool:
        """Return whether there are enough particles to come in pairs."""
        return particles >= 2 * int(self.shares.shape[1])

    def error(self, particles: int) -> float:
        """Return the expected mean absolute error of the average over this number of particles."""
        if self.pairs(particles):
            variance = 2 * self.even / particles
        else:
            s = self.shares[:, min(particles - 1, self.shares.shape[1]) - 1][:, None]
            variance = (self.quadratic * (1 - s**2) + self.even + self.odd) / particles
        return float(np.mean(np.sqrt(2 / math.pi * variance)))


def _hermite(problem: Problem, mean_logits: Vector, V: Vector) -> tuple[Vector, Vector, Vector]:
    """Return the quadratic, higher even and higher odd parts (n, K) of the variance of the probabilities of rows."""
    K = V.shape[1]
    x = quasi_random_points(K, 11)
    cov = V @ np.swapaxes(V, 1, 2)
    w, Q = np.linalg.eigh(cov)
    logits = mean_logits[:, None, :] + x @ np.swapaxes(Q * np.sqrt(np.maximum(w, 0))[:, None, :], 1, 2)
    p = np.asarray(problem.likelihood.mean(logits[..., 0] if problem.likelihood.outputs is None else logits))
    p = p - p.mean(axis=1, keepdims=True)
    linear = np.einsum("nqk,qi->nki", p, x) / len(x)
    second = (x[:, :, None] * x[:, None, :] - np.eye(K)).reshape(len(x), -1)
    quadratic = np.sum((np.einsum("nqk,qi->nki", p, second) / len(x)) ** 2, axis=-1) / 2
    plus, minus = np.split(p, 2, axis=1)  # the points come in pairs x, -x
    even = np.mean(((plus + minus) / 2) ** 2, axis=1) - quadratic
    odd = np.mean(((plus - minus) / 2) ** 2, axis=1) - np.sum(linear**2, axis=-1)
    return quadratic, np.maximum(even, 0.0), np.maximum(odd, 0.0)
