"""Draw every kind of figure in enkbayes.evaluation.plots from real fits, and one page with all of them.

    python examples/gallery.py --out gallery

Two moons and four blobs use 40 random ReLU features. Breast cancer is logistic regression on 150 rows. Digits is
softmax regression on 20 principal components of the digits 0 to 7; 8 and 9 are out-of-distribution. The script requires
the extra `plots` and takes about a minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_blobs, make_moons
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
    """How much work goes into the figures."""

    resolution: int = 200
    digits: int = 700
    repeats: int = 20
    particles: tuple[int, ...] = (40, 80, 160, 320, 640)
    trotter_steps: int = 400


SMALL = Size(resolution=40, digits=100, repeats=2, particles=(50, 100), trotter_steps=20)


class Plane:
    """Points in 2-D, and two fits to 40 random ReLU features of them: a point estimate and a posterior."""

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
        """Return the probabilities (n, K) of the point estimate."""
        return self.point.predict_proba(self.features(points))

    def bayes(self, points: Array) -> Array:
        """Return the probabilities (n, K) of the posterior."""
        return self.posterior.predict_proba(self.features(points))


@dataclass(frozen=True, eq=False)
class Table:
    """A problem, test rows with labels, the predictions of a point estimate for them, and a posterior."""

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
        """The predictions of the posterior for the test rows."""
        return self.posterior.predict_proba(self.test)


@cache
def moons() -> Plane:
    """Return the fit to two half circles."""
    return Plane(*make_moons(100, noise=0.2, random_state=0), eb.MeanField())


@cache
def blobs() -> Plane:
    """Return the fit to four clusters."""
    return Plane(*make_blobs(120, centers=4, cluster_std=1.2, center_box=(-6, 6), random_state=3), eb.Homotopy())


@cache
def cancer() -> Table:
    """Return the fit to 150 rows of the breast cancer data; the others are test rows."""
    train, test, d, labels = train_test_split(*load_breast_cancer(return_X_y=True), train_size=150, random_state=0)
    scale = StandardScaler().fit(train)
    return Table.fit(scale.transform(train), scale.transform(test), d, labels, eb.Equilibrium())


@cache
def digits(rows: int) -> tuple[Table, Array]:
    """Return the fit to some of the digits 0 to 7, and the features of the digits 8 and 9."""
    features, labels = load_digits(return_X_y=True)
    inside = labels < 8
    train, test, d, e = train_test_split(features[inside], labels[inside], train_size=rows, random_state=0)
    reduce = make_pipeline(PCA(20, random_state=0), StandardScaler()).fit(train)
    table = Table.fit(reduce.transform(train), reduce.transform(test), d, e, eb.Equilibrium())
    return table, reduce.transform(features[~inside])


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
    """Draw the confidence on digits of the training classes and on other digits."""
    table, outside = digits(size.digits)
    plots.ood_histogram(ax, table.proba, table.posterior.predict_proba(outside))
    ax.legend(fontsize=8, loc="upper left")


def reliability_panel(ax: Axes, size: Size, fit: Callable[[int], Table], legend: str) -> None:
    """Draw accuracy against confidence."""
    table = fit(size.digits)
    plots.reliability_diagram(ax, table.point, table.labels, name="mle", bins=10)
    plots.reliability_diagram(ax, table.proba, table.labels, bins=10)
    ax.legend(fontsize=7, loc=legend, handlelength=1.5)


def convergence_panel(ax: Axes, size: Size) -> None:
    """Draw the convergence of the default sampler."""
    plots.convergence_trace(ax, plots.Trace.of(eb.iterate(cancer().problem)))


def residual_panel(ax: Axes, size: Size) -> None:
    """Draw the residuals of three samplers."""
    problem = cancer().problem
    trotter = eb.TrotterSampler(ds=0.05, max_steps=size.trotter_steps)
    for name, sampler in {"equilibrium": eb.Equilibrium(), "mean-field": eb.MeanField(), "trotter": trotter}.items():
        plots.residual_trace(ax, plots.Trace.of(eb.iterate(problem, sampler), problem), name=name)
    ax.set_xscale("symlog")
    ax.legend(fontsize=8, loc="upper right")


def marginal_panel(ax: Axes, size: Size) -> None:
    """Draw the marginal density of one weight, compared with importance-weighted draws."""
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


def coefficient_panel(ax: Axes, size: Size) -> None:
    """Draw the coefficients of three kinds of iris."""
    X, y = load_iris(return_X_y=True, as_frame=True)
    scaled = StandardScaler().set_output(transform="pandas").fit_transform(X)
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(scaled, load_iris().target_names[y])
    plots.coefficient_plot(ax, clf.summary())
    ax.set_ylabel("feature")


def sweep_panel(ax: Axes, size: Size) -> None:
    """Draw the distance between predictions of J particles and of infinitely many."""
    for name, sampler in {"homotopy": eb.Homotopy(), "equilibrium": eb.Equilibrium()}.items():
        gaps = sweep(sampler, size)
        plots.size_sweep(ax, size.particles, gaps, name=name, ylabel="predictive distance", rate=name == "equilibrium")
    ax.legend(fontsize=8)


@cache
def sweep(sampler: Sampler, size: Size) -> list[list[float]]:
    """Return the distance between predictions of J particles and of infinitely many, for every J and seed."""
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


Panel = Callable[[Axes, Size], None]
PANELS: dict[str, Panel] = {
    "confidence map": partial(map_panel, fit=moons, zoom=1.0),
    "zoomed-out map": partial(map_panel, fit=moons, zoom=10.0),
    "map of four classes": partial(map_panel, fit=blobs, zoom=1.0),
    "confidence against distance": distance_panel,
    "in and out of distribution": histogram_panel,
    "marginal posterior": marginal_panel,
    "coefficients": coefficient_panel,
    "reliability, breast cancer": partial(reliability_panel, fit=lambda _: cancer(), legend="lower right"),
    "reliability, digits": partial(reliability_panel, fit=lambda rows: digits(rows)[0], legend="upper left"),
    "convergence": convergence_panel,
    "residuals of three samplers": residual_panel,
    "ensemble sizes": sweep_panel,
    "methods": looks_panel,
}


def file_name(title: str) -> str:
    """Return the name of the file for a panel."""
    return title.replace(",", "").replace(" ", "_") + ".png"


def draw(panel: Panel, size: Size) -> Figure:
    """Return one panel as a separate figure."""
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    panel(figure.subplots(), size)
    return figure


def page(size: Size, panels: Mapping[str, Panel] = PANELS) -> Figure:
    """Return all panels in one figure, three in a row."""
    rows = -(-len(panels) // 3)
    figure = Figure(figsize=(15, 4 * rows), layout="constrained")
    axes = figure.subplots(rows, 3, squeeze=False).ravel()
    for ax, (title, panel) in zip(axes, panels.items(), strict=False):
        panel(ax, size)
        ax.set_title(title, fontweight="bold")
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    return figure


def save_small(figure: Figure, path: Path) -> None:
    """Save with five bits per channel: the difference is invisible, and the file is a third smaller."""
    figure.savefig(path, dpi=72)
    with Image.open(path) as picture:
        coarse = picture.convert("RGB").point(lambda value: (value & 0xF8) | (value >> 5))
    coarse.save(path, optimize=True)


def main(arguments: Sequence[str] | None = None, panels: Mapping[str, Panel] = PANELS) -> None:
    """Draw the panels into the folder given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gallery"), help="folder for the figures")
    parser.add_argument("--small", action="store_true", help="coarse maps and few repeats, for a quick check")
    options = parser.parse_args(arguments)
    size = SMALL if options.small else Size()
    options.out.mkdir(parents=True, exist_ok=True)
    for title, panel in panels.items():
        draw(panel, size).savefig(options.out / file_name(title), dpi=150)
    save_small(page(size, panels), options.out / "gallery.png")
    print(f"{len(panels) + 1} figures in {options.out.resolve()}")


if __name__ == "__main__":
    main()
