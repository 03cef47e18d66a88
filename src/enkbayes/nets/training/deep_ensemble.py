"""Training the members of a deep ensemble: all at once if the networks allow it, otherwise one by one.

Members are independent. One optimiser of stacked parameters (M, ...) therefore does to each of them what an optimiser
of its own would do, and the M networks of a step are one batched product. Networks with buffers (BatchNorm) or dropout
are trained one by one.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional

from enkbayes.nets.layers import logits_of
from enkbayes.nets.loaders import device_of
from enkbayes.nets.network_ensemble import NetworkEnsemble
from enkbayes.nets.training.data import ArrayData, Batch, TrainingData
from enkbayes.storage.files import replacing

Forward = Callable[[torch.Tensor], torch.Tensor]
"""Inputs (M, B, ...) of the members -> their logits (M, B) or (M, B, K)."""

Advance = Callable[[], None]

preserved_random_state = partial(torch.random.fork_rng, devices=[])
"""A context that restores torch's random state at its end, so that code inside may seed torch."""


@dataclass(frozen=True)
class Recipe:
    """How members are trained: their number, the steps and the learning rate of each, adversarial inputs, whether all
    take a step at once, the prior, the optimiser and the seed.

    `label` identifies the settings in checkpoints.
    """

    members: int
    steps: int
    learning_rate: float
    adversarial: float
    vectorise: bool | None
    prior_precision: float
    bias_precision: float
    optimiser: Callable[[Any], Any] | None
    seed: int
    label: str

    def fingerprint(self, data: TrainingData) -> str:
        """Return a fingerprint of the settings and the data that determine a member."""
        numbers = (self.prior_precision, self.bias_precision, self.seed, data.fingerprint)
        return hashlib.sha256(f"({self.label}, {', '.join(map(repr, numbers))})".encode()).hexdigest()


