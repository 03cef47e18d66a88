"""Figures 1 to 4: two classes in the plane, six methods, near the data and far from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from enkbayes.evaluation import metrics, plots
from enkbayes.reproduction.findings import Claim, Drawing, Findings, Setting, Table, judged
from enkbayes.reproduction.methods import LAST_LAYER, MOONS, SIX, TITLES, Kind, study
from enkbayes.reproduction.scores import Scoreboard, scoreboard
from enkbayes.reproduction.sizes import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ZOOM = 10.0
REACH = 20.0
"""Half the side of the grid of figure 4, in units of the data."""

HIGH = 0.95
"""Mean confidence that counts as high wherever one looks."""

SETTINGS = (
    Setting("data", "make_moons, noise 0.2, 70 training and 30 test points", "ours", "said: scikit-learn, 2-D"),
    Setting("network", "2-20-20-50-1, ReLU, no bias in the last layer", "paper", "read as 50 units before the output"),
    Setting("weight decay", "5e-4", "ours", "said: weight decay; this is the value of the code for last-layer Laplace"),
    Setting(
        "prior", "N(0, 2 I), for every last-layer method", "paper", "for Laplace unsaid; the same is like for like"
    ),
    Setting(
        "Laplace", "centred at the MAP, probit predictive", "ours", "centred at the MLE there, an inconsistent mix"
    ),
    Setting("Algorithm 2", "J = 200, ds = 0.1, K ds = 20, M_k corrected", "paper"),
    Setting("adversarial examples", "gradient in x, eps = 1 % of the range", "ours", "the printed formula is not one"),
)


def settings(run: Run) -> tuple[Setting, ...]:
    """Return the settings, with those that depend on the size."""
    size = run.size
    whole = size.name == "paper"
    why = "at which accuracy over the seeds is about the paper's 96.67 %; part `beyond` shows other lengths"
    return (
        *SETTINGS,
        Setting("optimiser", f"SGD, learning rate {size.learning_rate:g}, momentum 0.9", "paper" if whole else "ours"),
        Setting("training", f"{size.steps:,} full-batch steps", "ours", why if whole else "smoke size"),
        Setting("Algorithm 1", f"J = 200, ds = {size.ds:g}, M_k corrected", "paper" if whole else "ours"),
        Setting("deep ensemble", f"M = {size.members}, {size.member_steps:,} steps", "paper" if whole else "ours"),
        Setting("HMC", f"NUTS, {size.hmc[0]} draws of {size.hmc[1]} chains", "paper" if whole else "ours"),
        Setting("seeds", f"{size.seeds}, each with its own data and network; figures show seed 0", "ours"),
    )


def figure1(run: Run) -> Findings:
    """Draw the data."""
    data = study(MOONS, run.size, 0, run.keep).data
    figure = plots.require_matplotlib().Figure(figsize=(5.4, 4.2), layout="constrained")
    ax = plots.classes_scatter(figure.subplots(), data.train, data.train_labels)
    ax.scatter(data.test[:, 0], data.test[:, 1], s=14, marker="x", color="#666666", label="test points")
    ax.set(xlabel="$x_1$", ylabel="$x_2$")
    ax.legend(frameon=False)
    counts = np.bincount(data.train_labels)
    claim = judged(
        "A 2-D binary classification data set generated with scikit-learn.",
        f"Two moons with {counts[0]} and {counts[1]} training points and {len(data.test)} test points.",
        holds=False,
        partly=True,
        why="The paper does not say which generator, how many points or how much noise; its source has no picture.",
    )
    drawing = Drawing("data", figure, "Scatter plot of two interleaved half circles.", "The data, seed 0.")
    return Findings((claim,), drawings=(drawing,), settings=SETTINGS[:1])


def maps(kind: Kind, run: Run, names: tuple[str, ...] = SIX, zoom: float = 1.0) -> Figure:
    """Return a map of confidence for each method."""
    here = study(kind, run.size, 0, run.keep)
    columns = 3
    rows = -(-len(names) // columns)
    figure: Figure = plots.require_matplotlib().Figure(figsize=(10.4, 3.5 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, name in zip(axes, names, strict=False):
        predict = here.fit(name).predict
        plots.data_map(ax, predict, here.data.train, here.data.train_labels, zoom=zoom, resolution=run.size.resolution)
        ax.set_title(TITLES[name], fontsize=12)
    bar = figure.colorbar(axes[0].collections[0], ax=list(axes), shrink=0.7, pad=0.02)
    bar.set_label("confidence")
    bar.outline.set_visible(False)
    return figure


def figure2(run: Run) -> Findings:
    """Six methods near the data."""
    board = scoreboard(MOONS, run.part(0, 0.95), SIX)
    columns = {
        "accuracy": "accuracy",
        "nll": "NLL",
        "near": "confidence at training points",
        "distance": "distance to long NUTS",
    }
    summary = board.summary("methods", "Mean and standard error over the seeds.", columns)
    words = (
        "Six maps of confidence near the data, with the decision boundary: "
        + ", ".join(TITLES[name] for name in SIX)
        + "."
    )
    drawing = Drawing("near", maps(MOONS, run), words, "Confidence near the data, seed 0; the line is the boundary.")
    claims = (_accuracy(board), _ensemble(board), _highest(board), _laplace_lower(board), _like_hmc(board))
    return Findings(claims, (summary, board.each_seed()), (drawing,), settings(run))


def figure3(run: Run) -> Findings:
    """The same, zoomed out."""
    board = scoreboard(MOONS, run.part(0, 0.95), SIX)
    summary = board.summary(
        "far", "Mean confidence on a circle of radius 100 around the data, over the seeds.", {"far": "confidence"}
    )
    words = f"Six maps of confidence, zoomed out {ZOOM:g} times; a frame marks the maps of figure 2."
    drawing = Drawing("far", maps(MOONS, run, zoom=ZOOM), words, f"Zoomed out {ZOOM:g} times, seed 0.")
    return Findings((_high(board), *_lower(board)), (summary, board.each_seed()), (drawing,), settings(run))


def figure4(run: Run) -> Findings:
    """Confidence against the distance to the nearest training point."""
    board = scoreboard(MOONS, run.part(0, 0.8), SIX)
    here = study(MOONS, run.size, 0, run.keep)
    at, _ = plots.grid(here.data.train.mean(axis=0), REACH, max(run.size.resolution, 60))
    delta = metrics.nearest_distance(at, here.data.train)
    bins = np.linspace(0, 0.85 * REACH, 26)  # not into the corners of the grid, which few directions reach
    figure = plots.require_matplotlib().Figure(figsize=(10.4, 6.2), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
    curves = {}
    for ax, name in zip(axes, SIX, strict=True):
        curves[name] = metrics.confidence_by_distance(here.fit(name).predict(at), delta, bins=bins)
        plots.confidence_distance(ax, curves[name], name=name, label=TITLES[name])
        ax.set_title(TITLES[name], fontsize=12)
        ax.label_outer()
    table = Table(
        "curves",
        "Mean and standard deviation of confidence in bins of the distance, seed 0.",
        ("distance", *(f"{name} {what}" for name in SIX for what in ("mean", "sd"))),
        tuple(
            (float(x), *(float(v[i]) for name in SIX for v in (curves[name].mean, curves[name].sd)))
            for i, x in enumerate(curves["mle"].distance)
        ),
    )
    constant = {name: float(np.ptp(curves[name].mean[-8:])) for name in LAST_LAYER}
    settles = judged(
        "With distance, the confidence of last-layer methods converges to a constant.",
        "Over the outer third of the distances it changes by "
        + ", ".join(f"{change:.3f} ({TITLES[name]})" for name, change in constant.items()),
        holds=max(constant.values()) < 0.02,
        partly=max(constant.values()) < 0.05,
        why="At these distances it still drifts.",
    )
    words = "Confidence against the distance to the nearest training point, mean and standard deviation, six methods."
    drawing = Drawing("distance", figure, words, "Mean (line) and standard deviation (band) of confidence, seed 0.")
    claims = (_high(board), *_lower(board), settles, _at_zero(board))
    extra = Setting("grid", f"{REACH:g} units around the data, 25 bins of the distance", "ours", "said: a large grid")
    return Findings(claims, (table,), (drawing,), (*settings(run), extra))


def _accuracy(board: Scoreboard) -> Claim:
    points = 30
    apart = {name: board.gap(name, "mle", "accuracy") for name in LAST_LAYER}
    worst = max(np.max(np.abs(board.values(n, "accuracy") - board.values("mle", "accuracy"))) for n in LAST_LAYER)
    return judged(
        "All Bayesian methods keep the accuracy of the MLE, 96.67 % (29 of 30).",
        f"MLE {board.mean('mle', 'accuracy')}; the others differ by "
        + ", ".join(f"{gap.mean:+.3f} ({TITLES[name]})" for name, gap in apart.items())
        + f", at most {worst * points:.0f} of {points} test points on any seed.",
        holds=worst <= 1.01 / points,
        partly=all(abs(gap.mean) <= 1.01 / points for gap in apart.values()),
        why="On some seed a boundary moved past more than one of 30 points.",
    )


def _ensemble(board: Scoreboard) -> Claim:
    gap = board.gap("deep-ensemble", "mle", "accuracy")
    return judged(
        "Deep ensembles improve the accuracy.",
        f"Accuracy of the ensemble minus that of the MLE: {gap}.",
        holds=gap.above(0),
        partly=gap.mean > 0,
        why="Thirty test points and so few seeds do not show a difference of this size.",
    )


def _highest(board: Scoreboard) -> Claim:
    others = [name for name in SIX if name not in {"trotter", "mle"}]
    gaps = {name: board.gap("trotter", name, "near") for name in others}
    high = [name for name, gap in gaps.items() if gap.mean > 0]
    return judged(
        "Algorithm 2 is more confident close to training data than any other algorithm.",
        "Confidence at the training points minus that of "
        + ", ".join(f"{TITLES[name]}: {gap}" for name, gap in gaps.items())
        + " (the MLE, which expresses no uncertainty, apart).",
        holds=all(gap.above(0) for gap in gaps.values()),
        partly=bool(high),
        why="Algorithm 2 agrees with HMC, so it cannot be more confident than it; the homotopy is the one above both, "
        "because it follows another path to another Gaussian.",
    )


def _laplace_lower(board: Scoreboard) -> Claim:
    gap = board.gap("trotter", "laplace-probit", "near")
    return judged(
        "Laplace assigns lower confidence on and near the training data than the new methods.",
        f"Algorithm 2 minus Laplace at the same prior: {gap}.",
        holds=gap.above(0),
        partly=gap.mean > 0,
        why="The sign holds on average but not beyond its error.",
    )


def _like_hmc(board: Scoreboard) -> Claim:
    far = board.mean("trotter", "distance")
    noise = board.mean("hmc", "distance").mean
    itself = f"HMC itself, by its noise: {noise:.4f}; " if noise else ""  # at smoke size they are one run
    return judged(
        "The second-order sampler gives uncertainty similar to HMC's.",
        f"Mean difference of probabilities to a long NUTS run: {far.mean:.4f} ({itself}Laplace "
        f"{board.mean('laplace-probit', 'distance').mean:.4f}).",
        holds=far.mean < 0.005,
        partly=far.mean < 0.02,
        why="The splitting error of ds = 0.1.",
    )


def _high(board: Scoreboard) -> Claim:
    mle, ensemble = board.mean("mle", "far"), board.mean("deep-ensemble", "far")
    return judged(
        "MLE and deep ensemble are highly confident in the entire domain; ensembles change little.",
        f"Far-field confidence {mle} (MLE) and {ensemble} (deep ensemble).",
        holds=mle.mean > HIGH and ensemble.mean > HIGH,
        partly=mle.mean > HIGH,
        why="Networks from different starts disagree in some directions far away, so the ensemble does lose confidence "
        "there, and the less the networks are trained the more.",
    )


def _lower(board: Scoreboard) -> tuple[Claim, ...]:
    gaps = {name: board.gap("mle", name, "far") for name in LAST_LAYER}
    falls = ", ".join(f"{TITLES[name]} {board.mean(name, 'far')}" for name in LAST_LAYER)
    return (
        judged(
            "Last-layer Bayesian approximations are less confident than the MLE far from the data.",
            f"MLE {board.mean('mle', 'far')}; {falls}.",
            holds=all(gap.above(0) for gap in gaps.values()),
            partly=all(gap.mean > 0 for gap in gaps.values()),
            why="Lower on average, but not beyond the error over the seeds.",
        ),
        judged(
            "They are uncertain there: the desirable confidence is 1/2.",
            f"The lowest, over the seeds, is {min(board.mean(name, 'far').mean for name in LAST_LAYER):.3f}.",
            holds=all(board.mean(name, "far").mean < 0.75 for name in LAST_LAYER),
            partly=all(gap.mean > 0.02 for gap in gaps.values()),
            why="Along a ray the logit's mean and standard deviation grow together, so confidence tends to a constant "
            "above 1/2 that training and prior variance decide; part `beyond` shows how.",
        ),
    )


def _at_zero(board: Scoreboard) -> Claim:
    gaps = {name: board.gap(name, "laplace-probit", "near") for name in ("tamed-homotopy", "trotter")}
    return judged(
        "At delta = 0 the new methods are more confident than Laplace.",
        ", ".join(f"{TITLES[name]} minus Laplace: {gap}" for name, gap in gaps.items()) + ".",
        holds=all(gap.above(0) for gap in gaps.values()),
        partly=all(gap.mean > 0 for gap in gaps.values()),
        why="The sign holds on average but not beyond its error.",
    )
