"""Modules in front of the chosen weights: run once, then replayed.

A posterior over the last block alone would run the whole network for every particle. If autograd does not trace a
module's output to the chosen weights, the output is the same for all particles. It is recorded for each batch, and
returned instead of running the module again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from enkbayes.nets.loaders import Arguments
from enkbayes.nets.subspace import Network

Outputs = dict[nn.Module, torch.Tensor]


@dataclass(frozen=True)
class Replayed(Network):
    """A network that replays recorded outputs for some batches, which it recognises by identity, and runs as a whole
    for other inputs.

    For each batch it holds the outputs that the rest of the network needs, usually one tensor at the boundary.
    """

    batches: list[Arguments]
    outputs: list[Outputs]

    def logits(self, vector: torch.Tensor, inputs: Arguments) -> torch.Tensor:
        """Return the logits of some inputs under the weights (P,)."""
        recorded = (outputs for batch, outputs in zip(self.batches, self.outputs, strict=True) if batch is inputs)
        with _replaying(next(recorded, {})):
            return super().logits(vector, inputs)


def replayed(network: Network, centre: torch.Tensor, batches: list[Arguments]) -> Network:
    """Return the network with its front replayed for the batches. Return it unchanged if there is no front, or if
    replaying changes the logits under weights other than the trained weights, centre (P,).
    """

    def replay(some: list[Arguments], outputs: list[Outputs]) -> Network:
        return Replayed(network.model, network.weights, network.output, some, outputs)

    noise = torch.randn(centre.shape, generator=torch.Generator().manual_seed(0)).to(centre)
    other = centre + 0.1 * centre.abs().mean() * noise
    first, unused = _recorded(network, centre, batches[0], ()), set[nn.Module]()
    if not any(True for module in first for _ in module.parameters()):
        return network
    wanted = network.logits(other, batches[0])
    for module in first:  # an output that only the front itself uses need not be kept
        without = {**first, module: _placeholder(first[module])}
        if _same(replay(batches[:1], [without]).logits(other, batches[0]), wanted):
            first, unused = without, {*unused, module}
    found = replay(batches, [first, *(_recorded(network, centre, inputs, unused) for inputs in batches[1:])])
    expected = [network.logits(other, inputs) for inputs in batches]
    same = (_same(found.logits(other, inputs), z) for inputs, z in zip(batches, expected, strict=True))
    return found if all(same) else network


def _recorded(network: Network, centre: torch.Tensor, inputs: Arguments, unused: Collection[nn.Module]) -> Outputs:
    """Return the outputs of the outermost modules that do not depend on the weights (P,) and are called once."""
    outputs: Outputs = {}
    calls = Counter[nn.Module]()

    def record(module: nn.Module, _: Any, output: Any) -> None:
        calls[module] += 1
        if isinstance(output, torch.Tensor) and output.is_floating_point() and not output.requires_grad:
            for inner in module.modules():
                outputs.pop(inner, None)
            outputs[module] = _placeholder(output) if module in unused else output.clone()  # may be modified later

    submodules = [module for module in network.model.modules() if module is not network.model]
    with ExitStack() as hooks, torch.enable_grad():
        for module in submodules:
            hooks.enter_context(module.register_forward_hook(record))
        network.logits(centre.clone().requires_grad_(), inputs)
    return {module: output for module, output in outputs.items() if calls[module] == 1}


@contextmanager
def _replaying(outputs: Outputs) -> Iterator[None]:
    """Make modules return copies of recorded outputs; copies, because later modules may modify them in place."""
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


def _placeholder(output: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape that stores a single NaN, so that any use of it shows in the logits."""
    return output.new_full((), torch.nan).expand(output.shape)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.allclose(one, other, rtol=1e-4, atol=1e-5))
