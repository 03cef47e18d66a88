"""The front of a network, whose outputs do not depend on the weights that get a posterior: run once, then replayed.

A posterior over the last block alone would run the whole network for every particle. A module's output that autograd
does not trace to the chosen weights is the same for all particles; it is noted for each batch and returned in place of
a run of the module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from enkbayes.nets.loaders import Arguments
from enkbayes.nets.subspace import Network

Outputs = dict[nn.Module, torch.Tensor]


@dataclass(frozen=True)
class Replayed(Network):
    """A network that runs its front no more for some batches, known by identity; for other inputs it runs as a whole.

    It holds for each batch what the back needs of the front, mostly one tensor at the boundary.
    """

    batches: list[Arguments]
    outputs: list[Outputs]

    def logits(self, vector: torch.Tensor, inputs: Arguments) -> torch.Tensor:
        """Return the logits of some inputs under the weights (P,)."""
        known = (outputs for batch, outputs in zip(self.batches, self.outputs, strict=True) if batch is inputs)
        with _replaying(next(known, {})):
            return super().logits(vector, inputs)


def replayed(network: Network, centre: torch.Tensor, batches: list[Arguments]) -> Network:
    """Return the network with its front replayed for the batches; as it is, if there is no front or if the logits were
    not the same under weights other than the trained ones, centre (P,).
    """

    def replay(some: list[Arguments], outputs: list[Outputs]) -> Network:
        return Replayed(network.model, network.weights, network.output, some, outputs)

    noise = torch.randn(centre.shape, generator=torch.Generator().manual_seed(0)).to(centre)
    other = centre + 0.1 * centre.abs().mean() * noise
    first, spare = _noted(network, centre, batches[0], ()), set[nn.Module]()
    if not any(True for module in first for _ in module.parameters()):
        return network
    wanted = network.logits(other, batches[0])
    for module in first:  # what only the front itself uses takes no memory
        without = {**first, module: _nothing(first[module])}
        if _same(replay(batches[:1], [without]).logits(other, batches[0]), wanted):
            first, spare = without, {*spare, module}
    found = replay(batches, [first, *(_noted(network, centre, inputs, spare) for inputs in batches[1:])])
    expected = [network.logits(other, inputs) for inputs in batches]
    same = (_same(found.logits(other, inputs), z) for inputs, z in zip(batches, expected, strict=True))
    return found if all(same) else network


def _noted(network: Network, centre: torch.Tensor, inputs: Arguments, spare: Collection[nn.Module]) -> Outputs:
    """Return the outputs of the outermost modules that do not depend on the weights (P,) and are called once."""
    outputs: Outputs = {}
    calls = Counter[nn.Module]()

    def note(module: nn.Module, _: Any, output: Any) -> None:
        calls[module] += 1
        if isinstance(output, torch.Tensor) and output.is_floating_point() and not output.requires_grad:
            for inner in module.modules():
                outputs.pop(inner, None)
            outputs[module] = _nothing(output) if module in spare else output.clone()  # others may write into it

    parts = [module for module in network.model.modules() if module is not network.model]
    handles = [module.register_forward_hook(note) for module in parts]
    try:
        with torch.enable_grad():
            network.logits(centre.clone().requires_grad_(), inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {module: output for module, output in outputs.items() if calls[module] == 1}


@contextmanager
def _replaying(outputs: Outputs) -> Iterator[None]:
    """Let modules return copies of what they returned before; the back may write into them."""
    own = {module: vars(module).get("forward") for module in outputs}
    for module, output in outputs.items():
        module.forward = lambda *_, _output=output, **__: _output.clone()
    try:
        yield
    finally:
        for module, forward in own.items():
            del module.forward
            if forward is not None:
                module.forward = forward


def _nothing(output: torch.Tensor) -> torch.Tensor:
    """Return a tensor of that shape that holds one number, which spoils all that is made of it."""
    return output.new_full((), torch.nan).expand(output.shape)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.allclose(one, other, rtol=1e-4, atol=1e-5))
