"""Several trained networks that predict together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from enkbayes.core.posterior import Uncertainty
from enkbayes.engine.arrays import Array, floating, like, namespace, row_slices, to_numpy
from enkbayes.nets.loaders import device_of
from enkbayes.nets.subspace import logits_of

CHUNK = 1024  # rows whose activations are held at a time


@dataclass(frozen=True, eq=False)
class Committee:
    """M networks and the classes they tell apart. Inputs and answers are arrays of any library.

    Examples
    --------
    >>> committee = Committee((nn.Linear(2, 3), nn.Linear(2, 3)), np.arange(3))
    >>> committee.predict_proba(np.zeros((4, 2))).shape, committee.sample_proba(np.zeros((4, 2))).shape
    ((4, 3), (2, 4, 3))
    """

    networks: tuple[nn.Module, ...]
    classes: np.ndarray[Any, Any]

    def sample_proba(self, X: Array) -> Array:
        """Return the class probabilities of each network, (M, n, K)."""
        X = floating(X)
        parts = [_proba(self.networks, X[rows, ...]) for rows in row_slices(int(X.shape[0]), CHUNK)]
        return like(np.concatenate(parts, axis=1) if parts else np.empty((len(self.networks), 0, len(self.classes))), X)

    def predict_proba(self, X: Array) -> Array:
        """Return the average over the networks, (n, K)."""
        members = self.sample_proba(X)
        return namespace(members).mean(members, axis=0)

    def predict_uncertainty(self, X: Array) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty in nats, and confidence, (n,) each."""
        return Uncertainty.of_members(self.sample_proba(X))


def _proba(networks: tuple[nn.Module, ...], X: Array) -> np.ndarray[Any, Any]:
    """Return (M, n, K) of some rows, in double precision."""
    parts = []
    with torch.no_grad():
        for network in networks:
            parameter = next(network.parameters())
            x = torch.as_tensor(to_numpy(X)).to(device_of(network), parameter.dtype)
            logits = logits_of(network(x)).double()
            if logits.ndim == 1:
                logits = torch.stack([torch.zeros_like(logits), logits], dim=-1)
            parts.append(np.asarray(torch.softmax(logits, dim=-1).cpu()))
    return np.stack(parts)
