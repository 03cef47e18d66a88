"""The base of a fitted head and a fitted network: a posterior stored in buffers, and a body that stays in eval mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.low_rank import Complement, Frame
from enkbayes.core.posterior import Info, Posterior
from enkbayes.core.problem import Problem
from enkbayes.core.uncertainty import Uncertainty
from enkbayes.engine.arrays import as_double, to_numpy
from enkbayes.inference import Calibration
from enkbayes.inference.assessment import assess
from enkbayes.inference.far_field import FarFieldChoice
from enkbayes.inference.rejection import HeldOutConfidence
from enkbayes.inference.trust import Trust
from enkbayes.nets.devices import in_full_precision
from enkbayes.nets.far_field import FarField
from enkbayes.nets.loaders import Place, Reader, call, device_of
from enkbayes.nets.predictive_module import PredictiveModule
from enkbayes.nets.threads import one_pass

BUFFERS = ("mean", "basis", "points")
COMPLEMENT = ("left", "right", "variance", "tightening", "seed")
KEPT = 2**24  # numbers of particles that a module keeps between calls; more are formed in every call
UNKNOWN = Info(
    "unknown", 0, converged=False, residual=math.nan, message="not fitted here", blend=0.0, time=0.0, seconds=0.0
)


class PosteriorModule(PredictiveModule):
    """A network with a posterior in the buffers mean, basis and points. Further buffers hold the distribution outside
    the basis, and those of `far_field` the noise in the logits; they are empty if there is none. All of them follow
    `.to()` and `state_dict`.
    """

    mean: torch.Tensor
    basis: torch.Tensor
    points: torch.Tensor
    gaussian: torch.Tensor
    complement_variance: torch.Tensor
    complement_seed: torch.Tensor
    proba_given: Callable[..., torch.Tensor]  # argument of the posterior's predictions, noise -> probabilities (n, K)
    _posterior_inputs: Callable[..., Any]  # inputs of the network -> argument of the posterior's predictions

    def __init__(
        self,
        body: nn.Module,
        posterior: Posterior,
        far_field: FarField | None = None,
        far_field_choice: FarFieldChoice | None = None,
    ) -> None:
        super().__init__(posterior.ensemble.mean.device)
        self.body = body
        self.far_field = FarField.none(posterior.ensemble.mean) if far_field is None else far_field
        self.far_field_choice = far_field_choice
        for name in BUFFERS:
            values = getattr(posterior.ensemble, name).detach()
            self.register_buffer(name, values.clone(memory_format=torch.contiguous_format))
        for name, values in _complement_buffers(posterior.ensemble).items():
            self.register_buffer(name, values)
        device = self.mean.device
        self.register_buffer("gaussian", torch.tensor(posterior.gaussian).to(device))
        parameters = torch.as_tensor(posterior.likelihood.parameters, dtype=torch.float32).to(device)
        self.register_buffer("likelihood_parameters", parameters)
        self.calibration: Calibration | None = None
        self.known_trust: Trust | None = None
        self.solved: tuple[Problem, Posterior] | None = None
        self.complement_draw = int(self.complement_seed.sum())  # a plain number, for `torch.export`
        self._kept: tuple[list[tuple[torch.Tensor, int | None]], AffineEnsemble | None] = ([], None)
        self.averages_gaussian = posterior.gaussian  # a plain bool, for `torch.export`
        self.likelihood, self.map, self.classes, self.info = (
            posterior.likelihood,
            posterior.map,
            posterior.classes,
            posterior.info,
        )
        self.eval()

    def work(self, args: Any, kwargs: Any) -> float:
        """Return about how many multiplications a prediction needs."""
        body, members = one_pass(self.body, args, kwargs), self.points.shape[0] * self.mean.shape[0]
        return float(self.runs * body * (1 + self.view_count) + members)

    @property
    def runs(self) -> int:
        """How often the network runs for a prediction."""
        return 1

    @property
    def noisy(self) -> bool:
        """Whether there is far-field variance."""
        return self.far_field.active

    @property
    def saved_fields(self) -> dict[str, Any]:
        """What a file holds of a subclass alone, with its kind."""
        raise NotImplementedError

    @property
    def posterior(self) -> Posterior:
        """The posterior, on the device of this module. Its predictions take features (last layer) or a function that
        returns logits (network) instead of inputs.
        """
        return Posterior(self._ensemble(), self.likelihood, self.map, self.classes, self.averages_gaussian, self.info)

    def reject_threshold(
        self,
        calibration: Iterable[Any],
        *,
        max_error: float = 0.05,
        confidence: float = 0.95,
        inputs: Place = None,
        labels: Place = None,
    ) -> float:
        """Return the confidence above which predictions are wrong at most `max_error` of the time, with this
        confidence; see `enkbayes.inference.rejection`.

        Parameters
        ----------
        calibration : iterable of batches
            Held-out data. Rows that chose prior, temperature and far-field variance in `fit` may be used again: these
            are few numbers; new rows make the guarantee exact.
        max_error, confidence : float
            The largest share of wrong predictions among accepted rows, and the probability of keeping it.
        inputs, labels : str, int or function of a batch, optional
            Where inputs and labels are in a batch, as for `fit`.
        """
        if self.likelihood.n_classes is None:
            raise ValueError("this is a regression; expected a posterior over classes")
        reader = Reader(inputs, labels, device_of(self))
        found = []
        for x, y in map(reader, calibration):
            with torch.no_grad():
                found.append((to_numpy(call(self, x)), y))
        if not found:
            raise ValueError("the loader yields no batches; expected held-out rows")
        proba, numbers = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return HeldOutConfidence.of(proba, numbers).threshold(max_error, confidence)

    def noise(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """Return the far-field variance (n,) of the logits for a batch of inputs; None if there is none."""
        with torch.no_grad():
            return self.inputs_and_noise(*args, **kwargs)[1]

    @in_full_precision
    def samples_given(self, inputs: Any, noise: torch.Tensor | None) -> torch.Tensor:
        """Return `sample_proba` for the argument of the posterior's predictions, and the variance of the noise."""
        found: torch.Tensor = self.posterior.sample_proba(inputs, noise=noise)
        return found

    @in_full_precision
    def uncertainty_given(self, inputs: Any, noise: torch.Tensor | None) -> Uncertainty:
        """Return `predict_uncertainty` for the argument of the posterior's predictions, and the variance of the
        noise.
        """
        return self.posterior.predict_uncertainty(inputs, noise=noise)

    def _predict(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.proba_given(*self.inputs_and_noise(*args, **kwargs))

    def _samples(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.samples_given(*self.inputs_and_noise(*args, **kwargs))

    def _uncertainty(self, *args: Any, **kwargs: Any) -> Uncertainty:
        return self.uncertainty_given(*self.inputs_and_noise(*args, **kwargs))

    def inputs_and_noise(self, *args: Any, **kwargs: Any) -> tuple[Any, torch.Tensor | None]:
        """Return the argument of the posterior's predictions, and the variance (n,) of the noise or None."""
        if not self.far_field.active:
            return self._posterior_inputs(*args, **kwargs), None
        with self.far_field.recording(self.body) as outputs:
            inputs = self._recorded_inputs(*args, **kwargs)
        return inputs, self.far_field.noise(outputs)

    def _recorded_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """Return the argument of the posterior's predictions, and run the body on the way."""
        return self._posterior_inputs(*args, **kwargs)

    @property
    def trust(self) -> Trust:
        """How far to trust the posterior, by `enkbayes.assess`. Computed on first access; `save` stores it. It needs
        the data of the fit, which are kept unless they are large. Copies and files leave them out.
        """
        if self.known_trust is None:
            if self.solved is None:
                raise ValueError("trust needs the data of the fit, which copies and files leave out; compute it before")
            self.known_trust = assess(*self.solved, predictions=True)
        return self.known_trust

    def remember(self, x: Any, output: Any, problem: Problem, posterior: Posterior) -> None:
        """Keep what `example` keeps of inputs and outputs, and the problem that was solved, if it is small."""
        self.example(x, output)
        small = problem.size * problem.dim <= KEPT
        self.solved = (problem, posterior) if small else None

    def train(self, mode: bool = True) -> Self:
        """Set the flag of this module; the body stays in eval mode, because nothing in it is trained."""
        super().train(mode)
        self.body.eval()
        return self

    def _ensemble(self) -> AffineEnsemble:
        """Return the ensemble of the buffers. It is kept, with its particles, until a buffer changes."""
        if torch.compiler.is_compiling() or self.points.shape[0] * self.mean.shape[0] > KEPT:
            return self._formed()
        buffers = [getattr(self, name) for name in (*BUFFERS, *(f"complement_{name}" for name in COMPLEMENT))]
        now = [(buffer, None if buffer.is_inference() else buffer._version) for buffer in buffers]  # noqa: SLF001
        before, ensemble = self._kept
        same = len(before) == len(now) and all(a is b and v == w for (a, v), (b, w) in zip(before, now, strict=True))
        if not same or ensemble is None:
            ensemble = self._formed()
            self._kept = (now, ensemble)
        return ensemble

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of copies and pickles what can be computed again, and the data of the fit."""
        return self.__dict__ | {"_kept": ([], None), "solved": None}

    def _formed(self) -> AffineEnsemble:
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
        state_dict.setdefault(prefix + "likelihood_parameters", self.likelihood_parameters)
        super()._load_from_state_dict(state_dict, prefix, *args)
        if len(self.likelihood_parameters):
            self.likelihood = self.likelihood.with_parameters(as_double(self.likelihood_parameters))
        self.averages_gaussian = bool(self.gaussian)
        self.complement_draw = int(self.complement_seed.sum())


def _complement_buffers(ensemble: AffineEnsemble) -> dict[str, torch.Tensor]:
    """Return the buffers of the distribution outside the basis; empty ones if there is none."""
    c, empty = ensemble.complement, ensemble.mean.new_empty(0)
    arrays = [empty] * 4 if c is None else [c.frame.left, c.frame.right, c.variance, c.tightening]
    arrays = [values.detach().clone(memory_format=torch.contiguous_format) for values in arrays]
    arrays.append(torch.tensor([] if c is None else [c.seed], dtype=torch.int64).to(empty.device))
    return {f"complement_{name}": values for name, values in zip(COMPLEMENT, arrays, strict=True)}


def blank(likelihood: Likelihood, linear: Any, classes: Any, reference: torch.Tensor) -> Posterior:
    """Return a placeholder posterior of the right shape, with all weights zero."""
    dim = reference.shape[0]
    ensemble = AffineEnsemble(torch.zeros_like(reference), reference.new_zeros(dim, 1), reference.new_zeros(2, 1))
    return Posterior(ensemble, likelihood, linear, classes, gaussian=True, info=UNKNOWN)
