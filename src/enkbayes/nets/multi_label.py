"""Several labels for each row, each of them yes or no: one posterior for each of K independent logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from enkbayes.core.uncertainty import Uncertainty
from enkbayes.nets.head import BayesianHead
from enkbayes.nets.last_layer import LastLayer, Source, fit_classes, stated_precisions
from enkbayes.nets.loaders import Place, Reader, device_of, shown
from enkbayes.nets.models import Logits, frozen_copy, run
from enkbayes.nets.network import BayesianNetwork
from enkbayes.nets.posterior_module import PosteriorModule
from enkbayes.nets.threads import in_few_threads
from enkbayes.samplers import Sampler
from enkbayes.samplers.start import as_sampler, count, whole_seed


class MultiLabel(nn.Module):  # type: ignore[misc]
    """A network with K logits, trained with `BCEWithLogitsLoss`, and a posterior for each of them, as K binary fits.

    Create one with `fit_head` or `fit_network`. `members` are the K binary heads or networks. `labels(x)` returns the
    probability (n, K) of each label.

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

    def __init__(self, members: Iterable[BayesianHead | BayesianNetwork]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
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
    ) -> Self:
        """Return a posterior for each row of the last layer. The arguments are those of `BayesianHead.fit`; labels of a
        batch are (n, K), 0 or 1. The network runs on all data once, and once for a prediction.
        """
        precisions = stated_precisions(prior_precision, intercept_precision)
        if calibration is not None and precisions != (None, None):
            raise ValueError("calibration data choose the prior; pass either calibration= or a prior, not both")
        sampler = None if sampler is None else as_sampler(sampler)
        settings = {"particles": count(particles), "seed": whole_seed(seed), "progress": progress}
        source = Source(loader, calibration, inputs, labels, progress, several=True)
        data = LastLayer.read(model, source, layer=layer, features=None, output=output, far_field=far_field)
        members = []
        for k in range(_labels(data)):
            part = data.for_label(k)
            found = fit_classes(part, precisions=precisions, prior=None, sampler=sampler, settings=settings)
            members.append(BayesianHead.of(part, found))
        return cls(members)

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
        **options: Any,
    ) -> Self:
        """Return a posterior for several layers or the whole of a network, for each logit; `options` are those of
        `BayesianNetwork.fit`. A fit and a prediction take K times as long as for one label.
        """
        reader, progress = Reader(inputs, labels, device_of(model), model, several=True), options.get("progress", True)
        train = [reader(batch) for batch in shown(loader, "Data", enabled=progress)]
        held_out = None
        if calibration is not None:
            held_out = [reader(batch) for batch in shown(calibration, "Calibration", enabled=progress)]
        K = train[0][1].shape[1]
        with torch.no_grad():
            logits = Logits(output)(run(frozen_copy(model), train[0][0]))
        if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or logits.shape[1] != K:
            got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise ValueError(f"the model returns {got}; expected logits (n, {K}), one for each label")

        def fitted(k: int) -> BayesianNetwork:
            new = None if held_out is None else [(x, y[:, k]) for x, y in held_out]
            own, logit = [(x, y[:, k]) for x, y in train], OneLogit(Logits(output), k)
            return BayesianNetwork.fit(model, own, calibration=new, output=logit, **options)

        return cls(fitted(k) for k in range(K))

    @in_few_threads
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the probability (n, K) of each label, averaged over its posterior."""
        found = [member.proba_given(*given) for member, given in self._given(args, kwargs)]
        return torch.stack([proba[:, 1] for proba in found], dim=1)

    @in_few_threads
    def sample_proba(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the probabilities (J, n, K) that the particles predict."""
        with torch.no_grad():
            found = [member.samples_given(*given) for member, given in self._given(args, kwargs)]
        return torch.stack([proba[:, :, 1] for proba in found], dim=2)

    @in_few_threads
    def predict_uncertainty(self, *args: Any, **kwargs: Any) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty of each label in nats and the confidence, (n, K) each."""
        with torch.no_grad():
            found = [member.uncertainty_given(*given) for member, given in self._given(args, kwargs)]
        names = ("total", "aleatoric", "epistemic", "confidence")
        total, aleatoric, epistemic, confidence = (torch.stack([getattr(u, n) for u in found], dim=1) for n in names)
        if all(u.far_field is None for u in found):
            return Uncertainty(total, aleatoric, epistemic, confidence)
        far = [torch.zeros_like(u.total) if u.far_field is None else u.far_field for u in found]
        return Uncertainty(total, aleatoric, epistemic, confidence, torch.stack(far, dim=1))

    def work(self, args: Any, kwargs: Any) -> float:
        """Return about how many multiplications a prediction needs."""
        return float(sum(member.work(args, kwargs) for member in self.members))

    def train(self, mode: bool = True) -> Self:
        """Set the flag of this module; its members stay in eval mode, because nothing in them is trained."""
        super().train(mode)
        for member in self.members:
            member.eval()
        return self

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
