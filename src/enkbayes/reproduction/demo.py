"""The main task on built-in data: train a small network on two moons, compute a posterior over its last layer, add
far-field variance, and compare the confidence of all three near the data and far from them.

The network is that of the paper, 2-20-20-50-1 with ReLU, and so are the 70 training points (make_moons with noise 0.2)
and the prior variance 2 of the posterior. Unlike the paper's it is trained well: 1500 full-batch steps of Adam with the
learning rate 0.01. Its posterior then keeps a confidence near 1 along every ray, since mean and standard deviation of
the logit grow together. Far-field variance, chosen by 300 held-out points, lets it fall to 1/2, the dashed line of the
paper's figure 4, and the same points choose the temperature. Scores are those of 1000 other points, so that differences
between methods are not those of 30 test points; `enkbayes demo --seed` shows other data and networks.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes._version import __version__
from enkbayes.core.problem import Problem
from enkbayes.evaluation import metrics, plots
from enkbayes.evaluation.report import render, require_report
from enkbayes.inference import temperature_scale
from enkbayes.reproduction.datasets import Plane, one_thread, require_torch, tensor, train_network
from enkbayes.reproduction.scores import FAR, circle
from enkbayes.storage.files import replacing

Vector = np.ndarray[Any, Any]
Predict = Callable[..., Vector]
"""A function from inputs (n, 2) to the probability of class 1, (n,)."""

MLE, TEMPERATURE = "trained network (MLE)", "temperature scaling"
POSTERIOR, FAR_FIELD = "last-layer posterior", "far-field variance"
"""The names of the methods in the tables."""

HELD_OUT, TEST = 300, 1000
RADII = (3.0, 10.0, FAR)
"""Distances from the centre of the data at which confidence is measured."""


@dataclass(frozen=True)
class DemoScores:
    """Scores on the test points, and mean confidence on circles around the data with the radii `RADII`."""

    accuracy: float
    nll: float
    ece: float
    confidence: tuple[float, ...]


@dataclass(frozen=True)
class DemoResult:
    """The scores of every method by name, the steps of the sampler, and the files written."""

    scores: dict[str, DemoScores]
    steps: int
    picture: Path
    report: Path
    seconds: float


@dataclass(frozen=True, eq=False)
class DemoData:
    """Training and test points, and held-out points (n, 2) with their class numbers."""

    plane: Plane
    held_out: Vector
    held_out_labels: Vector

    @classmethod
    def moons(cls, seed: int, train: int = 70) -> DemoData:
        """Return two interleaved half circles with noise.

        >>> data = DemoData.moons(0)
        >>> data.plane.train.shape, data.held_out.shape, data.plane.test.shape
        ((70, 2), (300, 2), (1000, 2))
        """
        from sklearn.datasets import make_moons

        points, labels = make_moons(train + HELD_OUT + TEST, noise=0.2, random_state=seed)
        rest = train + HELD_OUT
        plane = Plane(points[:train], labels[:train], points[rest:], labels[rest:])
        return cls(plane, points[train:rest], labels[train:rest])


def run_demo(
    out: Path,
    seed: int = 0,
    *,
    steps: int = 1500,
    progress: Callable[[float], None] = lambda _: None,
    program: str = "enkbayes",
) -> DemoResult:
    """Train for `steps` steps, fit the posterior, and write picture and report into the folder `out`. `progress` is
    called with the share of the work that is done. `program` is what the commands of the report begin with.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = run_demo(Path(folder), steps=5)
    ...     result.picture.name, result.report.name
    ('confidence.png', 'report.html')
    """
    started = time.perf_counter()
    torch = require_torch()
    require_report()
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; expected a folder for picture and report")
    out.mkdir(parents=True, exist_ok=True)
    data = DemoData.moons(seed)
    with one_thread():
        model = train_network(
            data.plane,
            seed,
            steps,
            lambda share: progress(0.8 * share),
            optimiser=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        )
        methods, fit_steps = predictors(model, data, seed)
        picture = draw(out / "confidence.png", data.plane, methods)
        scores = {name: demo_scores(predict, data.plane) for name, predict in methods.items()}
    progress(1.0)
    report = write_report(out / "report.html", scores, picture, program)
    return DemoResult(scores, fit_steps, picture, report, time.perf_counter() - started)


def predictors(model: Any, data: DemoData, seed: int) -> tuple[dict[str, Predict], int]:
    """Return the predictions of every method by name, and the number of steps of the sampler."""
    import torch

    from enkbayes.nets import BayesianHead

    train = [(tensor(data.plane.train), torch.as_tensor(data.plane.train_labels))]
    held_out = [(tensor(data.held_out), torch.as_tensor(data.held_out_labels))]
    head = BayesianHead.fit(model, train, prior_precision=0.5, seed=seed, progress=False)
    far_field = BayesianHead.fit(model, train, calibration=held_out, seed=seed, progress=False)

    def logits(points: Vector) -> Any:
        with torch.no_grad():
            return model(tensor(points))[:, 0].double()

    only = Problem.create(np.asarray(logits(data.held_out))[:, None], data.held_out_labels)
    scale = temperature_scale(only, np.ones(1))

    def network(points: Vector, scale: float = 1.0) -> Vector:
        return np.asarray(torch.sigmoid(scale * logits(points)))

    def bayesian(head: Any, points: Vector) -> Vector:
        with torch.no_grad():
            return np.asarray(head(tensor(points))[:, 1].double())

    methods: dict[str, Predict] = {
        MLE: network,
        TEMPERATURE: partial(network, scale=scale),
        POSTERIOR: partial(bayesian, head),
        FAR_FIELD: partial(bayesian, far_field),
    }
    return methods, head.posterior.info.steps


def demo_scores(predict: Predict, moons: Plane) -> DemoScores:
    """Return the scores of one method.

    >>> demo_scores(lambda points: np.full(len(points), 0.5), DemoData.moons(0).plane).confidence
    (0.5, 0.5, 0.5)
    """
    scores = metrics.score(predict(moons.test), moons.test_labels)
    far = tuple(float(np.mean(metrics.confidence(predict(circle(moons.train, radius))))) for radius in RADII)
    return DemoScores(scores.accuracy, scores.nll, scores.ece, far)


def draw(path: Path, moons: Plane, methods: dict[str, Predict], *, zoom: float = 10.0) -> Path:
    """Draw confidence maps, near the data and zoomed out, and confidence against distance; return the path."""
    shown = [MLE, POSTERIOR, FAR_FIELD]
    figure = plots.require_matplotlib().Figure(figsize=(12.6, 10.3), layout="constrained")
    axes = figure.subplots(3, 3, gridspec_kw={"height_ratios": (1, 1, 0.6)})
    at, _ = plots.grid(moons.train.mean(axis=0), 25.0, 120)
    distance = metrics.nearest_distance(at, moons.train)
    for (top, middle, bottom), name in zip(axes.T, shown, strict=True):
        predict = methods[name]
        plots.data_map(top, predict, moons.train, moons.train_labels)
        plots.data_map(middle, predict, moons.train, moons.train_labels, zoom=zoom)
        title = f"with {name}" if name == FAR_FIELD else name
        top.set_title(title[0].upper() + title[1:], fontsize=14, fontweight="bold", pad=10)
        curve = metrics.confidence_by_distance(predict(at), distance, bins=np.linspace(0, 20, 26))
        plots.confidence_distance(bottom, curve, label="mean, with one standard deviation")
    for row, label in zip(axes[:2], ("near the data", f"zoomed out {zoom:g} times"), strict=True):
        row[0].set_ylabel(label, fontsize=12)
    for ax in axes[2, 1:]:
        ax.set_ylabel("")
    axes[2, 0].legend(fontsize=9, loc="lower left", bbox_to_anchor=(0, 0.12))
    levels = axes[0, 0].collections[0].levels[::2]
    bar = figure.colorbar(axes[0, 0].collections[0], ax=axes[:2], shrink=0.6, pad=0.02, ticks=levels)
    bar.set_label("confidence", fontsize=12)
    bar.outline.set_visible(False)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=120)
    return path


def write_report(path: Path, scores: dict[str, DemoScores], picture: Path, program: str = "enkbayes") -> Path:
    """Write one HTML file that contains table, picture and next steps, and return its path."""
    page = render(
        "demo.html.j2",
        rows=scores.items(),
        image="data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode(),
        radii=RADII,
        held_out=HELD_OUT,
        test=TEST,
        program=program,
        version=__version__,
    )
    with replacing(path) as draft:
        draft.write_text(page, encoding="utf-8")
    return path
