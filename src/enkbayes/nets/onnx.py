"""Write a fitted module as an ONNX file, which runs without Python.

ONNX has no Cholesky factorisation, which the averages over K >= 3 logits need. Since K is fixed, it is written out as K
steps of elementary operations.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn


class _OneInput(nn.Module):  # type: ignore[misc]
    """A module with one positional input, whose first axis may be named."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.module(x)
        return found


def to_onnx(module: nn.Module, x: torch.Tensor | None, path: str | Path) -> None:
    """Write a module that maps x (n, ...) to probabilities (n, K) as an ONNX file for any n.

    Parameters
    ----------
    module : BayesianHead or BayesianNetwork
        A fitted one. The file holds what `module(x)` computes.
    x : tensor (n, ...)
        Inputs of the right shape, two rows or more; their values do not matter.
    path : str or Path
        An existing file is replaced.
    """
    if not isinstance(x, torch.Tensor) or x.ndim == 0 or x.shape[0] < 2:
        found = tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
        raise ValueError(f"x is {found}; expected a tensor (n, ...) of inputs with at least two rows")
    if find_spec("onnxscript") is None:
        raise ImportError("ONNX files need onnxscript; install it with: pip install onnx onnxscript")
    rows = torch.export.Dim("n", min=1)
    with torch.no_grad():
        program = torch.export.export(_OneInput(module).eval(), (x,), dynamic_shapes=({0: rows},), strict=False)
    steps = torch.export.default_decompositions()
    steps[torch.ops.aten.linalg_cholesky.default] = _cholesky
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of what the exporter itself does with torch
        program = program.run_decompositions(steps)
        written = torch.onnx.export(program, dynamo=True, verbose=False, input_names=["x"], output_names=["proba"])
    written.save(str(path))


def _cholesky(cov: torch.Tensor, *, upper: bool = False) -> torch.Tensor:
    """Return the Cholesky factors of matrices (..., K, K), column by column."""
    columns, rest = [], cov
    places = torch.arange(cov.shape[-1], device=cov.device)
    for k in range(cov.shape[-1]):
        column = torch.where(places >= k, rest[..., :, k], 0.0) / torch.sqrt(rest[..., k, k])[..., None]
        rest = rest - column[..., :, None] * column[..., None, :]
        columns.append(column)
    factor = torch.stack(columns, dim=-1)
    return factor.mT if upper else factor
