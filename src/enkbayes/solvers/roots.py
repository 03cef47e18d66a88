"""The inverse square root of a symmetric matrix, without an eigendecomposition where it is near the identity.

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

import numpy as np

from enkbayes.core.moments import Diverged
from enkbayes.engine import product
from enkbayes.engine.arrays import Array, all_finite, epsilon, identity, namespace, symmetric


def inverse_root(F: Array, share: float = 0.0) -> Array:
    """Return F^{-1/2} (r, r) of a symmetric F: by the series where F is near the identity, otherwise by its spectrum.

    share is the error of the series, relative to the distance from the identity, that is not worth a product.

    >>> R = inverse_root(np.diag([1.0, 4.0]))
    >>> R.tolist()
    [[1.0, 0.0], [0.0, 0.5]]
    """
    root = inverse_root_near_identity(F, share)
    if root is not None:
        return root
    if not all_finite(F):
        raise Diverged("the precision that a step leads to is not finite")
    xp = namespace(F)
    w, U = xp.linalg.eigh(symmetric(F))
    return product(U * xp.maximum(w, xp.zeros_like(w)) ** -0.5, U.mT)


def inverse_root_near_identity(F: Array, share: float = 0.0, near: float = 0.45, least: float = 0.5) -> Array | None:
    """Return F^{-1/2} (r, r), or None where F is not near a multiple of the identity.

    share is the error of the root, relative to rho, that is not worth a product; near is the largest bound of rho,
    beyond which an eigendecomposition is cheaper; least is the smallest c, so that the smallest eigenvalue is above
    c (1 - rho) > 1 / 4.

    >>> F = np.asarray([[1.9, 0.1], [0.1, 2.1]])
    >>> R = inverse_root_near_identity(F)
    >>> bool(np.allclose(R @ F @ R, np.eye(2))), inverse_root_near_identity(np.diag([1.0, 4.0])) is None
    (True, True)
    """
    xp = namespace(F)
    eye = identity(F.shape[0], F)
    mean = float(xp.linalg.trace(F)) / F.shape[0]
    if not least < mean < math.inf:
        return None
    ratio = symmetric(F) / mean
    E = ratio - eye
    E2 = product(E, E)
    rho = math.sqrt(math.sqrt(float(xp.sum(E2**2))))
    if not rho < near:
        return None
    error = rho**5 / (4 * (1 - rho))
    if error <= share * rho:
        root = eye - E / 2 + product(E2, 3 / 8 * eye - 5 / 16 * E + 35 / 128 * E2)
    else:
        E3 = product(E, E2)
        rest = product(E3, 231 / 1024 * E3 - 63 / 256 * E2 + 35 / 128 * E - 5 / 16 * eye)
        root, error = eye - E / 2 + 3 / 8 * E2 + rest, error * rho**2
    while error > max(share * rho, epsilon(F)):
        G = eye - product(ratio, product(root, root))
        root = product(root, eye + G / 2)
        error = 3 / 8 * float(xp.sum(G**2))
    return root / math.sqrt(mean)


def exceeds(F: Array, least: float) -> bool:
    """Tell whether all eigenvalues of a symmetric F are above `least`.

    >>> exceeds(np.diag([1.0, 2.0]), 0.5), exceeds(np.diag([1.0, 2.0]), 1.5)
    (True, False)
    """
    xp = namespace(F)
    if not all_finite(F):
        return False
    try:
        factor = xp.linalg.cholesky(symmetric(F) - least * identity(F.shape[0], F))
    except (np.linalg.LinAlgError, RuntimeError):  # torch's is a RuntimeError
        return False
    return all_finite(factor)
