"""The most probable weights of a softmax for several parts of the same rows at once, as cross-validation needs them.

Every part leaves out some rows, which its fit predicts. All parts move together: one product of the features with the
weights of all parts gives all logits, and one product gives all gradients. So a step costs little more than the
arithmetic, where fits one after the other would spend most of their time between small products.

Each part has coordinates of its own, those of `softmax_path.py`, in which the weights are V (r, K) ~ N(0, v) under the
prior of width v. L-BFGS starts from the diagonal lam_d c_k + 1 / v of the Hessian, and only steps that lower the
potential are taken. Numbers are float32: what is compared later are predictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import as_double, to_numpy
from enkbayes.engine.rows import ArrayRows, Chunk, Sums
from enkbayes.solvers.softmax_path import ROWS, Eigenbasis

Numbers = np.ndarray[Any, Any]
SAFE = 60.0  # logits whose exponentials, and sums of many, float32 can hold


@dataclass(frozen=True)
class PartSearch:
    """How the parts are fitted.

    tol : norm of the gradient at which a fit ends, in posterior standard deviations and divided by the root of P
    restarts : iterations after which curvatures are taken again
    memory : steps that L-BFGS remembers
    most : largest number of iterations for one width
    halvings : of a step at most
    noise : share of the potential that is round-off
    """

    tol: float = 0.1
    restarts: tuple[int, ...] = (6, 12)
    memory: int = 8
    most: int = 60
    halvings: int = 12
    noise: float = 1e-6


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of the rows of a problem, and the coordinates in which each is fitted.

    problem : with numpy's or scipy's rows in memory and a softmax
    left_out : the part (N,) that leaves out each row, -1 for rows that none does
    bases : of the rows of each part, under a prior of any width
    """

    problem: Problem
    left_out: Numbers
    bases: tuple[Eigenbasis, ...]
    search: PartSearch = field(default=PartSearch())

    @property
    def rows_left_out(self) -> Numbers:
        """The rows (n,) that some part leaves out, in order."""
        return np.flatnonzero(self.left_out >= 0)

    def path(self, widths: tuple[float, ...]) -> Iterator[PartFits]:
        """Yield the fits of all parts under priors of these widths, each from the one before."""
        nothing = np.zeros((len(self.bases), self.coordinates, self.classes))
        yield from self.path_from(nothing, self._intercepts(), widths)

    def path_from(self, V: Numbers, b: Numbers, widths: tuple[float, ...]) -> Iterator[PartFits]:
        """Yield the same from given coordinates (B, r, K) and intercepts (B, K) at the means of the features."""
        for width in widths:
            V, b, curvatures, steps = self._descend(V, b, width)
            yield PartFits(self, width, V, b, curvatures, steps)

    @property
    def classes(self) -> int:
        """The number of classes K."""
        return self.problem.likelihood.outputs or 1

    @property
    def coordinates(self) -> int:
        """The number of coordinates of a class, without the intercept."""
        return int(self.problem.linear_logits("a softmax path").features)

    @property
    def intercept(self) -> bool:
        """Whether there is one."""
        return bool(self.problem.linear_logits("a softmax path").intercept)

    @cached_property
    def rows(self) -> Any:
        """The rows in float32; the targets are class + K (part + 1)."""
        x, t = self.problem.features, to_numpy(self.problem.targets).astype(np.int64)
        x = x if scipy.sparse.issparse(x) else to_numpy(x)
        rows = ArrayRows(x, t + self.classes * (self.left_out + 1), self.problem.counts)
        return rows.coarse or rows

    @cached_property
    def left(self) -> Numbers:
        """The matrices (B, D, r) from coordinates to weights under width 1; (B, D, 1) if they are diagonal."""
        found = [basis.left / math.sqrt(basis.logit_variance or 1.0) for basis in self.bases]
        return np.stack([x if x.ndim == 2 else x[:, None] for x in found]).astype(np.float32)

    @cached_property
    def values(self) -> Numbers:
        """The eigenvalues (B, r) under width 1."""
        return np.stack([basis.values / (basis.logit_variance or 1.0) for basis in self.bases])

    @cached_property
    def centres(self) -> Numbers:
        """The means (B, D) of the features."""
        return np.stack([basis.centre for basis in self.bases]).astype(np.float32)

    @cached_property
    def sizes(self) -> Numbers:
        """The sums (B,) of the weights of the rows."""
        return np.asarray([basis.size for basis in self.bases])

    @cached_property
    def prior_of_intercept(self) -> tuple[Numbers, float]:
        """Mean (K,) and variance of the intercept under the prior."""
        mean, cov = as_double(self.problem.prior.mean), as_double(self.problem.prior.cov)
        return mean[-self.classes :], float(cov[-1])

    def weights(self, V: Numbers) -> Numbers:
        """Return the weights (B, D, K) of coordinates V (B, r, K), without the prior's mean."""
        V = V.astype(np.float32, copy=False)
        return np.asarray(self.left * V if self.left.shape[2] == 1 < self.coordinates else np.matmul(self.left, V))

    @cached_property
    def _offsets(self) -> Numbers | None:
        """The prior's mean (D, K) of the weights, None if that is zero."""
        mean = as_double(self.problem.prior.mean)[: self.coordinates * self.classes].reshape(-1, self.classes)
        return mean.astype(np.float32) if np.any(mean) else None

    def _intercepts(self) -> Numbers:
        """Return intercepts at the means of the features (B, K) from the frequencies of the classes."""
        if not self.intercept:
            return np.zeros((len(self.bases), self.classes))
        targets, counts = to_numpy(self.problem.targets).astype(np.int64), self.problem.counts
        found = []
        for part in range(len(self.bases)):
            mine = np.where(self.left_out == part, 0.0, counts)
            logs = np.log(np.maximum(np.bincount(targets, mine, self.classes), 0.5))
            found.append(logs - logs.mean())
        return np.stack(found)

    def affine(self, V: Numbers, b: Numbers) -> tuple[Numbers, Numbers]:
        """Return weights (B, D, K) and intercepts (B, K) of the logits in float32."""
        W = self.weights(V)
        W = W if self._offsets is None else W + self._offsets
        return W, (b - np.matmul(self.centres[:, None, :], W)[:, 0, :]).astype(np.float32)

    def _sums(self, V: Numbers, b: Numbers, *, curved: bool) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Return the losses (B,), their slopes in the weights (B, D, K) and in the intercepts (B, K), and the sums of
        p (1 - p) (B, K) if asked for.
        """
        B, K = len(self.bases), self.classes
        W, a = self.affine(V, b)
        flat, parts = np.ascontiguousarray(W.transpose(1, 0, 2)).reshape(-1, B * K), np.arange(B)
        ones = np.ones(max(K, ROWS), dtype=np.float32)

        def contribution(chunk: Chunk) -> Sums:
            n, codes = chunk.size, np.asarray(chunk.targets)
            own = np.arange(n)[:, None] * (B * K) + parts * K + (codes % K)[:, None]
            counts = np.where(parts == (codes // K - 1)[:, None], 0.0, chunk.weights[:, None]).astype(np.float32)
            p = np.asarray(chunk.features @ flat)
            p += a.reshape(-1)
            if max(p.max(initial=0.0), -p.min(initial=0.0)) > SAFE:
                p.reshape(n * B, K)[:] -= p.reshape(n * B, K).max(axis=1, keepdims=True)
            chosen = p.reshape(-1)[own]
            np.exp(p, out=p)
            total = (p.reshape(n * B, K) @ ones[:K]).reshape(n, B)
            loss = np.sum(counts * (np.log(total) - chosen), axis=0, dtype=np.float64)
            p.reshape(n * B, K)[:] *= (counts / total).reshape(-1, 1)
            spread = np.zeros((B, K))
            if curved:
                safe, z = np.where(counts > 0, counts, 1.0), p.reshape(n, B, K)
                spread = z.sum(axis=0, dtype=np.float64) - np.einsum("nbk,nbk,nb->bk", z, z, 1 / safe)
            p.reshape(-1)[own] -= counts
            return loss, np.asarray(chunk.features.T @ p), (ones[:1].repeat(n) @ p).reshape(B, K), spread

        D = self.coordinates
        loss, slopes, across, spread = self.rows.sum(contribution, cost=D * B * K, least=ROWS)
        return loss, slopes.reshape(D, B, K).transpose(1, 0, 2), across, spread

    def _value(self, V: Numbers, b: Numbers, width: float, *, curved: bool = False) -> tuple[Numbers, ...]:
        """Return potentials (B,), slopes in V (B, r, K) and b (B, K), and the mean curvatures (B, K)."""
        loss, slopes, across, spread = self._sums(V, b, curved=curved)
        value = loss + np.sum(V * V, axis=(1, 2)) / (2 * width)
        if self.intercept:
            mean, variance = self.prior_of_intercept
            off = (b - np.matmul(self.centres[:, None, :], self.affine(V, b)[0])[:, 0, :]) - mean
            value = value + np.sum(off**2, axis=1) / (2 * variance)
            across = across + off / variance
            slopes = slopes - self.centres[:, :, None] * across[:, None, :]
        else:
            across = np.zeros_like(across)
        if self.left.shape[2] == 1 < self.coordinates:
            pulled = self.left * slopes
        else:
            pulled = np.matmul(self.left.mT, slopes.astype(np.float32))
        return value, pulled + V / width, across, spread / self.sizes[:, None]

    def _descend(self, V: Numbers, b: Numbers, width: float) -> tuple[Numbers, Numbers, Numbers, int]:
        """Return coordinates and intercepts of all parts at width v, their curvatures, and the number of steps."""
        search, B = self.search, len(self.bases)
        value, g, h, curvatures = self._value(V, b, width, curved=True)
        goal, steps, pairs = search.tol * math.sqrt(V[0].size + b[0].size), 0, _Pairs(search.memory)
        scale, across = self.scales(curvatures, width)
        while steps < search.most:
            slope = np.concatenate([(scale * g).reshape(B, -1), across * h], axis=1)
            norms = np.linalg.norm(slope, axis=1)
            active = norms > goal
            if not active.any():
                break
            direction = -pairs.times(slope)
            along = np.einsum("bp,bp->b", direction, slope)
            uphill = along >= 0
            direction[uphill], along[uphill] = -slope[uphill], -(norms[uphill] ** 2)
            lengths = np.where(active, 1.0, 0.0)
            for _ in range(search.halvings):
                move = lengths[:, None] * direction
                dV, db = move[:, : V[0].size].reshape(V.shape), move[:, V[0].size :]
                steps += 1
                curved = steps in search.restarts
                found = self._value(V + scale * dV, b + across * db, width, curved=curved)
                low = found[0] <= value + 1e-4 * lengths * along + search.noise * np.abs(value)
                if np.all(low | ~active | (lengths == 0)):
                    break
                lengths = np.where(low, lengths, 0.4 * lengths)
            else:  # round-off: the parts that no step improves stay where they are
                lengths = np.where(low, lengths, 0.0)
                if not lengths.any():
                    break
                move = lengths[:, None] * direction
                dV, db = move[:, : V[0].size].reshape(V.shape), move[:, V[0].size :]
                found, curved = self._value(V + scale * dV, b + across * db, width), False
            V, b = V + scale * dV, b + across * db
            value, g, h = found[:3]
            new = np.concatenate([(scale * g).reshape(B, -1), across * h], axis=1)
            pairs.add(move, new - slope)
            if curved:
                curvatures = found[3]
                scale, across = self.scales(curvatures, width)
                pairs = _Pairs(search.memory)
        return V, b, curvatures, steps

    def scales(self, curvatures: Numbers, width: float) -> tuple[Numbers, Numbers]:
        """Return the standard deviations of coordinates (B, r, K) and intercepts (B, K) by the Hessian's diagonal."""
        precision = self.sizes[:, None] * curvatures + 1 / self.prior_of_intercept[1] if self.intercept else curvatures
        across = precision**-0.5 if self.intercept else np.zeros_like(curvatures)
        return (self.values[:, :, None] * curvatures[:, None, :] + 1 / width) ** -0.5, across


