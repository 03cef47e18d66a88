"""The theory of the paper as code: the mean-field ODEs, and the coupling behind the theorem on the J^(-1/2) rate.

The particle system and its mean-field limit are the same flow of (mean, basis) with different expectations:

    homotopy:     dm = -basis g_L,   dbasis = -basis S_L / 2
    equilibrium:  dm = -basis g,     dbasis = basis (I - S) / 2

With averages over the points, the flow moves the interacting particles theta_j = m + basis x_j. With the Gaussian
closure, it moves the mean-field distribution N(m_s, P_s) and the independent particles eta_j = m_s + basis_s x_j that
the proof compares with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation, closure, empirical
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.problem import Problem

Flow = Callable[[Problem, AffineEnsemble, Expectation], tuple[Any, Any]]


def homotopy_flow(problem: Problem, ensemble: AffineEnsemble, expectation: Expectation) -> tuple[Any, Any]:
    """Return dm/ds (P,) and dbasis/ds (P, r) of eqs. (hom_mean_ode), (hom_dev_ode)."""
    moments = problem.moments(ensemble, expectation)
    return -(ensemble.basis @ moments.g), -(ensemble.basis @ moments.S) / 2


def equilibrium_flow(problem: Problem, ensemble: AffineEnsemble, expectation: Expectation) -> tuple[Any, Any]:
    """Return dm/ds (P,) and dbasis/ds (P, r) of eqs. (aldi_mean_ode), (aldi_dev_ode)."""
    moments = problem.moments(ensemble, expectation) + problem.prior_moments(ensemble)
    return -(ensemble.basis @ moments.g), (ensemble.basis - ensemble.basis @ moments.S) / 2


def solve_flow(
    problem: Problem,
    ensemble: AffineEnsemble,
    times: Sequence[float],
    *,
    flow: Flow = equilibrium_flow,
    expectation: Expectation = empirical,
    rtol: float = 1e-9,
) -> list[AffineEnsemble]:
    """Return the ensembles at the given times (increasing, starting at 0), computed by scipy's adaptive Runge-Kutta
    method: the reference for every time-stepping method. Works for numpy problems only.
    """
    dim, rank = ensemble.basis.shape

    def unpack(y: Any) -> AffineEnsemble:
        return replace(ensemble, mean=y[:dim], basis=np.reshape(y[dim:], (dim, rank)))

    def right_hand_side(_: float, y: Any) -> Any:
        dm, dbasis = flow(problem, unpack(y), expectation)
        return np.concatenate([dm, np.ravel(dbasis)])

    start = np.concatenate([ensemble.mean, np.ravel(ensemble.basis)])
    solution = solve_ivp(
        right_hand_side, (0.0, times[-1]), start, t_eval=times, method="DOP853", rtol=rtol, atol=rtol * 1e-3
    )
    if not solution.success:
        raise ArithmeticError(f"the mean-field ODE could not be solved: {solution.message}")
    return [unpack(y) for y in solution.y.T]


def mean_field_path(
    problem: Problem, start: Gaussian, times: Sequence[float], flow: Flow = equilibrium_flow
) -> list[Gaussian]:
    """Return mu_s = N(m_s, P_s) at the given times, the solution of equation 23.

    >>> problem = Problem.create(np.asarray([[1.0], [2.0]]), [0, 1], 1.0)
    >>> path = mean_field_path(problem, problem.prior, [0.0, 30.0])
    >>> len(path), path[0].cov.tolist()
    (2, [[1.0]])
    """
    ensemble = AffineEnsemble(start.mean, start.dense_root, np.zeros((2, start.dim)))
    path = solve_flow(problem, ensemble, times, flow=flow, expectation=closure)
    return [Gaussian(e.mean, (e.cov + e.cov.T) / 2) for e in path]


@dataclass(frozen=True, eq=False)
class Coupling:
    """Interacting particles theta (T, J, P) and mean-field particles eta (T, J, P) with the same start, at T times."""

    theta: np.ndarray[Any, Any]
    eta: np.ndarray[Any, Any]

    @property
    def bound(self) -> np.ndarray[Any, Any]:
        """(mean_j |theta_j - eta_j|^2)^(1/2) at each time: the coupling bound on the Wasserstein distance W_2 between
        the empirical measures, eq. (w2_upper_bound_coupling).
        """
        return np.asarray(np.sqrt(np.mean(np.sum((self.theta - self.eta) ** 2, axis=-1), axis=-1)))


def couple(
    problem: Problem,
    start: Gaussian,
    particles: int,
    times: Sequence[float],
    rng: np.random.Generator,
    *,
    flow: Flow = equilibrium_flow,
    rtol: float = 1e-7,
) -> Coupling:
    """Run both systems of the theorem from the same i.i.d. draws from `start`.

    >>> problem = Problem.create(np.asarray([[1.0], [2.0]]), [0, 1], 1.0)
    >>> coupling = couple(problem, problem.prior, 50, [0.0, 1.0], np.random.default_rng(0))
    >>> coupling.theta.shape, float(coupling.bound[0]) < 1e-12
    ((2, 50, 1), True)
    """
    points = rng.standard_normal((particles, start.dim))
    eta = AffineEnsemble(start.mean, start.dense_root, points)
    theta = AffineEnsemble.factor(eta.theta)
    interacting = solve_flow(problem, theta, times, flow=flow, expectation=empirical, rtol=rtol)
    independent = solve_flow(problem, eta, times, flow=flow, expectation=closure, rtol=rtol)
    return Coupling(np.asarray([e.theta for e in interacting]), np.asarray([e.theta for e in independent]))


def convergence_rate(sizes: Sequence[int], errors: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the slope of log mean error against log J, and its standard error, for errors (len(sizes), repetitions).

    >>> slope, error = convergence_rate([10, 100, 1000], np.asarray([[1.0, 1.2], [0.1, 0.12], [0.01, 0.012]]))
    >>> round(slope, 6)
    -1.0
    """
    x = np.log(np.asarray(sizes, dtype=float))
    x = x - x.mean()
    mean = errors.mean(axis=1)
    y = np.log(mean)
    variance = errors.var(axis=1, ddof=1) / errors.shape[1] / mean**2
    return float(x @ y / (x @ x)), math.sqrt(float(x**2 @ variance)) / float(x @ x)
