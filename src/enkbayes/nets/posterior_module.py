"""The base of a fitted head and a fitted network: a posterior stored in buffers, and a body that stays in eval mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.low_rank import Complement, Frame
from enkbayes.core.posterior import Info, Posterior, Uncertainty

BUFFERS = ("mean", "basis", "points")
COMPLEMENT = ("left", "right", "variance", "tightening", "seed")
UNKNOWN = Info(
    "unknown", 0, converged=False, residual=math.nan, message="not fitted here", blend=0.0, time=0.0, seconds=0.0
)


class PosteriorModule(nn.Module):  # type: ignore[misc]
    """A network with a posterior in the buffers mean, basis and points. Further buffers hold the distribution outside
    the basis; they are empty if there is none. All of them follow `.to()` and `state_dict`.
    """

    mean: torch.Tensor
    basis: torch.Tensor
    points: torch.Tensor
    gaussian: torch.Tensor
    complement_variance: torch.Tensor
    complement_seed: torch.Tensor
    _posterior_inputs: Callable[..., Any]  # inputs of the network -> argument of the posterior's predictions

    def __init__(self, body: nn.Module, posterior: Posterior) -> None:
        super().__init__()
        self.body = body
        for name in BUFFERS:
            values = getattr(posterior.ensemble, name).detach()
            self.register_buffer(name, values.clone(memory_format=torch.contiguous_format))
        for name, values in _complement_buffers(posterior.ensemble).items():
            self.register_buffer(name, values)
        self.register_buffer("gaussian", torch.tensor(posterior.gaussian))
        self.complement_draw = int(self.complement_seed.sum())  # a plain number, for `torch.export`
        self.averages_gaussian = posterior.gaussian  # a plain bool, for `torch.export`
        self.likelihood, self.map, self.classes, self.info = (
            posterior.likelihood,
            posterior.map,
            posterior.classes,
            posterior.info,
        )
        self.eval()

    @property
    def posterior(self) -> Posterior:
        """The posterior, on the device of this module. Its predictions take features (last layer) or a function that
        returns logits (network) instead of inputs.
        """
        return Posterior(self._ensemble(), self.likelihood, self.map, self.classes, self.averages_gaussian, self.info)

    def sample_proba(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the probabilities (J, n, K) that the particles predict for a batch of inputs."""
        with torch.no_grad():
            return self.posterior.sample_proba(self._posterior_inputs(*args, **kwargs))

    def predict_uncertainty(self, *args: Any, **kwargs: Any) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty in nats and the confidence, (n,) each."""
        with torch.no_grad():
            return self.posterior.predict_uncertainty(self._posterior_inputs(*args, **kwargs))

    def train(self, mode: bool = True) -> Self:
        """Set the flag of this module; the body stays in eval mode, because nothing in it is trained."""
        super().train(mode)
        self.body.eval()
        return self

    def _ensemble(self) -> AffineEnsemble:
        """Return the ensemble of the buffers, in single precision at least."""
        dtype = torch.promote_types(self.mean.dtype, torch.float32)
        mean, basis, points = (getattr(self, name).to(dtype) for name in BUFFERS)
        if self.complement_variance.shape[0] == 0:
            return AffineEnsemble(mean, basis, points)
        left, right, variance, tightening = (getattr(self, f"complement_{name}").to(dtype) for name in COMPLEMENT[:-1])
        frame = Frame(left, right, self.map is not None and self.map.intercept)
        return AffineEnsemble(mean, basis, points, Complement(frame, variance, tightening, self.complement_draw))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take the rank and the number of particles of the posterior from the state."""
        for name in BUFFERS:
            stored, own = state_dict.get(prefix + name), getattr(self, name)
            fixed = 0 if name == "points" else 1
            if stored is not None and stored.ndim == own.ndim and stored.shape[:fixed] == own.shape[:fixed]:
                setattr(self, name, own.new_empty(stored.shape))
        for name in (f"complement_{part}" for part in COMPLEMENT):
            stored = state_dict.setdefault(prefix + name, getattr(self, name).new_empty(0))  # older states have none
            setattr(self, name, getattr(self, name).new_empty(stored.shape))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.averages_gaussian = bool(self.gaussian)
        self.complement_draw = int(self.complement_seed.sum())


def _complement_buffers(ensemble: AffineEnsemble) -> dict[str, torch.Tensor]:
    """Return the buffers of the distribution outside the basis; empty ones if there is none."""
    c, empty = ensemble.complement, ensemble.mean.new_empty(0)
    arrays = [empty] * 4 if c is None else [c.frame.left, c.frame.right, c.variance, c.tightening]
    arrays = [values.detach().clone(memory_format=torch.contiguous_format) for values in arrays]
    arrays.append(torch.zeros(0, dtype=torch.int64) if c is None else torch.tensor([c.seed]))
    return {f"complement_{name}": values for name, values in zip(COMPLEMENT, arrays, strict=True)}


def blank(likelihood: Likelihood, linear: Any, classes: Any, reference: torch.Tensor) -> Posterior:
    """Return a placeholder posterior of the right shape, with all weights zero."""
    dim = reference.shape[0]
    ensemble = AffineEnsemble(torch.zeros_like(reference), reference.new_zeros(dim, 1), reference.new_zeros(2, 1))
    return Posterior(ensemble, likelihood, linear, classes, gaussian=True, info=UNKNOWN)
