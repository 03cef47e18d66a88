"""How many particles? The smallest ensemble whose average prediction is as close to the Gaussian behind it as wanted.

`predict_proba` integrates over that Gaussian and does not depend on J. What does is everything the particles show one
by one: `sample_proba`, epistemic uncertainty, the file's size. The error of their average follows from the spectrum of
a coarse mean-field fit, a few Newton-like steps. Seen from one datum, a probability is a function f of the
logit's standard coordinate x; expand it in Hermite polynomials, f = c0 + c1 He1 + c2 He2 + rest. The particles are
centred, so the linear term is averaged exactly, and they are whitened in the J - 1 leading directions, which hold the
share s of the logit's variance, so that of the quadratic term only 1 - s^2 is left:

    variance of the average = ( c2^2 (1 - s^2) + rest^2 ) / J.

Twice as many particles as directions, or more, come in pairs mean +- x. Then s = 1, odd terms are averaged exactly, and
of the even ones there are J / 2 independent samples: rest^2 / J becomes even^2 / (J / 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.core.expectations import quasi_random_points
from enkbayes.core.logits import LinearLogits
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import take_rows, to_numpy
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run

COARSE = 0.05  # posterior sds: near enough for the size of an error
ROWS = 500  # data over which errors are averaged
LARGEST_SIZE = 10**6

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Advice:
    """The advised number of particles, the error to expect from their average, and how many directions are informed.

    error is the mean absolute difference, over data and classes, between the particles' average probability and the
    Gaussian predictive. informed counts the directions in which the data at least halve the prior's variance.

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


def advise(problem: Problem, error: float = 0.01, *, seed: int = 0) -> Advice:
    """Return the smallest number of particles whose average prediction errs by at most `error` on the data.

    Parameters
    ----------
    problem : Problem
        With linear logits.
    error : float
        Wanted mean absolute error of the particles' average probability.
    seed : int
        Of the choice of data when there are many.

    Examples
    --------
    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((200, 3))
    >>> problem = eb.Problem.create(features, features[:, 0] + 0.5 * features[:, 1] > 0.2)
    >>> few, many = advise(problem, 0.01).particles, advise(problem, 0.001).particles
    >>> 2 <= few < many
    True
    """
    if not isinstance(problem.model, LinearLogits):
        raise ValueError("advice on the number of particles needs linear logits; try a few sizes and compare instead")
    if not 0 < error < 1:
        raise ValueError(f"error is {error}; expected a number between 0 and 1")
    spectrum = _spectrum(problem, seed)
    low, high = 2, 2
    while spectrum.error(high) > error and high < LARGEST_SIZE:
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
    """Of n data: quadratic, higher even and higher odd parts (n, K) of their probabilities' variances, the share (n, r)
    of the logits' variance in the first 1, 2, ... directions, and the number of informed directions.
    """

    quadratic: Vector
    even: Vector
    odd: Vector
    shares: Vector
    informed: int

    def pairs(self, particles: int) -> bool:
        """Tell whether there are enough particles to come in pairs."""
        return particles >= 2 * int(self.shares.shape[1])

    def error(self, particles: int) -> float:
        """Return the mean absolute error to expect from the average over so many particles."""
        if self.pairs(particles):
            variance = 2 * self.even / particles
        else:
            s = self.shares[:, min(particles - 1, self.shares.shape[1]) - 1][:, None]
            variance = (self.quadratic * (1 - s**2) + self.even + self.odd) / particles
        return float(np.mean(np.sqrt(2 / math.pi * variance)))


def _spectrum(problem: Problem, seed: int) -> Spectrum:
    """Return what a coarse fit knows: its directions, the most informed first, and the data's logits."""
    model: Any = problem.model
    ensemble = run(problem, MeanField(tol=COARSE), particles=2, seed=seed).ensemble
    rows = np.random.default_rng(seed).permutation(model.size)[:ROWS]
    mean_logits, V = (to_numpy(x) for x in model.map.predictive_logits(take_rows(model.features, rows), ensemble))
    prior_share = to_numpy((problem.prior.whiten(ensemble.basis) ** 2).sum(axis=0))
    if V.ndim == 2:
        V, mean_logits = V[:, None, :], mean_logits[:, None]
    powers = np.cumsum(np.sum(V**2, axis=1), axis=1)
    return Spectrum(*_hermite(problem, mean_logits, V), powers / powers[:, -1:], int(np.sum(prior_share < 0.5)))


def _hermite(problem: Problem, mean_logits: Vector, V: Vector) -> tuple[Vector, Vector, Vector]:
    """Return the quadratic, higher even and higher odd parts (n, K) of the variance of each datum's probabilities."""
    K = V.shape[1]
    x = quasi_random_points(K, 11)
    cov = V @ np.swapaxes(V, 1, 2)
    w, Q = np.linalg.eigh(cov)
    logits = mean_logits[:, None, :] + x @ np.swapaxes(Q * np.sqrt(np.maximum(w, 0))[:, None, :], 1, 2)
    p = np.asarray(problem.likelihood.probabilities(logits[..., 0] if problem.likelihood.outputs is None else logits))
    p = p - p.mean(axis=1, keepdims=True)
    linear = np.einsum("nqk,qi->nki", p, x) / len(x)
    second = (x[:, :, None] * x[:, None, :] - np.eye(K)).reshape(len(x), -1)
    quadratic = np.sum((np.einsum("nqk,qi->nki", p, second) / len(x)) ** 2, axis=-1) / 2
    plus, minus = np.split(p, 2, axis=1)  # the points come in pairs x, -x
    even = np.mean(((plus + minus) / 2) ** 2, axis=1) - quadratic
    odd = np.mean(((plus - minus) / 2) ** 2, axis=1) - np.sum(linear**2, axis=-1)
    return quadratic, np.maximum(even, 0.0), np.maximum(odd, 0.0)
