"""A posterior for the last layer of a trained network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from enkbayes.core.arguments import check_positive
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Bernoulli, Categorical, Likelihood, Normal
from enkbayes.core.likelihoods.many_classes import VERY_MANY, predictive
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.logit_noise import noisy_members, noisy_predictive
from enkbayes.core.posterior import MEMBERS, Posterior
from enkbayes.inference import Calibration
from enkbayes.inference.far_field import FarFieldChoice
from enkbayes.nets.devices import in_full_precision
from enkbayes.nets.far_field import FarField
from enkbayes.nets.files import Saved, linear_in, place_in, read, readable, restore, write
from enkbayes.nets.last_layer import (
    Fitted,
    LastLayer,
    Source,
    body_of,
    fit_classes,
    fit_regression,
    stated_precisions,
)
from enkbayes.nets.layers import Layer, Tap, encoder, linear_layer, linear_names, without_layer
from enkbayes.nets.loaders import Place
from enkbayes.nets.models import finite
from enkbayes.nets.posterior_module import PosteriorModule, blank
from enkbayes.nets.predictive_module import EXPORTING, check_views
from enkbayes.nets.views import Augment
from enkbayes.samplers import Sampler
from enkbayes.samplers.start import as_sampler, count, whole_seed


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
        regression: bool = False,
        noise_variance: float | None = None,
        class_names: Sequence[str] | None = None,
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
            Name of the last Linear. Default: the one whose output is the model's output. For a model with several
            outputs, in a dict, a tuple or an object, this name is enough.
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
            much; `views_choice` says what was chosen. Not for `torch.export`.
        most_views : int
            The largest number of views to try.
        regression : bool
            For a network with one output, trained on real targets. The posterior is then a Gaussian, which is found
            exactly. Noise and width of the prior are chosen by evidence: of the residuals of the network on the
            calibration data, around the trained weights; without these, of the training data, around 0.
            `prior_precision` fixes the width. `head(x)` returns expected targets (n, 1), and `predict_uncertainty`
            their variances.
        noise_variance : float, optional
            Of a regression: the variance of a target around its prediction. Default: chosen by evidence.
        class_names : sequence of str, optional
            The names of the classes 0 ... K-1, for `classes`.
        """
        precisions = stated_precisions(prior_precision, intercept_precision)
        if noise_variance is not None:
            check_positive("noise_variance", noise_variance)
        if calibration is not None and not regression and (prior is not None or precisions != (None, None)):
            raise ValueError("calibration data choose the prior; pass either calibration= or a prior, not both")
        check_views(views, calibrated=calibration is not None)
        if regression and (prior is not None or sampler is not None or views is not None):
            raise ValueError("prior=, sampler= and views= are for classes; a regression takes prior_precision=")
        sampler = None if sampler is None else as_sampler(sampler)
        settings = {"particles": count(particles), "seed": whole_seed(seed), "progress": progress}
        source = Source(loader, calibration, inputs, labels, progress)
        data = LastLayer.read(model, source, layer=layer, features=features, output=output, far_field=far_field)
        if regression:
            found = fit_regression(data, precisions=precisions, noise_variance=noise_variance, settings=settings)
        else:
            found = fit_classes(data, precisions=precisions, prior=prior, sampler=sampler, settings=settings)
        head = cls.of(data, found)
        if class_names is not None:
            head.classes = names_of_classes(class_names, head.likelihood.n_classes)
        if views is not None:
            head.choose_views(views, source.held_out(data.reader, "Views"), most_views, seed)
        return head

    @classmethod
    def of(cls, data: LastLayer, found: Fitted) -> Self:
        """Return the head of a fitted last layer."""
        head = cls(data.body, found.posterior, found.calibration, found.far_field, found.far_field_choice)
        head.remember(data.example, data.output, found.problem, found.exact)
        return head

    @classmethod
    def empty(cls, model: nn.Module, layer: str | None = None, output: Any = None, *, regression: bool = False) -> Self:
        """Return a head of the right shape whose weights are all zero, for `load_state_dict`.

        Parameters
        ----------
        model : nn.Module
            As given to `fit`; its weights do not matter.
        layer : str, optional
            Name of the last Linear. Default: the last one in the order of `model.named_modules()`.
        output : int, str or function, optional
            As given to `fit`.
        regression : bool
            As given to `fit`.

        Examples
        --------
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> BayesianHead.empty(model)(torch.zeros(1, 2)).shape
        torch.Size([1, 3])
        """
        body = body_of(model, output)
        names = linear_names(body)
        if layer is None and not names:
            raise ValueError("the model has no Linear layer; expected one at its end")
        name = names[-1] if layer is None else layer
        trained = Layer.of(linear_layer(body, name))
        outputs = None if trained.outputs <= 2 else trained.outputs
        likelihood: Likelihood = Bernoulli() if outputs is None else Categorical(outputs)
        linear = LinearLogits(trained.features, outputs, trained.bias is not None)
        body, classes = without_layer(body, name), None if regression else np.arange(trained.classes)
        likelihood = Normal() if regression else likelihood
        return cls(body, blank(likelihood, linear, classes, trained.weight.new_zeros(linear.dim)))

    def save(self, path: str | Path) -> None:
        """Write the head to one `.safetensors` file, all or nothing: the weights of the network, the posterior, how it
        was calibrated, the names of the classes, and `trust` if it was computed.

        >>> import tempfile
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(30, 2)
        >>> head = BayesianHead.fit(model, [(x, torch.arange(30) % 3)], class_names=["a", "b", "c"], progress=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     head.save(f"{folder}/head.safetensors")
        ...     again = BayesianHead.load(f"{folder}/head.safetensors", model)
        >>> bool(torch.equal(again(x), head(x))), again.classes.tolist()
        (True, ['a', 'b', 'c'])
        """
        write(self, path)

    @classmethod
    def load(cls, path: str | Path, model: Any) -> Self:
        """Return the head in a file; nothing in the file is executed.

        Parameters
        ----------
        path : str or Path
            A ValueError explains why a file is refused that is damaged, or that does not fit the model.
        model : nn.Module
            A model like the one that was fitted, or its `features`; its weights do not matter.
        """
        saved = read(path, "head")
        with readable(path):
            return cls.of_saved(saved, model, place_in(saved.header))

    @property
    def saved_fields(self) -> dict[str, Any]:
        """What a file holds of a head alone."""
        taps = [name for name, module in self.body.named_modules() if isinstance(module, Tap)]
        return {"kind": "head", "layer": taps[0] if taps else None, "linear": self.map}

    @classmethod
    def of_saved(cls, saved: Saved, model: Any, output: Any) -> Self:
        """Return the head that a file holds, for a model like the one that was fitted."""
        linear, layer = linear_in(saved.header, saved.state), saved.header.get("layer")
        body = encoder(model) if layer is None else without_layer(body_of(model, output), layer)
        reference = next(body.parameters(), torch.zeros(0)).new_zeros(linear.dim, dtype=saved.state["mean"].dtype)
        head = cls(body, blank(saved.records["likelihood"], linear, saved.records["classes"], reference))
        restore(head, saved)
        return head

    def features(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the inputs (n, D) of the last layer."""
        found = self.body(*args, **kwargs).reshape(-1, self.map.features).to(self._ensemble().mean.dtype)
        return finite(found)

    @in_full_precision
    def proba_given(self, features: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        """Return the probabilities (n, K) for inputs (n, D) of the last layer, and the variance (n,) of the noise."""
        ensemble = self._ensemble()
        if not self.averages_gaussian:
            logits = self.map.particle_logits(features, ensemble.theta)
            if noise is not None:
                logits = noisy_members(logits, noise, MEMBERS, symmetric=True)
            return self.likelihood.mean(logits).mean(dim=1)
        many = isinstance(self.likelihood, Categorical) and self.likelihood.outputs >= VERY_MANY
        if many and ensemble.complement is not None and not EXPORTING():  # the choice of points cannot be exported
            mean_logits, V = self.map.gaussian_logits(features, ensemble)
            return predictive(features, mean_logits, V, ensemble.complement, noise=noise)
        mean_logits, V = self.map.predictive_logits(features, ensemble)
        if noise is None:
            return self.likelihood.predictive(mean_logits, V=V)
        return noisy_predictive(self.likelihood, mean_logits, V, noise.to(V.dtype))

    _posterior_inputs = features


def names_of_classes(names: Sequence[str], classes: int | None) -> np.ndarray[Any, Any]:
    """Return the names of K classes as an array, or raise a ValueError if they are not K different ones."""
    found = list(names)
    if not all(isinstance(name, str) for name in found) or len(found) != classes or len(set(found)) != classes:
        raise ValueError(f"class_names is {found}; expected {classes or 'no'} different names")
    return np.asarray(found)
