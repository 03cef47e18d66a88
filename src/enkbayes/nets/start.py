"""Where the ensemble of a head starts: around the trained weights.

An equilibrium of J > P particles does not depend on its start. With J <= P it stays in the affine space of the initial
particles, so that space is chosen by the data: with the prior root L and the likelihood's Hessian H at the trained
weights, the leading J - 1 eigenvectors U of L' H L, with the spread (1 + eigenvalue)^(-1/2) of the Laplace
approximation.
"""

from __future__ import annotations

import numpy as np
import torch

from enkbayes.gaussian import Gaussian, standard_points
from enkbayes.logits import LinearLogits
from enkbayes.nets.layers import Layer
from enkbayes.nets.subspace import curvature, leading_eigenvectors
from enkbayes.problem import Problem


def around_trained_weights(problem: Problem, layer: Layer, particles: int, seed: int) -> torch.Tensor | None:
    """Return an ensemble (J, P) with the trained weights of the layer as its mean; None leaves it to the sampler."""
    prior = problem.prior
    if particles < 2:
        return None
    rows = layer.weight if layer.bias is None else torch.cat([layer.weight, layer.bias[:, None]], dim=1)
    centre = (rows[1] - rows[0] if layer.outputs == 2 else rows.T.reshape(-1)).to(prior.mean.dtype)
    rng = np.random.default_rng(seed)
    if particles > problem.dim or not isinstance(problem.model, LinearLogits):
        return prior.whitened(particles, rng) + (centre - prior.mean)
    model = problem.model

    def product(v: torch.Tensor) -> torch.Tensor:
        return _transposed_scale(prior, hessian_product(model, centre, prior.scale(v[None, :])[0]))

    U, eigenvalues = leading_eigenvectors(product, centre, particles - 1, seed)
    points = torch.as_tensor(standard_points(particles, particles - 1, rng), dtype=U.dtype, device=U.device)
    return centre + prior.scale((points / torch.sqrt(1 + eigenvalues)) @ U.T)


def hessian_product(model: LinearLogits, centre: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return sum_n J_n' Lambda_n J_n v (P,) for linear logits at the weights `centre` (P,), for v (P,)."""
    logits, tangent = model.map.project(model.features, torch.stack([centre, v], dim=1)).unbind(dim=-1)
    weighted = curvature(logits, tangent)
    pulled = model.features.T @ weighted
    return torch.cat([pulled, weighted.sum(dim=0, keepdim=True)] if model.map.intercept else [pulled]).reshape(-1)


def _transposed_scale(prior: Gaussian, v: torch.Tensor) -> torch.Tensor:
    """Return L' v for the root L of the prior."""
    return prior.root * v if prior.diagonal else prior.root.T @ v
