"""Far-field variance: noise in the logits that grows with the distance from the training data.

A posterior alone does not keep a network unsure far away: along a ray, mean and standard deviation of a ReLU network's
logit grow together, so its confidence tends to a constant. Independent noise in every logit changes that,

    z(x) + r(x),    r(x) ~ N(0, v(x) I),    v(x) = s^2 max(exp(score) - 1, 0) + B u (exp(excess) - 1).

The score is the mean over the layers of the log leverage, standardised by its mean and standard deviation on held-out
rows, with the leverage of layer l

    leverage_l(x) = h' (H + ridge I)^{-1} h / dim h,    H = mean of h h' over the training rows,

for its outputs h with a constant at their end. So the first term hardly changes typical rows and grows like a power of
the leverage. The excess is the distance of the score to the range of the held-out rows, in both directions; B is a
share of the mean square of their logits, and u >= 1 the leverage relative to theirs, by which the square of the logits
may have grown. So the second term costs nothing on held-out rows, and rises steeply beyond the most unusual of them.

Networks have a second score, the leverage of the directions h / |h|, whose v(x) is added: outputs of an unusual
composition may be small. Their scores have the standard deviation 2, and B is a 32nd of the mean square. These were
chosen on development tasks (`benchmarks/far_field_scores.py`). Of real targets the variance has no bound, so it grows
no faster than it must (`gentle`).

Along a ray x = t d, leverages are quadratic in t, and the standard deviation enters as at most 2/3. So v(x) grows like
t^3 at least and the standard deviation of r like t^(3/2), while the logits of a ReLU network grow like t. Their
quotient tends to zero, and the average of softmax(z + r) to that of softmax(r), which is 1/K for every class, because
r is exchangeable. `docs/understand/uncertainty.md` has the proof.

The outputs of a layer are h = W a. They do not change under an affine map of its inputs a that W undoes, so neither
does v: the ridge is measured in what the network computes, not in the coordinates of its inputs.

`choose` finds s^2 on held-out rows: the largest whose mean log loss is at most one standard error (paired) and at most
.005 nats above the lowest, and clearly at most .005 nats above that without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from enkbayes.core.likelihoods import Likelihood, Normal
from enkbayes.core.logit_noise import cyclic_points
from enkbayes.engine.arrays import Array, identity, like, namespace, row_slices, to_numpy
from enkbayes.inference.folds import log_losses, mean_and_error

Vector = np.ndarray[Any, Any]
STRENGTHS = tuple(float(s) for s in 10.0 ** np.arange(-6, 3.01, 0.25))


@dataclass(frozen=True, eq=False)
class Extent:
    """How unlike the training data rows are: scores (n,) of the outputs h_l (n, d_l) of L layers.

    factors : L arrays (d_l + 1, d_l + 1)
        F with F F' = (H + ridge I)^{-1} / (d_l + 1).
    scale : array (4,)
        Centre and width of the mean log leverage of held-out rows; their smallest and largest score.

    Examples
    --------
    >>> rows = np.random.default_rng(0).standard_normal((500, 3))
    >>> extent = Extent.of_moments([second_moment(rows)]).calibrated([rows])
    >>> extent.score([np.outer([1.0, 10.0], [1.0, 0.0, 1.0])]).round(1).tolist()
    [-0.0, 7.3]
    """

    factors: tuple[Array, ...]
    scale: Array

    @classmethod
    def of_moments(cls, moments: Sequence[Array], ridge: float = 3e-3) -> Extent:
        """Return the extent for second moments H_l (d_l + 1, d_l + 1) of training rows, not calibrated yet.

        `ridge` is a share of the mean eigenvalue of H; it bounds the leverage in directions without training rows.
        """
        factors = tuple(leverage_factor(H, ridge) for H in moments)
        return cls(factors, like(np.asarray([0.0, 1.0, 0.0, 0.0]), factors[0]))

    def calibrated(
        self,
        outputs: Sequence[Array],
        *,
        leverage: Array | None = None,
        classes: int = 2,
        widest: float = 2 / 3,
        least: float = 3.0,
        most: float = 0.005,
        slope: float = 1.0,
        gentle: bool = False,
    ) -> Extent:
        """Return the extent with the scale of held-out rows, from their outputs or their mean log leverage (n,).

        Their scores have the standard deviation `slope`, or a larger one: the width that stands for one of these is at
        most `widest`, so that exp(score) grows fast enough along rays. The range of the scores is at least -least ...
        least times the slope, because the extremes of a few held-out rows are not those of all others.

        If `gentle`, the width is `widest`, and the noise grows along rays no faster than it must. That is right for
        real targets: confidence has a lower bound, but their variance has no upper one.

        Of new rows, a share of about 1 / (n + 1) lies beyond the most unusual of n held-out rows, and the noise there
        costs up to log K nats each. Where that is more than `most` nats, the range is wider: by as much as leaves so
        few rows beyond it if the tail of the scores is exponential, with their standard deviation.
        """
        found = self.leverage(outputs) if leverage is None else leverage
        values = to_numpy(found)
        slope = 1.0 if gentle else slope
        centre, width = float(values.mean()), widest if gentle else min(max(float(values.std()), 1e-2), widest) / slope
        scores = (values - centre) / width
        margin = float(scores.std()) * max(0.0, float(np.log(np.log(classes) / (most * (len(values) + 1)))))
        least *= slope
        limits = (min(float(scores.min()), -least) - margin, max(float(scores.max()), least) + margin)
        return replace(self, scale=like(np.asarray([centre, width, *limits]), self.factors[0]))

    def check(self, largest: float = 1e100) -> None:
        """Raise a ValueError unless the shapes fit, the width is positive, and squares of the numbers are finite."""
        square = all(F.ndim == 2 and F.shape[0] == F.shape[1] for F in self.factors)
        if tuple(self.scale.shape) != (4,) or not square:
            raise ValueError("the arrays of the far-field variance do not fit each other")
        arrays = [to_numpy(x) for x in (*self.factors, self.scale)]
        if not all(float(np.max(np.abs(x), initial=0.0)) <= largest for x in arrays) or not float(arrays[-1][1]) > 0:
            raise ValueError(
                f"the far-field variance has numbers above {largest:g}, or no width; expected smaller ones"
            )

    def leverage(self, outputs: Sequence[Array]) -> Array:
        """Return the log leverage (n,), averaged over the layers."""
        xp = namespace(*self.factors)
        each = [log_leverage(h, F) for h, F in zip(outputs, self.factors, strict=True)]
        return xp.mean(xp.stack(each, axis=1), axis=1)

    def score(self, outputs: Sequence[Array]) -> Array:
        """Return the scores (n,)."""
        return self.standardised(self.leverage(outputs))

    def standardised(self, leverage: Array) -> Array:
        """Return the scores (n,) of mean log leverages (n,)."""
        return (leverage - self.scale[0]) / self.scale[1]

    def variance(self, score: Array, strength: Array | float, reach: Array | float) -> Array:
        """Return v (n,) of scores (n,), with s^2 = strength and B = reach."""
        xp = namespace(score)
        excess = xp.maximum(score - self.scale[3], self.scale[2] - score)
        u = xp.exp(xp.clip(self.scale[1] * score, 0.0, 20.0))
        return strength * rise(score) + reach * u * rise(excess)


def rise(x: Array, largest: float = 50.0) -> Array:
    """Return exp(x) - 1 where x is positive, and 0 elsewhere; at most exp(largest), within single precision.

    >>> rise(np.asarray([-1.0, 0.0, np.log(3.0)])).round(9).tolist()
    [0.0, 0.0, 2.0]
    """
    xp = namespace(x)
    return xp.expm1(xp.clip(x, 0.0, largest))


def with_constant(h: Array) -> Array:
    """Return outputs (n, d) with a column of ones, (n, d + 1)."""
    xp = namespace(h)
    return xp.concat([h, xp.ones((h.shape[0], 1), dtype=h.dtype, device=h.device)], axis=1)


def second_moment(h: Array) -> Array:
    """Return the mean of h h' (d + 1, d + 1) over outputs (n, d), with a constant at their end."""
    whole = with_constant(h)
    return whole.mT @ whole / whole.shape[0]