def small_network(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Module:
    """Return a network of Linear layers with ReLU between them.

    >>> [tuple(p.shape) for p in small_network(2, (5,), 1).parameters()]
    [(5, 2), (5,), (1, 5), (1,)]
    """
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def train_members(
    make_model: Callable[[], nn.Module],
    data: TrainingData,
    recipe: Recipe,
    *,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> NetworkEnsemble:
    """Return M trained networks; members that are in the folder `checkpoint` are loaded instead of trained."""
    networks = [_new_network(make_model, recipe.seed, m) for m in range(recipe.members)]
    _check_outputs(networks[0], data)
    together = _vectorised(networks[0], data, recipe.vectorise)
    name = recipe.fingerprint(data)
    files = [None if checkpoint is None else Path(checkpoint) / f"member-{m}.safetensors" for m in range(len(networks))]
    missing = [m for m, network in enumerate(networks) if not _restored(network, files[m], name)]
    groups = [missing] if together and missing else [[m] for m in missing]
    with _bar(recipe.steps * len(groups), enabled=progress) as advance:
        for group in groups:
            _train([networks[m] for m in group], group, data, recipe, advance, together=together)
            for m in group:
                _store(networks[m], files[m], name)
    return NetworkEnsemble(tuple(network.eval() for network in networks), data.classes)


def adversarial_inputs(forward: Forward, batch: Batch, reach: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss (M, B) of each row, and x* = x + reach * sign(d loss / dx) with the gradient's graph cut."""
    x, targets, _ = batch
    x = x.detach().requires_grad_()
    loss = cross_entropy(forward(x), targets)
    (slope,) = torch.autograd.grad(loss.sum(), x, retain_graph=True)
    return loss, (x + reach * torch.sign(slope)).detach()


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss (M, B) of logits (M, B) or (M, B, K) and class numbers (M, B)."""
    if logits.ndim == targets.ndim:
        return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    return functional.cross_entropy(logits.movedim(-1, 1), targets, reduction="none")


def data_loss(forward: Forward, batch: Batch, reach: torch.Tensor | None) -> torch.Tensor:
    """Return the loss summed over members and averaged over rows: clean, or half clean and half adversarial."""
    x, targets, weights = batch
    if reach is None:
        loss = cross_entropy(forward(x), targets)
    else:
        clean, nearby = adversarial_inputs(forward, batch, reach)
        loss = (clean + cross_entropy(forward(nearby), targets)) / 2
    return (loss if weights is None else loss * weights).mean(dim=1).sum()


def _train(
    networks: list[nn.Module], group: list[int], data: TrainingData, recipe: Recipe, advance: Advance, *, together: bool
) -> None:
    """Train the networks in place."""
    device, dtype = device_of(networks[0]), next(networks[0].parameters()).dtype
    reach = recipe.adversarial * data.span().to(device, dtype) if recipe.adversarial else None
    torch.manual_seed(_torch_seed(recipe.seed, group[0], 1))
    forward, parameters, collect = (_at_once if together else _alone)(networks)
    penalties = _penalties(networks[0], recipe, data.size)
    optimiser, schedule = _optimiser(list(parameters.values()), recipe)
    endless = [data.batches((recipe.seed, m), device) for m in group]
    for _ in range(recipe.steps):
        loss = data_loss(forward, _stacked([next(batches) for batches in endless], dtype), reach)
        for key, precision in penalties.items():
            loss = loss + precision / 2 * parameters[key].square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule()
        advance()
    collect()


def _at_once(networks: list[nn.Module]) -> tuple[Forward, dict[str, torch.Tensor], Callable[[], None]]:
    """Return the members as one function of stacked inputs, its parameters, and a function that copies these back."""
    parameters, buffers = stack_module_state(networks)
    frame = copy.deepcopy(networks[0]).to("meta")

    def one(own: dict[str, torch.Tensor], state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return logits_of(functional_call(frame, (own, state), (x,)))

    def collect() -> None:
        with torch.no_grad():
            for m, network in enumerate(networks):
                for key, parameter in network.named_parameters():
                    parameter.copy_(parameters[key][m])

    together = vmap(one, randomness="different")
    return lambda x: together(parameters, buffers, x), parameters, collect


def _alone(networks: list[nn.Module]) -> tuple[Forward, dict[str, torch.Tensor], Callable[[], None]]:
    """Return one member in the same form."""
    (network,) = networks
    network.train()
    return lambda x: logits_of(network(x[0]))[None], dict(network.named_parameters()), lambda: None


def _stacked(batches: list[Batch], dtype: torch.dtype) -> Batch:
    """Return the members' batches as one batch, with an axis of members in front."""
    x, targets, weights = zip(*batches, strict=True)
    counts = None if weights[0] is None else torch.stack(weights).to(dtype)
    return torch.stack(x).to(dtype), torch.stack(targets), counts


def _penalties(network: nn.Module, recipe: Recipe, size: int) -> dict[str, float]:
    """Return the prior precision of each parameter, divided by N because the loss is an average over the rows."""
    each = {
        key: (recipe.prior_precision if parameter.ndim > 1 else recipe.bias_precision) / size
        for key, parameter in network.named_parameters()
    }
    return {key: precision for key, precision in each.items() if precision}


def _optimiser(parameters: list[torch.Tensor], recipe: Recipe) -> tuple[Any, Callable[[], None]]:
    if recipe.optimiser is not None:
        return recipe.optimiser(parameters), lambda: None
    optimiser = torch.optim.Adam(parameters, lr=recipe.learning_rate)
    return optimiser, torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.steps).step


def _vectorised(network: nn.Module, data: TrainingData, wish: bool | None) -> bool:
    """Return whether to train all networks at once: as requested, or else if that is possible."""
    dropout = any("Dropout" in type(module).__name__ for module in network.modules())
    buffers = next(network.buffers(), None) is not None
    if wish and (buffers or not isinstance(data, ArrayData)):
        what = "networks with buffers, as BatchNorm has," if buffers else "a loader"
        raise ValueError(f"{what} cannot be trained all at once; use vectorise=None")
    return (not dropout and not buffers and isinstance(data, ArrayData)) if wish is None else wish


def _check_outputs(network: nn.Module, data: TrainingData) -> None:
    """Raise an error if the network does not have an output for each class."""
    parameter, K = next(network.parameters(), None), len(data.classes)
    if parameter is None:
        raise ValueError("the network has no parameters; expected an untrained nn.Module")
    x = next(data.batches((0,), parameter.device))[0][:2].to(parameter.dtype)
    network.eval()
    with torch.no_grad():
        shape = tuple(logits_of(network(x)).shape)
    network.train()
    if shape != ((len(x),) if K == 2 else (len(x), K)):
        raise ValueError(f"the network returns logits {shape} for {len(x)} rows; expected one for each of {K} classes")


def _store(network: nn.Module, path: Path | None, name: str) -> None:
    """Write a trained member, if there is a path; `name` is the fingerprint of data and settings."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        save_model(network, str(draft), metadata={"recipe": name})


def _restored(network: nn.Module, path: Path | None, name: str) -> bool:
    """Load a member and return whether its file exists; raise an error if its data or settings were different."""
    if path is None or not path.exists():
        return False
    try:
        with safe_open(str(path), framework="pt") as file:
            found = (file.metadata() or {}).get("recipe")
        if found != name:
            raise ValueError(f"{path} was trained on other data or with other settings; use another folder")
        load_model(network, str(path))
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or of another network ({error}); remove it to train it again") from None
    return True


def _new_network(make_model: Callable[[], nn.Module], seed: int, member: int) -> nn.Module:
    torch.manual_seed(_torch_seed(seed, member, 0))
    return make_model()


def _torch_seed(seed: int, member: int, purpose: int) -> int:
    """Return a different seed for each member and purpose."""
    return int.from_bytes(hashlib.sha256(f"{seed} {member} {purpose}".encode()).digest()[:7])


@contextmanager
def _bar(total: int, *, enabled: bool) -> Iterator[Advance]:
    if not enabled:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("Deep ensemble", total=total)
        yield lambda: bar.update(task, advance=1)
