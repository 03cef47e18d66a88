"""Several trained networks whose predictions are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from enkbayes.core.uncertainty import Uncertainty
from enkbayes.engine.arrays import Array, floating, like, namespace, row_slices, to_numpy
from enkbayes.nets.layers import logits_of
from enkbayes.nets.loaders import device_of


@dataclass(frozen=True, eq=False)
class NetworkEnsemble:
    """M networks and their classes. Inputs and predictions are arrays of any library.

    Activations of at most `chunk` rows are in memory at a time.

    Examples
    --------
    >>> ensemble = NetworkEnsemble((nn.Linear(2, 3), nn.Linear(2, 3)), np.arange(3))
    >>> ensemble.predict_proba(np.zeros((4, 2))).shape, ensemble.sample_proba(np.zeros((4, 2))).shape
    ((4, 3), (2, 4, 3))
    """

    networks: tuple[nn.Module, ...]
    classes: np.ndarray[Any, Any]
    chunk: int = 1024

    def sample_proba(self, X: Array) -> Array:
        """Return the class probabilities of each network, (M, n, K)."""
        X = floating(X)
        chunks = [_proba(self.networks, X[rows, ...]) for rows in row_slices(int(X.shape[0]), self.chunk)]
        nothing = np.empty((len(self.networks), 0, len(self.classes)))
        return like(np.concatenate(chunks, axis=1) if chunks else nothing, X)

    def predict_proba(self, X: Array) -> Array:
        """Return the average over the networks, (n, K)."""
        members = self.sample_proba(X)
        return namespace(members).mean(members, axis=0)

    def predict_uncertainty(self, X: Array) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty in nats, and confidence, (n,) each."""
        return Uncertainty.of_members(self.sample_proba(X))


def _proba(networks: tuple[nn.Module, ...], X: Array) -> np.ndarray[Any, Any]:
    """Return the probabilities (M, n, K) of some rows, in double precision."""
    proba = []
    with torch.no_grad():
        for network in networks:
            parameter = next(network.parameters())
            x = torch.as_tensor(to_numpy(X)).to(device_of(network), parameter.dtype)
            logits = logits_of(network(x)).cpu().double()
            if logits.ndim == 1:
                logits = torch.stack([torch.zeros_like(logits), logits], dim=-1)
            proba.append(np.asarray(torch.softmax(logits, dim=-1).cpu()))
    return np.stack(proba)
