"""The figures behind a verdict: the distance to the true posterior, and the directions that the data inform.

Importance weights w (see `importance.py`) measure the distance. Two figures describe the weights themselves:

    k-hat       shape of their tail (PSIS); above .7 no average of weights is reliable
    effective   their effective sample size, as a share of the draws

The weighted draws also say which parameter has the largest error of its mean, how far variances are off, how far the
mean square of all weights is, and how much of the posterior its interval holds.

The third figure is the distance that they measure, KL(q || posterior) = log E[w] - E[log w], the gap between evidence
and ELBO. Spread over the gamma = tr(I - P P0^{-1}) directions that the data inform, and put into familiar units,

    shift = sqrt(2 KL / gamma)

is the error of a Gaussian whose mean is off by this many standard deviations in each of those directions. The table
shows the figures on seven test problems (`docs/understand/trust.md` describes them) above the true errors of the
Gaussian: of its mean in standard deviations, and the smallest and the mean ratio of its variances to the true ones.
The shift follows the true errors. k-hat and effective share do not, because they also fall with the number of
parameters:

    ==========  ====  ====  ====  ====  =====  ====  ====
    problem      T0    T1    T2    T3     T4    T5    T6
    ==========  ====  ====  ====  ====  =====  ====  ====
    k-hat        .31   .39   .46   .67   1.09   .88   .36
    effective    .97   .88   .78  .011  .0005  .003   .25
    shift        .14   .07   .09   .47    .77   .58   .57
    mean error  .007  .004  .005  .028   .117  .044  .095
    smallest     .96   .91   .86   .63    .37   .48   .39
    mean ratio   .97   .99   .98   .89    .77   .82   .66
    ==========  ====  ====  ====  ====  =====  ====  ====
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from enkbayes.core.mixture import LEAST, MixturePosterior
from enkbayes.core.numerics import in_range
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import as_double, dense_numpy, epsilon, to_numpy
from enkbayes.engine.rows import Chunk, Elsewhere, Sums
from enkbayes.inference.cross_validation import left_out, left_out_of_average
from enkbayes.inference.importance import (
    FEW,
    effective_share,
    smoothed,
    standard_draws,
    weighted_errors,
    weights_at,
)
from enkbayes.inference.leave_one_out import informed_directions
from enkbayes.inference.prediction_verdict import PredictionVerdict, judge_predictions
from enkbayes.inference.trust import PYTHON, Trust

DRAWS = (4_000, 40_000)  # fewest and most draws
WORK, ROOM = 1e9, 2e7  # multiplications that the draws may cost, and numbers that they may hold
LINK = 30  # multiplications that the likelihood of one logit costs
UNJUDGED = ("", "", "")  # verdict, reason and advice before there are any


@in_range("the trust report")
def assess(
    problem: Problem,
    posterior: Posterior | MixturePosterior,
    *,
    draws: int | None = None,
    seed: int = 0,
    predictions: bool = False,
) -> Trust:
    """Return how far to trust a posterior of a problem: a verdict, what to do, and the figures behind them.

    Parameters
    ----------
    problem : Problem
        The problem that was fitted.
    posterior : Posterior or MixturePosterior
        What `run` or `polish` returned for it. The components of a mixture are assessed under their own priors;
        `combined` says how their figures become one.
    draws : int, optional
        Fresh draws of the fitted Gaussian that are weighted. Default: 40,000, and fewer (at least 4,000) if there are
        many rows and parameters.
    seed : int
        Seed of the draws.
    predictions : bool
        Whether to judge predictions, too, by cross-validation. They are left alone where rows are not in memory, logits
        are nonlinear, or there are no classes.

    Examples
    --------
    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((200, 2))
    >>> problem = eb.Problem.create(features, features[:, 0] + features[:, 1] ** 2 > 0.5)
    >>> assess(problem, eb.run(problem)).verdict
    'good'
    """
    draws = affordable(problem) if draws is None else draws
    rank = data_rank(problem)
    if not isinstance(posterior, MixturePosterior):
        figures = _figures(problem, posterior, draws, seed, rank)
    elif posterior.held_out:
        figures = _held_out_figures(problem, posterior, rank)
    else:
        own = zip(posterior.problems(problem), posterior.components, strict=True)
        share = max(draws // len(posterior.components), DRAWS[0])
        parts = [_figures(each, component, share, seed, rank) for each, component in own]
        figures = combined(parts, posterior.weights)
    if predictions:
        figures = replace(figures, predictions=_predictions(problem, posterior))
    return replace(figures, converged=posterior.info.converged).advised(PYTHON)


def held_out_proba(
    problem: Problem, posterior: Posterior | MixturePosterior
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], str] | None:
    """Return rows (n,), their class probabilities (n, K), predicted without them, and how they were found: what the
    verdict on predictions judges. None for rows that are not in memory, nonlinear logits and targets without classes.
    """
    if isinstance(problem.rows, Elsewhere) or not problem.is_linear or problem.likelihood.n_classes is None:
        return None
    return left_out_of_average(problem) if posterior.held_out else left_out(problem, posterior)


def _predictions(problem: Problem, posterior: Posterior | MixturePosterior) -> PredictionVerdict | None:
    """Return the verdict on cross-validated predictions, or None where they cannot be computed."""
    found = held_out_proba(problem, posterior)
    if found is None:
        return None
    rows, proba, method = found
    return judge_predictions(proba, to_numpy(problem.targets)[rows], problem.counts[rows], method=method)


def _held_out_figures(problem: Problem, mixture: MixturePosterior, rank: int | None) -> Trust:
    """Return the report on an average that held-out rows have scaled: there is no exact posterior to compare with."""
    fitted = mixture.heaviest.fitted
    return Trust(
        *UNJUDGED,
        residual=mixture.info.residual,
        data_rank=rank,
        spanned=fitted.freedom,
        particles=fitted.size,
        parameters=problem.dim,
        held_out=True,
    )


def combined(parts: Sequence[Trust], weights: Sequence[float]) -> Trust:
    """Return the figures of a mixture from those of its components: averages of distances, KL(q || posterior) of a
    mixture being at most the average of its components', and the worst of what can go wrong in a component that weighs
    at least LEAST.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> one = eb.assess(problem, eb.run(problem))
    >>> combined([one, replace(one, shift=3 * one.shift)], (0.5, 0.5)).shift / one.shift > 2
    True
    """
    shares = np.asarray(weights) / np.sum(weights)
    heavy = [part for part, share in zip(parts, shares, strict=True) if share >= LEAST]
    spread = [part for part in heavy if part.spanned] or heavy  # point estimates span nothing, and mean to

    def average(values: Sequence[float]) -> float:
        known = ~np.isnan(values)
        return float(shares[known] @ np.asarray(values)[known] / shares[known].sum()) if known.any() else math.nan

    def worst(values: Sequence[float]) -> float:
        return max((x for x in values if not math.isnan(x)), default=math.nan)

    return replace(
        parts[int(np.argmax(shares))],
        residual=worst([part.residual for part in heavy]),
        k_hat=worst([part.k_hat for part in heavy]),
        effective=average([part.effective for part in parts]),
        draws=sum(part.draws for part in parts),
        shift=math.sqrt(average([part.shift**2 for part in parts])),
        informed=average([part.informed for part in parts]),
        spanned=min(part.spanned for part in spread),
        sweeps=min(part.sweeps for part in spread),
        drift=worst([part.drift for part in spread]),
        worst=worst([part.worst for part in heavy]),
        variances=math.exp(average([math.log(part.variances) for part in parts])),
        norm=average([part.norm for part in parts]),
        coverage=average([part.coverage for part in parts]),
    )


def _figures(problem: Problem, posterior: Posterior, draws: int, seed: int, rank: int | None) -> Trust:
    """Return the figures of one posterior, without a verdict; `rank` is that of the data."""
    info, fitted = posterior.info, posterior.fitted
    figures = Trust(
        *UNJUDGED,
        residual=info.residual,
        informed=informed_directions(problem, fitted),
        data_rank=rank,
        spanned=fitted.freedom,
        particles=posterior.ensemble.size,
        parameters=problem.dim,
        nonlinearity=info.nonlinearity,
        sweeps=info.sweeps,
        drift=info.drift,
        converged=info.converged,
    )
    if not posterior.has_gaussian or fitted.freedom == 0:
        return figures
    with np.errstate(over="ignore", invalid="ignore"):  # figures that are not finite are reported below
        z = standard_draws(draws, fitted, seed)
        weights, k_hat = smoothed(weights_at(problem, fitted, z))
        errors = weighted_errors(problem, fitted.gaussian, z, weights)
        return replace(
            figures,
            k_hat=k_hat,
            effective=effective_share(weights),
            draws=draws,
            shift=shift(weights, figures.informed),
            worst=errors.mean,
            parameter=errors.parameter,
            variances=errors.variances,
            norm=errors.norm,
            coverage=errors.coverage,
        )


def shift(weights: np.ndarray[Any, Any], informed: float) -> float:
    """Return sqrt(2 KL / gamma) of log importance weights, KL = log E[w] - E[log w], with gamma not below 1.

    Where a few draws have all the weight, log E[w] is out of their reach, and the estimate too small. It is that of the
    normal distribution then whose median and 97.5 % quantile log w has, if that is larger: .76 on T4, whose evidence by
    path sampling gives .76.

    A mean that is off by .3 standard deviations in one direction:

    >>> z = np.random.default_rng(0).standard_normal(100_000)
    >>> round(shift(-((z - 0.3) ** 2 - z**2) / 2, informed=1.0), 2)
    0.3
    """
    top = float(np.max(weights))
    distance = top + math.log(float(np.mean(np.exp(weights - top)))) - float(np.mean(weights))
    if effective_share(weights) * len(weights) < FEW:
        middle, upper = np.quantile(weights, [0.5, 0.975])
        distance = max(distance, middle + ((upper - middle) / 1.96) ** 2 / 2 - float(np.mean(weights)))
    return math.sqrt(2 * max(distance, 0.0) / max(informed, 1.0))


def data_rank(problem: Problem, *, most: int = 2000) -> int | None:
    """Return the number of directions of the parameters that the likelihood depends on; None for nonlinear logits.

    It is the rank of the features, constant included, times the number of logits; K - 1 for the K logits of a softmax,
    whose common shift changes nothing. The rank is counted up to `most`, through random mixtures of the features if
    there are more.

    >>> data_rank(Problem.create([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]], [0, 1, 1], intercept=1.0))
    2
    """
    if not problem.is_linear:
        return None
    linear, mix, enough = problem.linear_logits("the rank of the data"), None, min(problem.size + 1, most)
    if linear.features > enough:  # random mixtures of the features have the same rank
        mix = np.random.default_rng(0).standard_normal((linear.features, enough))

    def contribution(chunk: Chunk) -> Sums:
        x = as_double(chunk.features) if mix is None else dense_numpy(chunk.features) @ mix
        x = np.hstack([x, np.ones((len(x), 1))]) if linear.intercept else x
        return (np.asarray(x.T @ x),)

    (gram,) = problem.rows.sum(contribution)
    scale = np.sqrt(np.where(np.diag(gram) > 0, np.diag(gram), 1.0))
    spectrum = np.linalg.eigvalsh(gram / scale / scale[:, None])
    rank = int(np.sum(spectrum > len(spectrum) * epsilon(problem.prior.mean) * spectrum[-1]))
    return rank * ((linear.outputs or 1) - problem.likelihood.shift_invariant)


def affordable(problem: Problem) -> int:
    """Return the number of draws that cost about WORK multiplications, within the bounds of DRAWS."""
    outputs = problem.likelihood.outputs or 1
    work = problem.size * outputs * (problem.dim / outputs + LINK)
    return int(np.clip(min(WORK / work, ROOM / problem.dim), *DRAWS))
