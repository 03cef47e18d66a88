"""How strange an input is to a trained network: what its layers have not seen, and what its posterior is unsure of.

Give the weights of every layer a posterior by the Kronecker-factored Gauss-Newton matrix: those of a layer with inputs
a have the covariance A^{-1} x G^{-1}, A = mean of a a' over the training rows (Martens and Grosse 2015; Ritter et al.
2018). So the variance of what the layer puts out for a new input is

    leverage(a) = a' A^{-1} a / dim a,    a = (inputs averaged over positions, 1),

times a factor that does not depend on the input. It is 1 on average over the training rows and grows without bound away
from them, at every depth, where the variance of the logits alone may fall because strange features are short. The mean
of log leverage over the layers is one number; the entropy of the predictive is another, which tells inputs between the
classes. Each is put on the scale of a standard normal number by rows that the network knows, and

    strangeness = normal score of log leverage + normal score of entropy / 4.

Leverage leads, for confidence may point the wrong way: shifted rows are often far from the boundary between the classes
and look known to the entropy. The weight was chosen on tasks of its own (`benchmarks/useful_scores.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import nn

from enkbayes.core.posterior import entropy
from enkbayes.nets.layers import Tap
from enkbayes.nets.loaders import Place, Reader, call, device_of, shown
from enkbayes.nets.posterior_module import PosteriorModule

UNSURE = 0.25  # weight of the entropy
RIDGE = 1e-3  # of the mean eigenvalue of A, added to all
KNOWN = 2000  # rows at most that a score is compared with
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, Tap)


class Strangeness(nn.Module):  # type: ignore[misc]
    """A score (n,) of inputs, larger for stranger ones: about standard normal for known inputs. Made by `fit`.

    Examples
    --------
    >>> from enkbayes.nets import BayesianHead
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> x = torch.randn(80, 2)
    >>> loader = [(x, (x[:, 0] > 0).long())]
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> strangeness = Strangeness.fit(BayesianHead.fit(model, loader, progress=False), loader, progress=False)
    >>> bool(strangeness(20 * x).median() > strangeness(x).quantile(0.9))
    True
    """

    def __init__(self, posterior: PosteriorModule, places: tuple[str, ...], factors: list[torch.Tensor]) -> None:
        super().__init__()
        self.posterior, self.places = posterior, places
        for i, factor in enumerate(factors):
            self.register_buffer(f"factor_{i}", factor)
        self.register_buffer("known_leverage", torch.zeros(0))
        self.register_buffer("known_entropy", torch.zeros(0))
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
        progress: bool = True,
    ) -> Self:
        """Read the training data once, and return the score.

        Parameters
        ----------
        posterior : BayesianHead or BayesianNetwork
            A fitted one; its predictive gives the entropy, its network the inputs of the layers.
        loader : iterable of batches
            The training data, as for `BayesianHead.fit`.
        calibration : iterable of batches, optional
            Known rows that the network was not trained on, which set the scale of both parts. Default: the training
            data, to which new rows look a little stranger than they are.
        inputs, labels : str, int or function of a batch, optional
            As for `BayesianHead.fit`.
        progress : bool
            Show progress bars.
        """
        reader = Reader(inputs, labels, device_of(posterior))
        names = tuple(name for name, module in posterior.body.named_modules() if isinstance(module, LAYERS))
        sums: dict[str, torch.Tensor] = {}
        count, kept = 0, []
        with torch.no_grad():
            for x, y in map(reader, shown(loader, "Layers", enabled=progress)):
                seen = _inputs(posterior.body, names, x)
                sums = {name: sums.get(name, 0.0) + a.T @ a for name, a in seen.items()}
                count += len(y)
                kept += [] if calibration is not None else [x]
            places = tuple(sums)
            if not places:
                raise ValueError("the network has no Linear or convolution, whose inputs would tell strange rows")
            found = cls(posterior, places, [_factor(sums[name] / count) for name in places])
            if calibration is not None:
                kept = [reader(batch)[0] for batch in shown(calibration, "Calibration", enabled=progress)]
            found._compare(kept)
        return found

    def whitened(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        """Return what inputs become at each of the L layers, (n, d + 1) each: averaged over positions, a 1 at the end,
        with second moments I on average over the training rows.
        """
        with torch.no_grad():
            seen = _inputs(self.posterior.body, self.places, args, kwargs)
            factors = [getattr(self, f"factor_{i}") for i in range(len(self.places))]
            return [seen[name].to(f.dtype) @ f for name, f in zip(self.places, factors, strict=True)]

    def leverage(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the leverages (n, L) of inputs at the L layers."""
        return torch.stack([(a**2).mean(dim=1) for a in self.whitened(*args, **kwargs)], dim=1)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the strangeness (n,) of inputs."""
        leverage, entropy = (part.to(self.known_entropy.dtype) for part in self._parts(*args, **kwargs))
        return self.score(leverage, entropy)

    def score(self, leverage: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        """Return the strangeness (n,) of mean log leverages and entropies, (n,) each."""
        unsure = normal_score(entropy, self.known_entropy)
        return normal_score(leverage, self.known_leverage, tails=True) + UNSURE * unsure

    def _parts(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean log leverage and entropy of inputs, (n,) each."""
        with torch.no_grad():
            proba = self.posterior(*args, **kwargs)
        return self.leverage(*args, **kwargs).log().mean(dim=1), entropy(proba.double())

    def _compare(self, batches: list[Any]) -> None:
        """Remember both parts of known rows, some of them if there are many."""
        parts = [call(self._parts, x) for x in batches]
        for name, values in zip(("known_leverage", "known_entropy"), zip(*parts, strict=True), strict=True):
            ordered = torch.cat(values).sort().values
            places = torch.linspace(0, len(ordered) - 1, min(KNOWN, len(ordered)), dtype=torch.float64)
            setattr(self, name, ordered[places.round().long().to(ordered.device)])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take the number of known rows from the state."""
        for name in ("known_leverage", "known_entropy"):
            stored = state_dict.get(prefix + name)
            if stored is not None and stored.ndim == 1:
                setattr(self, name, getattr(self, name).new_empty(stored.shape))
        super()._load_from_state_dict(state_dict, prefix, *args)


def normal_score(values: torch.Tensor, known: torch.Tensor, *, tails: bool = False) -> torch.Tensor:
    """Return values (n,) on the scale of a standard normal number: the quantile of their rank among known ones (m,).

    With `tails` by mean and standard deviation of the known ones instead, which goes on beyond the largest of them.

    >>> known = torch.arange(9.0)
    >>> normal_score(torch.tensor([3.5]), known), normal_score(torch.tensor([4.0]), known, tails=True)
    (tensor([-0.1257]), tensor([0.]))
    """
    if tails:
        return (values - known.mean()) / known.std(unbiased=False).clamp_min(torch.finfo(known.dtype).tiny)
    rank = (torch.searchsorted(known, values, right=False) + torch.searchsorted(known, values, right=True)) / 2
    return torch.special.ndtri((rank + 0.5) / (len(known) + 1))


def _factor(second: torch.Tensor) -> torch.Tensor:
    """Return F with F F' = (A + ridge)^{-1}, for A (d, d)."""
    ridge = RIDGE * torch.trace(second) / len(second)
    lower = torch.linalg.cholesky(second + ridge * torch.eye(len(second), dtype=second.dtype, device=second.device))
    return torch.linalg.inv(lower).T


