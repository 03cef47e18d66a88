"""Where the ensemble of a head starts: around the trained weights, from where the equilibrium is near."""

from __future__ import annotations

import numpy as np
import torch

from enkbayes.core.problem import Problem
from enkbayes.nets.layers import Layer


def around_trained_weights(problem: Problem, layer: Layer, particles: int, seed: int) -> torch.Tensor | None:
    """Return an ensemble (J, P) with the trained weights of the layer as its mean and the prior's spread; None for J <=
    P, when a span of J - 1 directions would be too little and the sampler finds a better start.
    """
    if particles <= problem.dim:
        return None
    prior = problem.prior
    centre = trained_weights(layer).to(prior.mean.dtype)
    return prior.whitened(particles, np.random.default_rng(seed)) + (centre - prior.mean)


def trained_weights(layer: Layer) -> torch.Tensor:
    """Return the parameters (P,) of the layer, the bias at the end; two logits count as their difference."""
    rows = layer.weight if layer.bias is None else torch.cat([layer.weight, layer.bias[:, None]], dim=1)
    return rows[1] - rows[0] if layer.outputs == 2 else rows.T.reshape(-1)
