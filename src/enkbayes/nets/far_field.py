"""Far-field variance of a network: the outputs of its layers, and the buffers that turn them into noise in the logits.

The mathematics is in `enkbayes.inference.far_field`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from enkbayes.core.likelihoods import Likelihood, Normal
from enkbayes.core.posterior import Posterior
from enkbayes.engine.arrays import to_numpy
from enkbayes.inference.class_distance import direction
from enkbayes.inference.far_field import Extent, FarFieldChoice, choose, with_constant
from enkbayes.nets.devices import in_double, in_full_precision
from enkbayes.nets.layers import Tap
from enkbayes.nets.loaders import Arguments
from enkbayes.nets.positions import Padding

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
SLOPE, REACH = 2.0, 1 / 32  # of the scores, and of the noise beyond their range (`benchmarks/far_field_scores.py`)
KINDS = (("factor", "scale"), ("direction_factor", "direction_scale"))  # keys of state dicts; old ones have the first
WIDEST = 512  # numbers of a layer that are used at most, evenly spaced: factors take the square of it in memory


class FarField(nn.Module):  # type: ignore[misc]
    """The variance (n,) of noise in the logits of a network, from the outputs of the layers of its body.

    Create one with `of`. Without layers there is no noise. There is an extent of the outputs and one of their
    directions; states of earlier versions have the first alone.
    """

    layers: torch.Tensor
    strength: torch.Tensor
    reach: torch.Tensor

    def __init__(self, reference: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("layers", torch.zeros(0, dtype=torch.int64, device=reference.device))
        for _, scale in KINDS:
            self.register_buffer(scale, reference.new_zeros(4))
        for name in ("strength", "reach"):
            self.register_buffer(name, reference.new_zeros(()))
        self.places: tuple[int, ...] = ()  # plain numbers, for `torch.export`
        self.kinds = 0

    @property
    def active(self) -> bool:
        """Whether there is any noise."""
        return len(self.places) > 0

    @classmethod
    def none(cls, reference: torch.Tensor) -> Self:
        """Return the far-field variance that is zero everywhere."""
        return cls(reference.new_zeros(0, dtype=torch.promote_types(reference.dtype, torch.float32)))

    @classmethod
    def of(
        cls, extents: tuple[Extent, ...], places: tuple[int, ...], choice: FarFieldChoice, reference: torch.Tensor
    ) -> Self:
        """Return the chosen far-field variance, by the layers at some places of the body."""
        found = cls.none(reference)
        if choice.reach == 0:
            return found
        found.layers, found.places = torch.as_tensor(places).to(reference.device), places
        found.kinds = len(extents)
        found.strength, found.reach = (torch.as_tensor(x).to(found.reach) for x in (choice.strength, choice.reach))
        for (name, scale), extent in zip(KINDS, extents, strict=False):
            setattr(found, scale, extent.scale.to(found.strength))
            for i, factor in enumerate(extent.factors):
                found.register_buffer(f"{name}_{i}", factor.to(found.strength))
        return found

    @property
    def extents(self) -> tuple[Extent, ...]:
        """How far inputs lie outside the training data: their outputs at the layers, and the directions of these."""
        return tuple(
            Extent(tuple(getattr(self, f"{name}_{i}") for i in range(len(self.places))), getattr(self, scale))
            for name, scale in KINDS[: self.kinds]
        )

    @contextmanager
    def recording(self, body: nn.Module) -> Iterator[dict[int, torch.Tensor]]:
        """Record the outputs of the layers while the body runs."""
        with recorded_outputs(body, self.places) as outputs:
            yield outputs

    def check(self, body: nn.Module) -> None:
        """Raise a ValueError unless a state that was read fits the layers of the body."""
        if not self.active:
            return
        known = len(layers_of(body))
        if not all(0 <= place < known for place in self.places):
            raise ValueError(f"the far-field variance belongs to layers {self.places}; the body has {known}")
        for extent in self.extents:
            extent.check()

    def noise(self, outputs: dict[int, torch.Tensor]) -> torch.Tensor:
        """Return the variance (n,) for recorded outputs."""
        return self.variance(self.leverages(outputs))

    @in_full_precision
    def leverages(self, outputs: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        """Return the mean log leverages (n,) of recorded outputs, and of their directions."""
        return mean_leverages(self.extents, outputs, self.places)

    def variance(self, leverages: list[torch.Tensor]) -> torch.Tensor:
        """Return the variance (n,) for mean log leverages (n,)."""
        noises = [
            extent.variance(extent.standardised(leverage), self.strength, self.reach)
            for extent, leverage in zip(self.extents, leverages, strict=True)
        ]
        return torch.stack(noises).sum(dim=0)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take the layers from the state; older states have none, or no directions."""
        layers = state_dict.setdefault(prefix + "layers", self.layers.new_zeros(0))
        for name, _ in KINDS[: self.kinds]:
            for i in range(len(self.places)):
                delattr(self, f"{name}_{i}")
        self.layers, self.places = self.layers.new_empty(layers.shape), tuple(layers.tolist())
        self.kinds = 2 if f"{prefix}{KINDS[1][0]}_0" in state_dict else 1
        for name in (*(scale for _, scale in KINDS), "strength", "reach"):
            state_dict.setdefault(prefix + name, getattr(self, name).new_zeros(getattr(self, name).shape))
        for name, _ in KINDS[: self.kinds]:
            for i in range(len(self.places)):
                stored = state_dict.get(f"{prefix}{name}_{i}")
                shape = (0, 0) if stored is None else stored.shape
                self.register_buffer(f"{name}_{i}", self.strength.new_empty(shape))
        super()._load_from_state_dict(state_dict, prefix, *args)


