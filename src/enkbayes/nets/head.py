"""A posterior for the last layer of a trained network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Bernoulli, Categorical
from enkbayes.core.linear_map import LinearMap
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.inference import Calibration, calibrate, uncalibrated
from enkbayes.nets.layers import Layer, behead, encoder, frozen_copy, linear_layer, take_off
from enkbayes.nets.loaders import Place, Reader, call, device_of, shown
from enkbayes.nets.posterior_module import PosteriorModule, blank
from enkbayes.nets.start import around_trained_weights, trained_weights
from enkbayes.samplers import FROM_PRIOR, Sampler
from enkbayes.samplers.run import run
from enkbayes.solvers.map_estimate import map_estimate


class BayesianHead(PosteriorModule):
    """A trained network whose last Linear layer is replaced by its posterior. Made by `fit`.

    A module like any other: `head(x)` gives probabilities (n, K), K = 2 for one logit; `state_dict`, `.to()` and
    `torch.export.export(head, (x,), strict=False)` work. It holds a copy of the network without its last layer, always
    in eval mode. `calibration` tells how the prior was chosen, with a sentence; None for a prior of your own.

    Examples
    --------
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> x = torch.randn(60, 2)
    >>> data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> head = BayesianHead.fit(model, torch.utils.data.DataLoader(data, batch_size=20), progress=False)
    >>> head(x).shape, head.sample_proba(x).shape, head.predict_uncertainty(x).epistemic.shape
    (torch.Size([60, 2]), torch.Size([200, 60, 2]), torch.Size([60]))
    """

    map: LinearMap

    def __init__(self, body: nn.Module, posterior: Posterior, calibration: Calibration | None = None) -> None:
        super().__init__(body, posterior)
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
        inputs: Place = None,
        labels: Place = None,
        prior_precision: float | None = None,
        intercept_precision: float | None = None,
        prior: Gaussian | None = None,
        sampler: Sampler | None = None,
        particles: int = 200,
        seed: int = 0,
        progress: bool = True,
    ) -> Self:
        """Read the training data once and return the network with a posterior for its last layer.

        The model is not changed: a copy of it runs, in eval mode and without gradients. A layer with two logits is
        treated as the one logit z1 - z0 with twice the prior variance, which predicts exactly what the two-logit
        softmax predicts, with half the parameters and an exact predictive integral.

        With `calibration` the posterior is one that predicts no worse than temperature scaling on these data, see
        `enkbayes.inference.calibration`. Without it and without a prior of your own the prior is centred at the
        trained weights and each training row counts a hundredth, which changes predictions little; what a network has
        over-fitted it cannot tell. `prior_precision=0.5`, or any other prior, is the paper's recipe: N(0, 1 /
        prior_precision) and all training rows at full weight, sure of features that were trained on these very rows.

        Parameters
        ----------
        model : nn.Module
            A trained classifier that returns logits (n,), (n, 1) or (n, K).
        loader : iterable of batches
            (x, y), longer tuples that begin so, or dicts. Labels are class numbers 0 ... K-1 (0 and 1 for one logit) of
            any dtype, (n,) or (n, 1).
        calibration : iterable of batches, optional
            Data of the same kind that the network was not trained on, a few hundred rows or more. They choose the
            prior, and the posterior is theirs.
        layer : str, optional
            Name of the last Linear. Default: the one whose output is the model's output.
        features : module, method or function, optional
            x -> (n, D), the inputs of the last layer, for models that return several things or do more after it. With
            `layer` the head has that layer's shape and starts from its weights; without, classes are those of the
            labels and there is an intercept. Modules and their methods are copied; a plain function is kept.
        inputs, labels : str, int or function of a batch, optional
            Where inputs and labels are in a batch. Default: places 0 and 1, or usual keys. Inputs that are a tuple or a
            dict are passed on as arguments or keywords.
        prior_precision : float, optional
            The weights have the prior N(0, 1 / prior_precision). Default: a prior around the trained weights.
        intercept_precision : float, optional
            The same for the bias, if there is one. Default: prior_precision.
        prior : Gaussian, optional
            Over the D weights (one or two logits: of the logit z1 - z0) or the D * K weights, `weight.T.reshape(-1)`;
            instead of prior_precision.
        sampler : Sampler, optional
            Default `Equilibrium()`, which needs no more particles than you want to see.
        particles, seed : int
            As in `enkbayes.samplers.run`. An initial ensemble of J > P particles has the trained weights as its mean
            and the prior's spread (samplers that need a prior ensemble get one).
        progress : bool
            Show progress bars.
        """
        precisions = (prior_precision, intercept_precision)
        if calibration is not None and (prior, *precisions) != (None, None, None):
            raise ValueError("calibration data choose the prior; pass either calibration= or a prior, not both")
        reader = Reader(inputs, labels, device_of(model))
        body = frozen_copy(model) if features is None else encoder(features, model)
        known = Layer.of(linear_layer(model, layer)) if features is not None and layer is not None else None
        pairs = map(reader, shown(loader, "Features", enabled=progress))
        with torch.no_grad():
            if features is None:
                body, known, found, numbers = _without_last_layer(body, pairs, layer)
            else:
                found, numbers = _gather((_features(call(body, x), known), y) for x, y in pairs)
        settings: dict[str, Any] = {"particles": particles, "seed": seed, "progress": progress}
        if calibration is not None:
            pairs = map(reader, shown(calibration, "Calibration", enabled=progress))
            with torch.no_grad():
                held = _gather((_rows(call(body, x), found), y) for x, y in pairs)
            return cls(body, *_calibrated((found, numbers), held, known, sampler, settings))
        problem, report, theta = _problem(found, numbers, known, precisions, prior), None, None
        if known is not None and precisions == (None, None) and prior is None:
            problem, report = uncalibrated(problem, trained_weights(known))
        elif known is not None and not isinstance(sampler, FROM_PRIOR):
            theta = around_trained_weights(problem, known, particles, seed)
        return cls(body, run(problem, sampler, theta=theta, **settings), report)

    @classmethod
    def empty(cls, model: nn.Module, layer: str | None = None) -> Self:
        """Return a head of the right shape that knows nothing, for `load_state_dict`.

        Parameters
        ----------
        model : nn.Module
            As given to `fit`; its weights do not matter.
        layer : str, optional
            Name of the last Linear. Default: the last one in the order of `model.named_modules()`.

        Examples
        --------
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> BayesianHead.empty(model)(torch.zeros(1, 2)).shape
        torch.Size([1, 3])
        """
        names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        if layer is None and not names:
            raise ValueError("the model has no Linear layer; expected one at its end")
        name = names[-1] if layer is None else layer
        known = Layer.of(linear_layer(model, name))
        outputs = None if known.outputs <= 2 else known.outputs
        likelihood = Bernoulli() if outputs is None else Categorical(outputs)
        linear = LinearMap(known.weight.shape[1], outputs, known.bias is not None)
        classes = np.arange(outputs or 2)
        body = take_off(frozen_copy(model), name)
        return cls(body, blank(likelihood, linear, classes, known.weight.new_zeros(linear.dim)))

    def features(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the inputs (n, D) of the last layer."""
        found: torch.Tensor = self.body(*args, **kwargs)
        return found.reshape(-1, self.map.features).to(self._ensemble().mean.dtype)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return class probabilities (n, K), averaged over the posterior."""
        ensemble, features = self._ensemble(), self.features(*args, **kwargs)
        if self.averages_gaussian:
            return self.likelihood.predictive(*self.map.predictive_logits(features, ensemble))
        return self.likelihood.probabilities(self.map.particle_logits(features, ensemble.theta)).mean(dim=1)

    _seen = features


Pairs = Iterable[tuple[Any, np.ndarray[Any, Any]]]
Data = tuple[torch.Tensor, np.ndarray[Any, Any]]


def _without_last_layer(
    model: nn.Module, pairs: Pairs, name: str | None
) -> tuple[nn.Module, Layer, torch.Tensor, np.ndarray[Any, Any]]:
    """Return the model without its last layer, found on the first batch, that layer, and features and labels."""
    pairs = iter(pairs)
    first = next(pairs, None)
    if first is None:
        raise ValueError("the loader yields no batches; expected at least one")
    layer, body = behead(model, first[0], name)
    width = layer.weight.shape[1]
    features, labels = _gather((call(body, x).reshape(-1, width), y) for x, y in chain([first], pairs))
    return body, layer, features, labels


def _gather(pairs: Pairs) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
    """Return all features (N, D), in single precision at least, and all labels (N,)."""
    collected = [(found.to(torch.promote_types(found.dtype, torch.float32)), y) for found, y in pairs]
    if not collected:
        raise ValueError("the loader yields no batches; expected at least one")
    return torch.cat([found for found, _ in collected]), np.concatenate([y for _, y in collected])


def _features(found: Any, layer: Layer | None) -> torch.Tensor:
    """Return what a user's `features` gave, checked: (n, D)."""
    width = None if layer is None else layer.weight.shape[1]
    if not isinstance(found, torch.Tensor):
        raise ValueError(f"features= returned a {type(found).__name__}; expected a tensor (n, D)")
    if found.ndim != 2 or width not in (None, found.shape[1]):
        expected = f"(n, {width or 'D'}), one row for each label"
        raise ValueError(f"features= returned shape {tuple(found.shape)}; expected {expected}")
    return found


