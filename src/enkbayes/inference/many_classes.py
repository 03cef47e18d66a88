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
from enkbayes.inference.empirical_bayes import FIXED
from enkbayes.inference.folds import stratified_folds
from enkbayes.inference.row_space import RowSpace, distinct_rows
from enkbayes.inference.stacking import stacking_weights
from enkbayes.solvers.softmax_parts import PartFits, Parts, PartSearch
from enkbayes.solvers.softmax_path import (
    Eigenbasis,
    SoftmaxMode,
    SoftmaxSearch,
    diagonal_covariance,
    fits,
    within_classes,
)

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
    sharper : factors of the logit scale that are tried with a spread, which makes predictions softer
    entries : logits of held-out rows that are kept for each width; of more rows than fit only some are held out
    pairs : antithetic pairs of points of an average over the spread
    hopeless : nats by which the rows are worse predicted than by the best, before widths further out are given up
    far : factor of the log loss from which a shape of the prior is given up, if that is `hopeless` too
    search : of the most probable weights
    folds_search : the same for the folds
    """

    widths: tuple[float, ...] = (1.0, 5.0, 25.0, 125.0, 625.0)
    spreads: tuple[float, ...] = (0.1, 0.3, 1.0)
    folds: int = 5
    one_fold: int = 5000
    pseudo_rows: float = 3.0
    scale_sd: float = 0.3
    factor_sd: float = 0.1
    least: float = 0.05
    spread_rows: int = 500
    spread_least: float = 0.2
    sharper: tuple[float, ...] = (1.0, 1.1, 1.25)
    entries: int = 2**22
    pairs: int = 8
    hopeless: float = 15.0
    far: float = 1.25
    search: SoftmaxSearch = field(default=SoftmaxSearch())
    folds_search: PartSearch = field(default=PartSearch())

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
        choice = choice or self.choose(problem)
        own, space = _reduced(problem)
        bases = {False: Eigenbasis.of(own)}
        if any(choice.shaped):
            shape = within_classes(own, bases[False])
            bases[True] = bases[False] if shape is None else bases[False].shaped(shape)
        components, priors = [], []
        for width, shaped, c, s, start in zip(
            choice.widths, choice.shaped, choice.scales, choice.spreads, choice.starts, strict=True
        ):
            begun, basis = time.perf_counter(), bases[shaped]
            narrow = at_width(own, width, basis)
            mode = self.search.mode(narrow, basis.scaled_to(narrow), start)
            wide = at_width(problem, width, bases[False])
            theta = mode.theta if space is None else _lifted(mode.theta, space)
            ensemble = AffineEnsemble.point(like(theta, problem.prior.mean), particles)
            if s > 0:
                within = basis if space is None else Eigenbasis.of(wide)
                complement = diagonal_covariance(wide, within.scaled_to(wide), theta, seed)
                ensemble = replace(ensemble, complement=complement)
            info = _info(self.search, narrow, mode, time.perf_counter() - begun)
            ensemble = ensemble.scaled(c, s)
            components.append(Posterior(ensemble, problem.likelihood, problem.linear, problem.classes, True, info))
            priors.append(wide.prior)
        uniform = (1 / (2 * len(self.widths)),) * len(components)
        return MixturePosterior(
            tuple(components), choice.weights, tuple(priors), uniform, choice.message, held_out=True
        )

    def choose(self, problem: Problem) -> WidthChoice:
        """Return the widths, shapes, scales, spreads and weights that held-out rows choose."""
        if not self.fits(problem):
            raise ValueError(
                f"an average over widths needs rows in memory, a softmax and one prior for all classes; got "
                f"{problem.likelihood} and {type(problem.rows).__name__}; expected Categorical and ArrayRows"
            )
        found, folds = self._held_out(problem)
        scales, modes = list(found.scales), found.modes
        weights, logs = stacking_weights(modes, found.counts, self.pseudo_rows), modes.copy()
        spreads, points = [0.0] * len(scales), list(scales)
        some = found.some(self.spread_rows)
        for i in map(int, np.flatnonzero((weights >= self.spread_least) & found.spreadable)):
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
        rows = len(found.counts)
        shaped = tuple(found.members[i].shaped for i in chosen)
        share = sum(float(w) for w, own in zip(weights, shaped, strict=True) if own)
        whitened = f", {share:.0%} of them under priors that allow for how rows differ within a class" if share else ""
        message = (
            f"{len(chosen)} of {len(found.members)} priors averaged by {rows} held-out rows of {folds} "
            f"fold{'s' if folds > 1 else ''}, log loss {loss:.4f} (best point estimate: {single:.4f}){whitened}"
        )
        return WidthChoice(
            tuple(found.members[i].fits.width for i in chosen),
            shaped,
            tuple(float(scales[i]) for i in chosen),
            tuple(spreads[i] for i in chosen),
            tuple(map(float, weights)),
            loss,
            single,
            message,
            tuple(found.members[i].fits.start() for i in chosen),
        )

    def _common_factor(
        self, found: HeldOut, kept: Numbers, weights: Numbers, scales: list[float], spreads: list[float]
    ) -> float:
        """Return the factor of all scales that the average needs: it is less confident than its parts."""

        def loss(log_factor: float) -> float:
            c = math.exp(log_factor)
            logs = [found.log_probability(int(i), c * scales[i], spreads[i], self) for i in kept]
            return (log_factor / self.factor_sd) ** 2 / 2 - float(found.counts @ averaged(np.stack(logs), weights))

        return math.exp(minimize_scalar(loss, bounds=(-0.2, 0.5), options={"xatol": 0.04}).x)

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

    def _held_out(self, problem: Problem) -> tuple[HeldOut, int]:
        """Return the held-out rows of all folds, predicted by the fits to the others, and the number of folds."""
        own, space = _reduced(problem)
        left_out, folds = np.full(own.size, -1), 0
        for held in self._folds(own):
            left_out[held], folds = folds, folds + 1
        kept = [own.subset(np.flatnonzero(left_out != k)) for k in range(folds)]
        plain = tuple(map(Eigenbasis.of, kept))
        shapes = [within_classes(*pair) for pair in zip(kept, plain, strict=True)]
        bases = {False: plain}
        if all(shape is not None for shape in shapes):
            bases[True] = tuple(b.shaped(T) for b, T in zip(plain, shapes, strict=True) if T is not None)
        rows = np.flatnonzero(left_out >= 0)
        counts = own.counts[rows]
        found = HeldOut(to_numpy(own.targets).astype(np.int64)[rows], counts)
        middle, begun = len(self.widths) // 2, []
        for shaped, basis in bases.items():
            first = next(iter(Parts(own, left_out, basis, self.folds_search).path((self.widths[middle],))))
            found = found.with_member(Member(first, shaped, not shaped or space is None), self)
            begun.append(found.members[-1])
        totals = found.modes @ counts
        enough = min(self.far * totals.max(), totals.max() - self.hopeless)
        for member in [each for each, total in zip(begun, totals, strict=True) if total >= enough]:
            for outwards in (self.widths[middle + 1 :], self.widths[:middle][::-1]):
                best = float(totals[begun.index(member)])
                for fitted in member.fits.further(outwards):
                    found = found.with_member(replace(member, fits=fitted), self)
                    total = float(found.modes[-1] @ counts)
                    best = max(best, total)
                    if total < best - self.hopeless:
                        break
        return found, folds

    def _folds(self, problem: Problem) -> Iterator[Numbers]:
        """Yield the rows that are held out; every part has its share of each class. Distinct rows have an order of
        their own, so neither that of the rows nor that of the features matters.
        """
        N, rng = problem.size, np.random.default_rng(7)
        part = stratified_folds(to_numpy(problem.targets), self.folds, rng)
        most = max(100, self.entries // (problem.likelihood.outputs or 1))
        for k in range(1 if self.one_fold < N else min(self.folds, N)):
            yield np.sort(rng.permutation(np.flatnonzero(part == k))[:most])


@dataclass(frozen=True)
class WidthChoice:
    """What held-out rows chose: the widths that are averaged, whether their priors have the shape of `within_classes`,
    their scales, spreads and weights, the log loss of the average on those rows, that of the best point estimate, a
    sentence, and weights from which the fits to all rows start.
    """

    widths: tuple[float, ...]
    shaped: tuple[bool, ...]
    scales: tuple[float, ...]
    spreads: tuple[float, ...]
    weights: tuple[float, ...]
    log_loss: float
    best_mode: float
    message: str
    starts: tuple[Numbers, ...] = field(compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class Member:
    """Fits of all folds under one prior, whether it has the shape of `within_classes`, and whether a spread around them
    may be tried.
    """

    fits: PartFits
    shaped: bool
    spreadable: bool


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that folds left out: their classes (n,), how often each counts (n,), the priors that have been tried with
    the logit scales that predict the rows best, and the log probabilities (W, n) of the scaled point estimates. `rows`
    are those that are looked at, by default all.
    """

    targets: Numbers
    counts: Numbers
    members: tuple[Member, ...] = ()
    scales: tuple[float, ...] = ()
    modes: Numbers = field(default_factory=lambda: np.empty((0, 0)))
    rows: Numbers | None = None

    def with_member(self, member: Member, average: WidthAverage) -> HeldOut:
        """Return the same rows with one more prior."""
        found = replace(self, members=(*self.members, member))
        i = len(self.members)
        scale = found.point_scale(i, self.scales[-1] if self.scales else 1.0, average)
        logs = found.log_probability(i, scale, 0.0, average)[None, :]
        modes = np.concatenate([self.modes, logs]) if i else logs
        return replace(found, scales=(*self.scales, scale), modes=modes)

    @property
    def spreadable(self) -> Numbers:
        """Whether a spread may be tried around each member (W,)."""
        return np.asarray([member.spreadable for member in self.members])

    def some(self, rows: int) -> HeldOut:
        """Return at most so many rows, evenly spaced."""
        size = len(self.counts)
        some = np.linspace(0, size - 1, min(rows, size)).astype(int)
        return replace(self, rows=some, targets=self.targets[some], counts=self.counts[some])

    def mean(self, logs: Numbers) -> float:
        """Return the average of a number of each row (n,)."""
        return float(self.counts @ logs / self.counts.sum())

    def log_probability(self, i: int, scale: float, spread: float, average: WidthAverage) -> Numbers:
        """Return the log probability (n,) of the targets under N(scale m, scale^2 spread C) of width i."""
        rows, targets = np.arange(len(self.targets)), self.targets
        z = np.float32(scale) * self._part(self.members[i].fits.logits)
        if spread == 0:
            return np.asarray(z[rows, targets] - softmax(z)[1], dtype=np.float64)
        sd = np.float32(scale * math.sqrt(spread)) * np.sqrt(self._part(self.members[i].fits.variances))
        rng, total = np.random.default_rng(11), np.zeros(len(rows))
        for _ in range(average.pairs):
            shift = sd * rng.standard_normal(z.shape, dtype=np.float32)
            for moved in (z + shift, z - shift):
                total += np.exp(moved[rows, targets] - softmax(moved)[1])
        return np.asarray(np.log(np.maximum(total / (2 * average.pairs), np.finfo(np.float32).tiny)))

    def point_scale(self, i: int, start: float, average: WidthAverage, enough: float = 3e-3) -> float:
        """Return the logit scale c that predicts the rows best without a spread, by Newton's method in log c."""
        z, rows = self._part(self.members[i].fits.logits), np.arange(len(self.targets))
        own, u = z[rows, self.targets], math.log(start)
        for _ in range(20):
            c = np.float32(math.exp(u))
            p = softmax(c * z)[0]
            mean = np.einsum("nk,nk->n", p, z)
            square = np.einsum("nk,nk,nk->n", p, z, z)
            slope = float(c * (self.counts @ (mean - own))) + u / average.scale_sd**2
            curvature = float(c**2 * (self.counts @ (square - mean**2))) + 1 / average.scale_sd**2
            step = -slope / (curvature + max(slope - u / average.scale_sd**2, 0.0))
            u += min(max(step, -0.7), 0.7)
            if abs(step) < enough:
                break
        return math.exp(u)

    def best_scale(self, i: int, spread: float, average: WidthAverage, around: float) -> tuple[float, float]:
        """Return the logit scale that predicts the rows best with a spread, of a few beyond that without, and their log
        loss.
        """
        scales = [around * factor for factor in average.sharper]
        losses = [-self.mean(self.log_probability(i, c, spread, average)) for c in scales]
        return scales[int(np.argmin(losses))], min(losses)

    def best_spread(self, i: int, scale: float, average: WidthAverage) -> tuple[float, float]:
        """Return the spread that predicts the rows best, and its logit scale; spreads are tried while they help."""
        best, loss = (0.0, scale), -self.mean(self.log_probability(i, scale, 0.0, average))
        for spread in average.spreads:
            c, found = self.best_scale(i, spread, average, around=best[1])
            if not found < loss:
                break
            best, loss = (spread, c), found
        return best

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
    weights = problem.linear_logits("an average over widths").features * (problem.likelihood.outputs or 1)
    cov = to_numpy(problem.prior.cov).astype(np.float64, copy=True)
    cov[:weights] *= width / basis.logit_variance if basis.logit_variance > 0 else 1.0
    return problem.with_prior(Gaussian(problem.prior.mean, like(cov, problem.prior.mean)))


