"""The logits of all data, linear in features: what do the data say to an ensemble, in the coordinates of its basis?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Any, ClassVar, TypeVar

import numpy as np
import scipy.sparse

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.likelihoods.base import weighted
from enkbayes.core.linear_map import LinearMap
from enkbayes.core.moments import Moments, Sums
from enkbayes.core.row_logits import RowLogits
from enkbayes.engine.arrays import Array, even_slices, like, namespace, part_of, row_slices, sum_dtype, take_rows
from enkbayes.engine.threads import in_threads

Piece = tuple[Array, Any, Any]
"""Features (n, D), targets (n,) and weights (n,) or None of some rows."""

SHARED, PARTS = 2**18, 4  # entries from which features are cut into a multiple of so many parts
THREADED = 3e7  # multiplications of a pass from which it is worth several threads
CHUNK = 4096  # rows of a piece, unless told
STRIP = 2**20  # entries of features that a thread takes at a time where it holds few logits: shorter strips wait more
HELD = 2**24  # entries up to which features in memory are kept in float32 as well, instead of cast in every step

Sum = TypeVar("Sum", bound=Any)
"""Something that pieces of the data add to."""


@dataclass(frozen=True)
class Elsewhere:
    """Stands for features (N, D) that are never in memory at once. Who looks at them anyway is told why not."""

    shape: tuple[int, int]
    why: str

    def __getitem__(self, rows: Any) -> Any:
        raise ValueError(self.why)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise ValueError(self.why)

    def __array_namespace__(self, **_: Any) -> Any:
        raise ValueError(self.why)


def _cast(x: Any, reference: Array) -> Any:
    """Return floating rows in the dtype of `reference`; None, class numbers and sparse matrices of it as they are."""
    if x is None or x.dtype == reference.dtype:
        return x
    if scipy.sparse.issparse(x):
        return x.astype(reference.dtype)
    xp = namespace(x)
    return xp.astype(x, reference.dtype) if xp.isdtype(x.dtype, "real floating") else x


@dataclass(frozen=True, eq=False)
class LinearLogits:
    """The logits of features (N, D) under a linear map.

    Features are read `chunk` rows at a time, so memory is O(chunk (J + r)) for any N; only features of less than HELD
    entries have a float32 copy, made by the first step that asks for it.
    """

    single: ClassVar[bool] = True  # whether products may be taken in float32
    features: Array
    map: LinearMap
    chunk: int

    @property
    def size(self) -> int:
        """The number of data N."""
        return int(self.features.shape[0])

    @property
    def dim(self) -> int:
        """The number of parameters P."""
        return self.map.dim

    @property
    def slices(self) -> Iterator[slice]:
        """The rows that are read at a time; equal parts of large features, for several threads or one alike."""
        large = self.size * self.map.features > SHARED
        return even_slices(self.size, self.chunk, PARTS) if large else row_slices(self.size, self.chunk)

    @property
    def strips(self) -> LinearLogits:
        """The same logits, in longer pieces where features are narrow, for sums that hold few logits of a piece; pieces
        shorter than usual stay as short as somebody wants them.
        """
        rows = STRIP // max(self.map.features, 1)
        longer = CHUNK <= self.chunk < rows and self.in_numpy and self.map.outputs is None
        return replace(self, chunk=rows) if longer else self

    @property
    def in_numpy(self) -> bool:
        """Whether pieces are numpy arrays."""
        return self.in_memory

    @property
    def in_memory(self) -> bool:
        """Whether all features are there at once, as a numpy array, perhaps that of a mapped file."""
        return type(self) is LinearLogits and isinstance(self.features, np.ndarray)

    def pieces(self, targets: Array | None, weights: Array | None) -> Iterator[Piece]:
        """Yield all data once, `chunk` rows at a time."""
        for rows in self.slices:
            yield self.features[rows, :], part_of(targets, rows), part_of(weights, rows)

    @cached_property
    def _in_single(self) -> LinearLogits:
        """The same logits to take products in float32 of: with features in float32 where they are worth keeping."""
        x = self.features
        if not (self.in_memory and type(x) is np.ndarray and x.dtype == np.float64 and x.size <= HELD):
            return self
        copy = np.empty(x.shape, np.float32)
        list(in_threads(lambda rows: np.copyto(copy[rows], x[rows], casting="same_kind"), list(self.strips.slices)))
        return replace(self, features=copy)

    def total(self, parts: Iterable[Sum]) -> Sum:
        """Return the sum over all data of what each piece adds."""
        return reduce(add, parts)

    def moments(
        self,
        ensemble: AffineEnsemble,
        likelihood: Likelihood,
        expectation: Expectation,
        targets: Array,
        weights: Array | None,
        *,
        single: bool = False,
    ) -> Moments:
        """Return the sums over all data, added up piece by piece; with `single`, of products in float32.

        An ensemble that spans all directions needs no logits of its basis: gradient and Hessian are summed in the
        parameters, and seen in the basis once at the end.
        """
        if ensemble.rank < self.dim or ensemble.complement is not None:
            return self._in_basis(ensemble, likelihood, expectation, targets, weights)
        sums = self.sums(ensemble, likelihood, expectation, targets, weights, single=single)
        return Moments.seen(sums, ensemble.basis)

    def sums(
        self,
        ensemble: AffineEnsemble,
        likelihood: Likelihood,
        expectation: Expectation,
        targets: Array,
        weights: Array | None,
        *,
        single: bool = False,
    ) -> Sums:
        """Return E[Psi], E[grad Psi] (P,) and E[Hess Psi] (P, P), for an ensemble that spans all directions."""
        precise, wide = ensemble.mean, sum_dtype(ensemble.mean)
        rough = namespace(precise).astype(precise[:0], namespace(precise).float32) if single else precise[:0]
        seen = RowLogits.of(self.map, ensemble, rough)

        def part(piece: Piece) -> Sums:
            features, *observed = (_cast(x, rough) for x in piece)
            loss, slope, curvature = seen.averages(expectation, likelihood, features, *observed)
            gradient = self.map.pull_back(features, slope[:, None, ...])[0, :]
            hessian = self.map.pull_back_curvature(features, curvature)
            return Sums(tuple(like(x, precise, dtype=wide) for x in (namespace(loss).sum(loss), gradient, hessian)))

        pieces = (self._in_single if single else self).strips.pieces(targets, weights)
        loss, *rest = self.total(self._each(part, pieces, ensemble.size)).parts
        return Sums((loss, *(like(x, precise) for x in rest)))

    def _each(self, part: Callable[[Piece], Sum], pieces: Iterator[Piece], particles: int) -> Iterable[Sum]:
        """Return what every piece adds; rows in memory on several threads where that is worth it."""
        if self.in_memory and self.size * self.dim * max(particles, self.dim) > THREADED:
            return in_threads(part, list(pieces))
        return map(part, pieces)

    def _in_basis(
        self,
        ensemble: AffineEnsemble,
        likelihood: Likelihood,
        expectation: Expectation,
        targets: Array,
        weights: Array | None,
    ) -> Moments:
        def part(piece: Piece) -> Moments:
            features, *observed = piece
            mean_logits, V = self.map.gaussian_logits(features, ensemble)
            return expectation.in_basis(likelihood, mean_logits, V, ensemble.points, *observed)

        return self.total(map(part, self.pieces(targets, weights)))

    def loss(self, theta: Array, likelihood: Likelihood, targets: Array, weights: Array | None) -> Array:
        """Return Psi (J,) of the particles theta (J, P)."""

        def part(piece: Piece) -> Array:
            features, labels, counts = piece
            loss = likelihood.loss(self.map.particle_logits(features, theta), labels)
            return namespace(loss).sum(weighted(loss, counts), axis=0)

        return self.total(map(part, self.pieces(targets, weights)))

    def loss_and_gradient(
        self, theta: Array, likelihood: Likelihood, targets: Array, weights: Array | None
    ) -> tuple[Array, Array]:
        """Return Psi (J,) and its gradient (J, P) at the particles theta (J, P), in one pass over the features."""

        def part(piece: Piece) -> Sums:
            features, labels, counts = piece
            logits = self.map.particle_logits(features, theta)
            gradient = self.map.pull_back(features, weighted(likelihood.slope(logits, labels), counts))
            return Sums((namespace(logits).sum(weighted(likelihood.loss(logits, labels), counts), axis=0), gradient))

        loss, gradient = self.total(map(part, self.pieces(targets, weights))).parts
        return loss, gradient

    def hessian(self, theta: Array, likelihood: Likelihood, targets: Array, weights: Array | None) -> Array:
        """Return the Hessian of Psi (P, P) at theta (P,), block by block of the K logits."""

        def part(piece: Piece) -> Array:
            features, labels, counts = piece
            logits = self.map.particle_logits(features, theta[None, :])
            curvature = likelihood.curvature(logits, labels)[:, 0, ...]
            return self.map.pull_back_curvature(features, weighted(curvature, counts))

        return self.total(map(part, self.pieces(targets, weights)))

    def subset(self, rows: np.ndarray[Any, Any]) -> LinearLogits:
        """Return the same map on some of the rows."""
        return replace(self, features=take_rows(self.features, rows))
