"""The Gaussian N(mean, cov): the prior, the distribution of initial ensembles, and the form of the mean-field limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from enkbayes.engine.arrays import Array, all_finite, floating, identity, like, namespace, to_numpy


def standard_points(size: int, dim: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return `size` standard normal points (size, dim) with zero mean and, when size > dim, exactly identity second
    moment.

    An even number of points, enough for it, comes in pairs x, -x: no odd moment is left to chance, and one product
    gives the logits of both. With size <= dim the second moment cannot be the identity; then the points are centred
    draws, rescaled so that it is the identity on average.

    >>> x = standard_points(50, 3, np.random.default_rng(0))
    >>> bool(np.allclose(x.T @ x / 50, np.eye(3)) and np.all(x[25:] == -x[:25]))
    True
    """
    if size % 2 == 0 and size >= 2 * dim:
        half = _orthonormal(rng.standard_normal((size // 2, dim)))
        return np.concatenate([half, -half])
    x = rng.standard_normal((size, dim))
    x = x - x.mean(axis=0)
    return _orthonormal(x) if size > dim else np.asarray(x * math.sqrt(size / (size - 1)))


def informed_points(size: int, rank: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return points (size, rank): whitened in as many leading coordinates as possible, centred draws in the others.

    >>> points = informed_points(5, 8, np.random.default_rng(0))
    >>> bool(np.allclose(points[:, :4].T @ points[:, :4] / 5, np.eye(4))), points.shape
    (True, (5, 8))
    """
    exact = min(size - 1, rank)
    leading = standard_points(size, exact, rng)
    return leading if exact == rank else np.concatenate([leading, standard_points(size, rank - exact, rng)], axis=1)


def _orthonormal(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return x R (n, dim) with second moment x'x / n the identity; of normal draws no direction is preferred."""
    q, r = np.linalg.qr(x)
    return np.asarray(math.sqrt(len(x)) * (q * np.sign(np.diagonal(r))))


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A Gaussian with mean (P,) and covariance: (P,) for a diagonal one, (P, P) for a full one, or one number.

    Parameters
    ----------
    mean : array (P,)
    cov : float, array (P,) or array (P, P)
        Variance, diagonal of the covariance, or covariance. Must be positive (definite) and symmetric.
    centre : array (D,), optional
        Of linear logits with an intercept: features at which the intercept's distribution holds, instead of features
        that are all zero. `cov` is then that of weights w (D, K) and b + centre' w, and the intercept b itself depends
        on the weights. `mean` is still that of w and b.

    Examples
    --------
    >>> prior = Gaussian(np.zeros(2), np.asarray([[2.0, 0.5], [0.5, 1.0]]))
    >>> prior.sample(3, np.random.default_rng(0)).shape
    (3, 2)
    >>> Gaussian(np.zeros(2), np.asarray([4.0, 1.0]), np.asarray([3.0])).dense_cov.tolist()
    [[4.0, -12.0], [-12.0, 37.0]]
    """

    mean: Array
    cov: Array
    centre: Array | None = None

    def __post_init__(self) -> None:
        mean = floating(self.mean)
        if mean.ndim != 1 or mean.shape[0] == 0:
            raise ValueError(f"the mean of a Gaussian has shape {tuple(mean.shape)}; expected (P,) with P >= 1")
        if not all_finite(mean):
            raise ValueError("the mean of a Gaussian contains NaN or infinite values; expected finite numbers")
        cov = like(self.cov, mean)
        if cov.ndim == 0:
            cov = namespace(mean).ones_like(mean) * cov
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "cov", cov)
        _check_covariance(mean.shape[0], to_numpy(cov))
        if self.centre is not None:
            object.__setattr__(self, "centre", _checked_centre(mean, like(self.centre, mean)))

    @classmethod
    def isotropic(cls, dim: int, variance: float = 1.0) -> Gaussian:
        """Return N(0, variance I) in `dim` dimensions.

        >>> Gaussian.isotropic(3, variance=2.0).cov.tolist()
        [2.0, 2.0, 2.0]
        """
        return cls(np.zeros(dim), variance)

    @property
    def dim(self) -> int:
        """The dimension P."""
        return int(self.mean.shape[0])

    @property
    def diagonal(self) -> bool:
        """Whether the covariance is diagonal, and stored as its diagonal."""
        return bool(self.cov.ndim == 1) and self.centre is None

    @cached_property
    def root(self) -> Array:
        """L (P, P) with the covariance L L'; the diagonal (P,) of L when the covariance is diagonal."""
        return self._own_root if self.centre is None else self.unwhiten(identity(self.dim, self.mean)).mT

    @cached_property
    def _own_root(self) -> Array:
        """A root of `cov`, (P,) or (P, P)."""
        xp = namespace(self.mean)
        return xp.sqrt(self.cov) if self.cov.ndim == 1 else xp.linalg.cholesky(self.cov)

    @cached_property
    def inverse_root(self) -> Array:
        """L^{-1}: (P,) when the covariance is diagonal and (P, P) otherwise."""
        xp = namespace(self.mean)
        if self.centre is not None:
            return self.whiten(identity(self.dim, self.mean))
        return 1 / self.root if self.diagonal else xp.linalg.inv(self.root)

    @property
    def dense_root(self) -> Array:
        """L as a (P, P) matrix, whatever way the covariance is stored."""
        return _dense(self.root)

    @property
    def dense_cov(self) -> Array:
        """The covariance as a (P, P) matrix, whatever way it is stored."""
        return _dense(self.cov) if self.centre is None else self.root @ self.root.mT

    def unwhiten(self, z: Array) -> Array:
        """Return the rows L z_j (J, P) of standard points z (J, P)."""
        if self.centre is not None:
            return self._moved((z @ self._own_root.mT if self.cov.ndim == 2 else z * self._own_root).mT, -1.0).mT
        return z * self.root if self.diagonal else z @ self.root.mT

    def whiten(self, x: Array) -> Array:
        """Return L^{-1} x for x (P,) or (P, r); products such as x' P0^{-1} x are then squares, never negative."""
        if self.centre is not None:
            columns = self._moved(x if x.ndim == 2 else x[:, None], 1.0)
            own = self._own_root
            found = columns / own[:, None] if own.ndim == 1 else namespace(x).linalg.solve(own, columns)
            return namespace(x).reshape(found, x.shape)
        if not self.diagonal:
            return self.inverse_root @ x
        return self.inverse_root * x if x.ndim == 1 else self.inverse_root[:, None] * x

    def _moved(self, columns: Array, sign: float) -> Array:
        """Return weights and intercepts (P, r), the intercepts plus or minus what the weights give at the centre."""
        xp, centre, (P, r) = namespace(columns), like(self.centre, columns), columns.shape
        outputs = P // (centre.shape[0] + 1)
        weights = xp.reshape(columns[: P - outputs, :], (centre.shape[0], outputs * r))
        shift = xp.reshape(centre @ weights, (outputs, r))
        return xp.concat([columns[: P - outputs, :], columns[P - outputs :, :] + sign * shift], axis=0)

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        """Return `size` independent draws (size, P).

        >>> Gaussian.isotropic(2).sample(4, np.random.default_rng(1)).shape
        (4, 2)
        """
        return self.mean + self.unwhiten(like(rng.standard_normal((size, self.dim)), self.mean))

    def whitened(self, size: int, rng: np.random.Generator) -> Array:
        """Return `size` draws (size, P) whose empirical mean and, when size > P, covariance (1/J) are exactly those of
        the Gaussian.

        >>> theta = Gaussian.isotropic(2, 3.0).whitened(10, np.random.default_rng(0))
        >>> bool(np.allclose(theta.T @ theta / 10, 3 * np.eye(2)))
        True
        """
        return self.mean + self.unwhiten(like(standard_points(size, self.dim, rng), self.mean))

    def log_density(self, theta: Array) -> Array:
        """Return the log density at the rows of theta (J, P): (J,)."""
        xp = namespace(theta)
        x = theta - self.mean
        own = self._own_root
        log_det = xp.sum(xp.log(own if own.ndim == 1 else xp.linalg.diagonal(own)))
        mahalanobis = xp.sum(self.whiten(x.mT) ** 2, axis=0)
        return -mahalanobis / 2 - log_det - self.dim / 2 * math.log(2 * math.pi)

    def to(self, reference: Array) -> Gaussian:
        """Return the same Gaussian in the library, dtype and device of `reference`."""
        return Gaussian(like(self.mean, reference), like(self.cov, reference), self.centre)

    def stack(self, other: Gaussian) -> Gaussian:
        """Return the distribution of (x, y), independent, x from this Gaussian and y from the other.

        >>> Gaussian.isotropic(2).stack(Gaussian.isotropic(1, 100.0)).cov.tolist()
        [1.0, 1.0, 100.0]
        """
        xp = namespace(self.mean)
        other = other.to(self.mean)
        mean = xp.concat([self.mean, other.mean])
        if self.diagonal and other.diagonal:
            return Gaussian(mean, xp.concat([self.cov, other.cov]))
        a, b = self.dense_cov, other.dense_cov
        zeros = xp.zeros((a.shape[0], b.shape[0]), dtype=a.dtype, device=a.device)
        return Gaussian(mean, xp.concat([xp.concat([a, zeros], axis=1), xp.concat([zeros.mT, b], axis=1)], axis=0))


def _dense(x: Array) -> Array:
    """Return a diagonal (P,) as a matrix (P, P), and a matrix as it is."""
    if x.ndim == 2:
        return x
    return identity(x.shape[0], x) * x[:, None]


def _checked_centre(mean: Array, centre: Array) -> Array:
    """Return a centre (D,) if it is finite and fits parameters (P,); else raise an error."""
    fits = centre.ndim == 1 and mean.shape[0] % (centre.shape[0] + 1) == 0
    if not fits or not all_finite(centre):
        raise ValueError(
            f"the centre has shape {tuple(centre.shape)}; expected (D,) finite numbers, where D + 1 divides "
            f"{mean.shape[0]}"
        )
    return centre


def _check_covariance(dim: int, cov: np.ndarray[Any, Any]) -> None:
    """Raise a ValueError that says what is wrong with a covariance (P,) or (P, P)."""
    if cov.shape not in ((dim,), (dim, dim)):
        raise ValueError(
            f"the covariance has shape {cov.shape}; expected a number, ({dim},) or ({dim}, {dim}) to fit the mean"
        )
    if not np.all(np.isfinite(cov)):
        raise ValueError("the covariance contains NaN or infinite values; expected finite numbers")
    if cov.ndim == 1:
        if not np.all(cov > 0):
            raise ValueError(f"the smallest variance is {cov.min():g}; expected positive variances")
        return
    asymmetry = float(np.max(np.abs(cov - cov.T)))
    if asymmetry > 1e-6 * float(np.max(np.abs(cov))):
        raise ValueError(f"the covariance is not symmetric (largest difference {asymmetry:g}); pass (cov + cov.T) / 2")
    cov = np.asarray(cov, dtype=np.float64)
    sd = np.sqrt(np.maximum(np.diagonal(cov), 0.0))
    sd = np.where(sd > 0, sd, 1.0)  # units of the parameters may differ by more than digits that a number has
    if float(np.linalg.eigvalsh(cov / sd[:, None] / sd)[0]) <= 0:
        smallest = float(np.linalg.eigvalsh(cov)[0])
        remedy = "add a small multiple of the identity"
        raise ValueError(f"the covariance is not positive definite (smallest eigenvalue {smallest:g}); {remedy}")
