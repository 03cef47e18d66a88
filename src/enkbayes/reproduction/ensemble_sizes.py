"""Figure 5: what the number of particles does, and how far each ensemble is from its mean-field limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.evaluation import metrics, plots
from enkbayes.evaluation.baselines import Ensemble
from enkbayes.reproduction.estimates import Estimate
from enkbayes.reproduction.figures import ZOOM, settings
from enkbayes.reproduction.findings import Claim, Drawing, Findings, Setting, Table, judged
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
SURE = 0.9

ALGORITHMS: dict[str, Callable[[Size], Sampler]] = {
    "tamed-homotopy": lambda size: TamedHomotopy(ds=size.ds),
    "trotter": lambda _: algorithm_2(),
}


def figure5(run: Run) -> Findings:
    """Maps for every ensemble size, and the distance to the mean-field limit as a curve."""
    here = study(MOONS, run.size, 0, run.keep)
    limits = _limits(here)
    near, far = near_grid(here.data.train), circle(here.data.train)
    apart, fars, sures = (_empty(run.size.sweep) for _ in range(3))
    shown: dict[tuple[str, int], Predict] = {}
    work = [(name, size, repeat) for repeat in range(run.size.sweep) for name in ALGORITHMS for size in SIZES]
    for i, (name, size, repeat) in enumerate(work):
        run.tell(0.9 * i / len(work), f"{TITLES[name]}, J = {size}, repetition {repeat + 1}")
        predict = _fitted(here, name, size, repeat)
        shown.setdefault((name, size), predict)
        apart[name, size][repeat] = distance(predict, limits[name], near)
        fars[name, size][repeat] = float(np.mean(metrics.confidence(predict(far))))
        sures[name, size][repeat] = _sure_share(here, predict)
    table = Table(
        "sizes",
        "Means over the repetitions: distance of predictions to the mean-field limit, far-field confidence, and the "
        f"share of the map, zoomed out {ZOOM:g} times, where confidence is above {SURE}.",
        ("method", "J", "distance", "distance, error", "far-field confidence", "sure share"),
        tuple(
            (TITLES[n], J, (e := Estimate.of(apart[n, J])).mean, e.error, fars[n, J].mean(), sures[n, J].mean())
            for n, J in apart
        ),
    )
    each = tuple((n, J, i, float(x)) for (n, J), values in apart.items() for i, x in enumerate(values))
    every = Table("repetitions", "The distance in every repetition.", ("method", "J", "repetition", "distance"), each)
    drawings = (
        Drawing("maps", _maps(here, shown, run.size), _words(), "Rows: Algorithm 1, Algorithm 2; columns: J. Seed 0."),
        Drawing(
            "limit",
            _curves(apart),
            "Distance to the mean-field limit against the number of particles, for both algorithms.",
            "Mean difference of predicted probabilities to the mean-field limit: median, 10 and 90 % quantiles.",
        ),
    )
    own = Setting("ensembles", "drawn from the prior, whitened for J > D", "ours", "unsaid; keeps the prior's moments")
    claims = (_converges(apart), _better_above(apart), _better_than_mle(here, run, near), _closer(sures))
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


def _sure_share(here: Study, predict: Predict) -> float:
    points = here.data.train
    centre = (points.min(axis=0) + points.max(axis=0)) / 2
    at, _ = plots.grid(centre, ZOOM * 1.15 * float(np.max(points.max(axis=0) - centre)), 40)
    return float(np.mean(metrics.confidence(predict(at)) > SURE))


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


def _words() -> str:
    return f"Ten maps of confidence: two algorithms with J = {', '.join(map(str, SIZES))} particles."


def _curves(apart: dict[tuple[str, int], Vector]) -> Figure:
    figure: Figure = plots.require_matplotlib().Figure(figsize=(6.0, 4.2), layout="constrained")
    ax = figure.subplots()
    for name in ALGORITHMS:
        values = np.stack([apart[name, size] for size in SIZES])
        plots.size_sweep(ax, SIZES, values, name=name, label=TITLES[name], ylabel="distance to the mean-field limit")
    ax.axvline(D, color="#999999", linewidth=1, linestyle=":", label=f"D = {D}")
    ax.legend(frameon=False)
    return figure


def _converges(apart: dict[tuple[str, int], Vector]) -> Claim:
    last = {name: Estimate.of(apart[name, SIZES[-1]]) for name in ALGORITHMS}
    first = {name: Estimate.of(apart[name, SIZES[0]]) for name in ALGORITHMS}
    return judged(
        "At J = 300 the particle systems have converged to their mean-field limit.",
        "; ".join(
            f"{TITLES[n]}: distance {first[n].mean:.4f} at J = 30, {last[n].mean:.4f} at J = 300" for n in ALGORITHMS
        )
        + ".",
        holds=all(e.mean < 0.01 for e in last.values()) and all(last[n].mean < first[n].mean for n in ALGORITHMS),
        partly=any(e.mean < 0.01 for e in last.values()),
        why="What is left is the time step, which no number of particles removes: the splitting of Algorithm 2 widens "
        "the ensemble, the explicit mean step of Algorithm 1 lags.",
    )


def _better_above(apart: dict[tuple[str, int], Vector]) -> Claim:
    gaps = {name: Estimate.of(apart[name, 50] - apart[name, 100]) for name in ALGORITHMS}
    return judged(
        "Ensembles with J > D give better uncertainty than those with J <= D.",
        "Distance at J = 50 minus that at J = 100: "
        + ", ".join(f"{gap.mean:.4f} ± {gap.error:.4f} ({TITLES[name]})" for name, gap in gaps.items())
        + ".",
        holds=all(gap.above(0) for gap in gaps.values()),
        partly=any(gap.mean > 0 for gap in gaps.values()),
    )


def _better_than_mle(here: Study, run: Run, near: Vector) -> Claim:
    run.tell(0.93, "a long NUTS run")
    judge = here.fit("judge").predict
    mle = distance(here.fit("mle").predict, judge, near)
    small = {
        name: Estimate.of([distance(_fitted(here, name, SIZES[0], repeat), judge, near) for repeat in range(3)])
        for name in ALGORITHMS
    }
    return judged(
        "Even with J < D uncertainty near the decision boundary is better than the MLE's.",
        f"Distance to NUTS: MLE {mle:.4f}, "
        + ", ".join(f"{TITLES[name]} with J = 30 {e.mean:.4f} ± {e.error:.4f}" for name, e in small.items())
        + ".",
        holds=all(e.below(mle) for e in small.values()),
        partly=any(e.mean < mle for e in small.values()),
        why="Thirty random particles span 29 of 50 directions; what they miss costs more than the posterior gains.",
    )


def _closer(sures: dict[tuple[str, int], Vector]) -> Claim:
    ends = {name: (float(sures[name, 30].mean()), float(sures[name, 300].mean())) for name in ALGORITHMS}
    return judged(
        "With more particles the region of high confidence closes in on the training data.",
        "; ".join(
            f"{TITLES[name]}: confidence is above {SURE} on {100 * a:.0f} % of the zoomed-out map at J = 30 and on "
            f"{100 * b:.0f} % at J = 300"
            for name, (a, b) in ends.items()
        )
        + ".",
        holds=all(b < a for a, b in ends.values()),
        partly=any(b < a for a, b in ends.values()),
    )
