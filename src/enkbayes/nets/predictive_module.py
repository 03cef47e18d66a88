"""The base of all modules that predict: their averages over random views of the inputs, and their ONNX files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from enkbayes.core.arguments import check_count
from enkbayes.core.uncertainty import Uncertainty
from enkbayes.engine.arrays import entropy, to_numpy
from enkbayes.inference.views import ViewsChoice, choose_views, sharpened
from enkbayes.nets.loaders import call
from enkbayes.nets.models import run
from enkbayes.nets.threads import in_few_threads
from enkbayes.nets.views import Augment, Views

EXPORTING = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # PyTorch 2.6 and older lack it


class PredictiveModule(nn.Module):  # type: ignore[misc]
    """A module with the probabilities, samples and uncertainties of a subclass, averaged over views of the inputs.

    The last axis of probabilities is that of the classes.
    """

    view_settings: torch.Tensor
    views: Views | None
    views_choice: ViewsChoice | None
    work: Callable[..., float]  # about how many multiplications a prediction needs for (args, kwargs)
    _predict: Callable[..., torch.Tensor]  # inputs -> probabilities (n, ..., K), without views
    _samples: Callable[..., torch.Tensor]  # inputs -> those of the particles (J, n, ..., K), without views
    _uncertainty: Callable[..., Uncertainty]  # inputs -> their uncertainty (n, ...), without views

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("view_settings", torch.tensor([0.0, 1.0]).to(device))  # their number, the power
        self.view_count, self.views, self.views_choice = 0, None, None
        self.input_kind: tuple[tuple[int, ...], torch.dtype] | None = None
        self.output: Any = None

    @in_few_threads
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return class probabilities (n, K), averaged over the posterior and over views of the inputs, if there are
        any.
        """
        if self.view_count == 0:
            return self._predict(*args, **kwargs)
        if EXPORTING():
            raise ValueError("views cannot be exported; export a head or network that was fitted without views=")
        return sharpened(self._averaged(self._predict, args, kwargs), float(self.view_settings[1]))

    @in_few_threads
    def sample_proba(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the probabilities (J, n, K) that the particles predict for a batch of inputs, averaged over views."""
        with torch.no_grad():
            return self._averaged(self._samples, args, kwargs)

    @in_few_threads
    def predict_uncertainty(self, *args: Any, **kwargs: Any) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty in nats and the confidence, (n,) each; `far_field` is the
        part of the epistemic uncertainty that comes from the distance to the training data. The disagreement of views
        is epistemic.
        """

        def parts(*args: Any, **kwargs: Any) -> torch.Tensor:
            found = self._uncertainty(*args, **kwargs)
            far = torch.zeros_like(found.total) if found.far_field is None else found.far_field
            return torch.stack([found.aleatoric, found.epistemic, far, found.confidence])

        with torch.no_grad():
            aleatoric, epistemic, far, confidence = self._averaged(parts, args, kwargs)
            if self.view_count:
                averaged = self._averaged(self._predict, args, kwargs)
                proba = sharpened(averaged, float(self.view_settings[1]))
                total = entropy(proba).to(aleatoric.dtype)
                epistemic = torch.minimum((entropy(averaged) - aleatoric).clamp_min(0.0), total)
                aleatoric, confidence = total - epistemic, proba.max(dim=-1).values
            far = torch.minimum(far, epistemic)
        known = far if self.noisy else None
        return Uncertainty(aleatoric + epistemic, aleatoric, epistemic, confidence, known)

    @property
    def noisy(self) -> bool:
        """Whether there is far-field variance."""
        raise NotImplementedError

    def _averaged(self, function: Callable[..., torch.Tensor], args: Any, kwargs: Any) -> torch.Tensor:
        """Return the average of a function's results over a batch of inputs and its views."""
        if self.view_count == 0:
            return function(*args, **kwargs)
        if self.views is None:
            raise ValueError(
                f"this state was fitted with {self.view_count} views of each input, and no state holds a function; set "
                "views to Views(augment), as in enkbayes.nets.views"
            )
        x = dict(kwargs) if kwargs else args[0] if len(args) == 1 else args
        total = torch.zeros(())
        for seen in self.views(x, self.view_count):
            total = total + call(function, seen)
        return total / (self.view_count + 1)

    def choose_views(self, augment: Augment, calibration: Iterable[tuple[Any, Any]], most: int, seed: int) -> None:
        """Let held-out batches (inputs, labels) choose how many views of an input to average; see
        `enkbayes.inference.views`.
        """
        check_count("most_views", most)
        views, found, numbers = Views(augment, seed), [], []
        with torch.no_grad():
            for x, y in calibration:
                found.append(np.stack([to_numpy(run(self._predict, seen)) for seen in views(x, most)]))
                numbers.append(y)
        proba = np.concatenate(found, axis=1)
        proba = proba.reshape(len(proba), -1, proba.shape[-1])  # each of several labels counts as a row
        choice = choose_views(proba, np.concatenate(numbers).reshape(-1).astype(int))
        self.set_views(torch.tensor([choice.count, choice.power]))
        self.views, self.views_choice = views, choice

    def set_views(self, settings: torch.Tensor) -> None:
        """Take the number of views and the power from a tensor."""
        self.view_settings.copy_(settings)
        self.view_count = int(self.view_settings[0])

    def to_onnx(self, path: str | Path, x: torch.Tensor | None = None) -> None:
        """Write the module as an ONNX file that maps inputs `x` (n, ...) to `proba` (n, K) for any n; only the shape
        and the dtype of x matter. Default: those of the training data. Needs onnx and onnxscript; onnxruntime runs the
        file.
        """
        from enkbayes.nets.onnx import to_onnx

        if x is None and self.input_kind is None:
            raise ValueError("the shape of inputs is not known, as after load_state_dict; pass x, two rows of inputs")
        if x is None and self.input_kind is not None:
            shape, dtype = self.input_kind
            x = torch.zeros((2, *shape), dtype=dtype, device=self.view_settings.device)
        to_onnx(self, x, path)

    def example(self, x: Any, output: Any) -> None:
        """Keep shape and dtype of a row of inputs, if these are one tensor, and the place of the logits in what the
        model returns.
        """
        self.output = output
        self.input_kind = (tuple(x.shape[1:]), x.dtype) if isinstance(x, torch.Tensor) else None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state_dict.setdefault(prefix + "view_settings", self.view_settings.new_tensor([0.0, 1.0]))  # older states
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.view_count = int(self.view_settings[0])


def check_views(views: Any, *, calibrated: bool) -> None:
    """Raise a ValueError for views without the calibration data that choose their number."""
    if views is not None and not calibrated:
        raise ValueError("calibration data choose the number of views; expected calibration= together with views=")
