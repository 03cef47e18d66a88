"""A user's model: which kinds are accepted, the frozen copy that a posterior works with, and where its logits are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm

from enkbayes.engine.arrays import all_finite, is_traced
from enkbayes.nets.devices import in_double
from enkbayes.nets.loaders import call
from enkbayes.nets.threads import one_pass, threads_for

PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError, NotImplementedError)
"""What models raise for inputs that do not fit them."""


def plain(model: Any) -> nn.Module:
    """Return the module inside the wrappers of `torch.compile` and of data parallelism; a ValueError says why a model
    is not accepted.

    >>> plain(nn.DataParallel(nn.Linear(2, 1)))
    Linear(in_features=2, out_features=1, bias=True)
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model is {_named(model)}; expected a torch.nn.Module")
    model = _unwrapped(model)
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise ValueError(
            "the model is scripted or traced (torch.jit), so its layers cannot be replaced; pass the module that it "
            "was made from"
        )
    tensors = [*model.parameters(), *model.buffers()]
    if any(map(is_lazy, tensors)):
        raise ValueError("the model has lazy parameters without a shape; run it once on a batch before")
    if any(tensor.is_meta for tensor in tensors):
        raise ValueError("the model has weights on the meta device, which holds no numbers; load them before")
    if any(tensor.is_complex() for tensor in tensors):
        raise ValueError("the model has complex weights; expected real ones")
    return model


def frozen_copy(model: Any) -> nn.Module:
    """Return a copy in eval mode whose parameters need no gradients; the model itself does not change.

    The copy has plain weights: parametrisations, such as weight normalisation, and pruning are applied.
    """
    copy = deepcopy(plain(model), _stand_ins(model)).eval().requires_grad_(False)
    for parent in list(copy.modules()):
        for name, child in list(parent.named_children()):
            if _unwrapped(child) is not child:
                setattr(parent, name, _unwrapped(child))
    with torch.no_grad():
        for module in list(copy.modules()):
            _carry_out(module)
    return copy.requires_grad_(False)


def _named(model: Any) -> str:
    return f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"


def _unwrapped(model: nn.Module) -> nn.Module:
    while True:
        compiled = getattr(model, "_orig_mod", None)  # of torch.compile
        if isinstance(compiled, nn.Module):
            model = compiled
        elif isinstance(model, PARALLEL):
            model = model.module
        else:
            return model


def _stand_ins(model: nn.Module) -> dict[int, Any]:
    """Return copies of the tensors that deepcopy refuses, or that could not be used later: results of a computation,
    and tensors that were made in inference mode.
    """
    found: dict[int, Any] = {}
    with torch.no_grad():
        for module in model.modules():
            for value in [*vars(module).values(), *module._buffers.values()]:  # noqa: SLF001 - no public way
                if isinstance(value, torch.Tensor) and (not value.is_leaf or value.is_inference()):
                    found[id(value)] = value.detach().clone()
            for value in module.parameters(recurse=False):
                if value.is_inference():
                    found[id(value)] = nn.Parameter(value.clone(), requires_grad=False)
    return found


def _carry_out(module: nn.Module) -> None:
    """Replace the parametrisations of a module's weights by their present values."""
    if parametrize.is_parametrized(module):
        # not by remove_parametrizations, which changes the class that the copy shares with the user's module
        values = {name: getattr(module, name).detach().clone() for name in module.parametrizations}
        kind = parametrize.type_before_parametrizations(module)
        del module.parametrizations
        module.__class__ = kind
        for name, value in values.items():
            setattr(module, name, nn.Parameter(value))
    for hook in list(module._forward_pre_hooks.values()):  # noqa: SLF001 - where torch keeps them
        name = type(hook).__name__
        if isinstance(hook, prune.BasePruningMethod):
            prune.remove(module, hook._tensor_name)  # noqa: SLF001
        elif name == "WeightNorm":
            remove_weight_norm(module, hook.name)
        elif name == "SpectralNorm":
            remove_spectral_norm(module, hook.name)
    for hooks in (module._state_dict_hooks, module._load_state_dict_pre_hooks):  # noqa: SLF001
        for key, hook in list(hooks.items()):
            if str(getattr(getattr(hook, "hook", hook), "__module__", "")).startswith("torch.nn.utils"):
                del hooks[key]  # it would look for the parametrisation


def run(model: Callable[..., Any], x: Any, what: str = "the model") -> Any:
    """Return what a model returns for a batch of inputs; a ValueError says so when it cannot be run on them."""
    work = one_pass(model, x) if isinstance(model, nn.Module) else math.inf
    try:
        with threads_for(work):
            return call(model, x)
    except FAILURES as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{what} cannot be run on {described(x)}: {type(error).__name__}: {reason}; pass inputs of the kind, shape "
            "and dtype that it takes, see inputs="
        ) from error