@dataclass(frozen=True, eq=False)
class PartFits:
    """The fits of all parts under the prior of one width: coordinates V (B, r, K), intercepts b (B, K) at the means of
    the features, mean curvatures p (1 - p) (B, K), and the steps that were taken.
    """

    parts: Parts
    width: float
    V: Numbers
    b: Numbers
    curvatures: Numbers
    steps: int

    def further(self, widths: tuple[float, ...]) -> Iterator[PartFits]:
        """Yield the fits under priors of other widths, each from the one before, the first from these."""
        return self.parts.path_from(self.V, self.b, widths)

    @cached_property
    def logits(self) -> Numbers:
        """The logits (n, K) of the rows that are left out."""
        W, a = self.parts.affine(self.V, self.b)
        return self._by_part(lambda part, x: np.asarray(x @ W[part]) + a[part])

    @cached_property
    def variances(self) -> Numbers:
        """The variances (n, K) of these logits, if the covariance is the inverse of the Hessian's diagonal."""
        scale, across = self.parts.scales(self.curvatures, self.width)

        def of(part: int, x: Any) -> Numbers:
            left, centre = self.parts.left[part], self.parts.centres[part]
            if left.shape[1] == 1 < self.parts.coordinates:
                seen = np.asarray(x.todense()) if scipy.sparse.issparse(x) else x
                seen = (seen - centre) * left[:, 0]
            else:
                seen = np.asarray(x @ left) - centre @ left
            return np.asarray(seen**2 @ (scale[part] ** 2).astype(np.float32) + across[part] ** 2, dtype=np.float32)

        return self._by_part(of)

    def start(self) -> Numbers:
        """Return the average theta (P,) of the parts."""
        W, a = self.parts.affine(self.V, self.b)
        theta = W.mean(axis=0, dtype=np.float64)
        return np.concatenate([theta.reshape(-1), a.mean(axis=0)] if self.parts.intercept else [theta.reshape(-1)])

    def _by_part(self, function: Any) -> Numbers:
        parts, rows = self.parts, self.parts.rows_left_out
        found = np.empty((len(rows), parts.classes), dtype=np.float32)
        for part in range(len(parts.bases)):
            mine = np.flatnonzero(parts.left_out[rows] == part)
            x = parts.problem.rows.take(rows[mine])
            found[mine] = function(part, x if scipy.sparse.issparse(x) else to_numpy(x))
        return found


