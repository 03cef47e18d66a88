"""Polish: slice sampling moves every particle from the fitted Gaussian to the exact posterior.

The chains of `slice_sampling.py` start at the particles, in the whitened coordinates of the fitted Gaussian. Every
Gaussian leaves the posterior invariant, so in the limit of many sweeps the particles are exact draws, whatever the fit
was. Every second sweep uses a Gaussian that is wider in the directions that the data inform. There the fitted one is
too narrow when the posterior is skewed, and its ellipses reach the far side slowly; a wide Gaussian alone would be slow
where the fitted one is right, the more so the more parameters there are. On the three hardest test problems of
`docs/understand/trust.md`, T3, T5 and T4, the mean ratio of variances after 20 sweeps is .99, .95, .91 instead of .96,
.90, .83.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TypeVar

import numpy as np

from enkbayes.core.caller import warn
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.numerics import in_range
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import as_double, like, to_numpy
from enkbayes.inference.importance import log_ratio, log_weights, wider_where_informed
from enkbayes.inference.slice_sampling import Numbers, numpy_ratio, slice_sweep
from enkbayes.samplers import State
from enkbayes.samplers.progress import progress_bar
from enkbayes.samplers.start import whole_seed

WIDE = 1.5  # factor on the spread of every second Gaussian, in the directions that the data inform
BASE = 1000  # draws of the fitted Gaussian that estimate the log posterior before polish


Kind = TypeVar("Kind", bound=Posterior | MixturePosterior)


@in_range("the polished particles")
def polish(problem: Problem, posterior: Kind, sweeps: int = 20, *, seed: int = 0, progress: bool = False) -> Kind:
    """Return the posterior with every particle moved towards the exact posterior, `sweeps` times.

    The particles become exact draws as sweeps grow; `info.drift` and `assess` report whether they still climb. A second
    call continues where the first ended. A sweep costs 3 to 7 evaluations of the likelihood for each particle.

    Predictions integrate over the fitted Gaussian (`fitted`) as long as its error on the training rows is below the
    noise of an average over J polished particles, and average over the particles after that. In
    `benchmarks/predictive.py` 200 particles are too few for the average on T3 and T5, and enough on T4 and T6.

    Parameters
    ----------
    problem : Problem
        The problem that was fitted; any likelihood, linear logits or not.
    posterior : Posterior or MixturePosterior
        What `run` returned for it; the components of a mixture are polished one by one, each under its own prior, and
        point estimates among them stay as they are. Particles that span fewer directions than there are parameters stay
        in their span.
    sweeps : int
        Moves of every particle.
    seed : int
        Seed of all random choices.
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
    if posterior.held_out:
        warn(
            "polish leaves this average as it is: held-out rows have scaled it, so it is not the posterior of a prior; "
            "pass a number as prior_precision to fit a posterior"
        )
        return posterior
    pairs = zip(posterior.problems(problem), posterior.components, strict=True)
    moved = (_polished(own, component, sweeps, seed=seed, progress=progress) for own, component in pairs)
    return posterior.with_components(moved)


def _polished(problem: Problem, posterior: Posterior, sweeps: int, *, seed: int, progress: bool) -> Posterior:
    """Return a single posterior, polished."""
    if posterior.fitted.freedom == 0:  # a point estimate
        return posterior
    fitted, done = posterior.fitted, posterior.info.sweeps
    x = as_double(fitted.gaussian.whiten(posterior.theta))
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
    share = min(climb * (done + sweeps) / sweeps, 1.0)  # as if all sweeps had been made in one call
    info = replace(posterior.info, sweeps=done + int(sweeps), drift=share)
    coordinates = like(x, fitted.mean)
    ensemble = (
        fitted.move(coordinates)
        if fitted.complement is None
        else AffineEnsemble.factor(fitted.gaussian.unwhiten(coordinates))
    )
    moved = replace(posterior, ensemble=ensemble, before=fitted, info=info, state=None)
    return replace(moved, gaussian=closed_form_wins(problem, moved))


@dataclass(frozen=True, eq=False)
class _Frame:
    """Whitened coordinates z of a Gaussian with the mean of the fitted one, whose own are x = root z.

    The posterior is N(x; 0, I) exp(ratio(x)) = N(z; 0, I) exp(ratio(x) + (|z|^2 - |x|^2) / 2), up to a constant.
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
    """Return the frame of the fitted Gaussian, and that of one whose spread is 1 + (WIDE - 1) w times as large in
    directions where a share w of the precision comes from the data; only the former if a low rank has a complement.
    """
    narrow = _Frame(numpy_ratio(log_ratio(problem, fitted), fitted.mean))
    if fitted.complement is not None:
        return (narrow,)
    factors, U = wider_where_informed(problem, fitted, WIDE)
    return narrow, _Frame(narrow.ratio, (U * factors) @ U.T)


def drift(base: float, middle: Numbers, end: Numbers) -> float:
    """Return the share of the climb in mean log ratio that came in the second half of the sweeps: from `base`, its mean
    under q, through `middle` (J,) to `end` (J,). 0 if the late part is within two standard errors of zero.

    >>> drift(0.0, np.full(100, 3.0), np.full(100, 4.0))
    0.25
    """
    gain, root = end - middle, math.sqrt(len(end))
    late, climb = float(np.mean(gain)), float(np.mean(end)) - base
    if late <= 2 * float(np.std(gain)) / root or climb <= 2 * float(np.std(end)) / root:
        return 0.0
    return min(late / climb, 1.0)


def closed_form_wins(problem: Problem, posterior: Posterior, *, rows: int = 1000, clear: float = 4.0) -> bool:
    """Return whether the fitted Gaussian predicts closer to the truth than the average over the particles.

    The difference d between the two has mean square (error of the Gaussian)^2 + noise^2, and the noise of an average
    over J independent particles is known. Both are equally good where mean d^2 = 2 mean noise^2; d is noisy itself, so
    the average has to win clearly, by mean d^2 >= `clear` mean noise^2. Half of the inputs are training rows, where the
    Gaussian is better than elsewhere, and half are new: rows moved by the difference of two others. `rows` is the size
    of each half for 200 particles and two classes, and shrinks in proportion for more.
    """
    if not problem.is_linear:
        return False
    outputs = problem.likelihood.n_classes or 1
    count = min(problem.size, max(rows * 200 * 2 // (posterior.ensemble.size * outputs), 50))
    rng = np.random.default_rng(0)
    known, here, there = (problem.rows.take(rng.permutation(problem.size)[:count]) for _ in range(3))
    squares, noise = 0.0, 0.0
    for features in (known, known + here - there):
        p = to_numpy(posterior.sample_proba(features))
        closed = to_numpy(replace(posterior, gaussian=True).predict_proba(features))
        squares += float(np.mean((closed - np.mean(p, axis=0)) ** 2))
        noise += float(np.mean(np.var(p, axis=0))) / (len(p) - 1)
    return squares < clear * noise
