"""What gradient-based particle methods ask of a problem: grad V of each particle, V = Psi - log prior."""

from __future__ import annotations

from enkbayes.arrays import Array
from enkbayes.ensemble import AffineEnsemble
from enkbayes.problem import Problem


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

    For linear logits this is exactly what gradient-free versions estimate from the covariance of theta and logits.
    """
    return potential_gradients(problem, ensemble.theta)[1] @ ensemble.basis
