"""The inverse square root of a matrix near a multiple of the identity, without an eigendecomposition.

Near the equilibrium a step leads to a precision F that is nearly the identity. With F = c (I + E), c the mean
eigenvalue, the series

    (I + E)^{-1/2} = I - E / 2 + 3 E^2 / 8 - 5 E^3 / 16 + 35 E^4 / 128 - 63 E^5 / 256 + 231 E^6 / 1024 - ...

takes two products up to the fourth power and three up to the sixth, with errors below rho^5 / (4 (1 - rho)) and
rho^7 / (4 (1 - rho)) for |E| <= rho, and each step of Newton's method,

    G = I - F R^2,        R+ = R (I + G / 2),        of relative error 3 |G|^2 / 8,

three more. |E^2|_F^{1/2} is an upper bound of rho that comes for free. All of it commutes with rotations, as the root
itself does. A step to R^{-2} instead of F is as good a step, and its moments are taken where it leads; so the root is
as exact as is worth a product, a small share of rho, not of one.
"""

from __future__ import annotations

import math

from enkbayes.engine.arrays import Array, epsilon, namespace, symmetric
from enkbayes.engine.threads import product

NEAR = 0.45  # largest bound of rho: beyond, an eigendecomposition is cheaper
LEAST = 0.5  # smallest c, so that the smallest eigenvalue is known to be above c (1 - rho) > 1 / 4
SHARE = 1e-3  # error of the root, relative to rho, that is not worth a product


def inverse_root(F: Array) -> Array | None:
    """Return F^{-1/2} (r, r) up to SHARE rho, or None where F is not near a multiple of the identity, at least a half.

    >>> import numpy as np
    >>> F = np.asarray([[1.9, 0.1], [0.1, 2.1]])
    >>> R = inverse_root(F)
    >>> bool(np.allclose(R @ F @ R, np.eye(2), atol=1e-5)), inverse_root(np.diag([1.0, 4.0])) is None
    (True, True)
    """
    xp = namespace(F)
    eye = xp.eye(F.shape[0], dtype=F.dtype, device=F.device)
    mean = float(xp.linalg.trace(F)) / F.shape[0]
    if not LEAST < mean < math.inf:
        return None
    ratio = symmetric(F) / mean
    E = ratio - eye
    E2 = product(E, E)
    rho = math.sqrt(math.sqrt(float(xp.sum(E2**2))))
    if not rho < NEAR:
        return None
    error = rho**5 / (4 * (1 - rho))
    if error <= SHARE * rho:
        root = eye - E / 2 + product(E2, 3 / 8 * eye - 5 / 16 * E + 35 / 128 * E2)
    else:
        E3 = product(E, E2)
        rest = product(E3, 231 / 1024 * E3 - 63 / 256 * E2 + 35 / 128 * E - 5 / 16 * eye)
        root, error = eye - E / 2 + 3 / 8 * E2 + rest, error * rho**2
    while error > max(SHARE * rho, epsilon(F)):
        G = eye - product(ratio, product(root, root))
        root = product(root, eye + G / 2)
        error = 3 / 8 * float(xp.sum(G**2))
    return root / math.sqrt(mean)
