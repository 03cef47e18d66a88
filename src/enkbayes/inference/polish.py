"""Polish: elliptical slice sampling moves every particle from the fitted Gaussian to the exact posterior, with nothing
to tune.

In the whitened coordinates z of the fitted Gaussian q the posterior is N(z; 0, I) exp(log_ratio(z)), where log_ratio is
log posterior - log q up to a constant. Murray, Adams & MacKay (2010) leave any such law invariant: draw nu ~ N(0, I)
and a height below the present one, and look for a point above it on the ellipse

    z(phi) = z cos(phi) + nu sin(phi),

shrinking the bracket of angles around phi = 0 after each miss. With a Gaussian that was fitted to the posterior this is
the generalised sampler of Nishihara, Murray & Adams (2014). The chains are independent and move together as rows.

Any Gaussian leaves the posterior exact, so every second sweep takes one that is wider where the data speak: the fitted
one is too narrow there when the posterior is skewed, and its ellipses reach the far side slowly. After 20 sweeps the
mean ratio of variances on METHOD's T3, T5, T4 is .99, .95, .91 instead of .96, .90, .83; a wide Gaussian alone would be
slow where the fitted one is right, the more so the more parameters there are.

In the limit of many sweeps the particles are exact draws of the posterior, whatever the Gaussian was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np

from enkbayes.core.distributed import some_rows
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.logits import LinearLogits
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, like, to_numpy
from enkbayes.inference.importance import log_ratio, log_weights
from enkbayes.samplers import State
from enkbayes.samplers.progress import progress_bar
from enkbayes.samplers.start import whole_seed

SHRINKS = 100  # misses after which a chain stays where it is; the bracket is then far below round-off
WIDE = 1.5  # spread of every second Gaussian where the data speak
BASE = 1000  # draws of the fitted Gaussian that tell where the climb began
CLEAR = 4.0  # see `closed_form_wins`
ROWS = 1000  # rows on which the two ways to predict are compared
Numbers = np.ndarray[Any, Any]


def polish(
    problem: Problem, posterior: Posterior, sweeps: int = 20, *, seed: int = 0, progress: bool = False
) -> Posterior:
    """Return the posterior with every particle moved towards the exact posterior, `sweeps` times.

    The particles become exact draws as sweeps grow; `info.drift` and `trust` tell whether they still climb. A second
    call goes on from where the first ended. A sweep costs 3 to 7 evaluations of the likelihood for each particle.

    Predictions go on integrating over the fitted Gaussian (`fitted`) while its error on the training rows is below the
    noise of an average over J polished particles, and average over the particles from then on: with
    `benchmarks/predictive.py` 200 particles are too few for that on T3 and T5, and enough on T4 and T6.

    Parameters
    ----------
    problem : Problem
        What was fitted; any likelihood, linear logits or not.
    posterior : Posterior
        What `run` returned for it. Particles that span fewer directions than there are parameters stay in their span.
    sweeps : int
        Moves of every particle.
    seed : int
        Of all random choices.
    progress : bool
        Show a progress bar.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[4.0], [5.0], [-3.0]], [1, 1, 0], 100.0)  # separable, and a wide prior
    >>> posterior = eb.run(problem, particles=2000)
    >>> better = polish(problem, posterior, sweeps=30)
    >>> bool(better.cov > 1.1 * posterior.cov), better.theta.shape, better.info.sweeps
    (True, (2000, 1), 30)
    """
    if not isinstance(sweeps, Integral) or sweeps < 0:
        raise ValueError(f"sweeps is {sweeps!r}; expected a whole number, 0 for no polish")
    if sweeps == 0:
        return posterior
    fitted, done = posterior.fitted, posterior.info.sweeps
    x = np.asarray(to_numpy(fitted.whiten(posterior.theta)), dtype=np.float64)
    frames = _frames(problem, fitted)
    rng = np.random.default_rng((whole_seed(seed), 5, done))
    middle = frames[0].ratio(x)
    with progress_bar("polish", int(sweeps), enabled=progress) as report:
        for sweep in range(1, int(sweeps) + 1):
            x = frames[(done + sweep) % len(frames)].sweep(x, rng)
            if sweep == sweeps // 2:
                middle = frames[0].ratio(x)
            report(State(fitted, seed, steps=sweep, finished=sweep == sweeps))
    climb = drift(float(np.mean(log_weights(problem, posterior, BASE, seed))), middle, frames[0].ratio(x))
    share = min(climb * (done + sweeps) / sweeps, 1.0)  # as if all sweeps had been made at once
    info = replace(posterior.info, sweeps=done + int(sweeps), drift=share)
    coordinates = like(x, fitted.mean)
    ensemble = (
        fitted.move(coordinates) if fitted.complement is None else AffineEnsemble.factor(fitted.unwhiten(coordinates))
    )
    moved = replace(posterior, ensemble=ensemble, before=fitted, info=info, state=None)
    return replace(moved, gaussian=closed_form_wins(problem, moved))


def elliptical_slice_sweeps(
    log_ratio: Callable[[Array], Array], z: Array, sweeps: int, rng: np.random.Generator
) -> tuple[Array, int]:
    """Return z (J, r) after so many sweeps over J independent chains, and how many points were evaluated.

    Parameters
    ----------
    log_ratio : callable
        Points (j, r), any number of them -> log posterior - log q (j,), up to a constant. q is N(0, I) here.
    z : array (J, r)
        Where the chains are, in the whitened coordinates of q.
    sweeps : int
        Moves of every chain.
    rng : numpy Generator
        Of all random choices.

    Examples
    --------
    The law N(0, I) exp(z) is N(1, I):

    >>> rng = np.random.default_rng(0)
    >>> z, evaluations = elliptical_slice_sweeps(lambda z: z[:, 0], rng.standard_normal((4000, 1)), 10, rng)
    >>> bool(abs(z.mean() - 1) < 0.05 and abs(z.std() - 1) < 0.05)
    True
    """
    state = np.asarray(to_numpy(z), dtype=np.float64)
    evaluate = numpy_ratio(log_ratio, z)
    heights, evaluations = evaluate(state), len(state)
    for _ in range(sweeps):
        state, heights, tried = slice_sweep(evaluate, state, heights, rng)
        evaluations += tried
    return like(state, z), evaluations


def numpy_ratio(log_ratio: Callable[[Array], Array], reference: Array) -> Callable[[Numbers], Numbers]:
    """Return a log ratio from numpy to numpy in double precision; it is asked in the library of `reference`."""

    def evaluate(z: Numbers) -> Numbers:
        return np.asarray(to_numpy(log_ratio(like(z, reference))), dtype=np.float64)

    return evaluate


def slice_sweep(
    log_ratio: Callable[[Numbers], Numbers], z: Numbers, heights: Numbers, rng: np.random.Generator
) -> tuple[Numbers, Numbers, int]:
    """Return z (J, r) and its heights log_ratio(z) (J,) after one move of every chain, and the points evaluated.

    Only the chains that still look for a point are evaluated again.
    """
    z, heights, evaluations = z.copy(), heights.copy(), 0
    start, nu = z.copy(), np.asarray(rng.standard_normal(z.shape))
    floor = heights - rng.standard_exponential(len(z))
    phi = 2 * math.pi * rng.random(len(z))
    low, high = phi - 2 * math.pi, phi.copy()
    looking = np.arange(len(z))
    for _ in range(SHRINKS):
        angle = phi[looking, None]
        trial = start[looking] * np.cos(angle) + nu[looking] * np.sin(angle)
        found = log_ratio(trial)
        evaluations += len(looking)
        hit = found > floor[looking]  # a NaN is a miss
        z[looking[hit]], heights[looking[hit]] = trial[hit], found[hit]
        looking = looking[~hit]
        if len(looking) == 0:
            break
        missed = phi[looking]
        low[looking] = np.where(missed < 0, missed, low[looking])
        high[looking] = np.where(missed < 0, high[looking], missed)
        phi[looking] = rng.uniform(low[looking], high[looking])
    return z, heights, evaluations


@dataclass(frozen=True, eq=False)
class _Frame:
    """Whitened coordinates z of a Gaussian with the mean of the fitted one: x = root z are those of the fitted one.

    The posterior is N(x; 0, I) exp(ratio(x)), so seen from z it is N(z; 0, I) exp(ratio(x) + (|z|^2 - |x|^2) / 2).
    """

    ratio: Callable[[Numbers], Numbers]
    root: Numbers | None = None

    def sweep(self, x: Numbers, rng: np.random.Generator) -> Numbers:
        """Return x (J, r) after one move of every particle along ellipses of this Gaussian."""
        if self.root is None:
            return slice_sweep(self.ratio, x, self.ratio(x), rng)[0]
        root = self.root

        def ratio(z: Numbers) -> Numbers:
            x = z @ root.T
            return np.asarray(self.ratio(x) + np.sum(z**2 - x**2, axis=1) / 2)

        z = np.linalg.solve(root, x.T).T
        return np.asarray(slice_sweep(ratio, z, ratio(z), rng)[0] @ root.T)


def _frames(problem: Problem, fitted: AffineEnsemble) -> tuple[_Frame, ...]:
    """Return the frame of the fitted Gaussian, and that of one with 1 + (WIDE - 1) w times its spread in directions
    where a share w of the precision comes from the data; only the former where a low rank has a complement.
    """
    narrow = _Frame(numpy_ratio(log_ratio(problem, fitted), fitted.mean))
    if fitted.complement is not None:
        return (narrow,)
    prior, U = (np.asarray(to_numpy(part), dtype=np.float64) for part in problem.prior_moments(fitted).spectrum)
    factors = 1 + (WIDE - 1) * (1 - np.minimum(prior, 1.0))
    return narrow, _Frame(narrow.ratio, (U * factors) @ U.T)


def drift(base: float, middle: Numbers, end: Numbers) -> float:
    """Return the share of the climb in mean log ratio, from `base` (its mean under q) to `end` (J,), that came after
    `middle` (J,): 0 where it is within two standard errors.

    >>> drift(0.0, np.full(100, 3.0), np.full(100, 4.0))
    0.25
    """
    gain, root = end - middle, math.sqrt(len(end))
    late, climb = float(np.mean(gain)), float(np.mean(end)) - base
    if late <= 2 * float(np.std(gain)) / root or climb <= 2 * float(np.std(end)) / root:
        return 0.0
    return min(late / climb, 1.0)


def closed_form_wins(problem: Problem, posterior: Posterior) -> bool:
    """Tell whether predictions of the fitted Gaussian are closer to the truth than averages over the particles.

    The difference d between the two has mean square (error of the Gaussian)^2 + noise^2, and the noise of an average
    over J independent particles is known. At mean d^2 = 2 mean noise^2 both are equally good; a little more is asked
    for, because d is noisy itself. Half of the inputs are training rows, where the Gaussian is better than elsewhere,
    and half are new: rows moved by the difference of two others.
    """
    if not isinstance(problem.model, LinearLogits):
        return False
    outputs = problem.likelihood.outputs or 2
    count = min(problem.size, max(ROWS * 200 * 2 // (posterior.ensemble.size * outputs), 50))
    rng = np.random.default_rng(0)
    known, here, there = (some_rows(problem.model, rng.permutation(problem.size)[:count]) for _ in range(3))
    squares, noise = 0.0, 0.0
    for features in (known, known + here - there):
        p = to_numpy(posterior.sample_proba(features))
        closed = to_numpy(replace(posterior, gaussian=True).predict_proba(features))
        squares += float(np.mean((closed - np.mean(p, axis=0)) ** 2))
        noise += float(np.mean(np.var(p, axis=0))) / (len(p) - 1)
    return squares < CLEAR * noise