class Moments:
    """Second moments of the outputs of a body's layers, and of their directions, added up batch by batch."""

    def __init__(self, body: nn.Module) -> None:
        self.body, self.count = body, 0
        self.sums: dict[int, torch.Tensor] = {}
        self.turned: dict[int, torch.Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Add the rows on which the body runs."""
        with recorded_outputs(self.body, range(len(layers_of(self.body)))) as outputs:
            yield
        for place, h in outputs.items():
            if place in self.sums:
                check_width(h, self.sums[place])
            double = in_double(h)
            for sums, rows in ((self.sums, double), (self.turned, direction(double))):
                whole = with_constant(rows)
                sums[place] = whole.T @ whole + sums.get(place, 0.0)
            self.count += len(h) if place == next(iter(outputs)) else 0

    @property
    def places(self) -> tuple[int, ...]:
        """The layers that the body calls."""
        return tuple(sorted(self.sums))

    def extents(self) -> tuple[Extent, Extent]:
        """Return the extents of the outputs and of their directions, not calibrated yet."""
        plain, turned = (
            Extent.of_moments([sums[place] / self.count for place in self.places]) for sums in (self.sums, self.turned)
        )
        return plain, turned


class Leverages:
    """Mean log leverages of held-out rows, collected batch by batch."""

    def __init__(self, moments: Moments) -> None:
        self.body, self.places, self.extents = moments.body, moments.places, moments.extents()
        self.found: list[list[torch.Tensor]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Collect the rows on which the body runs."""
        with recorded_outputs(self.body, self.places) as outputs:
            yield
        self.found.append(mean_leverages(self.extents, {i: in_double(h) for i, h in outputs.items()}, self.places))

    @property
    def collected(self) -> list[torch.Tensor]:
        """The mean log leverages (n,) of all rows, of their outputs and of the directions of these."""
        return [torch.cat(each) for each in zip(*self.found, strict=True)]

    def choose(
        self, likelihood: Likelihood, logits: tuple[Any, Any], labels: Any, rows: Any, reference: torch.Tensor
    ) -> tuple[FarField, FarFieldChoice]:
        """Return the far-field variance that some of these rows choose, from their logits (mean and root), predicted
        without them, and the labels of all rows, and how it was chosen.
        """
        leverages, gentle = self.collected, isinstance(likelihood, Normal)
        extents = tuple(
            extent.calibrated((), leverage=leverage, classes=likelihood.n_classes or 2, slope=SLOPE, gentle=gentle)
            for extent, leverage in zip(self.extents, leverages, strict=True)
        )
        scores = [to_numpy(e.standardised(leverage))[rows] for e, leverage in zip(extents, leverages, strict=True)]
        mean, root = map(to_numpy, logits)
        choice = choose(likelihood, mean, root, to_numpy(labels)[rows], np.stack(scores, axis=1), reach=REACH)
        return FarField.of(extents, self.places, choice, reference), choice


def add_far_field(
    posterior: Posterior, body: nn.Module, train: torch.Tensor, held_out: tuple[torch.Tensor, Any]
) -> tuple[Posterior, Callable[[torch.Tensor], torch.Tensor], FarFieldChoice]:
    """Add far-field variance to a posterior over the last layer of a network, which held-out rows have not seen.

    `body` gives the inputs of the last layer, `train` and `held_out` are inputs and, for the latter, class numbers.
    Return the posterior with its logits scaled as the held-out rows choose, a function from inputs to the variance (n,)
    of the noise, which `posterior.predict_proba(features, noise=...)` takes, and the choice.
    """
    moments = Moments(body)
    x, y = held_out
    with torch.no_grad():
        watched(body, [((train,), {})], moments)
        leverages = Leverages(moments)
        watched(body, [((x,), {})], leverages)
        features = to_numpy(body(x)).astype(np.float64)
    if posterior.map is None:
        raise ValueError("the posterior has nonlinear logits; expected one over the last layer of a network")
    logits = posterior.map.predictive_logits(features, posterior.fitted)
    found, choice = leverages.choose(posterior.likelihood, logits, y, slice(None), torch.zeros(1, dtype=torch.float64))

    def noise(inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), found.recording(body) as outputs:
            body(inputs)
            return found.noise(outputs)

    return posterior.tempered(choice.scale), noise, choice


def watched(body: nn.Module, batches: Iterable[Arguments], watch: Moments | Leverages) -> None:
    """Run a body on batches of arguments while it is watched."""
    for args, kwargs in batches:
        with watch.watching():
            body(*args, **kwargs)


def layers_of(body: nn.Module) -> list[nn.Module]:
    """Return the layers of a body whose outputs can be recorded, in the order of `named_modules`; the body itself,
    whose outputs are the features, if it has none.
    """
    return [module for module in body.modules() if isinstance(module, LAYERS)] or [body]


def mean_leverages(
    extents: Iterable[Extent], outputs: dict[int, torch.Tensor], places: Iterable[int]
) -> list[torch.Tensor]:
    """Return the mean log leverages (n,) of the outputs of some layers, and of the directions of these."""
    found = []
    for turned, extent in enumerate(extents):
        rows = fitting(outputs, places, extent)
        found.append(extent.leverage([direction(h) for h in rows] if turned else rows))
    return found


def fitting(outputs: dict[int, torch.Tensor], places: Iterable[int], extent: Extent) -> list[torch.Tensor]:
    """Return the outputs of some layers, or raise a ValueError if they do not fit the factors of the extent."""
    found = []
    for place, factor in zip(places, extent.factors, strict=True):
        if place not in outputs:
            raise ValueError(
                "the network calls other layers for these inputs than for the training data; expected the same"
            )
        check_width(outputs[place], factor)
        found.append(outputs[place])
    return found


def check_width(h: torch.Tensor, factor: torch.Tensor) -> None:
    """Raise a ValueError unless outputs (n, d) fit a matrix (d + 1, d + 1) of the training data."""
    if h.shape[1] + 1 != factor.shape[0]:
        raise ValueError(
            f"a layer of the network gives {h.shape[1]} numbers for a row of these inputs, {factor.shape[0] - 1} for a "
            "row of the training data; expected inputs with as many axes as those of the training data"
        )


@contextmanager
def recorded_outputs(body: nn.Module, places: Iterable[int]) -> Iterator[dict[int, torch.Tensor]]:
    """Record the outputs (n, d) of some layers of the body, by place, while it runs. Outputs with positions, as of
    convolutions, give the mean and the root mean square over the positions.
    """
    outputs: dict[int, torch.Tensor] = {}
    padding = Padding()

    def hook_of(place: int) -> Any:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and place not in outputs:
                channels_last = isinstance(module, nn.Linear | Tap)
                outputs[place] = summary(output.detach(), padding, channels_last=channels_last)

        return hook

    layers = layers_of(body)
    with ExitStack() as hooks, padding.watching(body):
        for place in places:
            hooks.enter_context(layers[place].register_forward_hook(hook_of(place)))
        yield outputs


def summary(h: torch.Tensor, padding: Padding, *, channels_last: bool) -> torch.Tensor:
    """Return (n, d) of outputs (n, d), and (n, 2 d) of outputs (n, ..., d) or (n, d, ...); at most WIDEST columns.
    Outputs (d,) are those of one row.
    """
    h = torch.atleast_2d(h.to(torch.promote_types(h.dtype, torch.float32)))
    if h.ndim > 2:
        h = h if channels_last else h.flatten(2).mT
        h = torch.cat([padding.average(h), padding.average(h.square()).sqrt()], dim=1)
    return h[:, :: -(-h.shape[1] // WIDEST)]
