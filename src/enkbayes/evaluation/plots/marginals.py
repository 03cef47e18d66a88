"""Marginal densities of single parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.posterior import Posterior
from enkbayes.engine.arrays import as_double, to_numpy
from enkbayes.evaluation.plots.style import Vector, look, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def marginal_posterior(
    ax: Axes,
    posterior: Posterior | MixturePosterior,
    parameter: int,
    *,
    name: str = "equilibrium",
    label: str | None = None,
) -> Axes:
    """Draw the marginal density of one parameter: that of N(mean, cov) for a Gaussian posterior or a mixture of them,
    otherwise a kernel density estimate from the particles.

    Examples
    --------
    >>> import enkbayes as eb
    >>> from enkbayes.evaluation.plots import require_matplotlib
    >>> posterior = eb.run(eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0]))
    >>> ax = marginal_posterior(require_matplotlib().Figure().subplots(), posterior, 0)
    >>> x, density = ax.lines[0].get_data()
    >>> bool(np.isclose(x[np.argmax(density)], posterior.mean[0], atol=0.05))
    True
    """
    components, weights = posterior.components, np.asarray(posterior.weights)
    means = np.asarray([float(c.mean[parameter]) for c in components])
    sds = np.asarray([float(c.variances[parameter]) ** 0.5 for c in components])
    if any(c.before is not None or not c.gaussian for c in components) or not sds.all():
        return marginal_draws(ax, posterior.theta[:, parameter], name=name, label=label)
    ends = (means - 4 * sds).min(), (means + 4 * sds).max()
    x = np.linspace(*ends, 401) if len(means) > 1 else means[0] + sds[0] * np.linspace(-4, 4, 201)
    heights = np.exp(-(((x - means[:, None]) / sds[:, None]) ** 2) / 2) / (sds[:, None] * (2 * np.pi) ** 0.5)
    return _density(ax, x, weights @ heights, name, label)


def marginal_draws(
    ax: Axes,
    draws: Any,
    *,
    name: str = "hmc",
    label: str | None = None,
    weights: Any = None,
    filled: bool = False,
) -> Axes:
    """Draw a kernel density estimate from draws (n,) of one parameter, with optional weights (n,). `filled` fills the
    area below the curve, for a reference.

    Examples
    --------
    >>> from enkbayes.evaluation.plots import require_matplotlib
    >>> draws = np.random.default_rng(0).standard_normal(1000)
    >>> ax = marginal_draws(require_matplotlib().Figure().subplots(), draws, filled=True)
    >>> x, density = ax.lines[0].get_data()
    >>> round(float(np.sum(density) * (x[1] - x[0])), 2)
    1.0
    """
    from scipy.stats import gaussian_kde

    draws = as_double(draws)
    if draws.ndim != 1 or len(draws) < 2 or not np.ptp(draws) > 0:
        raise ValueError(f"draws have shape {draws.shape}; expected (n,) with at least two different values and no NaN")
    estimate = gaussian_kde(draws, weights=None if weights is None else to_numpy(weights))
    width = 4 * float(estimate.covariance[0, 0]) ** 0.5
    x = np.linspace(draws.min() - width, draws.max() + width, 401)
    density = estimate(x)
    if filled:
        ax.fill_between(x, density, color=look(name).colour, alpha=0.15, linewidth=0)
    return _density(ax, x, density, name, label)


def _density(ax: Axes, x: Vector, density: Vector, name: str, label: str | None) -> Axes:
    how = look(name)
    ax.plot(x, density, color=how.colour, linestyle=how.line, label=label or name)
    ax.set_ylim(0, None, auto=True)  # auto: a taller curve may follow
    ax.set_ylabel("density")
    return tidy(ax)
