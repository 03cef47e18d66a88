"""A posterior for the last layer of a trained network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from enkbayes.core.arguments import check_positive
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Bernoulli, Categorical
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.logit_noise import noisy_members, noisy_predictive, takes_noise
from enkbayes.core.posterior import MEMBERS, Posterior
from enkbayes.core.problem import Problem
from enkbayes.inference import Calibration, calibrate, uncalibrated
from enkbayes.inference.far_field import FarFieldChoice, informative_rows
from enkbayes.inference.leave_one_out import leave_one_out_logits
from enkbayes.nets.far_field import FarField, Leverages, Moments
from enkbayes.nets.layers import (
    Layer,
    encoder,
    linear_layer,
    linear_names,
    split_last_layer,
    without_layer,
)
from enkbayes.nets.loaders import Labels, Place, Reader, device_of, shown
from enkbayes.nets.models import Logits, finite, frozen_copy, plain
from enkbayes.nets.models import run as run_model
from enkbayes.nets.posterior_module import PosteriorModule, blank
from enkbayes.nets.views import Augment
from enkbayes.samplers import FROM_PRIOR, Sampler
from enkbayes.samplers.run import run
from enkbayes.samplers.start import as_sampler, count, whole_seed
from enkbayes.solvers.map_estimate import map_estimate


class BayesianHead(PosteriorModule):
    """A trained network whose last Linear layer is replaced by its posterior. Create one with `fit`.

    It is an ordinary module: `head(x)` returns probabilities (n, K), K = 2 for one logit; `state_dict`, `.to()` and
    `torch.export.export(head, (x,), strict=False)` work. It holds a copy of the network without its last layer, always
    in eval mode. `calibration` reports how the prior was chosen; it is None for a prior of your own.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(60, 2)
    >>> data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> head = BayesianHead.fit(model, torch.utils.data.DataLoader(data, batch_size=20), progress=False)
    >>> head(x).shape, head.sample_proba(x).shape, head.predict_uncertainty(x).epistemic.shape
    (torch.Size([60, 2]), torch.Size([200, 60, 2]), torch.Size([60]))
    """

    map: LinearLogits

    def __init__(
        self,
        body: nn.Module,
        posterior: Posterior,
        calibration: Calibration | None = None,
        far_field: FarField | None = None,
        far_field_choice: FarFieldChoice | None = None,
    ) -> None:
        super().__init__(body, posterior, far_field, far_field_choice)
        self.calibration = calibration

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        *,
        calibration: Iterable[Any] | None = None,
        layer: str | None = None,
        features: Callable[..., torch.Tensor] | None = None,
        output: Any = None,
        inputs: Place = None,
        labels: Place = None,
        prior_precision: float | None = None,
        intercept_precision: float | None = None,
        prior: Gaussian | None = None,
        sampler: Sampler | None = None,
        particles: int = 200,
        seed: int = 0,
        progress: bool = True,
        far_field: bool = True,
        views: Augment | None = None,
        most_views: int = 16,
    ) -> Self:
        """Read the training data once and return the network with a posterior for its last layer.

        The model does not change: a copy of it runs, in eval mode and without gradients. A layer with two logits is
        treated as the one logit z1 - z0 with twice the prior variance. This predicts exactly what the two-logit softmax
        predicts, with half the parameters and an exact predictive integral.

        With `calibration`, the result is a posterior that predicts no worse than temperature scaling on that data; see
        `enkbayes.inference.calibration`. The calibration data also choose far-field variance, noise in the logits that
        grows with the distance from the training data, so that confidence tends to 1/K far away; see
        `enkbayes.inference.far_field`. With neither `calibration` nor a prior of your own, the prior is centred at
        the trained weights and each training row has the weight 0.01. Predictions then change little, and the posterior
        cannot correct overfitting. `prior_precision=0.5`, or any other prior, is the paper's recipe: the prior N(0, 1 /
        prior_precision), with all training rows at full weight. It is overconfident when the features were trained on
        the same rows.

        Parameters
        ----------
        model : nn.Module
            A trained classifier that returns logits (n,), (n, 1) or (n, K).
        loader : iterable of batches
            (x, y), longer tuples that begin with x and y, or dicts. Labels are class numbers 0 ... K-1 (0 and 1 for one
            logit) of any dtype, (n,) or (n, 1).
        calibration : iterable of batches, optional
            Data of the same kind that the network was not trained on, a few hundred rows or more. They determine the
            prior, and the result is their posterior.
        layer : str, optional
            Name of the last Linear. Default: the one whose output is the model's output.
        features : module or method, optional
            x -> (n, D), the inputs of the last layer, for models that do more after it. With `layer`, the head has that
            layer's shape and starts from its weights. Without it, the classes are those of the labels and there is an
            intercept. The module, or the owner of the method, is copied. A plain function is refused, because the
            network that it uses would not be part of the head.
        output : int, str or function, optional
            Where the logits are in what the model returns: a position in a tuple, a key, the name of an attribute, a
            function. Default: the output itself, or its `logits`.
        inputs, labels : str, int or function of a batch, optional
            Where inputs and labels are in a batch. Default: positions 0 and 1. In a dict, labels have a common key, and
            all other tensors are inputs: keywords of the model, or its only argument. A tuple of inputs is passed on as
            arguments, a dict as keywords.
        prior_precision : float, optional
            The weights have the prior N(0, 1 / prior_precision). Default: a prior around the trained weights.
        intercept_precision : float, optional
            The same for the bias, if there is one. Default: prior_precision.
        prior : Gaussian, optional
            Over the D weights (one or two logits: of the logit z1 - z0) or the D * K weights, `weight.T.reshape(-1)`;
            instead of prior_precision.
        sampler : Sampler, optional
            Default `Equilibrium()`; the accuracy of its predictions does not depend on the number of particles.
        particles, seed : int
            As in `enkbayes.samplers.run`. With J > P particles, the initial ensemble has the trained weights as its
            mean and the spread of the prior. Samplers that must start from the prior do so.
        progress : bool
            Show progress bars.
        far_field : bool
            False for the plain posterior, without far-field variance. Without `calibration` there is none either.
        views : function, optional
            The augmentation that the network was trained with: of a batch of inputs and a torch.Generator, or of a
            batch alone. Predictions are then also averaged over random views of each input, and the calibration data,
            read a second time, choose how many, and the temperature. A prediction with v views costs v + 1 times as
            much; `views_choice` tells what was chosen. Not for `torch.export`.
        most_views : int
            The largest number of views to try.
        """
        precisions = (prior_precision, intercept_precision)
        own_prior = prior is not None or precisions != (None, None)
        if calibration is not None and own_prior:
            raise ValueError("calibration data choose the prior; pass either calibration= or a prior, not both")
        if views is not None and calibration is None:
            raise ValueError("calibration data choose the number of views; expected calibration= beside views=")
        body = _body(model, output) if features is None else encoder(features)
        model = plain(model)
        reader = Reader(inputs, labels, device_of(model), body if features is None else features)
        trained = Layer.of(linear_layer(model, layer)) if features is not None and layer is not None else None
        rows: Pairs = map(reader, shown(loader, "Features", enabled=progress))
        with torch.no_grad():
            if features is None:
                body, trained, rows = _without_last_layer(body, rows, layer)
            moments = Moments(body) if far_field and calibration is not None else None
            train = _gather((_checked(_features(body, x, trained, moments), trained), y) for x, y in rows)
        sampler = None if sampler is None else as_sampler(sampler)
        seed = whole_seed(seed)
        settings: dict[str, Any] = {"particles": count(particles), "seed": seed, "progress": progress}
        if calibration is not None:
            pairs = map(reader, shown(calibration, "Calibration", enabled=progress))
            with torch.no_grad():
                leverage = None if moments is None or not moments.places else Leverages(moments)
                held_out = _gather((_features(body, x, trained, leverage), y) for x, y in pairs)
            posterior, report, chosen = _calibrated(train, held_out, trained, sampler, settings)
            found = choice = None
            if leverage is not None and takes_noise(posterior.likelihood):
                some = informative_rows(chosen.size, chosen.likelihood.outputs)
                logits = leave_one_out_logits(chosen, posterior.ensemble, some)
                found, choice = leverage.choose(posterior.likelihood, logits, chosen.targets, some, train[0])
                posterior = posterior.tempered(choice.scale)
                report = replace(report, scale=report.scale * choice.scale)
            single = replace(posterior, ensemble=posterior.ensemble.to(train[0]))
            head = cls(body, single, report, found, choice)
            if views is not None:
                batches = map(reader, shown(calibration, "Views", enabled=progress))
                head.choose_views(views, batches, most_views, seed)
            return head
        problem, guess, theta = _problem(*train, trained, precisions, prior), None, None
        if trained is not None and not own_prior:
            problem, guess = uncalibrated(problem, trained.theta)
        elif trained is not None and not isinstance(sampler, FROM_PRIOR):
            theta = _around(trained.theta, problem, particles, seed)
        return cls(body, run(problem, sampler, theta=theta, **settings), guess)

    @classmethod
    def empty(cls, model: nn.Module, layer: str | None = None, output: Any = None) -> Self:
        """Return a head of the right shape whose weights are all zero, for `load_state_dict`.

        Parameters
        ----------
        model : nn.Module
            As given to `fit`; its weights do not matter.
        layer : str, optional
            Name of the last Linear. Default: the last one in the order of `model.named_modules()`.
        output : int, str or function, optional
            As given to `fit`.

        Examples
        --------
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> BayesianHead.empty(model)(torch.zeros(1, 2)).shape
        torch.Size([1, 3])
        """
        body = _body(model, output)
        names = linear_names(body)
        if layer is None and not names:
            raise ValueError("the model has no Linear layer; expected one at its end")
        name = names[-1] if layer is None else layer
        trained = Layer.of(linear_layer(body, name))
        outputs = None if trained.outputs <= 2 else trained.outputs
        likelihood = Bernoulli() if outputs is None else Categorical(outputs)
        linear = LinearLogits(trained.features, outputs, trained.bias is not None)
        body = without_layer(body, name)
        return cls(body, blank(likelihood, linear, np.arange(trained.classes), trained.weight.new_zeros(linear.dim)))

    def features(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the inputs (n, D) of the last layer."""
        found = self.body(*args, **kwargs).reshape(-1, self.map.features).to(self._ensemble().mean.dtype)
        return finite(found)

    def _predict(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        ensemble, (features, noise) = self._ensemble(), self._with_noise(*args, **kwargs)
        if not self.averages_gaussian:
            logits = self.map.particle_logits(features, ensemble.theta)
            if noise is not None:
                logits = noisy_members(logits, noise, MEMBERS, symmetric=True)
            return self.likelihood.mean(logits).mean(dim=1)
        mean_logits, V = self.map.predictive_logits(features, ensemble)
        if noise is None:
            return self.likelihood.predictive(mean_logits, V=V)
        return noisy_predictive(self.likelihood, mean_logits, V, noise.to(V.dtype))

    _posterior_inputs = features


Pairs = Iterable[tuple[Any, Labels]]
Data = tuple[torch.Tensor, Labels]
"""Features (N, D) and labels (N,)."""


def _body(model: nn.Module, output: Any) -> nn.Module:
    """Return a frozen copy of the model that returns its logits alone."""
    body = frozen_copy(model)
    body.register_forward_hook(Logits(output).hook)
    return body


def _without_last_layer(model: nn.Module, pairs: Pairs, name: str | None) -> tuple[nn.Module, Layer, Pairs]:
    """Return the model without its last layer, which is found on the first batch, that layer, and all batches."""
    pairs = iter(pairs)
    first = next(pairs, None)
    if first is None:
        raise ValueError("the loader yields no batches; expected at least one")
    body, layer = split_last_layer(model, first[0], name)
    return body, layer, chain([first], pairs)


def _features(body: nn.Module, x: Any, layer: Layer | None, watch: Moments | Leverages | None) -> Any:
    """Return the inputs (n, D) of the last layer, while the outputs of the other layers are watched."""
    with nullcontext() if watch is None else watch.watching():
        found = run_model(body, x)
    return found.reshape(-1, layer.features) if layer is not None and isinstance(found, torch.Tensor) else found


def _gather(pairs: Pairs) -> Data:
    """Return all features (N, D), in single precision at least, and all labels (N,)."""
    collected = [(found.to(torch.promote_types(found.dtype, torch.float32)), y) for found, y in pairs]
    if not collected:
        raise ValueError("the loader yields no batches; expected at least one")
    return torch.cat([found for found, _ in collected]), np.concatenate([y for _, y in collected])


def _checked(found: Any, layer: Layer | None) -> torch.Tensor:
    """Return the result (n, D) of a user's `features`, or raise an error if it has another shape."""
    width = None if layer is None else layer.features
    if not isinstance(found, torch.Tensor):
        raise ValueError(f"features= returned a {type(found).__name__}; expected a tensor (n, D)")
    if found.ndim != 2 or width not in (None, found.shape[1]):
        expected = f"(n, {width or 'D'}), one row for each label"
        raise ValueError(f"features= returned shape {tuple(found.shape)}; expected {expected}")
    return found


def _calibrated(
    train: Data, held_out: Data, layer: Layer | None, sampler: Sampler | None, settings: dict[str, Any]
) -> tuple[Posterior, Calibration, Problem]:
    """Return the posterior that held-out data determine, the report, and its problem; computed in double precision on
    the CPU.
    """
    classes = np.unique(np.concatenate([train[1], held_out[1]])) if layer is None else np.arange(layer.classes)
    intercept = 1.0 if layer is None or layer.bias is not None else None
    problem, held = (Problem.create(x, y, intercept=intercept, classes=classes) for x, y in (train, held_out))
    theta = map_estimate(problem).theta if layer is None else layer.theta
    chosen, report = calibrate(held, theta, problem, seed=settings["seed"])
    posterior = run(chosen, sampler, **settings)
    return posterior, report, chosen


def _problem(
    features: torch.Tensor,
    labels: Labels,
    layer: Layer | None,
    stated: tuple[float | None, float | None],
    prior: Gaussian | None,
) -> Problem:
    """Return the problem of the last layer; two logits count as their difference, with twice the variance."""
    for name, value in zip(("prior_precision", "intercept_precision"), stated, strict=True):
        if value is not None:
            check_positive(name, value)
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
    return prior.whitened(particles, np.random.default_rng(seed)) + (theta.to(prior.mean.dtype) - prior.mean)
