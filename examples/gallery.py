"""Every kind of figure in enkbayes.evaluation.plots, drawn from real fits into a folder, and one page with all of them.

    python examples/gallery.py --out gallery

Two moons and four blobs: 40 random ReLU features. Breast cancer: logistic regression on 150 rows. Digits: softmax
regression on 20 principal components of 0 to 7; 8 and 9 are out of distribution. Needs the extra `plots`; about a
minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits, make_blobs, make_moons
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import enkbayes as eb
from enkbayes.evaluation import metrics, plots
from enkbayes.samplers import Sampler

Array = np.ndarray


@dataclass(frozen=True)
class Size:
    """How much work goes into the pictures."""

    resolution: int = 200
    digits: int = 700
    repeats: int = 20
    particles: tuple[int, ...] = (40, 80, 160, 320, 640)
    trotter_steps: int = 400


SMALL = Size(resolution=40, digits=100, repeats=2, particles=(50, 100), trotter_steps=20)


class Plane:
    """Points of the plane, and two fits of 40 random ReLU features of them: a point estimate and a posterior."""

    def __init__(self, points: Array, labels: Array, sampler: Sampler) -> None:
        self.points, self.labels = points, labels
        rng = np.random.default_rng(0)
        self.weights, self.bias = rng.standard_normal((2, 40)), rng.uniform(-2, 2, 40)
        features = self.features(points)
        self.point = LogisticRegression(C=1e4, max_iter=10_000, fit_intercept=False).fit(features, labels)
        self.posterior = eb.run(eb.Problem.create(features, labels, 10.0), sampler)

    def features(self, points: Array) -> Array:
        """Return the features (n, 40)."""
        return np.maximum(points @ self.weights + self.bias, 0) / 2

    def mle(self, points: Array) -> Array:
        """Return the point estimate's probabilities (n, K)."""
        return self.point.predict_proba(self.features(points))

    def bayes(self, points: Array) -> Array:
        """Return the posterior's probabilities (n, K)."""
        return self.posterior.predict_proba(self.features(points))


@dataclass(frozen=True, eq=False)
class Table:
    """A problem, test rows with their labels, and what point estimate and posterior predict for them."""

    problem: eb.Problem
    test: Array
    labels: Array
    point: Array
    posterior: eb.Posterior

    @classmethod
    def fit(cls, train: Array, test: Array, d: Array, labels: Array, sampler: Sampler) -> Table:
        """Return the fits, with prior N(0, 1) for the weights and N(0, 10) for the intercepts."""
        point = LogisticRegression(C=1e4, max_iter=10_000).fit(train, d).predict_proba(test)
        problem = eb.Problem.create(train, d, 1.0, intercept=10.0)
        return cls(problem, test, labels, point, eb.run(problem, sampler))

    @property
    def proba(self) -> Array:
        """What the posterior predicts for the test rows."""
        return self.posterior.predict_proba(self.test)


@cache
def moons() -> Plane:
    """Return the fit of two half circles."""
    return Plane(*make_moons(100, noise=0.2, random_state=0), eb.MeanField())


@cache
def blobs() -> Plane:
    """Return the fit of four clusters."""
    return Plane(*make_blobs(120, centers=4, cluster_std=1.2, center_box=(-6, 6), random_state=3), eb.Homotopy())


@cache
def cancer() -> Table:
    """Return the fit of 150 rows of breast cancer; the others are test rows."""
    train, test, d, labels = train_test_split(*load_breast_cancer(return_X_y=True), train_size=150, random_state=0)
    scale = StandardScaler().fit(train)
    return Table.fit(scale.transform(train), scale.transform(test), d, labels, eb.Equilibrium())


