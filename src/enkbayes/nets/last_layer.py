"""The fit of a last layer: its inputs and targets are read from loaders once, and then it gets a posterior."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from enkbayes.core.arguments import check_positive
from enkbayes.core.caller import warn
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.logit_noise import takes_noise
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.inference import Calibration, calibrate, uncalibrated
from enkbayes.inference.cross_validation import logits_without
from enkbayes.inference.far_field import FarFieldChoice, informative_rows
from enkbayes.inference.leave_one_out import leave_one_out_logits
from enkbayes.inference.linear_regression import regression_problem
from enkbayes.nets.devices import DOUBLE, in_full_precision
from enkbayes.nets.far_field import FarField, Leverages, Moments
from enkbayes.nets.layers import Layer, encoder, linear_layer, place_of, split_last_layer
from enkbayes.nets.loaders import Labels, Place, Reader, device_of, shown
from enkbayes.nets.models import Logits, frozen_copy, plain
from enkbayes.nets.models import run as run_model
from enkbayes.samplers import FROM_PRIOR, MeanField, Sampler
from enkbayes.samplers.run import run
from enkbayes.samplers.start import count
from enkbayes.solvers.map_estimate import map_estimate

Pairs = Iterable[tuple[Any, Labels]]
Data = tuple[torch.Tensor, Labels]
"""Features (N, D) and labels (N,) or (N, K)."""


@dataclass(frozen=True)
class Source:
    """Where a fit finds its data: the training data and the held-out data, and how to read them."""

    loader: Iterable[Any]
    calibration: Iterable[Any] | None
    inputs: Place
    labels: Place
    progress: bool
    several: bool = False

    def training(self, reader: Reader) -> Pairs:
        """Return inputs and labels of the training batches."""
        return map(reader, shown(self.loader, "Features", enabled=self.progress))

    def held_out(self, reader: Reader, title: str = "Calibration") -> Pairs:
        """Return inputs and labels of the held-out batches."""
        found = () if self.calibration is None else self.calibration
        return map(reader, shown(found, title, enabled=self.progress))


@dataclass(frozen=True, eq=False)
class LastLayer:
    """A network without its last layer, that layer if it is known, and its inputs with the labels of their rows.

    `held_out` and `leverages` belong to held-out data; `example` is the first batch of inputs, `output` the
    place of the logits in what the network returns, and `reader` reads more batches.
    """

    body: nn.Module
    layer: Layer | None
    train: Data
    held_out: Data | None
    leverages: Leverages | None
    example: Any
    output: Any
    reader: Reader

    @classmethod
    def read(
        cls, model: nn.Module, source: Source, *, layer: str | None, features: Any, output: Any, far_field: bool
    ) -> Self:
        """Run the network on all data once."""
        body = body_of(model, output) if features is None else encoder(features)
        model = plain(model)
        reader = Reader(
            source.inputs, source.labels, device_of(model), body if features is None else features, source.several
        )
        trained = Layer.of(linear_layer(model, layer)) if features is not None and layer is not None else None
        pairs = iter(source.training(reader))
        held_out = leverages = None
        with torch.no_grad():
            first = next(pairs, None)
            if first is None:
                raise ValueError("the loader yields no batches; expected at least one")
            if features is None and layer is not None and output is None:
                output = place_of(body, first[0], layer)
                if output is not None:
                    body.register_forward_hook(Logits(output).hook)
            if features is None:
                body, trained = split_last_layer(body, first[0], layer)
            moments = Moments(body) if far_field and source.calibration is not None else None
            train = _gather(
                (_checked(_features(body, x, trained, moments), trained), y) for x, y in chain([first], pairs)
            )
            if source.calibration is not None:
                leverages = None if moments is None or not moments.places else Leverages(moments)
                new = source.held_out(reader)
                held_out = _gather((_features(body, x, trained, leverages), y) for x, y in new)
        return cls(body, trained, train, held_out, leverages, first[0], output, reader)

    @property
    def reference(self) -> torch.Tensor:
        """An empty tensor of the type and on the device of the posterior's buffers."""
        return self.train[0].new_zeros(0).to(self.reader.device)

    def for_label(self, k: int) -> LastLayer:
        """Return the same for logit k alone, with column k of the labels."""
        if self.layer is None:
            raise ValueError("expected a last layer with a logit for each label")
        held_out = None if self.held_out is None else (self.held_out[0], self.held_out[1][:, k])
        train = self.train[0], self.train[1][:, k]
        return replace(self, layer=self.layer.row(k), train=train, held_out=held_out)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A posterior for a last layer, in the precision and on the device of the network, and how it was found.

    `problem` and `exact` are the problem that was solved and its posterior, before far-field variance.
    """

    posterior: Posterior
    calibration: Calibration | None
    far_field: FarField | None
    far_field_choice: FarFieldChoice | None
    problem: Problem
    exact: Posterior


def body_of(model: nn.Module, output: Any) -> nn.Module:
    """Return a frozen copy of the model that returns its logits alone."""
    body = frozen_copy(model)
    body.register_forward_hook(Logits(output).hook)
    return body


def stated_precisions(weights: Any, bias: Any) -> tuple[float | None, float | None]:
    """Return the precisions of weights and bias as the user states them, None for those that are to be chosen."""
    for name, value in (("prior_precision", weights), ("intercept_precision", bias)):
        if value is not None:
            check_positive(name, value)
    return weights, bias


@in_full_precision
def fit_classes(
    data: LastLayer,
    *,
    precisions: tuple[float | None, float | None],
    prior: Gaussian | None,
    sampler: Sampler | None,
    settings: dict[str, Any],
) -> Fitted:
    """Return the posterior of a layer that gives logits of classes; `settings` are those of `run`."""
    if data.held_out is not None:
        return _calibrated(data, sampler, settings)
    problem, guess, theta, trained = _problem(*data.train, data.layer, precisions, prior), None, None, data.layer
    if trained is not None and prior is None and precisions == (None, None):
        problem, guess = uncalibrated(problem, trained.theta.to(problem.features.device))
        warn(
            "the head has no held-out rows, so nothing corrects the over-confidence of the trained weights; "
            "pass them as calibration=, or a prior of your own"
        )
    elif trained is not None and not isinstance(sampler, FROM_PRIOR):
        theta = _around(trained.theta, problem, settings["particles"], settings["seed"])
    posterior = run(problem, sampler, theta=theta, **settings)
    return _fitted(data, problem, posterior, posterior, guess)


def _calibrated(data: LastLayer, sampler: Sampler | None, settings: dict[str, Any]) -> Fitted:
    """Return the posterior that held-out data determine; computed in double precision on the CPU."""
    layer, held_out, leverages = data.layer, _given(data.held_out), data.leverages
    classes = np.unique(np.concatenate([data.train[1], held_out[1]])) if layer is None else np.arange(layer.classes)
    intercept = 1.0 if layer is None or layer.bias is not None else None
    train, held = (Problem.create(x, y, intercept=intercept, classes=classes) for x, y in (data.train, held_out))
    theta = map_estimate(train).theta if layer is None else layer.theta
    problem, report = calibrate(held, theta, train, seed=settings["seed"])
    exact = posterior = run(problem, sampler, **settings)
    found = choice = None
    if leverages is not None and takes_noise(posterior.likelihood):
        some, mean, root = logits_without(problem, posterior)
        found, choice = leverages.choose(posterior.likelihood, (mean, root), problem.targets, some, data.reference)
        posterior = posterior.tempered(choice.scale)
        report = replace(report, scale=report.scale * choice.scale)
    return _fitted(data, problem, exact, posterior, report, found, choice)


@in_full_precision
def fit_regression(
    data: LastLayer,
    *,
    precisions: tuple[float | None, float | None],
    noise_variance: float | None,
    settings: dict[str, Any],
) -> Fitted:
    """Return the posterior of a layer that gives one real number, a Gaussian that is found exactly.

    With held-out data, it is theirs under a prior around the trained weights: the residuals of the network on them
    choose the width of the prior and the noise. Otherwise it is that of the training data under a prior around 0.
    """
    layer = data.layer
    if layer is not None and layer.outputs != 1:
        raise ValueError(f"the last layer has {layer.outputs} outputs; regression takes a network with one")
    intercept = layer is None or layer.bias is not None
    (x, y), centre = data.train, None
    if data.held_out is not None:
        x, y = data.held_out
        centre = layer.theta.cpu().double().numpy() if layer is not None else None
    weights, constant = precisions
    problem = regression_problem(
        x.cpu().double().numpy(),
        y,
        intercept=intercept,
        noise=noise_variance,
        precision=weights,
        intercept_precision=weights if constant is None else constant,
        centre=centre,
    )
    posterior = run(problem, MeanField(), **settings)
    found = choice = None
    if data.leverages is not None:
        some = informative_rows(problem.size, None)
        logits = leave_one_out_logits(problem, posterior.ensemble, some)
        found, choice = data.leverages.choose(posterior.likelihood, logits, problem.targets, some, data.reference)
    return _fitted(data, problem, posterior, posterior, None, found, choice)


def _fitted(
    data: LastLayer,
    problem: Problem,
    exact: Posterior,
    posterior: Posterior,
    report: Calibration | None,
    found: FarField | None = None,
    choice: FarFieldChoice | None = None,
) -> Fitted:
    single = replace(posterior, ensemble=posterior.ensemble.to(data.reference), state=None)
    return Fitted(single, report, found, choice, problem, replace(exact, state=None))


def _given(held_out: Data | None) -> Data:
    if held_out is None:
        raise ValueError("expected held-out data")
    return held_out


def _features(body: nn.Module, x: Any, layer: Layer | None, watch: Moments | Leverages | None) -> Any:
    """Return the inputs (n, D) of the last layer, while the outputs of the other layers are watched."""
    with nullcontext() if watch is None else watch.watching():
        found = run_model(body, x)
    if layer is None or not isinstance(found, torch.Tensor):
        return found
    flat = found.ndim == 1 and found.numel() % layer.features == 0  # of a model that flattens its logits
    return found.reshape(-1, layer.features) if flat or found.shape[-1:] == (layer.features,) else found


def _gather(pairs: Pairs) -> Data:
    """Return all features (N, D), in single precision at least, on a device with double precision, and all labels."""
    collected = [(_precise(found), y) for found, y in pairs]
    if not collected:
        raise ValueError("the loader yields no batches; expected at least one")
    if not any(len(found) for found, _ in collected):
        raise ValueError("the loader yields no rows; expected at least one")
    return torch.cat([found for found, _ in collected]), np.concatenate([y for _, y in collected])


def _precise(found: torch.Tensor) -> torch.Tensor:
    found = found if found.device.type in DOUBLE else found.cpu()
    return found.to(torch.promote_types(found.dtype, torch.float32))


def _checked(found: Any, layer: Layer | None) -> torch.Tensor:
    """Return the result (n, D) of a user's `features`, or raise an error if it has another shape."""
    width = None if layer is None else layer.features
    if not isinstance(found, torch.Tensor):
        raise ValueError(f"features= returned a {type(found).__name__}; expected a tensor (n, D)")
    if found.ndim != 2 or width not in (None, found.shape[1]):
        expected = f"(n, {width or 'D'}), one row for each label"
        raise ValueError(f"features= returned shape {tuple(found.shape)}; expected {expected}")
    return found


def _problem(
    features: torch.Tensor,
    labels: Labels,
    layer: Layer | None,
    stated: tuple[float | None, float | None],
    prior: Gaussian | None,
) -> Problem:
    """Return the problem of the last layer; two logits count as their difference, with twice the variance."""
    weights = 1.0 if stated[0] is None else stated[0]
    precisions = (weights, weights if stated[1] is None else stated[1])
    double = 2.0 if layer is not None and layer.outputs == 2 else 1.0
    variance, bias_variance = (double / p for p in precisions)
    return Problem.create(
        features,
        labels,
        variance if prior is None else prior,
        intercept=bias_variance if layer is None or layer.bias is not None else None,
        classes=None if layer is None else np.arange(layer.classes),
    )


def _around(theta: torch.Tensor, problem: Problem, particles: int, seed: int) -> torch.Tensor | None:
    """Return an ensemble (J, P) with the mean theta and the spread of the prior. Return None for J <= P: the ensemble
    would span too few directions, and the sampler finds a better start.
    """
    if count(particles) <= problem.dim:
        return None
    prior = problem.prior
    return prior.whitened(particles, np.random.default_rng(seed)) + (theta.to(prior.mean) - prior.mean)
