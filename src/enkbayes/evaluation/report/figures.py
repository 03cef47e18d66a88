"""The pictures of the trust report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from enkbayes.core.mixture import LEAST, MixturePosterior
from enkbayes.core.posterior import Info, Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import to_numpy
from enkbayes.evaluation import plots
from enkbayes.evaluation.metrics import confidence
from enkbayes.evaluation.plots.style import INSIDE, OUTSIDE, tidy
from enkbayes.evaluation.report.page import Picture, picture
from enkbayes.inference.assessment import affordable
from enkbayes.inference.importance import weighted_draws
from enkbayes.inference.polishing import polish
from enkbayes.inference.trust import CLOSE, MOVING, Trust

Vector = np.ndarray[Any, Any]
SIZE = (4.6, 3.5)
SMALL = (3.4, 2.3)
SWEEPS = 20


def reliability(proba: Vector, targets: Vector) -> Picture:
    """Draw the reliability diagram."""
    figure = plots.require_matplotlib().Figure(figsize=SIZE, layout="constrained")
    ax = plots.reliability_diagram(figure.subplots(), proba, targets, label="model")
    ax.legend(loc="lower right" if ax.get_xlim()[0] > 0.3 else "upper left", frameon=False, fontsize=9)
    return picture(figure, "Reliability diagram: accuracy against confidence in bins, with the number of rows in each.")


def confidences(proba: Vector, targets: Vector) -> Picture:
    """Draw histograms of the confidence of correct and of wrong predictions."""
    figure = plots.require_matplotlib().Figure(figsize=SIZE, layout="constrained")
    ax = figure.subplots()
    top, correct = confidence(proba), np.argmax(proba, axis=1) == targets
    edges = np.linspace(1 / proba.shape[1], 1, 21)
    for rows, colour, name in ((correct, INSIDE, "correct"), (~correct, OUTSIDE, "wrong")):
        count = np.histogram(np.minimum(top[rows], 1), edges)[0]
        ax.stairs(count, edges, fill=True, color=colour, alpha=0.3)
        ax.stairs(count, edges, color=colour, linewidth=1.5, label=f"{name} ({int(rows.sum()):,})")
    ax.set_yscale("log")  # so that a few wrong rows are visible next to many correct ones
    ax.set_ylim(0.7, None)
    ax.set(xlabel="confidence", ylabel="rows", xlim=(edges[0], 1))
    ax.legend(frameon=False, fontsize=9, loc="upper left")
    tidy(ax)
    share, wrong = np.mean(top > 0.9), int((~correct).sum())
    alt = f"Histogram of confidence: {100 * share:.0f} % of the rows are above 0.9; {wrong} predictions are wrong."
    return picture(figure, alt)


def convergence(info: Info) -> Picture | None:
    """Draw residual and spread of the run; return None if the run has no trace."""
    if len(info.trace) < 2:
        return None
    steps, residual, spread = np.asarray(info.trace, dtype=np.float64).T
    figure = plots.require_matplotlib().Figure(figsize=SIZE, layout="constrained")
    plots.convergence_trace(figure.subplots(), plots.Trace(steps.astype(int), residual, spread))
    return picture(figure, f"Residual and spread of the ensemble over the {int(steps[-1])} steps of the run.")


def leading(posterior: Posterior | MixturePosterior, count: int = 6) -> list[int]:
    """Return the parameters whose means differ most from zero, in standard deviations.

    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((80, 3))
    >>> leading(eb.run(eb.Problem.create(features, features[:, 1] > 0)), 1)
    [1]
    """
    seen = _fitted(posterior)
    z = np.abs(to_numpy(seen.mean)) / np.sqrt(to_numpy(seen.variances))
    return [int(i) for i in np.argsort(-z, kind="stable")[:count]]


def marginals(
    problem: Problem, posterior: Posterior | MixturePosterior, trust: Trust, names: Sequence[str]
) -> tuple[str, list[Picture]]:
    """Draw fitted Gaussian and true posterior of the leading parameters; say how the true posterior was computed."""
    columns = leading(posterior)
    gaussian = _fitted(posterior)
    words, draws, weights = true_posterior(problem, posterior, trust, columns)
    pictures = []
    for draw, column in zip(draws.T, columns, strict=True):
        figure = plots.require_matplotlib().Figure(figsize=SMALL, layout="constrained")
        ax = plots.marginal_posterior(figure.subplots(), gaussian, column, label="fitted Gaussian")
        plots.marginal_draws(ax, draw, weights=weights, filled=True, label="posterior")
        ax.set_title(names[column], fontsize=10, loc="left")
        ax.set(ylabel="", yticks=[])
        ax.spines["left"].set_visible(False)
        if column == columns[0]:
            ax.legend(frameon=False, fontsize=8)
        mean = float(gaussian.mean[column])
        sd = float(gaussian.variances[column]) ** 0.5
        alt = f"Marginal posterior of {names[column]}: Gaussian with mean {mean:.2f} and standard deviation {sd:.2f}."
        pictures.append(picture(figure, alt))
    return words, pictures


def _fitted(posterior: Posterior | MixturePosterior) -> Posterior | MixturePosterior:
    """Return the Gaussian, or the mixture of Gaussians, that was fitted."""
    return posterior.with_components(
        replace(c, ensemble=c.fitted, before=None, gaussian=True) for c in posterior.components
    )


def true_posterior(
    problem: Problem, posterior: Posterior | MixturePosterior, trust: Trust, columns: Sequence[int]
) -> tuple[str, Vector, Vector]:
    """Return a description, draws (S, c) and weights (S,) of the true posterior. Those of a mixture come from the
    components that weigh at least LEAST.
    """
    found, shares = [], []
    for own, part, weight in zip(posterior.problems(problem), posterior.components, posterior.weights, strict=True):
        if weight >= min(LEAST, max(posterior.weights)):
            words, draws, within = _true_posterior(own, part, trust, columns)
            found.append(draws)
            shares.append(weight * within / within.sum())
    return words, np.concatenate(found), np.concatenate(shares)


def _true_posterior(
    problem: Problem, posterior: Posterior, trust: Trust, columns: Sequence[int]
) -> tuple[str, Vector, Vector]:
    """Return the same for a single posterior.

    They are the user's polished particles if there are some, importance-weighted draws if the Gaussian is close, and
    otherwise particles that are polished here.
    """
    if trust.sweeps and trust.drift < MOVING:
        return "the polished particles", to_numpy(posterior.theta)[:, columns], np.ones(posterior.ensemble.size)
    if trust.shift < CLOSE:
        draws, log_w = weighted_draws(problem, posterior, min(trust.draws, 10_000), columns, seed=1)
        return "the true posterior, computed by importance sampling", draws, np.exp(log_w - np.max(log_w))
    size = int(np.clip(affordable(problem) // 20, 200, 1000))
    z = np.random.default_rng(2).standard_normal((size, posterior.fitted.rank))
    start = replace(posterior.fitted, points=z)
    fresh = replace(posterior, ensemble=start, before=None, info=replace(posterior.info, sweeps=0))
    draws = to_numpy(polish(problem, fresh, SWEEPS).theta)[:, columns]
    return f"the true posterior, from {size} particles polished for {SWEEPS} sweeps", draws, np.ones(size)
