"""Devices without double precision, such as MPS: a simulated one, whose tensors live on the CPU.

It refuses tensors of double precision, and operations that mix its tensors with those of the CPU. It shows where
tensors are created and of which type, and nothing about the operations that a real device lacks.
"""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from enkbayes.nets import BayesianHead, MultiLabel, OODScore

DEVICE = torch.device("lazy")


class OnDevice(torch.Tensor):
    """A tensor that says it is on the device."""

    @staticmethod
    def __new__(cls, values):
        if values.dtype == torch.float64:
            raise TypeError("the device has no double precision")
        found = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=values.dtype, device=DEVICE
        )
        found.values_on_cpu = values
        return found

    def __repr__(self):
        return f"OnDevice({self.values_on_cpu})"

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return dispatch(operation, args, kwargs or {})


def dispatch(operation, args, kwargs):
    flat = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    on_device = [isinstance(x, OnDevice) for x in flat]
    target = kwargs.get("device")
    target = None if target is None else torch.device(target)
    moves = operation in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    if not moves and any(on_device) and any(not d and x.ndim for d, x in zip(on_device, flat, strict=True)):
        raise RuntimeError(f"{operation} on tensors of two devices")
    args, kwargs = tree_map(lambda x: x.values_on_cpu if isinstance(x, OnDevice) else x, (args, kwargs))
    if target is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    if kwargs.get("dtype") == torch.float64 and (target == DEVICE or (target is None and any(on_device))):
        raise TypeError("the device has no double precision")
    found = operation(*args, **kwargs)
    if operation is torch.ops.aten.copy_.default:
        return flat[0]
    if target == DEVICE or (target is None and any(on_device)):
        return tree_map(lambda x: OnDevice(x) if isinstance(x, torch.Tensor) else x, found)
    return found


class Simulated(TorchDispatchMode):
    """Creates tensors on the device where a function asks for it."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return dispatch(operation, args, kwargs or {})


@contextlib.contextmanager
def simulated():
    with Simulated():
        yield


def moved(module):
    """A module with its tensors on the device."""
    for part in module.modules():
        for name, p in list(part._parameters.items()):
            if p is not None:
                part._parameters[name] = nn.Parameter(OnDevice(p.detach()), requires_grad=False)
        for name, b in list(part._buffers.items()):
            if b is not None:
                part._buffers[name] = OnDevice(b)
    return module


def model(outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs))


X = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)
TRAIN, HELD_OUT = [(X[:60], Y[:60])], [(X[60:], Y[60:])]


def on_cpu(x):
    return x.values_on_cpu if isinstance(x, OnDevice) else x


@pytest.mark.parametrize("calibration", [None, HELD_OUT])
@pytest.mark.parametrize("outputs", [1, 3])
def test_heads(outputs, calibration):
    train, held_out = (
        None if batches is None else [(x, (y > 0).long() if outputs == 1 else y) for x, y in batches]
        for batches in (TRAIN, calibration)
    )
    expected = BayesianHead.fit(model(outputs), train, calibration=held_out, progress=False)
    with simulated():
        head = BayesianHead.fit(moved(model(outputs)), train, calibration=held_out, progress=False)
        assert {tensor.device for tensor in (*head.parameters(), *head.buffers())} == {DEVICE}
        x = OnDevice(X)
        proba, uncertainty = head(x), head.predict_uncertainty(x)
        assert proba.device == uncertainty.total.device == head.sample_proba(x).device == DEVICE
        score = OODScore.fit(head, train, calibration=held_out, progress=False)(x)
    torch.testing.assert_close(on_cpu(proba), expected(X), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        on_cpu(uncertainty.epistemic), expected.predict_uncertainty(X).epistemic, atol=1e-5, rtol=1e-3
    )
    reference = OODScore.fit(expected, train, calibration=held_out, progress=False)(X).float()
    torch.testing.assert_close(on_cpu(score), reference, atol=0.02, rtol=1e-3)


def test_regressions_and_several_labels():
    real, several = ([(x, f(x)) for x, _ in TRAIN] for f in (lambda x: x.sum(1), lambda x: (x[:, :3] > 0).float()))
    expected = BayesianHead.fit(model(1), real, regression=True, progress=False)(X)
    several_expected = MultiLabel.fit_head(model(3), several, progress=False)(X)
    with simulated():
        head = BayesianHead.fit(moved(model(1)), real, regression=True, progress=False)
        labels = MultiLabel.fit_head(moved(model(3)), several, progress=False)
        found, proba = head(OnDevice(X)), labels(OnDevice(X))
    torch.testing.assert_close(on_cpu(found), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(on_cpu(proba), several_expected, atol=1e-5, rtol=1e-4)


def test_the_device_refuses():
    with simulated():
        with pytest.raises(TypeError, match="no double precision"):
            OnDevice(X).double()
        with pytest.raises(TypeError, match="no double precision"):
            torch.zeros(3, device=DEVICE, dtype=torch.float64)
        with pytest.raises(RuntimeError, match="two devices"):
            OnDevice(X) + X
        assert OnDevice(X).cpu().device.type == "cpu"