class _Pairs:
    """The steps and changes of the slope that L-BFGS remembers, of all parts: (B, P) each."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.steps: list[tuple[Numbers, Numbers, Numbers]] = []
        self.factor: Numbers | None = None

    def add(self, step: Numbers, change: Numbers) -> None:
        """Remember a step and the change of the slope; parts that did not move are passed over."""
        product = np.einsum("bp,bp->b", step, change)
        square = np.einsum("bp,bp->b", change, change)
        good = product > 1e-10 * square
        inverse = np.where(good, 1 / np.where(good, product, 1.0), 0.0)
        ratio = np.where(good, product / np.where(square > 0, square, 1.0), 0.0)
        before = np.ones_like(ratio) if self.factor is None else self.factor
        self.factor = np.where(good, ratio, before)
        self.steps = [*self.steps[-self.memory + 1 :], (step, change, inverse)]

    def times(self, slope: Numbers) -> Numbers:
        """Return the inverse Hessian times the slopes (B, P)."""
        found, kept = slope.copy(), []
        for step, change, inverse in reversed(self.steps):
            share = inverse * np.einsum("bp,bp->b", step, found)
            found -= share[:, None] * change
            kept.append(share)
        if self.factor is not None:
            found *= self.factor[:, None]
        for (step, change, inverse), share in zip(self.steps, reversed(kept), strict=True):
            found += (share - inverse * np.einsum("bp,bp->b", change, found))[:, None] * step
        return found
