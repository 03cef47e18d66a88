"""The directions of weight space that the data inform: leading eigenvectors of the Gauss-Newton matrix, matrix-free.

The chosen parameters form one vector w (P,). With the prior N(w*, I / precision) around the trained weights w* and
logits f(w), the prior-whitened Gauss-Newton matrix at w* is

    G = sum_n J_n' Lambda_n J_n / precision,    J_n = df_n/dw,    Lambda_n = the Hessian of the loss in the logits,

and the subspace is w = w* + directions u, directions = U / sqrt(precision), with U (P, r) the leading eigenvectors of
G; so u ~ N(0, I). G v takes one Jacobian-vector and one vector-Jacobian product.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import nn
from torch.func import functional_call, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from enkbayes.nets.layers import logits_of
from enkbayes.nets.loaders import Arguments


@dataclass(frozen=True)
class Weights:
    """Some parameters of a network, as one vector: their names and shapes, in order."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, model: nn.Module, layers: list[str] | None) -> Weights:
        """Return the floating parameters of the layers (names of modules or parameters), or of all of them.

        >>> Weights.of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), ["2"]).names
        ('2.weight', '2.bias')
        """
        found = {name: p.shape for name, p in model.named_parameters() if p.is_floating_point()}
        if layers is not None:
            for layer in layers:
                if not any(_belongs(name, layer) for name in found):
                    raise ValueError(f"layers names {layer!r}, which has no parameters; expected some of {list(found)}")
            found = {name: shape for name, shape in found.items() if any(_belongs(name, layer) for layer in layers)}
        if not found:
            raise ValueError("no parameters to find a posterior for; expected layers=[...] with names, or 'all'")
        return cls(tuple(found), tuple(found.values()))

    def recurrent(self, model: nn.Module) -> bool:
        """Return whether some of the parameters belong to an LSTM, a GRU or another recurrent layer."""
        layers = [name for name, module in model.named_modules() if isinstance(module, nn.RNNBase)]
        return any(_belongs(name, layer) for name in self.names for layer in layers)

    def flat(self, model: nn.Module) -> torch.Tensor:
        """Return the model's parameters as a vector (P,)."""
        parameters = dict(model.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def named(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a vector (..., P) as parameters by name, (..., *shape)."""
        chunks = torch.split(vector, [shape.numel() for shape in self.shapes], dim=-1)
        lead = vector.shape[:-1]
        return {n: chunk.reshape(lead + shape) for n, chunk, shape in zip(self.names, chunks, self.shapes, strict=True)}


def _belongs(name: str, layer: str) -> bool:
    return name == layer or name.startswith(layer + ".")


@dataclass(frozen=True)
class Network:
    """A model as a function of some of its weights: w (P,) -> logits (n,) or (n, K)."""

    model: nn.Module
    weights: Weights
    output: Callable[[Any], Any]

    def returned(self, vector: torch.Tensor, inputs: Arguments) -> Any:
        """Return what the network returns for some inputs under the weights (P,), or the logits in it."""
        return self.output(functional_call(self.model, self.weights.named(vector), *inputs))

    def logits(self, vector: torch.Tensor, inputs: Arguments) -> torch.Tensor:
        """Return the logits of some inputs under the weights (P,)."""
        return logits_of(self.returned(vector, inputs))


@contextmanager
def differentiable(*, recurrent: bool = False) -> Iterator[None]:
    """Make attention use kernels that support forward derivatives and batches of weights; with `recurrent`, make
    recurrent layers use kernels that support forward derivatives.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    mkldnn = torch.backends.mkldnn.enabled
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.mkldnn.enabled = mkldnn and not recurrent
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mkldnn.enabled = mkldnn
        torch.backends.mha.set_fastpath_enabled(fast)


@dataclass(frozen=True)
class Subspace:
    """The weights w = centre + directions u around the trained weights, centre (P,), directions (P, r).

    `scale` multiplies all logits; it is the inverse of a temperature. With `vectorise`, `networks` networks are
    evaluated at once, and Jacobians hold about `tangents` numbers a logit. Without it, networks are evaluated one by
    one, so that one set of weights is in memory at a time.
    """

    network: Network
    centre: torch.Tensor
    directions: torch.Tensor
    scale: torch.Tensor | float = 1.0
    vectorise: bool = True
    networks: int = 50
    tangents: int = 1 << 16

    @property
    def rank(self) -> int:
        """The number of directions."""
        return int(self.directions.shape[1])

    def scaled(self, factor: float) -> Subspace:
        """Return the subspace with all logits multiplied by a number."""
        return replace(self, scale=self.scale * factor)

    def weights(self, theta: torch.Tensor) -> torch.Tensor:
        """Return the weights (J, P) of particles u (J, r)."""
        return self.centre + theta.to(self.directions.dtype) @ self.directions.T

    def logits(self, theta: torch.Tensor, inputs: Arguments) -> torch.Tensor:
        """Return the logits (n, J) or (n, J, K) of particles u (J, r)."""
        function = partial(self.network.logits, inputs=inputs)
        if not self.vectorise:
            return self.scale * torch.stack([function(self.weights(u[None, :])[0]) for u in theta], dim=1)
        with differentiable():
            # moved afterwards, since torch.export cannot trace vmap with out_dims=1
            return self.scale * vmap(function, chunk_size=self.networks)(self.weights(theta)).movedim(0, 1)

    def jacobian(self, theta: torch.Tensor, tangents: torch.Tensor, inputs: Arguments, rows: int) -> torch.Tensor:
        """Return the derivatives (n, J, c) or (n, J, K, c) of the logits along tangents (r, c), for inputs of at most
        `rows` rows.
        """
        function = partial(self.network.logits, inputs=inputs)
        columns = self.directions @ tangents
        if not self.vectorise:
            with differentiable():
                each = [[jvp(function, (w,), (c,))[1] for c in columns.T] for w in self.weights(theta)]
            return self.scale * torch.stack([torch.stack(along, dim=-1) for along in each], dim=1)

        def slopes(weights: torch.Tensor) -> torch.Tensor:
            along = vmap(lambda column: jvp(function, (weights,), (column,))[1], in_dims=1, out_dims=-1)
            return along(columns)

        group = max(1, self.tangents // (rows * columns.shape[1]))
        with differentiable():
            return self.scale * vmap(slopes, out_dims=1, chunk_size=group)(self.weights(theta))


def curvature(logits: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    """Return Lambda v, the Hessian of the cross-entropy in the logits (n,) or (n, K), times v of the same shape."""
    if logits.ndim == 1:
        p = torch.sigmoid(logits)
        return p * (1 - p) * tangent
    p = torch.softmax(logits, dim=-1)
    return p * (tangent - (p * tangent).sum(dim=-1, keepdim=True))


def gauss_newton(
    network: Network, centre: torch.Tensor, batches: list[Arguments], vector: torch.Tensor
) -> torch.Tensor:
    """Return sum_n J_n' Lambda_n J_n v at the weights `centre` (P,), for v (P,)."""
    total = torch.zeros_like(vector)
    for inputs in batches:
        function = partial(network.logits, inputs=inputs)
        logits, tangent = jvp(function, (centre,), (vector,))
        _, pull = vjp(function, centre)
        total = total + pull(curvature(logits, tangent))[0]
    return total


def informed_directions(
    network: Network, centre: torch.Tensor, batches: list[Arguments], precision: float, rank: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return directions (P, r) and eigenvalues (r,) of the whitened Gauss-Newton matrix, largest first; r = min(rank,
    P).
    """
    _load_forward_derivatives()
    whitened = partial(gauss_newton, network, centre, batches)
    vectors, values = leading_eigenvectors(lambda v: whitened(v) / precision, centre, rank, seed)
    return vectors / precision**0.5, values


def leading_eigenvectors(
    product: Callable[[torch.Tensor], torch.Tensor], reference: torch.Tensor, rank: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return eigenvectors (P, r) and eigenvalues (r,), largest first, of a positive semi-definite matrix, given its
    product with vectors like `reference` (P,); r = min(rank, P).

    >>> matrix = torch.diag(torch.arange(6.0))
    >>> leading_eigenvectors(lambda v: matrix @ v, torch.zeros(6), 2, seed=0)[1]
    tensor([5., 4.])
    """
    dim = reference.shape[0]

    def image(v: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.asarray(product(_as(v.reshape(-1), reference)).cpu(), dtype=np.float64)

    if rank >= dim:
        values, vectors = np.linalg.eigh(np.stack([image(column) for column in np.eye(dim)]))
    else:
        operator = LinearOperator((dim, dim), matvec=image, dtype=np.float64)
        start = np.random.default_rng(seed).standard_normal(dim)
        try:
            values, vectors = eigsh(operator, k=rank, which="LA", v0=start, tol=1e-3)
        except ArpackError as error:
            raise ValueError(
                f"the directions that the data inform cannot be found ({error}); expected a moderate prior_precision, "
                "and logits that depend on the chosen layers"
            ) from error
    order = np.argsort(values)[::-1].copy()
    return _as(vectors[:, order], reference), _as(np.maximum(values[order], 0.0), reference)


def _as(x: np.ndarray[Any, Any], reference: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(x, dtype=reference.dtype, device=reference.device)


def _load_forward_derivatives() -> None:
    """Take one forward derivative. The first in a process makes torch load code that emits DeprecationWarnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))