@cache
def digits(rows: int) -> tuple[Table, Array]:
    """Return the fit of some of the digits 0 to 7, and the features of 8 and 9."""
    features, labels = load_digits(return_X_y=True)
    known = labels < 8
    train, test, d, e = train_test_split(features[known], labels[known], train_size=rows, random_state=0)
    reduce = make_pipeline(PCA(20, random_state=0), StandardScaler()).fit(train)
    table = Table.fit(reduce.transform(train), reduce.transform(test), d, e, eb.Equilibrium())
    return table, reduce.transform(features[~known])


def map_panel(ax: Axes, size: Size, fit: Callable[[], Plane], zoom: float) -> None:
    """Draw confidence, decision boundary and data."""
    plane = fit()
    plots.data_map(ax, plane.bayes, plane.points, plane.labels, zoom=zoom, resolution=size.resolution)
    bar = ax.figure.colorbar(ax.collections[0], ax=ax, ticks=ax.collections[0].levels[::2], format="%.2f")
    bar.set_label("confidence")
    bar.outline.set_visible(False)


def distance_panel(ax: Axes, size: Size) -> None:
    """Draw confidence against the distance to the data."""
    plane = moons()
    at, _ = plots.grid(plane.points.mean(axis=0), 12.0, points=size.resolution)
    distance = metrics.nearest_distance(at, plane.points)
    for name, predict in {"mle": plane.mle, "mean-field": plane.bayes}.items():
        plots.confidence_distance(ax, metrics.confidence_by_distance(predict(at), distance, bins=24), name=name)
    ax.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 0.08))


def histogram_panel(ax: Axes, size: Size) -> None:
    """Draw the confidence in digits that were learnt, and in others."""
    table, strange = digits(size.digits)
    plots.ood_histogram(ax, table.proba, table.posterior.predict_proba(strange))
    ax.legend(fontsize=8, loc="upper left")


def reliability_panel(ax: Axes, size: Size, fit: Callable[[int], Table], legend: str) -> None:
    """Draw how far confidence is deserved."""
    table = fit(size.digits)
    plots.reliability_diagram(ax, table.point, table.labels, name="mle", bins=10)
    plots.reliability_diagram(ax, table.proba, table.labels, bins=10)
    ax.legend(fontsize=7, loc=legend, handlelength=1.5)


def convergence_panel(ax: Axes, size: Size) -> None:
    """Draw how the default sampler settles."""
    plots.convergence_trace(ax, plots.Trace.of(eb.iterate(cancer().problem)))


def residual_panel(ax: Axes, size: Size) -> None:
    """Draw how three samplers settle."""
    problem = cancer().problem
    trotter = eb.TrotterSampler(ds=0.05, max_steps=size.trotter_steps)
    for name, sampler in {"equilibrium": eb.Equilibrium(), "mean-field": eb.MeanField(), "trotter": trotter}.items():
        plots.residual_trace(ax, plots.Trace.of(eb.iterate(problem, sampler), problem), name=name)
    ax.set_xscale("symlog")
    ax.legend(fontsize=8, loc="upper right")


def marginal_panel(ax: Axes, size: Size) -> None:
    """Draw the density of one weight, beside that of importance-weighted draws."""
    problem = cancer().problem
    limit, names = eb.run(problem, eb.MeanField()), load_breast_cancer().feature_names
    theta = limit.distribution.sample(4000, rng=np.random.default_rng(0))
    log_weights = problem.prior.log_density(theta) - problem.loss(theta) - limit.distribution.log_density(theta)
    parameter = int(np.argmax(np.abs(limit.mean)))
    weights = np.exp(log_weights - log_weights.max())
    plots.marginal_draws(ax, theta[:, parameter], weights=weights, filled=True, label="importance-weighted draws")
    plots.marginal_posterior(ax, limit, parameter, name="mean-field")
    plots.marginal_posterior(ax, eb.run(problem, eb.Homotopy()), parameter, name="homotopy")
    ax.set_xlabel(f"weight of {names[parameter]}")
    ax.set_ylim(0, 1.3 * ax.get_ylim()[1])
    ax.legend(fontsize=8, loc="upper left")