def _reduced(problem: Problem) -> tuple[Problem, RowSpace | None]:
    """Return the problem with equal rows joined, in the space of the rows if that is smaller than that of the features;
    the most probable weights are in it.
    """
    linear, own = problem.linear_logits("an average over widths"), distinct_rows(problem.in_double())
    same = len(np.unique(to_numpy(problem.prior.cov)[: linear.features * (linear.outputs or 1)])) == 1
    groups = np.repeat([0] * linear.features + [FIXED] * linear.intercept, linear.outputs or 1)
    space = RowSpace.of(own, groups) if same else None
    return (own, None) if space is None else (space.problem, space)


def _lifted(theta: Numbers, space: RowSpace) -> Numbers:
    """Return the weights (P,) of all features from those in the space of the rows (p,)."""
    K, r = space.problem.likelihood.outputs or 1, space.vectors.shape[1]
    inside = space.vectors @ theta[: r * K].reshape(r, K)
    return np.concatenate([inside.reshape(-1), theta[r * K :]])


def _info(search: SoftmaxSearch, problem: Problem, mode: SoftmaxMode, seconds: float) -> Info:
    residual = mode.residual / math.sqrt(problem.dim)
    converged = residual <= max(search.tol, mode.floor / math.sqrt(problem.dim))
    message = "" if converged else f"the most probable weights are off by {residual:.1e} posterior sds; scale features"
    return Info(repr(search), mode.steps, converged, residual, message, 1.0, 1.0, seconds)
