"""The averaged default for many classes: point estimates for a few widths of the prior, weighted and scaled by held-out
rows.

With many classes the Gaussian prior of the weights is often wrong: the most probable weights are under-confident, and
an average over the posterior's spread softens them further. Only rows that were not fitted can say so. So a fold holds
some rows out, and they choose for each width

    a logit scale c and a spread s,        N(c m, c^2 s C),

m the most probable weights, C the inverse of the Hessian's diagonal in the eigenbasis of the features. s = 0 leaves the
scaled point estimate, and s > 0 is taken only where it predicts the held-out rows better. The same rows give the
weights of the widths in the average (stacking, Yao et al. 2018), with a Dirichlet prior that keeps them from the edge
where rows are few. The average is kept only if it predicts the held-out rows at least as well as the best of its point
estimates. Then the weights are fitted to all rows.

Widths are variances of the logit of a typical row: weights N(0, v / mean|x|^2).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.posterior import Info, Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import like, softmax, to_numpy
from enkbayes.engine.rows import ArrayRows
from enkbayes.inference.folds import stratified_folds
from enkbayes.inference.row_space import distinct_rows
from enkbayes.inference.stacking import stacking_weights
from enkbayes.solvers.softmax_path import Eigenbasis, SoftmaxMode, SoftmaxSearch, diagonal_covariance, fits

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class WidthAverage:
    """How the widths are chosen and averaged.

    widths : logit variances of a typical row, from narrow to wide
    spreads : scales of the covariance that are tried; 0, the point estimate, always is
    folds : parts of the rows, each held out once
    one_fold : rows beyond which only the first part is held out
    pseudo_rows : weight of the Dirichlet prior of the stacking weights, in rows
    scale_sd : standard deviation of the normal prior of log c, which counts as much as one row
    factor_sd : the same for a factor of all scales, which sharpens the average
    least : weight below which a width is left out
    spread_rows : held-out rows that choose a spread
    spread_least : weight from which a width gets a spread of its own; lighter ones stay point estimates
    entries : logits of held-out rows that are kept for each width; of more rows than fit only some are held out
    pairs : antithetic pairs of points of an average over the spread
    search : of the most probable weights
    """

    widths: tuple[float, ...] = (0.3, 1.0, 3.0, 9.6, 31.0, 98.0, 313.0, 1000.0)
    spreads: tuple[float, ...] = (0.1, 0.3, 1.0)
    folds: int = 5
    one_fold: int = 5000
    pseudo_rows: float = 3.0
    scale_sd: float = 0.3
    factor_sd: float = 0.1
    least: float = 0.02
    spread_rows: int = 500
    spread_least: float = 0.1
    entries: int = 2**22
    pairs: int = 8
    search: SoftmaxSearch = field(default=SoftmaxSearch())

    def fits(self, problem: Problem) -> bool:
        """Tell whether a problem has what this needs: rows in memory, a softmax, and a prior that has a width."""
        return isinstance(problem.rows, ArrayRows) and fits(problem)

    def posterior(
        self, problem: Problem, choice: WidthChoice | None = None, *, particles: int = 200, seed: int = 0
    ) -> MixturePosterior:
        """Return the average over the widths of the prior, as a mixture.

        Parameters
        ----------
        problem : Problem
            Its prior gives the mean, the intercept's variance and the ratios of the other variances; their common
            factor is replaced.
        choice : WidthChoice, optional
            What `choose` returned for the problem.
        particles : int
            J, the number of particles.
        seed : int
            Of the particles.

        Examples
        --------
        >>> from sklearn.datasets import load_wine
        >>> from sklearn.preprocessing import scale
        >>> features, labels = load_wine(return_X_y=True)
        >>> problem = Problem.create(scale(features), labels, intercept=100.0)
        >>> posterior = WidthAverage().posterior(problem, particles=20)
        >>> posterior.predict_proba(scale(features)).shape, posterior.theta.shape
        ((178, 3), (20, 42))
        """
        choice, started = choice or self.choose(problem), time.perf_counter()
        basis = Eigenbasis.of(problem)
        # the same path as in the folds: from the prior's mean, a search at a wide width ends early
        path = [width for width in self.widths if width <= max(choice.widths)]
        found = zip(path, self.search.path([at_width(problem, width, basis) for width in path], basis), strict=True)
        problems = [at_width(problem, width, basis) for width in choice.widths]
        modes, components = [mode for width, mode in found if width in choice.widths], []
        for own, c, s, mode in zip(problems, choice.scales, choice.spreads, modes, strict=True):
            ensemble = _ensemble(own, basis.scaled_to(own), mode, particles, seed, flat=s == 0).scaled(c, s)
            info = _info(self.search, own, mode, time.perf_counter() - started)
            components.append(Posterior(ensemble, own.likelihood, own.linear, own.classes, True, info))
            started = time.perf_counter()
        uniform = (1 / len(self.widths),) * len(components)
        priors = tuple(own.prior for own in problems)
        return MixturePosterior(tuple(components), choice.weights, priors, uniform, choice.message, held_out=True)

    def choose(self, problem: Problem) -> WidthChoice:
        """Return the widths, scales, spreads and weights that held-out rows choose."""
        if not self.fits(problem):
            raise ValueError(
                f"an average over widths needs rows in memory, a softmax and one prior for all classes; got "
                f"{problem.likelihood} and {type(problem.rows).__name__}; expected Categorical and ArrayRows"
            )
        found = self._held_out(problem)
        scales, modes = self._point_estimates(found)
        weights, logs = stacking_weights(modes, found.counts, self.pseudo_rows), modes.copy()
        spreads, points = [0.0] * len(scales), list(scales)
        some = found.some(self.spread_rows)
        for i in map(int, np.flatnonzero(weights >= self.spread_least)):
            spread, scale = some.best_spread(i, scales[i], self)
            predicted = found.log_probability(i, scale, spread, self)
            if spread > 0 and found.mean(predicted) > found.mean(modes[i]):
                spreads[i], scales[i], logs[i] = spread, scale, predicted
        best = int(np.argmax(modes @ found.counts))
        single = -found.mean(modes[best])
        kept, weights, loss = self._averaged(logs, found)
        factor = self._common_factor(found, kept, weights, scales, spreads)
        moved = [factor * c for c in scales]
        sharper = [found.log_probability(int(i), moved[i], spreads[i], self) for i in kept]
        if -found.mean(averaged(np.stack(sharper), weights)) < loss:
            scales, loss = moved, -found.mean(averaged(np.stack(sharper), weights))
        if loss > single:
            kept, weights, loss = np.asarray([best]), np.ones(1), single
            spreads[best], scales[best] = 0.0, points[best]
        chosen = [int(i) for i in kept]
        rows, folds = len(found.counts), len(found.folds)
        message = (
            f"{len(chosen)} of {len(self.widths)} widths averaged by {rows} held-out rows of {folds} "
            f"fold{'s' if folds > 1 else ''}, log loss {loss:.4f} (best point estimate: {single:.4f})"
        )
        return WidthChoice(
            tuple(found.widths[i] for i in chosen),
            tuple(float(scales[i]) for i in chosen),
            tuple(spreads[i] for i in chosen),
            tuple(map(float, weights)),
            loss,
            single,
            message,
        )

    def _common_factor(
        self, found: HeldOut, kept: Numbers, weights: Numbers, scales: list[float], spreads: list[float]
    ) -> float:
        """Return the factor of all scales that the average needs: it is less confident than its parts."""

        def loss(log_factor: float) -> float:
            c = math.exp(log_factor)
            logs = [found.log_probability(int(i), c * scales[i], spreads[i], self) for i in kept]
            return (log_factor / self.factor_sd) ** 2 / 2 - float(found.counts @ averaged(np.stack(logs), weights))

        return math.exp(minimize_scalar(loss, bounds=(-0.2, 0.5), options={"xatol": 0.02}).x)

    def _averaged(self, logs: Numbers, found: HeldOut) -> tuple[Numbers, Numbers, float]:
        """Return the widths that are kept, their weights, and the log loss of their average. The prior of the weights
        is weakened if it makes the average worse than the best of the widths.
        """
        best = -max(found.mean(row) for row in logs)
        for pseudo_rows in (self.pseudo_rows, self.pseudo_rows / 10, 0.0):
            kept = np.flatnonzero(stacking_weights(logs, found.counts, pseudo_rows) >= self.least)
            weights = stacking_weights(logs[kept], found.counts, pseudo_rows)
            loss = -found.mean(averaged(logs[kept], weights))
            if loss <= best:
                break
        return kept, weights, loss

    def _point_estimates(self, found: HeldOut) -> tuple[list[float], Numbers]:
        """Return the logit scale of each width and the log probabilities (W, n) of its scaled point estimate."""
        scales = [found.best_scale(i, 0.0, self) for i in range(len(found.widths))]
        return scales, np.stack([found.log_probability(i, c, 0.0, self) for i, c in enumerate(scales)])

    def _held_out(self, problem: Problem) -> HeldOut:
        """Return the held-out rows of all folds, for the widths that the first fold does not reject."""
        widths, folds, problem = self.widths, [], distinct_rows(problem.in_double())
        for kept, held in self._folds(problem):
            folds.append(Fold.of(problem.subset(kept), problem.subset(held), widths, self.search))
            if len(folds) == 1:
                first = HeldOut(tuple(folds))
                weights = stacking_weights(self._point_estimates(first)[1], first.counts, self.pseudo_rows)
                chosen = np.flatnonzero(weights >= self.least / 2)
                widths, folds = tuple(widths[i] for i in chosen), [folds[0].only(chosen)]
        return HeldOut(tuple(folds))

    def _folds(self, problem: Problem) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield the rows that are fitted and those that are held out; every part has its share of each class. Distinct
        rows have an order of their own, so neither that of the rows nor that of the features matters.
        """
        N, rng = problem.size, np.random.default_rng(7)
        part = stratified_folds(to_numpy(problem.targets), self.folds, rng)
        most = max(100, self.entries // (problem.likelihood.outputs or 1))
        for k in range(1 if self.one_fold < N else min(self.folds, N)):
            held = np.sort(rng.permutation(np.flatnonzero(part == k))[:most])
            out = np.zeros(N, dtype=bool)
            out[held] = True
            yield np.flatnonzero(~out), held


@dataclass(frozen=True)
class WidthChoice:
    """What held-out rows chose: the widths that are averaged, their scales, spreads and weights, the log loss of the
    average on those rows, that of the best point estimate, and a sentence.
    """

    widths: tuple[float, ...]
    scales: tuple[float, ...]
    spreads: tuple[float, ...]
    weights: tuple[float, ...]
    log_loss: float
    best_mode: float
    message: str


@dataclass(frozen=True, eq=False)
class Fold:
    """Rows that were fitted, under the prior of each width, their most probable weights, and held-out rows."""

    widths: tuple[float, ...]
    problems: tuple[Problem, ...]
    modes: tuple[SoftmaxMode, ...]
    basis: Eigenbasis
    held: Problem

    @classmethod
    def of(cls, kept: Problem, held: Problem, widths: tuple[float, ...], search: SoftmaxSearch) -> Fold:
        """Fit some rows with each width."""
        basis = Eigenbasis.of(kept)
        problems = tuple(at_width(kept, width, basis) for width in widths)
        return cls(widths, problems, tuple(search.path(problems, basis)), basis, held)

    def only(self, chosen: Numbers) -> Fold:
        """Return the fold with some of the widths."""
        parts = ([values[i] for i in chosen] for values in (self.widths, self.problems, self.modes))
        widths, problems, modes = parts
        return replace(self, widths=tuple(widths), problems=tuple(problems), modes=tuple(modes))

    def logits(self, i: int) -> Numbers:
        """Return the held-out rows' logits (n, K) at the most probable weights of width i."""
        linear = self.held.linear_logits("a fold")
        theta = like(self.modes[i].theta, self.held.rows.reference)
        return _single(linear.project(self.held.features, theta[:, None])[:, :, 0])

    def variances(self, i: int) -> Numbers:
        """Return the variances (n, K) of these logits at spread 1."""
        own = self.problems[i]
        complement = diagonal_covariance(own, self.basis.scaled_to(own), self.modes[i].theta)
        complement = complement.to(self.held.rows.reference)
        seen = complement.frame.features(self.held.features)
        return _single(complement.frame.logit_variances(seen, complement.variance))

    @property
    def targets(self) -> Numbers:
        """The classes of the held-out rows (n,)."""
        return to_numpy(self.held.targets).astype(np.int64)

    @property
    def counts(self) -> Numbers:
        """How often each held-out row counts (n,)."""
        return self.held.counts


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The held-out rows of all folds; `rows` are those that are looked at, by default all."""

    folds: tuple[Fold, ...]
    rows: Numbers | None = None
    seen: dict[tuple[str, int], Numbers] = field(default_factory=dict)

    @property
    def widths(self) -> tuple[float, ...]:
        """Of the priors."""
        return self.folds[0].widths

    @cached_property
    def targets(self) -> Numbers:
        """Their classes (n,)."""
        return self._part(np.concatenate([fold.targets for fold in self.folds]))

    @cached_property
    def counts(self) -> Numbers:
        """How often each row counts (n,)."""
        return self._part(np.concatenate([fold.counts for fold in self.folds]))

    def some(self, rows: int) -> HeldOut:
        """Return at most so many rows, evenly spaced."""
        size = len(self.counts)
        return replace(self, rows=np.linspace(0, size - 1, min(rows, size)).astype(int))

    def mean(self, logs: Numbers) -> float:
        """Return the average of a number of each row (n,)."""
        return float(self.counts @ logs / self.counts.sum())

    def log_probability(self, i: int, scale: float, spread: float, average: WidthAverage) -> Numbers:
        """Return the log probability (n,) of the targets under N(scale m, scale^2 spread C) of width i."""
        rows, targets = np.arange(len(self.targets)), self.targets
        z = np.float32(scale) * self._of("logits", i)
        if spread == 0:
            return np.asarray(z[rows, targets] - softmax(z)[1], dtype=np.float64)
        sd = np.float32(scale * math.sqrt(spread)) * np.sqrt(self._of("variances", i))
        rng, total = np.random.default_rng(11), np.zeros(len(rows))
        for _ in range(average.pairs):
            shift = sd * rng.standard_normal(z.shape, dtype=np.float32)
            for moved in (z + shift, z - shift):
                total += np.exp(moved[rows, targets] - softmax(moved)[1])
        return np.asarray(np.log(np.maximum(total / (2 * average.pairs), np.finfo(np.float32).tiny)))

    def best_scale(self, i: int, spread: float, average: WidthAverage, around: float | None = None) -> float:
        """Return the logit scale c that predicts the rows best, with a spread."""

        def loss(log_scale: float) -> float:
            prior = (log_scale / average.scale_sd) ** 2 / 2
            return prior - float(self.counts @ self.log_probability(i, math.exp(log_scale), spread, average))

        low, high = (-3.0, 3.0) if around is None else (math.log(around) - 0.1, math.log(around) + 0.4)
        return math.exp(minimize_scalar(loss, bounds=(low, high), options={"xatol": 0.01 if spread == 0 else 0.05}).x)

    def best_spread(self, i: int, scale: float, average: WidthAverage) -> tuple[float, float]:
        """Return the spread that predicts the rows best, and its logit scale; spreads are tried while they help."""
        best, loss = (0.0, scale), -self.mean(self.log_probability(i, scale, 0.0, average))
        for spread in average.spreads:
            c = self.best_scale(i, spread, average, around=best[1])
            found = -self.mean(self.log_probability(i, c, spread, average))
            if not found < loss:
                break
            best, loss = (spread, c), found
        return best

    def _of(self, what: str, i: int) -> Numbers:
        """Return logits or variances (n, K) of width i, computed once."""
        if (what, i) not in self.seen:
            self.seen[what, i] = np.concatenate([getattr(fold, what)(i) for fold in self.folds])
        return self._part(self.seen[what, i])

    def _part(self, values: Numbers) -> Numbers:
        return values if self.rows is None else values[self.rows]


def averaged(logs: Numbers, weights: Numbers) -> Numbers:
    """Return the log of the weighted average (n,) of probabilities with these logs (W, n)."""
    top = logs.max(axis=0)
    return np.asarray(np.log(weights @ np.exp(logs - top)) + top)


def at_width(problem: Problem, width: float, basis: Eigenbasis) -> Problem:
    """Return the problem whose prior gives the logit of a typical row the variance `width`, without the intercept.

    >>> problem = Problem.create([[1.0, 2.0], [2.0, 1.0], [0.0, 0.0]], [0, 1, 2], 1.0)
    >>> at_width(problem, 3.0, Eigenbasis.of(problem)).prior.cov[:2].round(6).tolist()
    [0.9, 0.9]
    """
    weights = basis.roots.size * (problem.likelihood.outputs or 1)
    cov = to_numpy(problem.prior.cov).astype(np.float64, copy=True)
    cov[:weights] *= width / basis.logit_variance if basis.logit_variance > 0 else 1.0
    return problem.with_prior(Gaussian(problem.prior.mean, like(cov, problem.prior.mean)))


def _ensemble(
    problem: Problem, basis: Eigenbasis, mode: SoftmaxMode, particles: int, seed: int, *, flat: bool
) -> AffineEnsemble:
    """Return particles of the Gaussian around a mode, or copies of the mode."""
    point = AffineEnsemble.point(like(mode.theta, problem.prior.mean), particles)
    return point if flat else replace(point, complement=diagonal_covariance(problem, basis, mode.theta, seed))


def _info(search: SoftmaxSearch, problem: Problem, mode: SoftmaxMode, seconds: float) -> Info:
    residual = mode.residual / math.sqrt(problem.dim)
    converged = residual <= max(search.tol, mode.floor / math.sqrt(problem.dim))
    message = "" if converged else f"the most probable weights are off by {residual:.1e} posterior sds; scale features"
    return Info(repr(search), mode.steps, converged, residual, message, 1.0, 1.0, seconds)


def _single(x: Any) -> Numbers:
    return np.asarray(to_numpy(x), dtype=np.float32)
