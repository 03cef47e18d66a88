"""The last layer of a network: found by recording one forward pass, and removed from a copy of the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from enkbayes.nets.models import check_outputs, frozen_copy, run

REMEDY = "pass features=, a module or method x -> (n, D) that gives the inputs of the last layer"


class Tap(nn.Module):  # type: ignore[misc]
    """Replaces the last Linear and returns its input (n, D).

    A network with one logit often drops the last axis at the end (`squeeze(-1)`, `[:, 0]`, `flatten()`). There the
    input takes the place of that one logit, (n, 1, D), and survives such an operation.
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


@dataclass(frozen=True)
class Layer:
    """The last layer that was removed: K logits, trained weight (K, D) and bias (K,)."""

    outputs: int
    weight: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def of(cls, linear: nn.Linear) -> Layer:
        """Return the shape and the trained weights of a Linear."""
        bias = None if linear.bias is None else linear.bias.detach().clone()
        return cls(linear.out_features, linear.weight.detach().clone(), bias)

    @property
    def features(self) -> int:
        """The number of inputs D."""
        return int(self.weight.shape[1])

    @property
    def classes(self) -> int:
        """The number of classes: K, or 2 for one logit."""
        return max(self.outputs, 2)

    def row(self, k: int) -> Layer:
        """Return the layer that gives logit k alone."""
        return Layer(1, self.weight[k : k + 1], None if self.bias is None else self.bias[k : k + 1])

    @property
    def theta(self) -> torch.Tensor:
        """The trained parameters (P,), the bias at the end; two logits count as their difference.

        >>> Layer(2, torch.tensor([[1.0, 2.0], [5.0, 8.0]]), torch.tensor([0.5, 1.0])).theta
        tensor([4.0000, 6.0000, 0.5000])
        """
        rows = self.weight if self.bias is None else torch.cat([self.weight, self.bias[:, None]], dim=1)
        return rows[1] - rows[0] if self.outputs == 2 else rows.T.reshape(-1)


def encoder(features: Any) -> nn.Module:
    """Return a user's `features` as a module: a copy of a module, or of a method's owner."""
    if isinstance(features, nn.Module):
        return frozen_copy(features)
    owner = getattr(features, "__self__", None)
    if isinstance(owner, nn.Module):
        return Method(frozen_copy(owner), features.__name__)
    raise ValueError(
        f"features= is a {type(features).__name__}, whose network would not be part of the head; expected a module, or "
        "a method of one, such as model.encode"
    )


def place_of(body: nn.Module, x: Any, name: str) -> Any:
    """Return where the output of a layer is in what a network with several outputs returns: a key, a position or the
    name of an attribute; None if it is not found.
    """
    seen: list[torch.Tensor] = []
    with linear_layer(body, name).register_forward_hook(lambda _, __, output: seen.append(output)):
        found = run(body, x)
    if isinstance(found, Mapping):
        parts = list(found.items())
    elif isinstance(found, tuple | list):
        parts = list(enumerate(found))
    else:
        parts = [] if isinstance(found, torch.Tensor) or not hasattr(found, "__dict__") else list(vars(found).items())
    tensors = [(place, part) for place, part in parts if isinstance(part, torch.Tensor)]
    return next((place for place, part in tensors for logits in seen if _gives(logits, part)), None)


def linear_layer(model: nn.Module, name: str) -> nn.Linear:
    """Return the Linear of that name."""
    layer = dict(model.named_modules()).get(name) if isinstance(name, str) else None
    if not isinstance(layer, nn.Linear):
        got = "no such layer" if layer is None else f"a {type(layer).__name__}"
        raise ValueError(f"layer={name!r} is {got}; expected the name of a Linear, one of {linear_names(model)}")
    return layer


