"""The only place that knows about array libraries.

The numerical code is written once, against the array API standard, and runs on numpy, torch, jax and array-api-strict.
What the standard lacks (the logistic function, the normal distribution function) is looked up here, with a portable
fall-back.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any, TypeAlias

import array_api_compat as compat
import numpy as np
import scipy.sparse
import scipy.special

Array: TypeAlias = Any
"""An array of any supported library; its shape stands in the docstring of the function that takes it."""


NUMPY = compat.array_namespace(np.empty(0))


def namespace(*arrays: Array) -> Any:
    """Return the array-API namespace that all the arrays belong to."""
    if all(type(x) is np.ndarray for x in arrays):
        return NUMPY  # the lines below give the same, in ten times the time
    return compat.array_namespace(*arrays)


def to_numpy(x: Array) -> np.ndarray[Any, Any]:
    """Return a numpy copy or view of any array or array-like, from whatever device it lives on."""
    if isinstance(x, np.ndarray | np.generic) or not compat.is_array_api_obj(x):
        return np.asarray(x)
    if compat.is_torch_array(x):
        values = x.detach().cpu()
        return np.asarray(values.float() if str(values.dtype) == "torch.bfloat16" else values)  # numpy has none
    if compat.is_jax_array(x):
        return np.asarray(x)
    return np.asarray(compat.to_device(x, namespace(x).Device("CPU_DEVICE")))


def dense_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return features, an array or a sparse matrix, as a dense numpy array."""
    return np.asarray(x.toarray()) if scipy.sparse.issparse(x) else to_numpy(x)


def as_double(x: Any) -> np.ndarray[Any, Any]:
    """Return an array of any library, or a sparse matrix, as a dense numpy array in double precision, copied only where
    it is not one.

    >>> as_double(np.ones(2, dtype=np.float32)).dtype
    dtype('float64')
    """
    return np.asarray(dense_numpy(x), dtype=np.float64)


def like(x: Any, reference: Array, *, dtype: Any = None) -> Array:
    """Return `x` (numpy or array-like) as an array of the library, device and dtype of `reference`."""
    xp = namespace(reference)
    if compat.is_array_api_obj(x) and not isinstance(x, np.ndarray) and namespace(x) is xp:
        return xp.astype(compat.to_device(x, compat.device(reference)), dtype or reference.dtype, copy=False)
    values = to_numpy(x)
    # torch refuses to convert the dtype of a numpy array without axes, so a number is passed as a number
    number_or_array = values if values.ndim else values.item()
    return xp.asarray(number_or_array, dtype=dtype or reference.dtype, device=compat.device(reference), copy=True)


