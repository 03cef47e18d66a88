"""Gradients of the potential V = Psi - log prior at the particles, for gradient-based particle methods."""

from __future__ import annotations

import math

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, identity, namespace, symmetric


def potential_gradients(problem: Problem, theta: Array) -> tuple[Array, Array]:
    """Return V (J,), up to a constant, and grad V (J, P) at the particles theta (J, P).

    >>> import numpy as np
    >>> problem = Problem.create([[2.0]], [1], 4.0, classes=[0, 1])
    >>> potential_gradients(problem, np.asarray([[0.0]]))[1].tolist()
    [[-1.0]]
    """
    prior = problem.prior
    loss, gradient = problem.loss_and_gradient(theta)
    whitened = prior.whiten((theta - prior.mean).mT)  # (P, J)
    pulled = whitened.mT * prior.inverse_root if prior.diagonal else whitened.mT @ prior.inverse_root
    return loss - prior.log_density(theta), gradient + pulled


def gradient_coordinates(problem: Problem, ensemble: AffineEnsemble) -> Array:
    """Return basis' grad V(theta_j) (J, r): C grad V of each particle, in the coordinates of the ensemble's basis.

    For linear logits, gradient-free versions compute exactly this from the covariance of theta and logits.
    """
    return potential_gradients(problem, ensemble.theta)[1] @ ensemble.basis


def stein_residual(ensemble: AffineEnsemble, gradients: Array) -> tuple[float, float]:
    """Return the residual of Stein's identity for the particles, and its typical value for J independent draws.

    Every posterior, Gaussian or not, has E[grad V] = 0 and E[grad V (theta - m)'] = I. In coordinates, with G (J, r) of
    `gradient_coordinates`, that is g = mean G = 0 and A = mean G x' = I, so the residual is sqrt((|g|^2 + |I - A|^2 /
    2) / r), with the symmetric part of A; the antisymmetric part only rotates the particles among themselves.
    """
    xp, x = namespace(gradients), ensemble.points
    J, r = x.shape
    g, A = xp.mean(gradients, axis=0), symmetric(gradients.mT @ x / J)
    eye = identity(r, A)
    squared = float(xp.sum(g * g) + xp.sum((A - eye) ** 2) / 2) / r
    spread = float(xp.mean(xp.sum(gradients**2, axis=1) * (1 + xp.sum(x * x, axis=1) / 2))) / (J * r)
    return math.sqrt(squared), math.sqrt(spread)
