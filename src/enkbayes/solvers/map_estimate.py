"""The maximum of the posterior: L-BFGS in prior-whitened coordinates, then Newton steps where that is not enough.

With theta = m0 + L0 u, P0 = L0 L0', the potential is V(u) = Psi(m0 + L0 u) + |u|^2 / 2. Its Hessian is at least the
identity for linear logits, so |grad V(u)| bounds the distance to the maximum in posterior standard deviations, and the
problem is as well conditioned as prior and data allow. L-BFGS reads the data chunk by chunk and keeps nothing of size
P x P.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.logits import LinearLogits
from enkbayes.core.moments import Moments
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, epsilon, like, namespace, to_numpy

Vector = np.ndarray[Any, Any]
DENSE = 1000  # up to this many parameters Newton's P x P Hessians are cheap
MEMORY = 20  # pairs of vectors that L-BFGS remembers
SETTLED = 1e-5  # posterior sds; L-BFGS alone often stops there, and nothing needs more
COARSE = 300  # L-BFGS iterations after which Newton takes over in any case
POLISH = 200  # largest number of Newton steps; a few are enough after L-BFGS
SHORTEST = 1e-6  # share of a Newton step below which it makes no difference
SUFFICIENT = 1e-4  # Armijo's constant: the part of the predicted decrease that a step must deliver
REMEDY = "raise max_steps, scale the features, or use float64"


@dataclass(frozen=True, eq=False)
class MapEstimate:
    """The most probable parameters theta (P,), and how they were found.

    residual is the distance to the maximum in posterior standard deviations, or a bound on it: the Newton decrement
    where Newton steps were taken, otherwise the norm of the gradient in prior-whitened coordinates. steps counts
    passes over the data.
    """

    theta: Array
    residual: float
    steps: int
    converged: bool
    message: str


def map_estimate(
    problem: Problem, *, tol: float = 1e-8, max_steps: int = 1000, start: Array | None = None
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

    Examples
    --------
    >>> features = np.random.default_rng(0).standard_normal((60, 2))
    >>> estimate = map_estimate(Problem.create(features, features[:, 1] > 0))
    >>> estimate.theta.shape, estimate.converged, estimate.residual < 1e-8
    ((2,), True, True)
    """
    polish = isinstance(problem.model, LinearLogits) and problem.dim <= DENSE
    budget = min(max_steps, COARSE) if polish else max_steps
    u, residual, floor, steps = _lbfgs(problem, _origin(problem, start), tol, budget)
    if polish and residual > tol:
        u, residual, floor, newton = _newton(problem, u, tol)
        steps += newton
    converged = residual <= max(tol, floor)
    message = "" if converged else f"still {residual:.1e} posterior sds from the maximum; {REMEDY}"
    return MapEstimate(_theta(problem.prior, u), residual, steps, converged, message)


def whitened_moments(problem: Problem, theta: Array) -> Moments:
    """Return value, gradient g (P,) and Hessian S (P, P) of the potential at theta (P,), in coordinates u, theta = L0
    u: the moments of one particle, seen in the basis L0. The value is V up to a constant; logits are linear, or have a
    Jacobian, and then S is the Gauss-Newton matrix.

    >>> problem = Problem.create([[2.0]], [1], 4.0, classes=[0, 1])
    >>> moments = whitened_moments(problem, np.asarray([0.0]))
    >>> moments.g.tolist(), moments.S.tolist()
    ([-2.0], [[5.0]])
    """
    xp, prior = namespace(theta), problem.prior
    if not isinstance(problem.model, LinearLogits):
        here = xp.zeros((1, problem.dim), dtype=theta.dtype, device=theta.device)
        return problem.potential_moments(AffineEnsemble(theta, prior.dense_root, here))
    loss, gradient = problem.loss_and_gradient(theta[None, :])
    H = problem.model.hessian(theta, problem.likelihood, problem.targets, problem.weights)
    u, root, eye = (
        prior.whiten(theta - prior.mean),
        prior.root,
        xp.eye(problem.dim, dtype=theta.dtype, device=theta.device),
    )
    if prior.diagonal:
        g, S = root * gradient[0, :], root[:, None] * H * root
    else:
        g, S = root.mT @ gradient[0, :], root.mT @ H @ root
    return Moments(loss[0] + xp.sum(u * u) / 2, g + u, S + eye)