def identity(size: int, reference: Array) -> Array:
    """Return the identity (size, size) in the library, dtype and device of `reference`, by a comparison: programs that
    are exported may not write into views, as the `eye` of some libraries does.

    >>> identity(2, np.zeros(0)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    xp = namespace(reference)
    index = xp.arange(size, device=compat.device(reference))
    return xp.astype(index[:, None] == index[None, :], reference.dtype)


def identity_like(S: Array) -> Array:
    """Return the identity of the size of a square matrix, in its library, dtype and device."""
    return identity(S.shape[0], S)


def alike(x: Array, reference: Array) -> bool:
    """Tell whether two arrays agree in library, dtype and device.

    >>> alike(np.zeros(2), np.ones((3, 3))), alike(np.zeros(2), np.zeros(2, dtype=np.float32))
    (True, False)
    """
    same = namespace(x) is namespace(reference) and x.dtype == reference.dtype
    return bool(same and compat.device(x) == compat.device(reference))


def floating(x: Any) -> Array:
    """Return features as a floating array: float32 and float64 are kept, everything else becomes float64, no copy
    unless needed.
    """
    if scipy.sparse.issparse(x):
        return x.tocsr() if x.dtype in (np.float32, np.float64) else x.tocsr().astype(np.float64)
    if isinstance(x, np.ma.MaskedArray):
        raise ValueError("masked arrays are not supported; fill or drop the masked values first")
    if not compat.is_array_api_obj(x):
        x = _table(x)
    if isinstance(x, np.ndarray) and x.dtype.kind not in "fiub":
        raise ValueError(f"an array of dtype {x.dtype} is not numeric; expected real numbers")
    xp = namespace(x)
    if xp.isdtype(x.dtype, "complex floating"):
        raise ValueError(f"an array of dtype {x.dtype} is complex; expected real numbers")
    if compat.is_torch_array(x):
        x = x.detach()  # no gradients flow through a posterior
    if x.dtype in (xp.float32, xp.float64):
        return x
    return xp.astype(x, xp.float64)


def _table(x: Any) -> np.ndarray[Any, Any]:
    """Return lists, or whatever else numpy understands, as an array."""
    try:
        return np.asarray(x)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
    raise ValueError("the rows of an array have different lengths; expected the same number of entries in each")


def anchor(x: Array) -> Array:
    """Return an empty dense array with the library, dtype and device of `x`, which may be a sparse matrix."""
    return np.empty(0, dtype=x.dtype) if scipy.sparse.issparse(x) else x[:0, ...]


def row_slices(size: int, chunk: int) -> Iterator[slice]:
    """Yield the row ranges that cover `size` rows, `chunk` at a time."""
    return (slice(i, min(i + chunk, size)) for i in range(0, size, chunk))


def even_slices(size: int, chunk: int, parts: int) -> Iterator[slice]:
    """Yield row ranges of at most `chunk` rows and of nearly equal length, a multiple of `parts` of them.

    >>> [s.stop - s.start for s in even_slices(10, 4, 2)]
    [3, 3, 3, 1]
    """
    count = parts * -(-size // (chunk * parts))
    return row_slices(size, -(-size // count))


def part_of(x: Array | None, rows: slice) -> Any:
    """Return some rows of targets or weights, or None where there are none."""
    return None if x is None else x[rows]


def take_rows(x: Array, rows: np.ndarray[Any, Any]) -> Array:
    """Return some rows of an array or sparse matrix, chosen by a numpy array of row numbers."""
    if scipy.sparse.issparse(x) or isinstance(x, np.ndarray):
        return x[rows]
    xp = namespace(x)
    return xp.take(x, like(rows, x, dtype=xp.int64), axis=0)


def is_traced(x: Array) -> bool:
    """Tell whether a program is being recorded, by torch.export or torch.compile, rather than run: no value may decide
    what it does.

    >>> is_traced(np.zeros(1))
    False
    """
    if not compat.is_torch_array(x):
        return False
    import torch

    return bool(torch.compiler.is_compiling() or torch.compiler.is_exporting())


def sum_dtype(x: Array) -> Any:
    """Return the dtype in which sums over many chunks of data like `x` are kept: double precision where there is one.

    >>> sum_dtype(np.zeros(3, dtype=np.float32)) == np.float64
    True
    """
    xp = namespace(x)
    everywhere = compat.is_numpy_namespace(xp) or (compat.is_torch_namespace(xp) and x.device.type != "mps")
    return xp.float64 if everywhere else x.dtype


def all_finite(x: Array, chunk: int = 65536) -> bool:
    """Tell whether every entry is finite, looking at `chunk` rows at a time."""
    if scipy.sparse.issparse(x):
        return bool(np.all(np.isfinite(x.data)))
    xp = namespace(x)
    if x.ndim == 0:
        return bool(xp.isfinite(x))
    return all(bool(xp.all(xp.isfinite(x[rows, ...]))) for rows in row_slices(int(x.shape[0]), chunk))


def epsilon(x: Array) -> float:
    """Return the machine precision of the array's dtype."""
    return float(namespace(x).finfo(x.dtype).eps)


def tolerance(tol: float, x: Array) -> float:
    """Return the tolerance that the dtype of `x` can meet: `tol`, but at least 100 times the machine precision."""
    return max(tol, 100 * epsilon(x))


def _special(xp: Any) -> Any:
    """Return the module with `expit` and `ndtr` for this namespace, or None."""
    if compat.is_numpy_namespace(xp):
        return scipy.special
    if compat.is_torch_namespace(xp):
        import torch

        return torch.special
    if compat.is_jax_namespace(xp):
        import jax.scipy.special

        return jax.scipy.special
    return None


def sigmoid(z: Array) -> Array:
    """Return 1 / (1 + exp(-z)) without overflow."""
    xp = namespace(z)
    special = _special(xp)
    if special is not None:
        return special.expit(z)
    e = xp.exp(-xp.abs(z))
    return xp.where(z >= 0, 1 / (1 + e), e / (1 + e))


