"""The maximum of the posterior: L-BFGS in prior-whitened coordinates, then Newton steps where that is not enough.

With theta = m0 + L0 u, P0 = L0 L0', the potential is V(u) = Psi(m0 + L0 u) + |u|^2 / 2. Its Hessian is at least the
identity for linear logits, so |grad V(u)| bounds the distance to the maximum in posterior standard deviations, and the
problem is as well conditioned as prior and data allow. L-BFGS reads the data chunk by chunk and keeps nothing of size
P x P. A softmax is searched in better coordinates, see `softmax_path.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.low_rank import LowRankGaussian
from enkbayes.core.numerics import in_range
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, as_double, epsilon, like, to_numpy
from enkbayes.solvers.newton import NewtonSearch
from enkbayes.solvers.softmax_path import Eigenbasis, SoftmaxSearch, fits

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class MapEstimate:
    """The most probable parameters theta (P,), and how they were found.

    residual is the distance to the maximum in posterior standard deviations, or a bound on it: the Newton decrement
    where Newton steps were taken, otherwise the norm of the gradient in prior-whitened coordinates (for a softmax, in
    those that make the diagonal of the Hessian 1). steps counts passes over the data.
    """

    theta: Array
    residual: float
    steps: int
    converged: bool
    message: str

    @property
    def outcome(self) -> dict[str, Any]:
        """How the search went, by the names that `Info` has for it."""
        return {name: getattr(self, name) for name in ("residual", "steps", "converged", "message")}


@in_range("the most probable parameters")
def map_estimate(
    problem: Problem,
    *,
    tol: float = 1e-8,
    max_steps: int = 1000,
    start: Array | None = None,
    dense: int = 1000,
    coarse: int = 300,
) -> MapEstimate:
    """Return the maximum of the posterior density.

    Parameters
    ----------
    problem : Problem
        Nonlinear logits need a Jacobian; then the maximum is a local one.
    tol : float
        Stop when the norm of the whitened gradient is below, or at the round-off of the data's dtype.
    max_steps : int
        Largest number of L-BFGS iterations.
    start : array (P,), optional
        Default: the prior's mean.
    dense : int
        Number of parameters up to which P x P Hessians are cheap, so that Newton steps may follow.
    coarse : int
        L-BFGS iterations after which Newton takes over in any case.

    Examples
    --------
    >>> features = np.random.default_rng(0).standard_normal((60, 2))
    >>> estimate = map_estimate(Problem.create(features, features[:, 1] > 0))
    >>> estimate.theta.shape, estimate.converged, estimate.residual < 1e-8
    ((2,), True, True)
    """
    polish = problem.is_linear and problem.dim <= dense
    budget = min(max_steps, coarse) if polish else max_steps
    if fits(problem):
        u, residual, floor, steps = _softmax(problem, start, tol, budget)
    else:
        u, residual, floor, steps = _lbfgs(problem, _origin(problem, start), tol, budget)
    if polish and residual > tol:
        u, residual, floor, newton = _newton(problem, u, tol)
        steps += newton
    converged = residual <= max(tol, floor)
    remedy = "raise max_steps, scale the features, or use float64"
    message = "" if converged else f"still {residual:.1e} posterior sds from the maximum; {remedy}"
    return MapEstimate(_theta(problem.prior, u), residual, steps, converged, message)


def _theta(prior: Gaussian, u: Vector) -> Array:
    return prior.mean + prior.unwhiten(like(u, prior.mean)[None, :])[0, :]


def _origin(problem: Problem, start: Array | None) -> Vector:
    if start is None:
        return np.zeros(problem.dim)
    shift = problem.prior.whiten(like(start, problem.prior.mean) - problem.prior.mean)
    return as_double(shift)


def _potential(problem: Problem, u: Vector) -> tuple[float, Vector]:
    """Return V and its gradient (P,) at u (P,)."""
    prior = problem.prior
    loss, gradient = problem.loss_and_gradient(_theta(prior, u)[None, :])
    pulled = gradient[0, :] * prior.root if prior.diagonal else prior.root.mT @ gradient[0, :]
    return float(loss[0]) + float(u @ u) / 2, as_double(pulled) + u


def _lbfgs(problem: Problem, u: Vector, tol: float, max_steps: int) -> tuple[Vector, float, float, int]:
    """Return u, the norm of its gradient, the norm that round-off allows, and the number of evaluations.

    A step against the gradient g lowers V by |g|^2 / (2 stiffness), and line searches stop where that drowns; nothing
    needs more than 1e-5 posterior standard deviations.
    """
    from scipy.optimize import minimize

    options = {"maxiter": max_steps, "maxfun": 2 * max_steps, "maxcor": 20, "maxls": 40, "ftol": 0.0}
    options["gtol"] = tol / math.sqrt(u.size)
    result = minimize(lambda x: _potential(problem, x), u, jac=True, method="L-BFGS-B", options=options)
    pairs = zip(result.hess_inv.sk, result.hess_inv.yk, strict=True)
    stiffness = max((float(y @ y / (s @ y)) for s, y in pairs), default=1.0)
    floor = max(1e-5, _round_off(problem, result.fun) * math.sqrt(stiffness))
    return result.x, float(np.linalg.norm(result.jac)), floor, int(result.nfev)


def _softmax(problem: Problem, start: Array | None, tol: float, most: int) -> tuple[Vector, float, float, int]:
    """Return the same by the search in the eigenbasis of the features."""
    search = SoftmaxSearch(tol=tol / math.sqrt(problem.dim), most=most)
    origin = None if start is None else as_double(start)
    found = search.mode(problem, Eigenbasis.of(problem), origin)
    return _origin(problem, like(found.theta, problem.prior.mean)), found.residual, max(1e-5, found.floor), found.steps


def _newton(problem: Problem, u: Vector, tol: float, most: int = 200) -> tuple[Vector, float, float, int]:
    """Return the same after damped Newton steps, with the Newton decrement as the residual. `most` is the largest
    number of evaluations; a few are enough after L-BFGS.
    """
    search = NewtonSearch(near=0.0, far=math.inf, most=most)
    prior = problem.prior
    point = search.begin(problem, LowRankGaussian(_theta(prior, u), prior.dense_root))
    while float(np.linalg.norm(to_numpy(point.moments.g))) > tol and not search.done(point):
        point = search.advance(problem, point)
    found = as_double(prior.whiten(point.ensemble.mean - prior.mean))
    return found, point.decrement, point.round_off, point.evaluations


def _round_off(problem: Problem, value: float) -> float:
    """Return the Newton decrement whose change of V drowns in round-off."""
    return 10 * math.sqrt(epsilon(problem.prior.mean) * max(1.0, abs(value)))
