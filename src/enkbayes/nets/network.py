"""A posterior for several layers or the whole of a trained network, in a subspace that the data inform."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from enkbayes.gaussian import Gaussian, standard_points
from enkbayes.nets.batches import Arguments, Place, Reader, arguments, device_of, shown
from enkbayes.nets.layers import frozen_copy
from enkbayes.nets.module import PosteriorModule
from enkbayes.nets.subspace import Network, Subspace, Weights, differentiable, informed_directions
from enkbayes.posterior import Posterior
from enkbayes.problem import Problem
from enkbayes.run import run
from enkbayes.samplers import FROM_PRIOR, Equilibrium, Sampler

SETTLED = Equilibrium(tol=5e-2)
"""The default sampler. The slopes of a ReLU network jump where a unit switches on for a datum and a particle, so the
residual of the equilibrium of J particles has a floor of a few per cent, and a sharper tolerance would never be met."""


class BayesianNetwork(PosteriorModule):
    """A trained network with a posterior over the weights of several layers, or of all. Made by `fit`.

    The posterior lives in `rank` directions around the trained weights w*, w = w* + directions u, u ~ N(0, I): those
    that the data inform most, the leading eigenvectors of the prior-whitened Gauss-Newton matrix. The prior N(w*, I /
    prior_precision) is centred at the trained weights. Every direction outside the subspace stays at the trained
    weights, so uncertainty in directions that the data do not inform is left out.

    A module like any other: `network(x)` gives probabilities (n, K), averaged over the particles.

    Examples
    --------
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> x = torch.randn(40, 2)
    >>> data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).float())
    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> loader = torch.utils.data.DataLoader(data, batch_size=20)
    >>> network = BayesianNetwork.fit(model, loader, rank=3, particles=20, progress=False)
    >>> network(x).shape, network.sample_proba(x).shape, network.posterior.theta.shape
    (torch.Size([40, 2]), torch.Size([20, 40, 2]), torch.Size([20, 3]))
    """

    centre: torch.Tensor
    directions: torch.Tensor

    def __init__(self, space: Subspace, posterior: Posterior) -> None:
        super().__init__(space.network.model, posterior)
        self.register_buffer("centre", space.centre)
        self.register_buffer("directions", space.directions)
        self._weights, self._output = space.network.weights, space.network.output

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        *,
        layers: list[str] | str = "all",
        rank: int = 20,
        jacobian: bool = True,
        output: Callable[[Any], Any] | None = None,
        inputs: Place = None,
        labels: Place = None,
        prior_precision: float = 1.0,
        sampler: Sampler | None = None,
        particles: int = 100,
        seed: int = 0,
        progress: bool = True,
    ) -> Self:
        """Read the training data once and return the network with a posterior over some or all of its weights.

        The model is not changed: a copy of it runs, in eval mode. The inputs are kept in memory during the fit.

        Parameters
        ----------
        model : nn.Module
            A trained classifier that returns logits (n,), (n, 1) or (n, K); two logits count as their difference.
        loader : iterable of batches
            As for `BayesianHead.fit`.
        layers : list of str or "all"
            Names of modules or parameters that get a posterior.
        rank : int
            Number of directions; a step costs so many Jacobian-vector products for each particle.
        jacobian : bool
            Gauss-Newton form by Jacobian-vector products. False: derivative-free, the slope of the logits over the
            ensemble stands in for their derivatives; cheaper, and fit for logits that are nearly linear over the
            posterior's spread (`posterior.info.nonlinearity` measures it; use more particles than `rank`).
        output : function, optional
            Takes the logits from what the model returns, when it returns several things.
        inputs, labels : str, int or function of a batch, optional
            Where inputs and labels are in a batch, as for `BayesianHead.fit`.
        prior_precision : float
            The weights have the prior N(trained weights, 1 / prior_precision).
        sampler : Sampler, optional
            Default `Equilibrium(tol=5e-2)`. For smooth activations `Equilibrium()` settles to 1e-6; the kinks of ReLU
            give the residual a floor of a few 1e-2.
        particles, seed : int
            As in `enkbayes.run`. The initial ensemble is the Laplace approximation at the trained weights.
        progress : bool
            Show progress bars.
        """
        _check(prior_precision, rank)
        body = frozen_copy(model)
        weights = Weights.of(body, None if layers == "all" else [layers] if isinstance(layers, str) else list(layers))
        network = Network(body, weights, output or _whole)
        reader = Reader(inputs, labels, device_of(model))
        pairs = [reader(batch) for batch in shown(loader, "Data", enabled=progress)]
        batches, numbers = [arguments(x) for x, _ in pairs], [y for _, y in pairs]
        centre = weights.flat(body)
        with torch.no_grad(), differentiable():
            directions, eigenvalues = informed_directions(network, centre, batches, prior_precision, rank, seed)
            space = Subspace(network, centre, directions)
            problem = _problem(space, batches, numbers, jacobian=jacobian)
            theta = None if isinstance(sampler, FROM_PRIOR) else _laplace(eigenvalues, particles, seed)
            posterior = run(problem, sampler or SETTLED, particles=particles, theta=theta, seed=seed, progress=progress)
        return cls(space, posterior)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights of every particle by name, (J, *shape), as `torch.func.functional_call` takes them."""
        return self._weights.named(self._space().weights(self._ensemble().theta))

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return class probabilities (n, K), averaged over the particles."""
        logits = self._seen(*args, **kwargs)(self._ensemble().theta)
        return self.likelihood.probabilities(logits).mean(dim=1)

    def _seen(self, *args: Any, **kwargs: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return partial(self._space().logits, inputs=(args, kwargs))

    def _space(self) -> Subspace:
        return Subspace(Network(self.body, self._weights, self._output), self.centre, self.directions)


def _problem(
    space: Subspace, batches: list[Arguments], labels: list[np.ndarray[Any, Any]], *, jacobian: bool
) -> Problem:
    """Return the problem for the coordinates u (r,) of the subspace, with the prior N(0, I)."""
    rows = max(len(y) for y in labels)

    def logits(theta: torch.Tensor) -> torch.Tensor:
        return torch.cat([space.logits(theta, inputs) for inputs in batches])

    def slopes(theta: torch.Tensor, tangents: torch.Tensor) -> torch.Tensor:
        return torch.cat([space.jacobian(theta, tangents, inputs, rows) for inputs in batches])

    prior = Gaussian(torch.zeros_like(space.directions[0]), 1.0)
    outputs = logits(prior.mean[None, :]).shape[2:]
    classes = np.arange(outputs[0] if outputs else 2)
    return Problem.nonlinear(logits, np.concatenate(labels), prior, slopes if jacobian else None, classes=classes)


def _laplace(eigenvalues: torch.Tensor, particles: int, seed: int) -> torch.Tensor:
    """Return particles (J, r) of the Laplace approximation N(0, diag(1 / (1 + eigenvalues)))."""
    if particles < 2:
        raise ValueError(f"particles is {particles}; expected at least 2, an ensemble of one has no spread")
    points = standard_points(particles, len(eigenvalues), np.random.default_rng(seed))
    return torch.as_tensor(points, dtype=eigenvalues.dtype, device=eigenvalues.device) / torch.sqrt(1 + eigenvalues)


def _check(prior_precision: float, rank: int) -> None:
    if not (np.isfinite(prior_precision) and prior_precision > 0):
        raise ValueError(f"prior_precision is {prior_precision}; expected a positive number")
    if rank < 1:
        raise ValueError(f"rank is {rank}; expected at least one direction")


def _whole(output: Any) -> Any:
    return output
