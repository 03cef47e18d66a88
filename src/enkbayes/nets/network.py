"""A posterior for several layers or the whole of a trained network, in a subspace that the data inform."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from enkbayes.core.gaussian import Gaussian, standard_points
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.inference import Calibration
from enkbayes.nets.layers import frozen_copy
from enkbayes.nets.linearised import Linearised, choose
from enkbayes.nets.loaders import Place, Reader, device_of, shown
from enkbayes.nets.posterior_module import PosteriorModule
from enkbayes.nets.replay import replayed
from enkbayes.nets.rows import Rows, thinned
from enkbayes.nets.subspace import Network, Subspace, Weights, differentiable, informed_directions
from enkbayes.samplers import FROM_PRIOR, Equilibrium, Sampler
from enkbayes.samplers.run import run

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
    scale: torch.Tensor

    def __init__(self, space: Subspace, posterior: Posterior, calibration: Calibration | None = None) -> None:
        super().__init__(space.network.model, posterior)
        self.register_buffer("centre", space.centre)
        self.register_buffer("directions", space.directions)
        self.register_buffer("scale", torch.as_tensor(space.scale, dtype=space.centre.dtype))
        self.calibration = calibration
        self._weights, self._output = space.network.weights, space.network.output

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        *,
        calibration: Iterable[Any] | None = None,
        layers: list[str] | str = "all",
        rank: int = 20,
        rows: int = 5000,
        jacobian: bool | None = None,
        output: Callable[[Any], Any] | None = None,
        inputs: Place = None,
        labels: Place = None,
        prior_precision: float | None = None,
        sampler: Sampler | None = None,
        particles: int | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> Self:
        """Read the training data once and return the network with a posterior over some or all of its weights.

        The model is not changed: a copy of it runs, in eval mode, so that batch normalisation keeps its statistics for
        every particle; its scales and shifts are weights like others. During the fit the read rows are in memory, with
        about 3 `rank` vectors of the size of the chosen weights in double precision and one batch of activations.
        Modules in front of the chosen layers run once, and what these need of them is in memory too (`nets.replay`).

        With `calibration` the directions are those that the training data inform, and the posterior in them is that of
        the calibration data, at their temperature and with the prior width that they choose (`nets.linearised`): wide
        only where that predicts better than temperature scaling. Without it the likelihood is that of the training
        data.

        Parameters
        ----------
        model : nn.Module
            A trained classifier that returns logits (n,), (n, 1) or (n, K); two logits count as their difference.
        loader : iterable of batches
            As for `BayesianHead.fit`.
        calibration : iterable of batches, optional
            Data of the same kind that the network was not trained on.
        layers : list of str or "all"
            Names of modules or parameters that get a posterior; the last block and the head are a cheap choice.
        rank : int
            Number of directions.
        rows : int
            Rows of the loader that are used, a random choice that stands for all, and of the calibration data, where
            the posterior is that of the rows that are used.
        jacobian : bool, optional
            Gauss-Newton form by Jacobian-vector products, `rank` of them for each particle and step. False:
            derivative-free, one forward pass for each particle and step: the slope of the logits over the ensemble
            stands in for their derivatives; fit for logits that are nearly linear over the posterior's spread
            (`posterior.info.nonlinearity` measures it). Default: with Jacobians up to 20,000 weights.
        output : function, optional
            Takes the logits from what the model returns, when it returns several things.
        inputs, labels : str, int or function of a batch, optional
            Where inputs and labels are in a batch, as for `BayesianHead.fit`.
        prior_precision : float, optional
            The weights have the prior N(trained weights, 1 / prior_precision); default 1, or what the calibration data
            choose.
        sampler : Sampler, optional
            Default `Equilibrium(tol=5e-2)`. For smooth activations `Equilibrium()` settles to 1e-6; the kinks of ReLU
            give the residual a floor of a few 1e-2.
        particles : int, optional
            Default 100, or 2 rank + 4 beyond 20,000 weights. The initial ensemble is the Laplace approximation at the
            trained weights.
        seed : int
            As in `enkbayes.samplers.run`, and of the rows that are used.
        progress : bool
            Show progress bars.
        """
        _check(prior_precision, rank, rows, calibrated=calibration is not None)
        body = frozen_copy(model)
        weights = Weights.of(body, None if layers == "all" else [layers] if isinstance(layers, str) else list(layers))
        network = Network(body, weights, output or _whole)
        reader = Reader(inputs, labels, device_of(model))

        def read(source: Iterable[Any], title: str) -> Rows:
            return thinned(map(reader, shown(source, title, enabled=progress)), rows, seed)

        data = read(loader, "Data")
        centre = weights.flat(body)
        with torch.no_grad(), differentiable():
            precision = 1.0 if prior_precision is None else prior_precision
            quick = replayed(network, centre, data.batches)
            directions, eigenvalues = informed_directions(
                quick, centre, data.batches, precision / data.weight, rank, seed
            )
            space = Subspace(quick, centre, directions / data.weight**0.5)
            members = particles or (2 * rank + 4 if space.large else 100)
            with_jacobian = not space.large if jacobian is None else jacobian
            theta, report = _laplace(eigenvalues, members, seed), None
            if calibration is not None:
                data = replace(read(calibration, "Calibration"), weight=1.0)  # rows that are chosen by count for one
                quick = replayed(network, centre, data.batches)
                space = replace(space, network=quick)
                space, theta, report = _calibrated(space, data, members, seed)
            problem = _problem(space, data, jacobian=with_jacobian)
            start = None if isinstance(sampler, FROM_PRIOR) else theta
            posterior = run(problem, sampler or SETTLED, particles=members, theta=start, seed=seed, progress=progress)
        return cls(replace(space, network=network), posterior, report)

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
        return Subspace(Network(self.body, self._weights, self._output), self.centre, self.directions, self.scale)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state_dict.setdefault(prefix + "scale", torch.ones_like(self.scale))  # states of earlier versions have none
        super()._load_from_state_dict(state_dict, prefix, *args)


def _calibrated(space: Subspace, data: Rows, particles: int, seed: int) -> tuple[Subspace, torch.Tensor, Calibration]:
    """Return the subspace at the temperature and with the prior N(0, I) that held-out rows choose, particles (J, r) of
    the posterior in the linearised network, and the report.
    """
    start, along = space.directions.new_zeros(1, space.rank), torch.eye(space.rank).to(space.directions)
    trained = torch.cat([space.logits(start, inputs)[:, 0] for inputs in data.batches])
    slopes = torch.cat([space.jacobian(start, along, inputs, len(y))[:, 0] for inputs, y in data.pairs])
    linear = Linearised(trained.double().cpu(), slopes.double().cpu(), np.concatenate(data.labels))
    report = choose(linear, max(particles, 2 * space.rank + 4), seed)
    width = linear.variance(report.chosen.spread) ** 0.5
    posterior = linear.fit(report.scale, width**2, particles, seed)
    scaled = replace(space, directions=space.directions * width, scale=report.scale)
    return scaled, (posterior.theta / width).to(space.directions), report


def _problem(space: Subspace, data: Rows, *, jacobian: bool) -> Problem:
    """Return the problem for the coordinates u (r,) of the subspace, with the prior N(0, I)."""
    longest = max(len(y) for y in data.labels)

    def logits(theta: torch.Tensor) -> torch.Tensor:
        return torch.cat([space.logits(theta, inputs) for inputs in data.batches])

    def slopes(theta: torch.Tensor, tangents: torch.Tensor) -> torch.Tensor:
        return torch.cat([space.jacobian(theta, tangents, inputs, longest) for inputs in data.batches])

    prior = Gaussian(torch.zeros_like(space.directions[0]), 1.0)
    outputs = logits(prior.mean[None, :]).shape[2:]
    classes = np.arange(outputs[0] if outputs else 2)
    labels = np.concatenate(data.labels)
    weights = None if data.weight == 1 else np.full(len(labels), data.weight)
    return Problem.nonlinear(logits, labels, prior, slopes if jacobian else None, weights=weights, classes=classes)


def _laplace(eigenvalues: torch.Tensor, particles: int, seed: int) -> torch.Tensor:
    """Return particles (J, r) of the Laplace approximation N(0, diag(1 / (1 + eigenvalues)))."""
    if particles < 2:
        raise ValueError(f"particles is {particles}; expected at least 2, an ensemble of one has no spread")
    points = standard_points(particles, len(eigenvalues), np.random.default_rng(seed))
    return torch.as_tensor(points, dtype=eigenvalues.dtype, device=eigenvalues.device) / torch.sqrt(1 + eigenvalues)


def _check(prior_precision: float | None, rank: int, rows: int, *, calibrated: bool) -> None:
    if prior_precision is not None and calibrated:
        raise ValueError("calibration data choose the prior; pass either calibration= or prior_precision=, not both")
    if prior_precision is not None and not (np.isfinite(prior_precision) and prior_precision > 0):
        raise ValueError(f"prior_precision is {prior_precision}; expected a positive number")
    if rank < 1:
        raise ValueError(f"rank is {rank}; expected at least one direction")
    if rows < 1:
        raise ValueError(f"rows is {rows}; expected at least one")


def _whole(output: Any) -> Any:
    return output