def _theta(prior: Gaussian, u: Vector) -> Array:
    return prior.mean + prior.unwhiten(like(u, prior.mean)[None, :])[0, :]


def _origin(problem: Problem, start: Array | None) -> Vector:
    if start is None:
        return np.zeros(problem.dim)
    shift = problem.prior.whiten(like(start, problem.prior.mean) - problem.prior.mean)
    return np.asarray(to_numpy(shift), dtype=np.float64)


def _potential(problem: Problem, u: Vector) -> tuple[float, Vector]:
    """Return V and its gradient (P,) at u (P,)."""
    prior = problem.prior
    loss, gradient = problem.loss_and_gradient(_theta(prior, u)[None, :])
    pulled = gradient[0, :] * prior.root if prior.diagonal else prior.root.mT @ gradient[0, :]
    return float(loss[0]) + float(u @ u) / 2, np.asarray(to_numpy(pulled), dtype=np.float64) + u


def _lbfgs(problem: Problem, u: Vector, tol: float, max_steps: int) -> tuple[Vector, float, float, int]:
    """Return u, the norm of its gradient, the norm that round-off allows, and the number of evaluations.

    A step against the gradient g lowers V by |g|^2 / (2 stiffness), and line searches stop where that drowns.
    """
    from scipy.optimize import minimize

    options = {"maxiter": max_steps, "maxfun": 2 * max_steps, "maxcor": MEMORY, "maxls": 40, "ftol": 0.0}
    options["gtol"] = tol / math.sqrt(u.size)
    result = minimize(lambda x: _potential(problem, x), u, jac=True, method="L-BFGS-B", options=options)
    pairs = zip(result.hess_inv.sk, result.hess_inv.yk, strict=True)
    stiffness = max((float(y @ y / (s @ y)) for s, y in pairs), default=1.0)
    floor = max(SETTLED, _round_off(problem, result.fun) * math.sqrt(stiffness))
    return result.x, float(np.linalg.norm(result.jac)), floor, int(result.nfev)


def _newton(problem: Problem, u: Vector, tol: float) -> tuple[Vector, float, float, int]:
    """Return the same after damped Newton steps, with the Newton decrement as the residual.

    A step is cut until it lowers V or the norm of the gradient; near the maximum, where both drown in round-off, the
    last one is the answer.
    """
    g, H, value = _derivatives(problem, u)
    step, steps, scale = np.linalg.solve(H, g), 1, 1.0
    while np.linalg.norm(g) > tol and steps < POLISH and scale > SHORTEST:
        new_g, new_H, new_value = _derivatives(problem, u - scale * step)
        steps += 1
        ratio = float(np.linalg.norm(new_g) / np.linalg.norm(g))
        settled = _decrement(g, step) < _round_off(problem, value)
        if ratio < 1 or (not settled and new_value < value - SUFFICIENT * scale * float(g @ step)):
            u, g, value, scale = u - scale * step, new_g, new_value, min(1.0, 4 * scale)
            step = np.linalg.solve(new_H, g)
        else:
            scale /= 4
        if settled and ratio > 0.5:
            break
    return u, _decrement(g, step), _round_off(problem, value), steps


def _decrement(g: Vector, step: Vector) -> float:
    """Return sqrt(g' H^{-1} g): a Newton step lowers V by half its square."""
    return math.sqrt(max(float(g @ step), 0.0))


def _round_off(problem: Problem, value: float) -> float:
    """Return the Newton decrement whose change of V drowns in round-off."""
    return 10 * math.sqrt(epsilon(problem.prior.mean) * max(1.0, abs(value)))


def _derivatives(problem: Problem, u: Vector) -> tuple[Vector, Vector, float]:
    """Return gradient (P,), Hessian (P, P) and value (up to a constant) of V at u."""
    moments = whitened_moments(problem, _theta(problem.prior, u))
    g, H = (np.asarray(to_numpy(x), dtype=np.float64) for x in (moments.g, moments.S))
    return g, H, float(moments.loss)