def _inputs(
    body: nn.Module, names: Iterable[str], x: Any, keywords: dict[str, Any] | None = None
) -> dict[str, torch.Tensor]:
    """Return the inputs of some layers, averaged over positions and with a 1 at the end, (n, d + 1) each."""
    with _watched(body, names) as seen:
        call(body, x) if keywords is None else body(*x, **keywords)
    return {name: torch.cat([a, torch.ones_like(a[:, :1])], dim=1) for name, a in seen.items()}


@contextmanager
def _watched(body: nn.Module, names: Iterable[str]) -> Iterator[dict[str, torch.Tensor]]:
    """Note the inputs of modules, averaged over positions, (n, d), while the body runs."""
    seen: dict[str, torch.Tensor] = {}
    wanted = set(names)

    def note(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            if arguments and isinstance(arguments[0], torch.Tensor) and name not in seen:
                seen[name] = _averaged(arguments[0].detach(), channels_last=isinstance(module, nn.Linear | Tap))

        return hook

    handles = [m.register_forward_pre_hook(note(n)) for n, m in body.named_modules() if n in wanted]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _averaged(x: torch.Tensor, *, channels_last: bool) -> torch.Tensor:
    """Return (n, d) of (n, d), (n, ..., d) or (n, d, ...), in double precision."""
    x = x.double()
    if x.ndim <= 2:
        return x.reshape(len(x), -1)
    return x.flatten(1, -2).mean(dim=1) if channels_last else x.flatten(2).mean(dim=2)
