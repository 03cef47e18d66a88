"""The last layer of a network: found by watching one forward pass, and taken off a copy of the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from enkbayes.nets.loaders import call

WAY_OUT = "pass features=, a module or function x -> (n, D) that gives the inputs of the last layer"


class Tap(nn.Module):  # type: ignore[misc]
    """Takes the place of the last Linear and lets its input (n, D) through.

    A network with one logit often drops the last axis at the end (`squeeze(-1)`, `[:, 0]`, `flatten()`); so the input
    takes the place of that one logit, (n, 1, D), and what drops an axis leaves it intact.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return x.unsqueeze(-2) if self.outputs == 1 else x


class Method(nn.Module):  # type: ignore[misc]
    """A method of a module, as a module: `model.encode` on a copy of the model."""

    def __init__(self, owner: nn.Module, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        return getattr(self.owner, self.name)(*args, **kwargs)


class Function(nn.Module):  # type: ignore[misc]
    """A plain function as a module; the model it may use is in eval mode for the time of a call, and not copied."""

    def __init__(self, function: Callable[..., Any], model: nn.Module) -> None:
        super().__init__()
        self.function, self.used = function, (model,)  # a tuple keeps the user's model out of this module's state

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        with evaluating(self.used[0]):
            return self.function(*args, **kwargs)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode and afterwards every submodule back into its own."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


@dataclass(frozen=True)
class Layer:
    """What the last layer was: K logits, trained weight (K, D) and bias (K,)."""

    outputs: int
    weight: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def of(cls, linear: nn.Linear) -> Layer:
        """Return the shape and the trained weights of a Linear."""
        bias = None if linear.bias is None else linear.bias.detach().clone()
        return cls(linear.out_features, linear.weight.detach().clone(), bias)


def frozen_copy(model: nn.Module) -> nn.Module:
    """Return a copy in eval mode whose parameters need no gradients; the model itself stays as it is."""
    return deepcopy(model).eval().requires_grad_(False)


def encoder(features: Callable[..., Any], model: nn.Module) -> nn.Module:
    """Return a user's `features` as a module: a copy of a module or of a method's owner, or the function itself."""
    if isinstance(features, nn.Module):
        return frozen_copy(features)
    owner = getattr(features, "__self__", None)
    if isinstance(owner, nn.Module):
        return Method(frozen_copy(owner), features.__name__)
    return Function(features, model)


def linear_layer(model: nn.Module, name: str) -> nn.Linear:
    """Return the Linear of that name."""
    layer = dict(model.named_modules()).get(name)
    if not isinstance(layer, nn.Linear):
        known = [n for n, module in model.named_modules() if isinstance(module, nn.Linear)]
        got = "no such layer" if layer is None else f"a {type(layer).__name__}"
        raise ValueError(f"layer={name!r} is {got}; expected the name of a Linear, one of {known}")
    return layer


def behead(body: nn.Module, x: Any, name: str | None) -> tuple[Layer, nn.Module]:
    """Return the last layer of a network, and the network with a Tap in its place, which gives that layer's inputs.

    The last layer is the Linear (of that name) whose output is the network's output for the inputs x.
    """
    found, features = _last_linear(body, x, name)
    layer = Layer.of(linear_layer(body, found))
    body = take_off(body, found)
    try:
        same = torch.allclose(call(body, x).reshape(features.shape), features, equal_nan=True)
    except (RuntimeError, IndexError, AttributeError):
        same = False
    if not same:
        raise ValueError(f"the model does more than change shapes after its last layer {found!r}; {WAY_OUT}")
    return layer, body


def _last_linear(body: nn.Module, x: Any, name: str | None) -> tuple[str, torch.Tensor]:
    """Return the name of the last Linear and its inputs (n, D)."""
    output, calls = _watch(body, x, None if name is None else linear_layer(body, name))
    for found, features, logits in reversed(calls):
        if logits.numel() == output.numel() and torch.equal(logits.reshape(-1), output.reshape(-1)):
            if logits.ndim == 2:
                return found, features
            raise ValueError(
                f"the last layer {found!r} gives logits of shape {tuple(logits.shape)}; expected (n, K), one row for "
                f"each label; {WAY_OUT}"
            )
    who = "of any Linear" if name is None else f"of layer {name!r}"
    raise ValueError(f"the model's output is not the output {who}, as with a softmax or sigmoid at its end; {WAY_OUT}")


def take_off(body: nn.Module, name: str) -> nn.Module:
    """Return the body with a Tap in place of the layer of that name."""
    tap = Tap(linear_layer(body, name).out_features)
    if not name:
        return tap
    parent, _, child = name.rpartition(".")
    setattr(body.get_submodule(parent), child, tap)
    return body


Call = tuple[str, torch.Tensor, torch.Tensor]


def _watch(body: nn.Module, x: Any, only: nn.Linear | None) -> tuple[torch.Tensor, list[Call]]:
    """Run the body once; return its output, and name, input and output of every Linear, or of one."""
    calls: list[Call] = []

    def recorder(name: str) -> Callable[[nn.Module, Any, Any, torch.Tensor], None]:
        return lambda _, args, kwargs, output: calls.append((name, args[0] if args else kwargs["input"], output))

    linears = [(n, m) for n, m in body.named_modules() if isinstance(m, nn.Linear) and only in (None, m)]
    handles = [module.register_forward_hook(recorder(n), with_kwargs=True) for n, module in linears]
    try:
        output = call(body, x)
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(output, torch.Tensor):
        count = f" of {len(output)}" if hasattr(output, "__len__") else ""
        raise ValueError(
            f"the model returns a {type(output).__name__}{count}; expected one tensor of logits; {WAY_OUT}"
        )
    return output, calls