def leverage_factor(H: Array, ridge: float) -> Array:
    """Return F (d, d) with F F' = (H + ridge mean(eigenvalues of H) I)^{-1} / d."""
    xp = namespace(H)
    d = H.shape[0]
    eye = identity(d, H)
    lower = xp.linalg.cholesky(H + ridge * xp.sum(H * eye) / d * eye)
    return xp.linalg.inv(lower).mT / d**0.5


def log_leverage(h: Array, factor: Array) -> Array:
    """Return the log leverages (n,) of outputs (n, d); infinite for outputs whose squares overflow."""
    xp = namespace(factor)
    with np.errstate(over="ignore"):
        white = with_constant(like(h, factor)) @ factor
        return xp.log(xp.vecdot(white, white) + xp.finfo(white.dtype).smallest_normal)  # files may have factors of 0


@dataclass(frozen=True)
class FarFieldChoice:
    """What held-out rows chose: strength s^2 and reach B, the factor on the logits, the cost in log loss and its
    standard error (both relative to the best strength), the number of rows, and a sentence.
    """

    strength: float
    reach: float
    scale: float
    cost: float
    error: float
    rows: int
    message: str


def choose(
    likelihood: Likelihood,
    mean: Vector,
    root: Vector,
    labels: Vector,
    score: Vector,
    *,
    weights: Vector | None = None,
    strengths: Sequence[float] = STRENGTHS,
    scales: Sequence[float] = (1.0, 1.05, 1.1),
    sharpening: float = 0.2,
    most: float = 0.005,
    fewest: int = 20,
    reach: float = 1.0,
) -> FarFieldChoice:
    """Return the largest strength that costs little on held-out rows.

    Parameters
    ----------
    likelihood : Likelihood
        `Bernoulli`, `Categorical`, or another with two classes and one logit; or `Normal`, for real targets.
    mean, root : arrays (n,) and (n, r), or (n, K) and (n, K, r)
        Mean and root of the covariance of the logits of held-out rows, predicted without them.
    labels : array (n,)
        Class numbers, or real targets.
    score : array (n,) or (n, k)
        The scores of these rows; k scores have a noise each, and these add up.
    weights : array (n,), optional
        How often each row counts.
    strengths : sequence of float
        The values of s^2 to try, in increasing order.
    scales : sequence of float
        Factors 1 / T on the logits, which is fitted again for every strength: noise makes predictions less confident,
        and a factor above 1 makes up for that. Larger factors use noise on unusual rows as an excuse for
        overconfidence on all others: on one development network (DNA) factors up to 1.5 cost .021 nats of test rows,
        these .008 (`benchmarks/far_field_scores.py`).
    sharpening : float
        Standard deviation of a normal prior of log(1 / T), as in `temperature_scale`.
    most : float
        Nats above the lowest log loss that are accepted at most; with few rows one standard error is too generous. The
        cost relative to no noise, plus its standard error, does not exceed this number either: the fewer the rows, the
        less they can accept.
    fewest : int
        With fewer rows nothing is chosen, and the strength is 0.
    reach : float
        B as a share of the mean square of the logits.

    Examples
    --------
    >>> from enkbayes.core.likelihoods import Bernoulli
    >>> rng = np.random.default_rng(0)
    >>> z, score = 3 * rng.standard_normal(2000), rng.standard_normal(2000)
    >>> labels = (z + rng.logistic(size=2000) > 0).astype(int)
    >>> choice = choose(Bernoulli(), z, np.zeros((2000, 1)), labels, score)
    >>> bool(choice.strength > 0.1 and choice.cost <= 0.005)
    True
    """
    size = len(labels)
    if size < fewest:
        message = f"{size} held-out rows are too few to choose far-field variance; expected at least {fewest}"
        return FarFieldChoice(0.0, 0.0, 1.0, 0.0, 0.0, size, message)
    share = np.full(size, 1 / size) if weights is None else np.asarray(weights) / np.sum(weights)
    noise = np.sum(rise(score.reshape(size, -1)), axis=1)
    losses: Callable[[float, float], Vector]
    if isinstance(likelihood, Normal):  # in units of the noise; a temperature means nothing
        losses, strengths, scales = (
            _density_losses(likelihood.variance, mean, root, labels, noise),
            [likelihood.variance * s for s in strengths],
            (1.0,),
        )
        centred = mean - share @ mean
    else:
        losses = _Losses(likelihood, mean, root, labels.astype(int), noise)
        centred = mean if mean.ndim == 1 else mean - mean.mean(axis=1, keepdims=True)
    tried = [(0.0, 1.0, losses(0.0, 1.0))]

    def penalised(strength: float, scale: float) -> float:
        return float(share @ losses(strength, scale) + (np.log(scale) / sharpening) ** 2 / (2 * size))

    for strength in sorted(strengths):
        scale = _rising(partial(penalised, strength), scales)
        loss = losses(strength, scale)
        tried.append((strength, scale, loss))
        if float(share @ loss) > min(float(share @ other) for _, _, other in tried) + 4 * most:
            break
    best = min(tried, key=lambda entry: float(share @ entry[2]))[2]
    accepted = []
    for strength, scale, loss in tried:
        (cost, error), (extra, doubt) = (mean_and_error(loss - other, share) for other in (best, tried[0][2]))
        if cost <= min(error, most) + 1e-12 and extra + doubt <= most:
            accepted.append((strength, scale, cost, error))
    accepted = accepted or [(0.0, 1.0, *mean_and_error(tried[0][2] - best, share))]
    strength, scale, cost, error = accepted[-1]
    message = (
        f"far-field variance of strength {strength:.3g}, the largest that costs at most one standard error and {most:g}"
        f" nats: {cost:.4f} nats (standard error {error:.4f}) on {size} held-out rows"
        if strength
        else f"far-field variance beyond the range of {size} held-out rows, which accept none within it"
    )
    beyond = reach * scale**2 * float(np.mean(centred**2))
    return FarFieldChoice(strength, beyond, scale, cost, error, size, message)