def linear_names(model: nn.Module) -> list[str]:
    """Return the names of all Linear layers."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def logits_of(output: Any) -> torch.Tensor:
    """Return logits (n,) of outputs (n,), (n, 1) or (n, 2), the difference z1 - z0, and (n, K) of outputs (n, K)."""
    if not isinstance(output, torch.Tensor):
        raise ValueError(
            f"the model returns a {type(output).__name__}; expected one tensor of logits, or pass "
            "output=function that takes the logits from what the model returns"
        )
    if output.ndim not in (1, 2):
        raise ValueError(f"the model returns shape {tuple(output.shape)}; expected logits (n,), (n, 1) or (n, K)")
    if output.ndim == 1 or output.shape[1] == 1:
        return output.reshape(-1)
    return output[:, 1] - output[:, 0] if output.shape[1] == 2 else output


def split_last_layer(body: nn.Module, x: Any, name: str | None) -> tuple[nn.Module, Layer]:
    """Return the network with a Tap in place of its last layer, so that it returns that layer's inputs, and the layer.

    The last layer is the Linear (of that name) whose output is the network's output for the inputs x, or those of its
    rows that the network selects, as a language model selects the last token of a text.
    """
    output, calls = _record(body, x, None if name is None else linear_layer(body, name))
    found = next((each for each in reversed(calls) if _gives(each[2], output)), None)
    if found is not None and found[2].ndim != 2:
        raise ValueError(
            f"the last layer {found[0]!r} gives logits of shape {tuple(found[2].shape)}; expected (n, K), one row for "
            f"each label; {REMEDY}"
        )
    selected = (each[0] for each in reversed(calls) if each[2].ndim > 2 and _selects(body, x, each[0], output))
    last = found[0] if found is not None else next(selected, None)
    if last is None:
        which = "of any Linear" if name is None else f"of layer {name!r}"
        raise ValueError(
            f"the model's output is not the output {which}, as with a softmax or sigmoid at its end; {REMEDY}"
        )
    layer = Layer.of(linear_layer(body, last))
    inputs, outputs = next(each[1:] for each in reversed(calls) if each[0] == last)
    if not _alike(nn.functional.linear(inputs, layer.weight, layer.bias), outputs):
        raise ValueError(
            f"the last layer {last!r} returns something else than its weights give, as with a hook or an adapter; "
            f"merge it into the weights, or {REMEDY}"
        )
    body = without_layer(body, last)
    if found is not None and not _same(_called(body, x), found[1]):
        raise ValueError(f"the model does more than change shapes after its last layer {last!r}; {REMEDY}")
    return body, layer


def _gives(logits: torch.Tensor, output: torch.Tensor) -> bool:
    """Return whether logits are a network's output, but for their shape."""
    return logits.numel() == output.numel() and bool(torch.equal(logits.reshape(-1), output.reshape(-1)))


def _selects(body: nn.Module, x: Any, name: str, output: torch.Tensor) -> bool:
    """Return whether the network's output is that of a layer for some of the rows of its input."""
    linear = linear_layer(body, name)
    if not name or output.ndim == 0 or linear.out_features != (output.shape[-1] if output.ndim > 1 else 1):
        return False
    without_layer(body, name)
    features = _called(body, x)
    set_layer(body, name, linear)
    if features is None or features.numel() != len(output) * linear.in_features:
        return False
    return _same(linear(features.reshape(len(output), -1)), output, atol=1e-5)


def _called(body: nn.Module, x: Any) -> torch.Tensor | None:
    """Return what a network returns, or None if it fails or returns no tensor."""
    try:
        found = run(body, x)
    except ValueError:
        return None
    return found if isinstance(found, torch.Tensor) else None


def _same(found: torch.Tensor | None, expected: torch.Tensor, atol: float = 1e-8) -> bool:
    if found is None or found.numel() != expected.numel():
        return False
    return bool(torch.allclose(found.reshape(expected.shape), expected, atol=atol, equal_nan=True))


def _alike(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether outputs of a layer are equal, up to the rounding of half precision."""
    precise = torch.promote_types(expected.dtype, torch.float32)
    found, expected = found.to(precise), expected.to(precise)
    size = float(expected.abs().max()) if expected.numel() else 0.0
    return bool(torch.allclose(found, expected, rtol=0.02, atol=0.02 * size, equal_nan=True))


def without_layer(body: nn.Module, name: str) -> nn.Module:
    """Return the body with a Tap in place of the layer of that name."""
    tap = Tap(linear_layer(body, name).out_features)
    if not name:
        return tap
    set_layer(body, name, tap)
    return body


def set_layer(body: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer in the place of the layer of that name."""
    parent, _, child = name.rpartition(".")
    setattr(body.get_submodule(parent), child, layer)


Call = tuple[str, torch.Tensor, torch.Tensor]


def _record(body: nn.Module, x: Any, only: nn.Linear | None) -> tuple[torch.Tensor, list[Call]]:
    """Run the body once; return its output, and name, input and output of every Linear, or of one."""
    calls: list[Call] = []

    def recorder(name: str) -> Callable[[nn.Module, Any, Any, torch.Tensor], None]:
        return lambda _, args, kwargs, output: calls.append((name, args[0] if args else kwargs["input"], output))

    linears = [(n, m) for n, m in body.named_modules() if isinstance(m, nn.Linear) and only in (None, m)]
    with ExitStack() as hooks:
        for n, module in linears:
            hooks.enter_context(module.register_forward_hook(recorder(n), with_kwargs=True))
        output = run(body, x)
    if not isinstance(output, torch.Tensor):
        count = f" of {len(output)}" if hasattr(output, "__len__") else ""
        raise ValueError(
            f"the model returns a {type(output).__name__}{count}; expected one tensor of logits; pass output=, the "
            f"place of the logits in what it returns, or {REMEDY.removeprefix('pass ')}"
        )
    check_outputs(body, x, output)
    return output, calls