def described(x: Any) -> str:
    """Return kind, shape and dtype of inputs in words.

    >>> described((torch.zeros(2, 3), "a"))
    '(float32 (2, 3), str)'
    """
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).rpartition('.')[2]} {tuple(x.shape)}"
    if isinstance(x, Mapping):
        return "{" + ", ".join(f"{key}: {described(value)}" for key, value in x.items()) + "}"
    if isinstance(x, tuple) and len(x) == 1:
        return described(x[0])
    return f"({', '.join(map(described, x))})" if isinstance(x, tuple) else type(x).__name__


@dataclass(frozen=True)
class Logits:
    """Takes the logits from what a model returns, also as a forward hook of the model.

    place : int, str, function or None
        A position in a tuple, a key or the name of an attribute, a function of the output. None: the output itself if
        it is a tensor, otherwise its `logits`.

    Examples
    --------
    >>> Logits()({"logits": torch.ones(1)}), Logits(1)((None, torch.zeros(1)))
    (tensor([1.]), tensor([0.]))
    """

    place: Any = None

    def __post_init__(self) -> None:
        if not (self.place is None or callable(self.place) or isinstance(self.place, str | int)):
            raise ValueError(
                f"output is {self.place!r}; expected a position, a key, the name of an attribute, a function"
            )

    def __call__(self, found: Any) -> Any:
        """Return the logits in an output."""
        if self.place is None:
            if isinstance(found, torch.Tensor):
                return found
            inside = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", None)
            return inside if isinstance(inside, torch.Tensor) else found
        if isinstance(self.place, int) and isinstance(found, torch.Tensor):
            raise ValueError(
                f"output={self.place!r} cannot be taken from the Tensor that the model returns (it would be one row); "
                "leave out output=, or pass a function"
            )
        try:
            if callable(self.place):
                return self.place(found)
            by_key = isinstance(self.place, int) or isinstance(found, Mapping)
            return found[self.place] if by_key else getattr(found, self.place)
        except FAILURES as error:
            raise ValueError(
                f"output={self.place!r} cannot be taken from the {type(found).__name__} that the model returns "
                f"({type(error).__name__}); expected the place of its logits"
            ) from error

    def hook(self, module: nn.Module, arguments: Any, found: Any) -> Any:
        """Return the logits in the output of a module, as its forward hook."""
        return self(found)


def check_outputs(model: nn.Module, x: Any, output: torch.Tensor) -> None:
    """Raise a ValueError that says what is at fault if outputs contain NaN or infinite values."""
    if bool(torch.isfinite(output).all()):
        return
    if not _finite(x):
        fault = "the inputs of a batch contain NaN or infinite values; impute or drop those rows first"
    elif not all(_finite(tensor) for tensor in (*model.parameters(), *model.buffers())):
        fault = "the model's weights contain NaN or infinite values; train it again"
    else:
        fault = "the model's outputs contain NaN or infinite values for finite inputs; scale the inputs down"
    raise ValueError(fault)


def check_logits(output: Any) -> None:
    """Raise a ValueError for outputs that are probabilities: those of a sigmoid or softmax, or rows that sum to 1.

    >>> check_logits(torch.tensor([[0.25, 0.75]]))
    Traceback (most recent call last):
        ...
    ValueError: the model returns probabilities, as with a softmax or sigmoid at its end; pass the model without it, \
or output=, which takes the logits from what it returns
    """
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        return
    rows = in_double(output.detach())
    several = rows.ndim == 2 and rows.shape[1] > 1
    sums = bool((rows >= 0).all()) and bool(((rows.sum(dim=-1) - 1).abs() < 1e-3).all()) if several else False
    if sums or _made_by(output) in ("SigmoidBackward0", "SoftmaxBackward0"):
        raise ValueError(
            "the model returns probabilities, as with a softmax or sigmoid at its end; pass the model without it, or "
            "output=, which takes the logits from what it returns"
        )


def finite(values: torch.Tensor) -> torch.Tensor:
    """Return the features or logits of some inputs, or raise a ValueError if some are NaN or infinite."""
    if not is_traced(values) and not all_finite(values):
        raise ValueError(
            "the network's outputs contain NaN or infinite values for some inputs; impute or drop those rows, or scale "
            "them as the training data"
        )
    return values


SHAPES = ("View", "Reshape", "Squeeze", "Unsqueeze", "Select", "Slice", "Clone", "Alias", "ToCopy", "T", "Flatten")


def _made_by(output: torch.Tensor) -> str:
    """Return the name of the operation that gave the output its values, as autograd has recorded it; operations that
    change the shape alone do not count.
    """
    node = output.grad_fn
    while (
        node is not None and node.name().lstrip("_").removeprefix("Unsafe").startswith(SHAPES) and node.next_functions
    ):
        node = node.next_functions[0][0]
    return "" if node is None else str(node.name())


def _finite(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return bool(torch.isfinite(x).all()) if x.is_floating_point() else True
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple | list) else ()
    return all(map(_finite, parts))
