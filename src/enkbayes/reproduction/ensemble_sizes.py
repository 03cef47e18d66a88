"""Figure 5: the effect of the number of particles, and the distance of each ensemble to its mean-field limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.evaluation import metrics, plots
from enkbayes.evaluation.baselines import Ensemble
from enkbayes.reproduction.figures import ZOOM, settings
from enkbayes.reproduction.findings import Claim, Drawing, Estimate, Findings, Setting, Table, judged
from enkbayes.reproduction.methods import MOONS, TITLES, Predict, Study, algorithm_2, gaussian_predict, study
from enkbayes.reproduction.scores import circle, distance, near_grid
from enkbayes.reproduction.sizes import Run, Size
from enkbayes.reproduction.theory import homotopy_flow, mean_field_path
from enkbayes.samplers import Sampler, TamedHomotopy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Vector = np.ndarray[Any, Any]
SIZES = (30, 50, 100, 200, 300)
D = 50
HIGH = 0.9
"""A confidence above this counts as high."""

MAPS = f"Ten confidence maps: two algorithms with J = {', '.join(map(str, SIZES))} particles."

ALGORITHMS: dict[str, Callable[[Size], Sampler]] = {
    "tamed-homotopy": lambda size: TamedHomotopy(ds=size.ds),
    "trotter": lambda _: algorithm_2(),
}


def figure5(run: Run) -> Findings:
    """Figure 5: confidence maps for every ensemble size, and the distance to the mean-field limit."""
    here = study(MOONS, run.size, 0, run.cache)
    limits = _limits(here)
    near, far = near_grid(here.data.train), circle(here.data.train)
    distances, fars, confident = (_empty(run.size.sweep) for _ in range(3))
    shown: dict[tuple[str, int], Predict] = {}
    work = [(name, size, repeat) for repeat in range(run.size.sweep) for name in ALGORITHMS for size in SIZES]
    for i, (name, size, repeat) in enumerate(work):
        run.progress(0.9 * i / len(work), f"{TITLES[name]}, J = {size}, repetition {repeat + 1}")
        predict = _fitted(here, name, size, repeat)
        shown.setdefault((name, size), predict)
        distances[name, size][repeat] = distance(predict, limits[name], near)
        fars[name, size][repeat] = float(np.mean(metrics.confidence(predict(far))))
        confident[name, size][repeat] = _confident_share(here, predict)
    table = Table(
        "sizes",
        "Means over the repetitions: distance of predictions to the mean-field limit, far-field confidence, and the "
        f"share of the map, zoomed out {ZOOM:g} times, where confidence is above {HIGH}.",
        ("method", "J", "distance", "standard error", "far-field confidence", f"share above {HIGH}"),
        tuple(
            (TITLES[n], J, (e := Estimate.of(distances[n, J])).mean, e.error, fars[n, J].mean(), confident[n, J].mean())
            for n, J in distances
        ),
    )
    each = tuple((n, J, i, float(x)) for (n, J), values in distances.items() for i, x in enumerate(values))
    every = Table("repetitions", "The distance in every repetition.", ("method", "J", "repetition", "distance"), each)
    drawings = (
        Drawing("maps", _maps(here, shown, run.size), MAPS, "Rows: Algorithm 1 and Algorithm 2. Columns: J. Seed 0."),
        Drawing(
            "limit",
            _curves(distances),
            "Distance to the mean-field limit against the number of particles, for both algorithms.",
            "Mean difference of probabilities from the mean-field limit: median, 10 % and 90 % quantiles.",
        ),
    )
    own = Setting(
        "ensembles",
        "drawn from the prior, whitened for J > D",
        "ours",
        "not stated; this keeps the moments of the prior",
    )
    claims = (
        _converges(distances),
        _better_above(distances),
        _better_than_mle(here, run, near),
        _concentrates(confident),
    )
    return Findings(claims, (table, every), drawings, (*settings(run), own))


def _empty(repeats: int) -> dict[tuple[str, int], Vector]:
    return {(name, size): np.empty(repeats) for name in ALGORITHMS for size in SIZES}


def _fitted(here: Study, name: str, particles: int, repeat: int) -> Predict:
    method = Ensemble(name, ALGORITHMS[name](here.size), particles)
    return here.last_layer(name, method, seed=10_000 + repeat).predict


def _limits(here: Study) -> dict[str, Predict]:
    """Return the predictions of both mean-field limits."""
    problem = here.problem()
    homotopy = mean_field_path(problem, problem.prior, [0.0, 1.0], homotopy_flow)[-1]
    return {"tamed-homotopy": gaussian_predict(here, homotopy), "trotter": here.fit("mean-field").predict}


def _confident_share(here: Study, predict: Predict) -> float:
    """Return the share of the zoomed-out map where confidence is high."""
    at, _ = plots.data_grid(here.data.train, zoom=ZOOM, resolution=40)
    return float(np.mean(metrics.confidence(predict(at)) > HIGH))


def _maps(here: Study, shown: dict[tuple[str, int], Predict], size: Size) -> Figure:
    figure: Figure = plots.require_matplotlib().Figure(figsize=(12.5, 5.4), layout="constrained")
    axes = figure.subplots(2, len(SIZES))
    for row, name in zip(axes, ALGORITHMS, strict=True):
        for ax, particles in zip(row, SIZES, strict=True):
            data = here.data
            plots.data_map(ax, shown[name, particles], data.train, data.train_labels, resolution=size.resolution)
            ax.set_title(f"J = {particles}", fontsize=11)
            ax.set(xticks=[], yticks=[])
        row[0].set_ylabel(TITLES[name], fontsize=11)
    bar = figure.colorbar(axes[0, 0].collections[0], ax=list(axes.ravel()), shrink=0.7, pad=0.01)
    bar.set_label("confidence")
    bar.outline.set_visible(False)
    return figure


def _curves(distances: dict[tuple[str, int], Vector]) -> Figure:
    figure: Figure = plots.require_matplotlib().Figure(figsize=(6.0, 4.2), layout="constrained")
    ax = figure.subplots()
    for name in ALGORITHMS:
        values = np.stack([distances[name, size] for size in SIZES])
        plots.size_sweep(ax, SIZES, values, name=name, label=TITLES[name], ylabel="distance to the mean-field limit")
    ax.axvline(D, color="#999999", linewidth=1, linestyle=":", label=f"D = {D}")
    ax.legend(frameon=False)
    return figure


def _converges(distances: dict[tuple[str, int], Vector]) -> Claim:
    last = {name: Estimate.of(distances[name, SIZES[-1]]) for name in ALGORITHMS}
    first = {name: Estimate.of(distances[name, SIZES[0]]) for name in ALGORITHMS}
    return judged(
        "At J = 300 the particle systems have converged to their mean-field limit.",
        "; ".join(
            f"{TITLES[n]}: distance {first[n].mean:.4f} at J = 30, {last[n].mean:.4f} at J = 300" for n in ALGORITHMS
        )
        + ".",
        holds=all(e.mean < 0.01 for e in last.values()) and all(last[n].mean < first[n].mean for n in ALGORITHMS),
        partly=any(e.mean < 0.01 for e in last.values()),
        why="The rest is the error of the time step, which more particles do not remove: the splitting of Algorithm 2 "
        "widens the ensemble, and the explicit mean step of Algorithm 1 lags behind.",
    )


def _better_above(distances: dict[tuple[str, int], Vector]) -> Claim:
    gaps = {name: Estimate.of(distances[name, 50] - distances[name, 100]) for name in ALGORITHMS}
    return judged(
        "Ensembles with J > D give better uncertainty than those with J <= D.",
        "Distance at J = 50 minus that at J = 100: "
        + ", ".join(f"{gap.mean:.4f} ± {gap.error:.4f} ({TITLES[name]})" for name, gap in gaps.items())
        + ".",
        holds=all(gap.above(0) for gap in gaps.values()),
        partly=any(gap.mean > 0 for gap in gaps.values()),
    )


def _better_than_mle(here: Study, run: Run, near: Vector) -> Claim:
    run.progress(0.93, "a long NUTS run")
    reference = here.fit("reference").predict
    mle = distance(here.fit("mle").predict, reference, near)
    small = {
        name: Estimate.of([distance(_fitted(here, name, SIZES[0], repeat), reference, near) for repeat in range(3)])
        for name in ALGORITHMS
    }
    return judged(
        "Even with J < D uncertainty near the decision boundary is better than that of the MLE.",
        f"Distance to a long NUTS run: MLE {mle:.4f}; with J = 30 particles, "
        + ", ".join(f"{TITLES[name]} {e.mean:.4f} ± {e.error:.4f}" for name, e in small.items())
        + ".",
        holds=all(e.below(mle) for e in small.values()),
        partly=any(e.mean < mle for e in small.values()),
        why="Thirty random particles span 29 of 50 directions. The missing directions cost more accuracy than the "
        "posterior gains.",
    )


def _concentrates(confident: dict[tuple[str, int], Vector]) -> Claim:
    ends = {name: (float(confident[name, 30].mean()), float(confident[name, 300].mean())) for name in ALGORITHMS}
    return judged(
        "With more particles the region of high confidence shrinks towards the training data.",
        "; ".join(
            f"{TITLES[name]}: confidence is above {HIGH} on {100 * a:.0f} % of the zoomed-out map at J = 30 and on "
            f"{100 * b:.0f} % at J = 300"
            for name, (a, b) in ends.items()
        )
        + ".",
        holds=all(b < a for a, b in ends.values()),
        partly=any(b < a for a, b in ends.values()),
    )