def logistic_averages(z: Array) -> tuple[Array, Array]:
    """Return the averages of sigma(z) and of sigma'(z) over the columns of z (n, J), (n,) each. May overwrite z.

    With t = tanh(z / 2) they are (1 + mean t) / 2 and (1 - mean t^2) / 4: one transcendental pass and two products, in
    place where the library can.
    """
    xp = namespace(z)
    if compat.is_numpy_namespace(xp) or compat.is_torch_namespace(xp):
        z *= 0.5
        t = xp.tanh(z, out=z)
    else:
        t = xp.tanh(z / 2)
    J = t.shape[1]
    ones = xp.ones((J,), dtype=t.dtype, device=t.device)
    return (1 + t @ ones / J) / 2, (1 - xp.vecdot(t, t) / J) / 4


def ndtr(z: Array) -> Array:
    """Return the standard normal distribution function."""
    special = _special(namespace(z))
    return special.ndtr(z) if special is not None else like(scipy.special.ndtr(to_numpy(z)), z)


def softplus(z: Array) -> Array:
    """Return log(1 + exp(z)) without overflow."""
    xp = namespace(z)
    return xp.maximum(z, xp.zeros_like(z)) + xp.log1p(xp.exp(-xp.abs(z)))


def softmax(z: Array, few: int = 8) -> tuple[Array, Array]:
    """Return softmax and log-sum-exp of z (..., K) over the last axis: (..., K) and (...).

    Fewer than `few` columns are reduced one by one: numpy takes twice as long to reduce a short last axis.
    """
    xp = namespace(z)
    if z.shape[-1] < few:
        top = reduce(xp.maximum, (z[..., k] for k in range(z.shape[-1])))
        e = xp.exp(z - top[..., None])
        total = reduce(add, (e[..., k] for k in range(z.shape[-1])))
    else:
        top = xp.max(z, axis=-1)
        e = xp.exp(z - top[..., None])
        total = xp.sum(e, axis=-1)
    return e / total[..., None], xp.log(total) + top


def entropy(p: Array) -> Array:
    """Return -sum_k p_k log p_k (...) in nats of probabilities (..., K), with 0 log 0 = 0.

    >>> entropy(np.asarray([[0.5, 0.5], [1.0, 0.0]])).round(4).tolist()
    [0.6931, -0.0]
    """
    xp = namespace(p)
    tiny = xp.finfo(p.dtype).smallest_normal
    return -xp.sum(p * xp.log(xp.maximum(p, xp.full_like(p, tiny))), axis=-1)


def one_hot(targets: Array, reference: Array) -> Array:
    """Return indicators (n, K) of class numbers (n,), in the dtype of `reference` (..., K).

    >>> one_hot(np.asarray([2, 0]), np.zeros((2, 3))).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    xp = namespace(reference)
    classes = xp.arange(reference.shape[-1], dtype=targets.dtype, device=targets.device)
    return xp.astype(targets[:, None] == classes, reference.dtype)


def square(x: Any) -> Any:
    """Return the squares of the entries of an array or a sparse matrix."""
    return x.multiply(x) if scipy.sparse.issparse(x) else x * x


def symmetric(A: Array) -> Array:
    """Return (A + A') / 2, which removes the round-off asymmetry of a product."""
    return (A + A.mT) / 2


def thin_svd(x: Array) -> tuple[Array, Array, Array]:
    """Return the thin singular value decomposition U, s, V' of a matrix.

    LAPACK's gesdd, which the array libraries call, fails for some finite matrices of low rank on some processors. Its
    slower gesvd then stands in.

    >>> U, s, Vt = thin_svd(np.asarray([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]))
    >>> U.shape, s.tolist()
    ((3, 2), [4.0, 3.0])
    """
    try:
        U, s, Vt = namespace(x).linalg.svd(x, full_matrices=False)
    except Exception as error:
        if type(error).__name__ not in {"LinAlgError", "_LinAlgError"} or not all_finite(x):
            raise
        from scipy.linalg import svd

        U, s, Vt = (like(part, x) for part in svd(to_numpy(x), full_matrices=False, lapack_driver="gesvd"))
    return U, s, Vt


def oriented(columns: Array) -> Array:
    """Return columns (P, c) with signs that do not depend on round-off, as those of eigenvectors do.

    >>> oriented(-np.eye(2)).tolist() == oriented(np.eye(2)).tolist()
    True
    """
    xp = namespace(columns)
    compass = np.random.default_rng(8).standard_normal(columns.shape[0], dtype=np.float32)
    along = like(compass, columns) @ columns
    return columns * xp.where(along < 0, -xp.ones_like(along), xp.ones_like(along))
