"""A score of how far an input lies outside the distribution of a network's training data.

At the inputs a of every linear layer and convolution, averaged over positions, the score has the distance to the
classes of the training rows, and that of the direction a / |a| (`enkbayes.inference.class_distance`):

    distance = max(mean over layers of the distances of a, mean over layers of those of a / |a|),
    score = distance + u / 2 where u > 0, distance + u / 4 elsewhere, with the normal score u of the entropy,

all standardised on in-distribution rows, so that the score is about standard normal there. Far rows have a large
distance at every depth. Rows between the classes, which consist of familiar parts, have a large entropy. A small one
says less: rows from a shifted distribution often lie far from the boundary between the classes. The form was chosen on
the development tasks of `benchmarks/detectors.py`.

Scores of version 1 were the normal score of the log leverage plus a quarter of that of the entropy. A module that loads
such a state computes them as before. The Kronecker-factored Gauss-Newton matrix gives the weights of every layer a
posterior with the covariance A^{-1} x G^{-1}, where A is the mean of a a' over the training rows (Martens and Grosse
2015; Ritter et al. 2018). For a new input, the variance of the layer's output is therefore

    leverage(a) = a' A^{-1} a / dim a,    a = (inputs averaged over positions, 1),

times a factor that does not depend on the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from enkbayes.core.arguments import check_count, check_tolerance
from enkbayes.engine.arrays import entropy
from enkbayes.inference.class_distance import ClassDistance, ClassScore, with_entropy
from enkbayes.nets.devices import in_double, widest
from enkbayes.nets.layers import Tap
from enkbayes.nets.loaders import Labels, Place, Reader, call, device_of, shown
from enkbayes.nets.models import run
from enkbayes.nets.positions import Padding
from enkbayes.nets.posterior_module import PosteriorModule
from enkbayes.nets.threads import in_few_threads, one_pass, threads_for

REFERENCES = ("known_leverage", "known_entropy")  # keys of state dicts, which outlive versions
DISTANCES = ("centre", "factor", "means", "precisions")
KINDS = ("plain", "direction")
WIDEST = 1024  # numbers of a layer whose distances are used at most, evenly spaced: factors take the square in memory


class OODScore(nn.Module):  # type: ignore[misc]
    """A score (n,) of inputs: larger for inputs unlike the training data, about standard normal for inputs like them.

    Create one with `fit`.

    Examples
    --------
    >>> from enkbayes.nets import BayesianNetwork
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(80, 2)
    >>> loader = [(x, (x[:, 0] > 0).float())]
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> network = BayesianNetwork.fit(model, loader, rank=2, particles=10, progress=False)
    >>> score = OODScore.fit(network, loader, progress=False)
    >>> bool(score(20 * x).median() > score(x).quantile(0.9))
    True
    """

    entropy_weight: ClassVar[float] = 0.25
    known_leverage: torch.Tensor
    known_entropy: torch.Tensor
    distance_scale: torch.Tensor

    def __init__(self, posterior: PosteriorModule, layers: tuple[str, ...], factors: list[torch.Tensor]) -> None:
        super().__init__()
        self.posterior, self.layers = posterior, layers
        for i, factor in enumerate(factors):
            self.register_buffer(f"factor_{i}", factor)
        for name in REFERENCES:
            self.register_buffer(name, torch.zeros(0))
        self._set_distances(None)
        self.eval()

    @classmethod
    def fit(
        cls,
        posterior: PosteriorModule,
        loader: Iterable[Any],
        *,
        calibration: Iterable[Any] | None = None,
        inputs: Place = None,
        labels: Place = None,
        ridge: float = 1e-3,
        references: int = 2000,
        rows: int = 5000,
        seed: int = 0,
        progress: bool = True,
    ) -> Self:
        """Read the training data once and return the score.

        Parameters
        ----------
        posterior : BayesianHead or BayesianNetwork
            A fitted one. Its network gives the inputs of the layers.
        loader : iterable of batches
            The training data, as for `BayesianHead.fit`. Their labels are the classes of the distances.
        calibration : iterable of batches, optional
            In-distribution rows that the network was not trained on. They set the scale of the distances.
            Default: the training data; new in-distribution rows then score slightly too high.
        inputs, labels : str, int or function of a batch, optional
            As for `BayesianHead.fit`.
        ridge : float
            Added to every eigenvalue of A, as a fraction of their mean. It bounds the `leverage` in directions that the
            training rows do not reach; the score does not depend on it.
        references : int
            Maximum number of in-distribution rows whose leverage and entropy are stored, for `score`. A larger set is
            represented by evenly spaced quantiles.
        rows : int
            Maximum number of training rows, a random sample, from which the distances to the classes are estimated.
        seed : int
            Seed of the random sample.
        progress : bool
            Show progress bars.
        """
        if not isinstance(posterior, PosteriorModule):
            raise ValueError(
                f"the posterior is a {type(posterior).__name__}; expected a fitted BayesianHead or BayesianNetwork"
            )
        if posterior.likelihood.n_classes is None:
            raise ValueError("the posterior is a regression; expected classes, whose entropy is part of the score")
        check_count("references", references)
        check_count("rows", rows)
        check_tolerance("ridge", ridge)
        reader = Reader(inputs, labels, device_of(posterior), posterior.body)
        kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, Tap)
        names = [name for name, module in posterior.body.named_modules() if isinstance(module, kinds)]
        sums: dict[str, torch.Tensor] = {}
        count, batches, sample = 0, [], _Sample(rows, seed)
        with torch.no_grad():
            for x, y in map(reader, shown(loader, "Layers", enabled=progress)):
                with threads_for(one_pass(posterior.body, x)):
                    found = run(lambda *a, **k: _layer_inputs(posterior.body, names, a, k), x, "the network")
                    check_widths(found, sums)
                    sums = {name: sums.get(name, 0.0) + in_double(a).T @ in_double(a) for name, a in found.items()}
                count += len(y)
                sample.add(found, y)
                if calibration is None:
                    batches.append(x)
            if not sums:
                raise ValueError(
                    "the network calls no Linear or convolution layer; expected at least one, because the score is "
                    "computed from the inputs of such layers"
                )
            if not all(bool(torch.isfinite(total).all()) for total in sums.values()):
                raise ValueError(
                    "the inputs of some layer contain NaN or infinite values; impute or drop those rows first"
                )
            device = reader.device
            factors = [_factor(total / count, ridge).to(device, widest(device)) for total in sums.values()]
            score = cls(posterior, tuple(sums), factors)
            layers, numbers = sample.rows()
            distances = ClassScore.fit([_narrowed(layers[name]).numpy() for name in score.layers], numbers)
            score._set_distances(distances)
            if calibration is not None:
                batches = [reader(batch)[0] for batch in shown(calibration, "Calibration", enabled=progress)]
            score._set_references(batches, references)
            known = torch.cat([run(score.distances, x, "the network") for x in batches], dim=1)
            score._set_distances(distances.scaled(known))
        return score

    def whitened(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        """Return the inputs of each of the L layers, (n, d + 1) each: averaged over positions, with a 1 at the end, and
        transformed so that their second moments over the training rows are I.
        """
        with torch.no_grad():
            found, factors = self._layer_inputs(args, kwargs), self._factors()
            return [found[name].to(f.dtype) @ f for name, f in zip(self.layers, factors, strict=True)]

    def leverage(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the leverages (n, L) of inputs at the L layers."""
        return torch.stack([(a**2).mean(dim=1) for a in self.whitened(*args, **kwargs)], dim=1)

    @in_few_threads
    def parts(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean log leverage and the entropy of inputs, (n,) each."""
        with torch.no_grad():
            proba = self.posterior(*args, **kwargs)
        return self.leverage(*args, **kwargs).log().mean(dim=1), entropy(proba.to(widest(proba.device)))

    @in_few_threads
    def distances(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the distances (2, n, L) of inputs to the classes of the training rows at the L layers: of the inputs
        of the layers, and of the directions of these.
        """
        with torch.no_grad():
            found = self._layer_inputs(args, kwargs)
            return self._class_score().distances([_narrowed(found[name][:, :-1]) for name in self.layers])

    def work(self, args: Any, kwargs: Any) -> float:
        """Return about how many multiplications a score needs."""
        return self.posterior.work(args, kwargs)

    @in_few_threads
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the score (n,) of inputs."""
        if self.distance_scale.shape[1] > 0:
            with torch.no_grad():
                proba = self.posterior(*args, **kwargs)
            unsure = entropy(proba.to(widest(proba.device))).to(self.known_entropy.dtype)
            distance = self._class_score().combined(self.distances(*args, **kwargs))
            return with_entropy(distance, normal_score(unsure, self.known_entropy))
        return self.score(*(part.to(self.known_entropy.dtype) for part in self.parts(*args, **kwargs)))

    def score(self, leverage: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        """Return the score (n,) of version 1, of mean log leverages and entropies, (n,) each."""
        unsure = normal_score(entropy, self.known_entropy)
        return normal_score(leverage, self.known_leverage, tails=True) + self.entropy_weight * unsure

    def _factors(self) -> list[torch.Tensor]:
        return [getattr(self, f"factor_{i}") for i in range(len(self.layers))]

    def _layer_inputs(self, args: Any, kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
        found = _layer_inputs(self.posterior.body, self.layers, args, kwargs)
        check_widths(found, dict(zip(self.layers, self._factors(), strict=True)))
        return found

    def _class_score(self) -> ClassScore:
        """Return the score as its arrays, which are buffers."""
        places = range(len(self.layers))
        plain, directions = (
            tuple(ClassDistance(*(getattr(self, f"{kind}_{name}_{i}") for name in DISTANCES)) for i in places)
            for kind in KINDS
        )
        return ClassScore(plain, directions, self.distance_scale)

    def _set_distances(self, score: ClassScore | None) -> None:
        """Store the distances to the classes; without a score, empty ones."""
        place = self.factor_0 if self.layers else torch.zeros(0)
        empty = ClassDistance(*(place.new_zeros(0) for _ in DISTANCES))
        for k, kind in enumerate(KINDS):
            for i in range(len(self.layers)):
                each = empty if score is None else (score.plain, score.directions)[k][i]
                for name in DISTANCES:
                    values = torch.as_tensor(getattr(each, name)).to(place)
                    self.register_buffer(f"{kind}_{name}_{i}", values)
        scale = place.new_zeros(2, 0, 2) if score is None else torch.as_tensor(score.scale).to(place)
        self.register_buffer("distance_scale", scale)

    def _set_references(self, batches: list[Any], most: int) -> None:
        """Store both parts of in-distribution rows, `most` quantiles of each if there are more rows."""
        parts = zip(*(run(self.parts, x, "the network") for x in batches), strict=True)
        for name, values in zip(REFERENCES, parts, strict=True):
            ordered = torch.cat(values).sort().values
            leverage, least = name == REFERENCES[0], 1e-6 * max(1.0, float(ordered.abs().max()))
            if not bool(torch.isfinite(ordered).all()) or (leverage and not float(ordered.std(unbiased=False)) > least):
                raise ValueError(
                    f"the {len(ordered)} in-distribution rows have the same leverage at every layer, or none that is "
                    "finite, so the score has no scale; expected rows that differ, a few hundred or more"
                )
            places = torch.linspace(0, len(ordered) - 1, min(most, len(ordered)), dtype=torch.float64)
            setattr(self, name, ordered[places.round().long().to(ordered.device)])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take the number of reference rows and of classes from the state; older states have no distances."""
        for name in REFERENCES:
            stored = state_dict.get(prefix + name)
            if stored is not None and stored.ndim == 1:
                setattr(self, name, getattr(self, name).new_empty(stored.shape))
        if prefix + "distance_scale" not in state_dict:
            self._set_distances(None)
        for name, own in list(self.named_buffers(recurse=False, remove_duplicate=False)):
            if name == "distance_scale" or name.startswith(tuple(f"{kind}_" for kind in KINDS)):
                stored = state_dict.setdefault(prefix + name, own)
                setattr(self, name, own.new_empty(stored.shape))
        super()._load_from_state_dict(state_dict, prefix, *args)


def normal_score(values: torch.Tensor, reference: torch.Tensor, *, tails: bool = False) -> torch.Tensor:
    """Return values (n,) on the scale of a standard normal variable: the normal quantile of their rank among sorted
    reference values (m,).

    With `tails`, standardise by the mean and standard deviation of the reference values instead. That scale
    extends beyond the largest of them.

    >>> reference = torch.arange(9.0)
    >>> normal_score(torch.tensor([3.5]), reference), normal_score(torch.tensor([4.0]), reference, tails=True)
    (tensor([-0.1257]), tensor([0.]))
    """
    if tails:
        scale = reference.std(unbiased=False).clamp_min(torch.finfo(reference.dtype).tiny)
        return (values - reference.mean()) / scale
    below, up_to = (torch.searchsorted(reference, values, right=right) for right in (False, True))
    return torch.special.ndtri(((below + up_to) / 2 + 0.5) / (len(reference) + 1))


class _Sample:
    """A random sample of the rows of batches: those with the smallest of independent random numbers."""

    def __init__(self, most: int, seed: int) -> None:
        self.most, self.random = most, np.random.default_rng((seed, 11))
        self.keys, self.labels = np.zeros(0), np.zeros(0)
        self.layers: dict[str, list[torch.Tensor]] = {}
        self.limit = np.inf

    def add(self, layers: dict[str, torch.Tensor], labels: Labels) -> None:
        """Add the rows of a batch: the inputs (n, d + 1) of its layers, whose last column is 1, and labels (n,)."""
        keys = self.random.random(len(labels))
        some = keys < self.limit
        self.keys, self.labels = np.append(self.keys, keys[some]), np.append(self.labels, labels[some])
        for name, a in layers.items():
            kept = a[torch.as_tensor(some, device=a.device), :-1].float().cpu()
            self.layers.setdefault(name, []).append(kept)
        if len(self.keys) > 2 * self.most:
            self._shrink()

    def _shrink(self) -> None:
        kept = np.sort(np.argsort(self.keys, kind="stable")[: self.most])
        self.keys, self.labels = self.keys[kept], self.labels[kept]
        self.layers = {name: [torch.cat(parts)[torch.as_tensor(kept)]] for name, parts in self.layers.items()}
        self.limit = float(self.keys.max()) if len(kept) == self.most else np.inf

    def rows(self) -> tuple[dict[str, torch.Tensor], Labels]:
        """Return the inputs (n, d) of the layers and the labels (n,) of the sample."""
        self._shrink()
        return {name: parts[0].double() for name, parts in self.layers.items()}, self.labels


def _narrowed(a: torch.Tensor) -> torch.Tensor:
    """Return at most WIDEST of the columns of inputs (n, d), evenly spaced."""
    return a[:, :: -(-a.shape[1] // WIDEST)]


def check_widths(found: dict[str, torch.Tensor], known: dict[str, torch.Tensor]) -> None:
    """Raise a ValueError unless the inputs (n, d) of layers fit matrices (d, d) of the training data."""
    for name, matrix in known.items():
        if name not in found or found[name].shape[1] != len(matrix):
            got = "is not called" if name not in found else f"has {found[name].shape[1] - 1} inputs a row"
            raise ValueError(
                f"the layer {name!r} {got}, and {len(matrix) - 1} inputs a row for the training data; expected inputs "
                "with as many axes as those of the training data"
            )


def _factor(second: torch.Tensor, ridge: float) -> torch.Tensor:
    """Return F with F F' = (A + ridge mean(eigenvalues of A) I)^{-1}, for A (d, d)."""
    eye = torch.eye(len(second), dtype=second.dtype, device=second.device)
    lower = torch.linalg.cholesky(second + ridge * torch.trace(second) / len(second) * eye)
    return torch.linalg.inv(lower).T


def _layer_inputs(
    body: nn.Module, names: Iterable[str], x: Any, keywords: dict[str, Any] | None = None
) -> dict[str, torch.Tensor]:
    """Return the inputs of the named layers, averaged over positions and with a 1 at the end, (n, d + 1) each."""
    with _recording(body, names) as recorded:
        call(body, x) if keywords is None else body(*x, **keywords)
    return {name: torch.cat([a, torch.ones_like(a[:, :1])], dim=1) for name, a in recorded.items()}


@contextmanager
def _recording(body: nn.Module, names: Iterable[str]) -> Iterator[dict[str, torch.Tensor]]:
    """Record the inputs of modules, averaged over positions, (n, d), while the body runs."""
    recorded: dict[str, torch.Tensor] = {}
    wanted, padding = set(names), Padding()

    def hook_of(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            if arguments and isinstance(arguments[0], torch.Tensor) and name not in recorded:
                channels_last = isinstance(module, nn.Linear | Tap)
                recorded[name] = _averaged(arguments[0].detach(), padding, channels_last=channels_last)

        return hook

    with ExitStack() as hooks, padding.watching(body):
        for name, module in body.named_modules():
            if name in wanted:
                hooks.enter_context(module.register_forward_pre_hook(hook_of(name)))
        yield recorded


def _averaged(x: torch.Tensor, padding: Padding, *, channels_last: bool) -> torch.Tensor:
    """Return (n, d) of (n, d), (n, ..., d) or (n, d, ...), in double precision; (1, d) of one row (d,)."""
    x = torch.atleast_2d(x.to(widest(x.device)))
    if x.ndim == 2:
        return x
    return padding.average(x if channels_last else x.flatten(2).mT)
