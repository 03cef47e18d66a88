"""The Laplace approximation N(theta, H^{-1}), H the Hessian of the whole potential at theta.

With theta = m0 + L0 u and S = L0' H L0 the Hessian in prior-whitened coordinates, S = U diag(w) U', the covariance is
basis basis' with basis = L0 U diag(w^{-1/2}).
"""

from __future__ import annotations

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import at_mean
from enkbayes.core.gaussian import informed_points
from enkbayes.core.low_rank import LowRankGaussian
from enkbayes.core.moments import Moments
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, like, namespace, oriented
from enkbayes.solvers.newton import potential_at_mean


def laplace(problem: Problem, theta: Array) -> LowRankGaussian:
    """Return N(theta, H^{-1}) at theta (P,); the directions that the data determine best come first.

    >>> problem = Problem.create([[2.0]], [1], 4.0, classes=[0, 1])
    >>> laplace(problem, np.asarray([0.0])).cov.round(6).tolist()
    [[0.8]]
    """
    xp = namespace(theta)
    w, U = whitened_moments(problem, theta).spectrum
    columns = oriented(xp.flip(U / xp.sqrt(w), axis=1))  # the spectrum ascends
    return LowRankGaussian(theta, problem.prior.unwhiten(columns.mT).mT)


def laplace_ensemble(problem: Problem, theta: Array, particles: int, seed: int) -> AffineEnsemble:
    """Return J particles of the Laplace approximation, exactly whitened in the directions that the data determine
    best.
    """
    gaussian = laplace(problem, theta)
    points = informed_points(particles, problem.dim, np.random.default_rng((seed, 0)))
    return AffineEnsemble(theta, gaussian.basis, like(points, theta))


def whitened_moments(problem: Problem, theta: Array) -> Moments:
    """Return value, gradient g (P,) and Hessian S (P, P) of the potential at theta (P,), in coordinates u, theta = L0
    u. The value is V up to a constant; logits are linear, or have a Jacobian, and then S is the Gauss-Newton matrix.

    >>> problem = Problem.create([[2.0]], [1], 4.0, classes=[0, 1])
    >>> moments = whitened_moments(problem, np.asarray([0.0]))
    >>> moments.g.tolist(), moments.S.tolist()
    ([-2.0], [[5.0]])
    """
    here = LowRankGaussian(theta, problem.prior.dense_root)
    return problem.moments(here, at_mean) + potential_at_mean(problem, here)
