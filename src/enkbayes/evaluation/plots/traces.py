"""The convergence of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import to_numpy
from enkbayes.evaluation.plots.style import PALE, Vector, look, tidy
from enkbayes.samplers import State

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


@dataclass(frozen=True, eq=False)
class Trace:
    """The course of a run, (T,) each: steps, residual (natural-gradient norm, NaN if the sampler does not compute it)
    and spread, the trace of the ensemble's covariance P.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> trace = Trace.of(eb.iterate(problem))  # or: states = []; eb.run(problem, callback=states.append)
    >>> int(trace.steps[0]), round(float(trace.spread[0]), 6)  # the prior
    (0, 1.0)
    """

    steps: Vector
    residual: Vector
    spread: Vector

    @classmethod
    def of(cls, states: Iterable[State], problem: Problem | None = None) -> Trace:
        """Return the trace from the states of a run, as `iterate` yields them and `run` passes them to its callback.

        If the problem is given, residuals that the sampler does not compute are computed here from averages over the
        particles, at the cost of one pass over the data each.
        """
        rows = [(s.steps, _residual(s, problem), float(np.sum(to_numpy(s.ensemble.variances)))) for s in states]
        steps, residual, spread = np.asarray(rows, dtype=np.float64).reshape(-1, 3).T
        if len(steps) == 0:
            raise ValueError("there are no states; pass those of eb.iterate, which can be read only once")
        return cls(steps.astype(int), residual, spread)


def residual_trace(ax: Axes, trace: Trace, *, name: str = "equilibrium", label: str | None = None) -> Axes:
    """Draw the residual of a run against its steps, on a logarithmic axis.

    Examples
    --------
    >>> import enkbayes as eb
    >>> from enkbayes.evaluation.plots import require_matplotlib
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> ax = residual_trace(require_matplotlib().Figure().subplots(), Trace.of(eb.iterate(problem)))
    >>> ax.get_yscale(), bool(ax.lines[0].get_ydata()[-1] < 1e-6)
    ('log', True)
    """
    ax.set_yscale("log")
    finite = np.isfinite(trace.residual)
    _curve(ax, trace.steps[finite], trace.residual[finite], name, label or name)
    ax.set(xlabel="steps", ylabel="residual (natural-gradient norm)")
    return tidy(ax)


def spread_trace(ax: Axes, trace: Trace, *, name: str = "equilibrium", label: str | None = None) -> Axes:
    """Draw the spread of the ensemble, the trace of P, against the steps of a run.

    The axis is logarithmic if the values span a factor of more than 30.

    Examples
    --------
    >>> import enkbayes as eb
    >>> from enkbayes.evaluation.plots import require_matplotlib
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> trace = Trace.of(eb.iterate(problem, eb.Homotopy(steps=3)))
    >>> spread_trace(require_matplotlib().Figure().subplots(), trace, name="homotopy").lines[0].get_xdata().tolist()
    [0, 1, 2, 3]
    """
    _curve(ax, trace.steps, trace.spread, name, label or name)
    ax.set(xlabel="steps", ylabel="trace of P", yscale=_scale(ax.lines))
    return tidy(ax)


def convergence_trace(ax: Axes, trace: Trace, *, name: str = "equilibrium") -> Axes:
    """Draw residual (left axis, solid) and trace of P (right axis, dashed) of one run against its steps.

    A run without residuals, such as a homotopy, shows only the trace of P, on the left axis.

    Examples
    --------
    >>> import enkbayes as eb
    >>> from enkbayes.evaluation.plots import require_matplotlib
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> ax = convergence_trace(require_matplotlib().Figure().subplots(), Trace.of(eb.iterate(problem)))
    >>> [one.get_ylabel() for one in ax.figure.axes]
    ['residual (natural-gradient norm)', 'trace of P']
    """
    if not np.any(np.isfinite(trace.residual)):
        return spread_trace(ax, trace, name=name)
    residual_trace(ax, trace, name=name, label="residual (left)")
    right = ax.twinx()
    (line,) = right.plot(trace.steps, trace.spread, color=PALE, linestyle="--", label="trace of P (right)")
    right.set(ylabel="trace of P", yscale=_scale([line]))
    right.spines["top"].set_visible(False)
    ax.legend(handles=[ax.lines[-1], line], frameon=False)
    return ax


def _residual(state: State, problem: Problem | None) -> float:
    if problem is None or np.isfinite(state.residual):
        return state.residual
    return float(problem.potential_moments(state.ensemble).residual)


def _curve(ax: Axes, x: Vector, y: Vector, name: str, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    how = look(name)
    marker = how.marker if len(x) <= 40 else ""
    ax.plot(x, y, color=how.colour, linestyle=how.line, marker=marker, markersize=5, label=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))  # steps are whole numbers


def _scale(lines: Iterable[Line2D]) -> str:
    """Return "log" if the curves span a wide range, of which a linear axis would show only the upper end."""
    y = np.concatenate([np.asarray(line.get_ydata()) for line in lines])
    return "log" if y.min() > 0 and y.max() > 30 * y.min() else "linear"