def sweep_panel(ax: Axes, size: Size) -> None:
    """Draw how far the mean of J particles is from that of infinitely many."""
    for name, sampler in {"homotopy": eb.Homotopy(), "equilibrium": eb.Equilibrium()}.items():
        gaps = sweep(sampler, size)
        plots.size_sweep(ax, size.particles, gaps, name=name, ylabel="predictive distance", rate=name == "equilibrium")
    ax.legend(fontsize=8)


@cache
def sweep(sampler: Sampler, size: Size) -> list[list[float]]:
    """Return the distance of predictions of J particles from those of infinitely many, for every J and seed."""
    table = cancer()
    limit = eb.run(table.problem, eb.MeanField()).predict_proba(table.test)

    def gap(particles: int, seed: int) -> float:
        posterior = eb.run(table.problem, sampler, particles=particles, seed=seed)
        return metrics.predictive_distance(posterior.predict_proba(table.test), limit).mean

    return [[gap(particles, seed) for seed in range(size.repeats)] for particles in size.particles]


def looks_panel(ax: Axes, size: Size) -> None:
    """Draw colour, line and marker of every method."""
    for row, (name, how) in enumerate(plots.LOOKS.items()):
        ax.plot([0, 1, 2], [-row] * 3, color=how.colour, linestyle=how.line, marker=how.marker)
        ax.text(2.2, -row, name, va="center", fontsize=8)
    ax.set(xlim=(-0.2, 4.5))
    ax.set_axis_off()


PANELS = {
    "confidence map": partial(map_panel, fit=moons, zoom=1.0),
    "zoomed-out map": partial(map_panel, fit=moons, zoom=10.0),
    "map of four classes": partial(map_panel, fit=blobs, zoom=1.0),
    "confidence against distance": distance_panel,
    "in and out of distribution": histogram_panel,
    "marginal posterior": marginal_panel,
    "reliability, breast cancer": partial(reliability_panel, fit=lambda _: cancer(), legend="lower right"),
    "reliability, digits": partial(reliability_panel, fit=lambda rows: digits(rows)[0], legend="upper left"),
    "convergence": convergence_panel,
    "residuals of three samplers": residual_panel,
    "ensemble sizes": sweep_panel,
    "methods": looks_panel,
}


def file_name(title: str) -> str:
    """Return where a panel goes."""
    return title.replace(",", "").replace(" ", "_") + ".png"


def draw(title: str, size: Size) -> Figure:
    """Return one panel as a figure of its own."""
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    PANELS[title](figure.subplots(), size)
    return figure


def page(size: Size) -> Figure:
    """Return all panels in one figure."""
    figure = Figure(figsize=(15, 16), layout="constrained")
    for ax, (title, panel) in zip(figure.subplots(4, 3).ravel(), PANELS.items(), strict=True):
        panel(ax, size)
        ax.set_title(title, fontweight="bold")
    return figure


def save_small(figure: Figure, path: Path) -> None:
    """Save with five bits a channel: nobody sees the difference, and the file is a third smaller."""
    figure.savefig(path, dpi=72)
    with Image.open(path) as picture:
        coarse = picture.convert("RGB").point(lambda value: (value & 0xF8) | (value >> 5))
    coarse.save(path, optimize=True)


def main() -> None:
    """Draw, and say where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gallery"), help="folder of the pictures")
    parser.add_argument("--small", action="store_true", help="coarse maps and few repeats, for a quick look")
    options = parser.parse_args()
    size = SMALL if options.small else Size()
    options.out.mkdir(parents=True, exist_ok=True)
    for title in PANELS:
        draw(title, size).savefig(options.out / file_name(title), dpi=150)
    save_small(page(size), options.out / "gallery.png")
    print(f"{len(PANELS) + 1} pictures in {options.out.resolve()}")


if __name__ == "__main__":
    main()