def _rows(found: torch.Tensor, train: torch.Tensor) -> torch.Tensor:
    """Return features of calibration data as rows (n, D) like those of the training data."""
    return found.reshape(-1, train.shape[1])


def _calibrated(
    train: Data, held: Data, layer: Layer | None, sampler: Sampler | None, settings: dict[str, Any]
) -> tuple[Posterior, Calibration]:
    """Return the posterior that calibration data choose, and how; it is found in double precision on the CPU."""
    (features, labels), (held_features, held_labels) = train, held
    classes = np.unique(np.concatenate([labels, held_labels])) if layer is None else np.arange(max(layer.outputs, 2))
    with_bias = layer is None or layer.bias is not None
    problem, held_out = (
        Problem.create(x, y, intercept=1.0 if with_bias else None, classes=classes)
        for x, y in ((features, labels), (held_features, held_labels))
    )
    theta = map_estimate(problem).theta if layer is None else trained_weights(layer)
    chosen, report = calibrate(held_out, theta, problem, seed=settings["seed"])
    posterior = run(chosen, sampler, **settings)
    return replace(posterior, ensemble=posterior.ensemble.to(features)), report


def _problem(
    features: torch.Tensor,
    labels: np.ndarray[Any, Any],
    layer: Layer | None,
    stated: tuple[float | None, float | None],
    prior: Gaussian | None,
) -> Problem:
    """Return the problem of the last layer; two logits count as their difference, with twice the variance."""
    weights = 1.0 if stated[0] is None else stated[0]
    precisions = (weights, weights if stated[1] is None else stated[1])
    if not all(np.isfinite(p) and p > 0 for p in precisions):
        raise ValueError(f"the precisions of weights and bias are {precisions}; expected positive numbers")
    double = 2.0 if layer is not None and layer.outputs == 2 else 1.0
    variance, bias_variance = (double / p for p in precisions)
    return Problem.create(
        features,
        labels,
        variance if prior is None else prior,
        intercept=bias_variance if layer is None or layer.bias is not None else None,
        classes=None if layer is None else np.arange(max(layer.outputs, 2)),
    )