def informative_rows(size: int, outputs: int | None, *, most: int = 2000, numbers: int = 2**24) -> Vector:
    """Return the row numbers of a random sample that suffices for `choose`: at most `most` rows, with at most so many
    numbers in the covariances of their logits.

    >>> len(informative_rows(100, None)), len(informative_rows(10_000, 10)), len(informative_rows(10_000, 1000))
    (100, 2000, 16)
    """
    count = min(size, most, numbers // (outputs or 1) ** 2)
    return np.sort(np.random.default_rng(8).choice(size, count, replace=False))


def _rising(value: Callable[[float], float], candidates: Sequence[float]) -> float:
    """Return the last of increasing candidates before the value stops falling."""
    best, lowest = candidates[0], np.inf
    for candidate in sorted(candidates):
        found = value(candidate)
        if found >= lowest:
            break
        best, lowest = candidate, found
    return best


def _density_losses(
    variance: float, mean: Vector, root: Vector, targets: Vector, extent: Vector
) -> Callable[[float, float], Vector]:
    """Return the function of a strength, and of a scale without effect, that gives the log losses (n,) of real targets
    with this variance around a Gaussian mean.
    """
    spread = variance + np.sum(root * root, axis=1)

    def losses(strength: float, _: float) -> Vector:
        total = spread + strength * extent
        return np.asarray((np.log(2 * np.pi * total) + (targets - mean) ** 2 / total) / 2)

    return losses


class _Losses:
    """Log losses (n,) of rows with Gaussian logits, for a strength and a scale; results are kept."""

    def __init__(self, likelihood: Likelihood, mean: Vector, root: Vector, labels: Vector, extent: Vector) -> None:
        self.likelihood, self.mean, self.labels, self.extent = likelihood, mean, labels, extent
        self.found: dict[tuple[float, float], Vector] = {}
        if mean.ndim == 1:
            self.variances = np.sum(root * root, axis=1)
        else:
            self.variances, self.axes = np.linalg.eigh(root @ root.mT)

    def __call__(self, strength: float, scale: float) -> Vector:
        if (strength, scale) not in self.found:
            self.found[strength, scale] = log_losses(self._proba(scale, strength * self.extent), self.labels)
        return self.found[strength, scale]

    def _proba(self, scale: float, noise: Vector) -> Vector:
        mean = scale * self.mean
        if mean.ndim == 1:
            root = np.sqrt(scale**2 * self.variances + noise)[:, None]
            return np.asarray(self.likelihood.predictive(mean, V=root))
        spread = np.sqrt(np.maximum(scale**2 * self.variances, 0.0) + noise[:, None])
        points = cyclic_points(mean.shape[1])
        parts = []
        for rows in row_slices(len(mean), max(1, 2**22 // points.size)):
            logits = mean[rows, None, :] + points @ (self.axes[rows] * spread[rows, None, :]).mT
            parts.append(self.likelihood.mean(logits).mean(axis=1))
        return np.concatenate(parts)
