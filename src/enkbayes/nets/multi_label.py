"""Several labels for each row, each of them yes or no: one posterior for each of K independent logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from enkbayes.core.posterior import Info, Posterior
from enkbayes.core.uncertainty import Uncertainty
from enkbayes.engine.arrays import to_numpy
from enkbayes.inference import Calibration
from enkbayes.inference.far_field import FarFieldChoice
from enkbayes.inference.rejection import HeldOutConfidence
from enkbayes.inference.trust import Trust, the_worst
from enkbayes.nets.files import Saved, place_in, read_labels, readable, restore_labels, write_labels
from enkbayes.nets.head import BayesianHead, names_of_classes
from enkbayes.nets.last_layer import LastLayer, Source, fit_classes, stated_precisions
from enkbayes.nets.loaders import Place, Reader, call, device_of, shown
from enkbayes.nets.models import Logits, frozen_copy, run
from enkbayes.nets.network import BayesianNetwork
from enkbayes.nets.posterior_module import PosteriorModule
from enkbayes.nets.predictive_module import PredictiveModule, check_views
from enkbayes.nets.views import Augment
from enkbayes.samplers import Sampler
from enkbayes.samplers.start import as_sampler, count, whole_seed


class MultiLabel(PredictiveModule):
    """A network with K logits, trained with `BCEWithLogitsLoss`, and a posterior for each of them, as K binary fits.

    Create one with `fit_head` or `fit_network`. `labels(x)` returns the probability (n, K) of each label. `members` are
    the K binary heads or networks; `posterior`, `info`, `calibration` and `far_field_choice` are lists with an entry
    for each. `classes` are the names of the labels.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(60, 2)
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> y = torch.stack([x[:, 0] > 0, x[:, 1] > 0, x.sum(1) > 0], dim=1).float()
    >>> labels = MultiLabel.fit_head(model, [(x, y)], progress=False)
    >>> labels(x).shape, labels.sample_proba(x).shape, labels.predict_uncertainty(x).epistemic.shape
    (torch.Size([60, 3]), torch.Size([200, 60, 3]), torch.Size([60, 3]))
    """

    def __init__(
        self, members: Iterable[BayesianHead | BayesianNetwork], class_names: Sequence[str] | None = None
    ) -> None:
        found = list(members)
        super().__init__(found[0].mean.device)
        self.members = nn.ModuleList(found)
        self.classes = np.arange(len(found)) if class_names is None else names_of_classes(class_names, len(found))
        self.eval()

    @classmethod
    def fit_head(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        *,
        calibration: Iterable[Any] | None = None,
        layer: str | None = None,
        output: Any = None,
        inputs: Place = None,
        labels: Place = None,
        prior_precision: float | None = None,
        intercept_precision: float | None = None,
        sampler: Sampler | None = None,
        particles: int = 200,
        seed: int = 0,
        progress: bool = True,
        far_field: bool = True,
        views: Augment | None = None,
        most_views: int = 16,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Return a posterior for each row of the last layer. The arguments are those of `BayesianHead.fit`; labels of a
        batch are (n, K), 0 or 1. The network runs on all data once, and once for a prediction. `class_names` are the
        names of the labels.
        """
        precisions = stated_precisions(prior_precision, intercept_precision)
        if calibration is not None and precisions != (None, None):
            raise ValueError("calibration data choose the prior; pass either calibration= or a prior, not both")
        check_views(views, calibrated=calibration is not None)
        sampler = None if sampler is None else as_sampler(sampler)
        settings = {"particles": count(particles), "seed": whole_seed(seed), "progress": progress}
        source = Source(loader, calibration, inputs, labels, progress, several=True)
        data = LastLayer.read(model, source, layer=layer, features=None, output=output, far_field=far_field)
        members = []
        for k in range(_labels(data)):
            part = data.for_label(k)
            found = fit_classes(part, precisions=precisions, prior=None, sampler=sampler, settings=settings)
            members.append(BayesianHead.of(part, found))
        fitted = cls(members, class_names)
        fitted.example(data.example, data.output)
        if views is not None:
            fitted.choose_views(views, source.held_out(data.reader, "Views"), most_views, seed)
        return fitted

    @classmethod
    def fit_network(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        *,
        calibration: Iterable[Any] | None = None,
        output: Any = None,
        inputs: Place = None,
        labels: Place = None,
        views: Augment | None = None,
        most_views: int = 16,
        class_names: Sequence[str] | None = None,
        **options: Any,
    ) -> Self:
        """Return a posterior for several layers or the whole of a network, for each logit; `options` are those of
        `BayesianNetwork.fit`. A fit and a prediction take K times as long as for one label.
        """
        check_views(views, calibrated=calibration is not None)
        reader, progress = Reader(inputs, labels, device_of(model), model, several=True), options.get("progress", True)
        train = [reader(batch) for batch in shown(loader, "Data", enabled=progress)]
        held_out = None
        if calibration is not None:
            held_out = [reader(batch) for batch in shown(calibration, "Calibration", enabled=progress)]
        x, K = train[0][0], train[0][1].shape[1]
        with torch.no_grad():
            logits = Logits(output)(run(frozen_copy(model), x))
        if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or logits.shape[1] != K:
            got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise ValueError(f"the model returns {got}; expected logits (n, {K}), one for each label")
        members: list[BayesianNetwork] = []
        for k in range(K):
            new = None if held_out is None else [(x, y[:, k]) for x, y in held_out]
            own, logit = [(x, y[:, k]) for x, y in train], OneLogit(Logits(output), k)
            members.append(BayesianNetwork.fit(model, own, calibration=new, output=logit, **options))
            members[k].body = members[0].body  # equal copies of the model
        fitted = cls(members, class_names)
        fitted.example(_only_tensor(x), output)
        if views is not None and held_out is not None:
            fitted.choose_views(views, held_out, most_views, options.get("seed", 0))
        return fitted

    def save(self, path: str | Path) -> None:
        """Write the posteriors of all labels to one `.safetensors` file, all or nothing, as `BayesianHead.save` does.

        >>> import tempfile
        >>> x = torch.randn(30, 2)
        >>> model, y = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)), (x > 0).float()
        >>> labels = MultiLabel.fit_head(model, [(x, y)], class_names=["cat", "dog"], progress=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     labels.save(f"{folder}/labels.safetensors")
        ...     again = MultiLabel.load(f"{folder}/labels.safetensors", model)
        >>> bool(torch.equal(again(x), labels(x))), again.classes.tolist()
        (True, ['cat', 'dog'])
        """
        write_labels(self, list(self.members), self.classes, path)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> Self:
        """Return the posteriors in a file; nothing in the file is executed. `model` is like the one that was fitted;
        its weights do not matter.
        """
        whole, parts = read_labels(path)
        with readable(path):
            place = place_in(whole.header)
            fitted = cls(_member(part, model, place, k) for k, part in enumerate(parts))
            if whole.header["shared"]:
                for member in fitted.members:
                    member.body = fitted.members[0].body
            restore_labels(fitted, whole)
        return fitted

    @property
    def posterior(self) -> list[Posterior]:
        """The posterior of each label."""
        return [member.posterior for member in self.members]

    @property
    def info(self) -> list[Info]:
        """How the run of each label ended."""
        return [member.info for member in self.members]

    @property
    def calibration(self) -> list[Calibration | None]:
        """How the prior of each label was chosen; None for a prior of your own."""
        return [member.calibration for member in self.members]

    @property
    def far_field_choice(self) -> list[FarFieldChoice | None]:
        """How the far-field variance of each label was chosen."""
        return [member.far_field_choice for member in self.members]

    @property
    def trust(self) -> Trust:
        """How far to trust the posterior of the label that is to be trusted least; `members[k].trust` is that of label
        k. Computed on first access, as that of a head.
        """
        return the_worst([member.trust for member in self.members])

    @property
    def noisy(self) -> bool:
        """Whether there is far-field variance."""
        return any(member.noisy for member in self.members)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the probability (n, K) of each label, averaged over its posterior and over views of the inputs, if
        there are any.
        """
        return super().forward(*args, **kwargs)[..., 1]

    def sample_proba(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the probabilities (J, n, K) that the particles predict, averaged over views."""
        return super().sample_proba(*args, **kwargs)[..., 1]

    def predict_uncertainty(self, *args: Any, **kwargs: Any) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty of each label in nats and the confidence, (n, K) each;
        `far_field` is the part that comes from the distance to the training data.
        """
        return super().predict_uncertainty(*args, **kwargs)

    def noise(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """Return the far-field variance (n, K) of the logits for a batch of inputs; None if there is none."""
        with torch.no_grad():
            found = [noise for _, (_, noise) in self._given(args, kwargs)]
        known = next((noise for noise in found if noise is not None), None)
        if known is None:
            return None
        return torch.stack([torch.zeros_like(known) if noise is None else noise for noise in found], dim=1)

    def reject_threshold(
        self,
        calibration: Iterable[Any],
        *,
        max_error: float = 0.05,
        confidence: float = 0.95,
        inputs: Place = None,
        labels: Place = None,
    ) -> np.ndarray[Any, Any]:
        """Return for each label the confidence (K,) above which its predictions are wrong at most `max_error` of the
        time, with this confidence. The arguments are those of `BayesianHead.reject_threshold`; compare with
        `predict_uncertainty(x).confidence`.
        """
        reader, found = Reader(inputs, labels, device_of(self), several=True), []
        for x, y in map(reader, calibration):
            with torch.no_grad():
                found.append((to_numpy(call(self, x)), y))
        if not found:
            raise ValueError("the loader yields no batches; expected held-out rows")
        presence, truth = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if truth.shape != presence.shape:
            raise ValueError(f"a row of the labels has {truth.shape[1]} entries; expected {presence.shape[1]}")
        both = np.stack([1 - presence, presence], axis=-1)
        rows = [HeldOutConfidence.of(both[:, k], truth[:, k]) for k in range(both.shape[1])]
        return np.asarray([each.threshold(max_error, confidence) for each in rows])

    def work(self, args: Any, kwargs: Any) -> float:
        """Return about how many multiplications a prediction needs."""
        return float(sum(member.work(args, kwargs) for member in self.members)) * (1 + self.view_count)

    def train(self, mode: bool = True) -> Self:
        """Set the flag of this module; its members stay in eval mode, because nothing in them is trained."""
        super().train(mode)
        for member in self.members:
            member.eval()
        return self

    def _predict(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.stack([member.proba_given(*given) for member, given in self._given(args, kwargs)], dim=1)

    def _samples(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.stack([member.samples_given(*given) for member, given in self._given(args, kwargs)], dim=2)

    def _uncertainty(self, *args: Any, **kwargs: Any) -> Uncertainty:
        found = [member.uncertainty_given(*given) for member, given in self._given(args, kwargs)]
        names = ("total", "aleatoric", "epistemic", "confidence")
        total, aleatoric, epistemic, confidence = (torch.stack([getattr(u, n) for u in found], dim=1) for n in names)
        far = [torch.zeros_like(u.total) if u.far_field is None else u.far_field for u in found]
        return Uncertainty(total, aleatoric, epistemic, confidence, torch.stack(far, dim=1) if self.noisy else None)

    def _given(self, args: Any, kwargs: Any) -> Iterator[tuple[PosteriorModule, tuple[Any, torch.Tensor | None]]]:
        """Yield every member with the argument of its posterior's predictions and the variance of the noise. If all
        members are heads of one body, the body runs once.
        """
        first = self.members[0]
        if not isinstance(first, BayesianHead) or not all(member.body is first.body for member in self.members):
            yield from ((member, member.inputs_and_noise(*args, **kwargs)) for member in self.members)
            return
        with_noise = next((member.far_field for member in self.members if member.far_field.active), first.far_field)
        with with_noise.recording(first.body) as outputs:
            features = first.features(*args, **kwargs)
        leverages = with_noise.leverages(outputs) if with_noise.active else []
        for member in self.members:
            noise = member.far_field.variance(leverages) if member.far_field.active else None
            yield member, (features, noise)


@dataclass(frozen=True)
class OneLogit:
    """Takes logit k (n,) of the logits (n, K) that a model returns."""

    logits: Logits
    k: int

    def __call__(self, found: Any) -> Any:
        """Return the logit."""
        return self.logits(found)[:, self.k]


def _labels(data: LastLayer) -> int:
    """Return the number of labels, or raise a ValueError if the last layer has another number of logits."""
    K = int(data.train[1].shape[1])
    if data.layer is None or data.layer.outputs != K or (data.held_out is not None and data.held_out[1].shape[1] != K):
        found = 0 if data.layer is None else data.layer.outputs
        raise ValueError(f"the last layer has {found} logits, and a row of the labels {K} entries; expected the same")
    return K


def _member(saved: Saved, model: nn.Module, place: Any, k: int) -> BayesianHead | BayesianNetwork:
    """Return the head or network of label k in a file."""
    if saved.header.get("kind") == "head":
        return BayesianHead.of_saved(saved, model, place)
    return BayesianNetwork.of_saved(saved, model, OneLogit(Logits(place), k))


def _only_tensor(x: Any) -> Any:
    """Return the tensor in a batch of inputs with a single one."""
    return x[0] if isinstance(x, tuple) and len(x) == 1 else x
