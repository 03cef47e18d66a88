"""What a fitted head and a fitted network share: buffers, a posterior made of them, and a body that stays in eval
mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn

from enkbayes.ensemble import AffineEnsemble
from enkbayes.likelihoods import Likelihood
from enkbayes.posterior import Info, Posterior, Uncertainty

BUFFERS = ("mean", "basis", "points")
UNKNOWN = Info(
    "unknown", 0, converged=False, residual=math.nan, message="not fitted here", blend=0.0, time=0.0, seconds=0.0
)


class PosteriorModule(nn.Module):  # type: ignore[misc]
    """A network with a posterior in the buffers mean, basis and points; they follow `.to()` and `state_dict`."""

    mean: torch.Tensor
    basis: torch.Tensor
    points: torch.Tensor
    gaussian: torch.Tensor
    _seen: Callable[..., Any]  # inputs of the network -> what the posterior predicts from: features, or a function

    def __init__(self, body: nn.Module, posterior: Posterior) -> None:
        super().__init__()
        self.body = body
        for name in BUFFERS:
            values = getattr(posterior.ensemble, name).detach()
            self.register_buffer(name, values.clone(memory_format=torch.contiguous_format))
        self.register_buffer("gaussian", torch.tensor(posterior.gaussian))  # a part of the state
        self.averages_gaussian = posterior.gaussian  # the same as a plain bool, for `torch.export`
        self.likelihood, self.map, self.classes, self.info = (
            posterior.likelihood,
            posterior.map,
            posterior.classes,
            posterior.info,
        )
        self.eval()

    @property
    def posterior(self) -> Posterior:
        """The posterior, on the device of this module; its predictions take features (last layer) or a function that
        gives logits (network) instead of inputs.
        """
        return Posterior(self._ensemble(), self.likelihood, self.map, self.classes, self.averages_gaussian, self.info)

    def sample_proba(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the probabilities (J, n, K) that each particle predicts for a batch of inputs."""
        with torch.no_grad():
            return self.posterior.sample_proba(self._seen(*args, **kwargs))

    def predict_uncertainty(self, *args: Any, **kwargs: Any) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty in nats and the confidence, (n,) each."""
        with torch.no_grad():
            return self.posterior.predict_uncertainty(self._seen(*args, **kwargs))

    def train(self, mode: bool = True) -> Self:
        """Set the flag of this module; the body stays in eval mode, for there is nothing left to train."""
        super().train(mode)
        self.body.eval()
        return self

    def _ensemble(self) -> AffineEnsemble:
        """Return the ensemble in the buffers, in single precision at least."""
        dtype = torch.promote_types(self.mean.dtype, torch.float32)
        return AffineEnsemble(self.mean.to(dtype), self.basis.to(dtype), self.points.to(dtype))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take the shapes of the posterior from the state: rank and number of particles are the state's own."""
        for name in BUFFERS:
            stored, own = state_dict.get(prefix + name), getattr(self, name)
            fixed = 0 if name == "points" else 1
            if stored is not None and stored.ndim == own.ndim and stored.shape[:fixed] == own.shape[:fixed]:
                setattr(self, name, own.new_empty(stored.shape))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.averages_gaussian = bool(self.gaussian)


def blank(likelihood: Likelihood, linear: Any, classes: Any, reference: torch.Tensor) -> Posterior:
    """Return a posterior of the right shape that knows nothing: all weights zero."""
    dim = reference.shape[0]
    ensemble = AffineEnsemble(torch.zeros_like(reference), reference.new_zeros(dim, 1), reference.new_zeros(2, 1))
    return Posterior(ensemble, likelihood, linear, classes, gaussian=True, info=UNKNOWN)
