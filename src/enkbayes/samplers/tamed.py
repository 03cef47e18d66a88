"""Algorithm 1 as the paper steps it, with M_k corrected."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from enkbayes.core.arguments import is_number
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import EnsembleLogits, Expectation
from enkbayes.core.likelihoods.base import Averages
from enkbayes.core.moments import Moments
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, namespace
from enkbayes.samplers.state import State

SMALLEST = 1e-9  # step size, so that a run ends


@dataclass(frozen=True)
class TamedHomotopy:
    """The tamed steps (sec_mean_stepping), (sec_dev_stepping), s from 0 to 1 in steps of ds.

        m+ = m - ds P Phi (mu[y] - d),    Theta+ = Theta - (ds / 2) P Phi M Phi' Theta,    M = (ds Phi' P Phi +
        mu[R]^{-1})^{-1}

    The paper prints M with mu[R] in place of its inverse; that scheme does not converge as ds -> 0 (a test shows it).
    In the coordinates of the basis the N x N inverse disappears: the deviations are scaled by (1 + 1 / (1 + ds w)) / 2.

    >>> import numpy as np                                                # why: with A = Phi' basis and S = A' R A,
    >>> rng = np.random.default_rng(0)
    >>> A, R, ds = rng.standard_normal((7, 3)), np.diag(rng.uniform(0.1, 1, 7)), 0.3
    >>> S, I = A.T @ R @ A, np.eye(3)
    >>> M = np.linalg.inv(ds * A @ A.T + np.linalg.inv(R))
    >>> bool(np.allclose(I - ds / 2 * A.T @ M @ A, (I + np.linalg.inv(I + ds * S)) / 2))
    True

    Parameters
    ----------
    ds : float
        Step size. The mean's step is explicit and stable only for ds < 2 / lambda_max(P H); 1e-3 or smaller is usual.
    diagonal : bool
        The paper's remark: keep only the diagonal of the matrix to be inverted. Unsafe for N > 4 D: the factor of the
        deviations is then about 1 - N / (2 D) for large ds, and the ensemble explodes. One-logit likelihoods only.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> eb.run(problem, TamedHomotopy(ds=0.01)).info.steps
    100
    """

    ds: float = 1e-3
    diagonal: bool = False

    def __post_init__(self) -> None:
        if not (is_number(self.ds) and SMALLEST <= self.ds <= 1):
            raise ValueError(f"ds is {self.ds!r}; expected a number in [{SMALLEST:g}, 1]")

    @property
    def horizon(self) -> int:
        """The number of steps K with K ds = 1; the last step is shorter when 1 / ds is not whole."""
        return math.ceil(1 / self.ds - 1e-9)

    def init(self, problem: Problem, ensemble: AffineEnsemble, seed: int) -> State:
        """Return the ensemble at s = 0."""
        if self.diagonal and problem.likelihood.outputs is not None:
            raise ValueError(f"diagonal=True needs one logit per row, got {problem.likelihood}; use diagonal=False")
        return State(ensemble, seed, control=0.0)

    def step(self, problem: Problem, state: State) -> State:
        """Go from s_k to s_{k+1}."""
        ds = min(self.ds, 1 - state.time)
        expectation = DiagonallyTamed(energy=False, ds=ds) if self.diagonal else Expectation(energy=False)
        moments = problem.moments(state.ensemble, expectation)
        stiffness = max(state.control, ds * float(namespace(moments.g).max(moments.spectrum[0])))
        ensemble = (diagonal_step if self.diagonal else tamed_step)(state.ensemble, moments, ds)
        steps, done = state.steps + 1, state.steps + 1 >= self.horizon
        state = replace(state, ensemble=ensemble, steps=steps, time=state.time + ds, control=stiffness)
        return self._finish(state) if done else state

    def _finish(self, state: State) -> State:
        """The mean's step is explicit: where ds w exceeded 2 it overshot, and the end cannot be trusted."""
        stable = state.control <= 2
        message = "" if stable else f"ds = {self.ds:g} is {state.control / 2:.2g} times too large for the mean's step"
        return replace(state, time=1.0, finished=True, converged=stable, message=message)


def tamed_step(ensemble: AffineEnsemble, moments: Moments, ds: float) -> AffineEnsemble:
    """Return the ensemble after one tamed step with the full M."""
    return ensemble.transform(moments, gain=_explicit(ds), scale=lambda w: (1 + 1 / (1 + ds * w)) / 2)


def diagonal_step(ensemble: AffineEnsemble, moments: Moments, ds: float) -> AffineEnsemble:
    """Return the ensemble after one step with M = diag(1 / (ds v_n + 1 / mu[r_n])), from diagonally tamed moments."""
    return ensemble.transform(moments, gain=_explicit(ds), scale=lambda w: 1 - ds / 2 * w)


def _explicit(ds: float) -> Callable[[Array], Array]:
    return lambda w: namespace(w).full_like(w, ds)


@dataclass(frozen=True)
class DiagonallyTamed(Expectation):
    """Averages with mu[r_n] / (1 + ds v_n mu[r_n]) in place of mu[r_n], v_n the variance of the n-th logit."""

    ds: float = 1.0

    def averages(self, likelihood: Any, logits: EnsembleLogits, targets: Array, weights: Array | None) -> Averages:
        """Return loss, slope and tamed curvature of each row."""
        V = logits.gaussian[1]
        variance = namespace(V).vecdot(V, V)
        loss, slope, curvature = super().averages(likelihood, logits, targets, weights)
        return loss, slope, curvature / (1 + self.ds * variance * curvature)
