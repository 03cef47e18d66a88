"""Figures 1 to 4 and 6: two and four classes in 2-D, six methods, near the data and far from them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from enkbayes.evaluation import metrics, plots
from enkbayes.reproduction.far_field import far_field_scores, uncertain_with_far_field
from enkbayes.reproduction.far_field import table as far_field_table
from enkbayes.reproduction.findings import Claim, Drawing, Findings, Setting, Table, judged
from enkbayes.reproduction.methods import BLOBS, LAST_LAYER, MOONS, SIX, TITLES, Kind, study
from enkbayes.reproduction.scores import Scoreboard, scoreboard
from enkbayes.reproduction.sizes import Run, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ZOOM = 10.0
REACH = 20.0
"""Half the side of the grid of figure 4, in units of the data."""

HIGH = 0.95
"""A mean confidence above this counts as high."""

SIX_NAMES = ", ".join(TITLES[name] for name in SIX)
SEEDS = "Mean and standard error over the seeds."

SETTINGS = (
    Setting(
        "data", "make_moons, noise 0.2, 70 training and 30 test points", "ours", "the paper says only scikit-learn, 2-D"
    ),
    Setting(
        "network",
        "2-20-20-50-1, ReLU, no bias in the last layer",
        "paper",
        "interpreted as 50 units before the output",
    ),
    Setting("weight decay", "5e-4", "ours", "no value in the paper; the value of the code for last-layer Laplace"),
    Setting(
        "prior",
        "N(0, 2 I), for every last-layer method",
        "paper",
        "not stated for Laplace; the same prior makes a fair comparison",
    ),
    Setting(
        "Laplace",
        "centred at the MAP, probit predictive",
        "ours",
        "the paper centres it at the MLE, which is not the mode of the posterior",
    ),
    Setting("Algorithm 2", "J = 200, ds = 0.1, K ds = 20, M_k corrected", "paper"),
    Setting(
        "adversarial examples",
        "gradient in x, eps = 1 % of the range",
        "ours",
        "the formula in the paper does not define an adversarial example",
    ),
)


def settings(run: Run) -> tuple[Setting, ...]:
    """Return the settings of figures 2 to 5, including those that depend on the size."""
    size = run.size
    why = "gives about the paper's accuracy of 96.67 % over the seeds; the experiment `beyond` shows other lengths"
    return (
        *SETTINGS,
        Setting("optimiser", f"SGD, learning rate {size.learning_rate:g}, momentum 0.9", _source(size)),
        Setting("training", f"{size.steps:,} full-batch steps", "ours", why if size.name == "paper" else "smoke size"),
        Setting("Algorithm 1", f"J = 200, ds = {size.ds:g}, M_k corrected", _source(size)),
        Setting("deep ensemble", f"M = {size.members}, {size.member_steps:,} steps", _source(size)),
        Setting("HMC", f"NUTS, {size.hmc[1]} chains with {size.hmc[0]} draws each", _source(size)),
        Setting("seeds", f"{size.seeds}, each with its own data and network; figures show seed 0", "ours"),
    )


def _source(size: Size) -> Literal["paper", "ours"]:
    return "paper" if size.name == "paper" else "ours"


def maps(kind: Kind, run: Run, names: tuple[str, ...] = SIX, zoom: float = 1.0) -> Figure:
    """Return a figure with a confidence map for each method."""
    here = study(kind, run.size, 0, run.cache)
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


def figure1(run: Run) -> Findings:
    """Figure 1: the data."""
    data = study(MOONS, run.size, 0, run.cache).data
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
        why="The paper states neither the generator nor the number of points nor the noise, and its source files "
        "contain no picture of the data.",
    )
    drawing = Drawing("data", figure, "Scatter plot of two interleaved half circles.", "The data, seed 0.")
    return Findings((claim,), drawings=(drawing,), settings=SETTINGS[:1])


def figure2(run: Run) -> Findings:
    """Figure 2: six methods near the data."""
    board = scoreboard(MOONS, run.part(0, 0.95), SIX)
    columns = {
        "accuracy": "accuracy",
        "nll": "NLL",
        "near": "confidence at training points",
        "distance": "distance to long NUTS run",
    }
    drawing = Drawing(
        "near",
        maps(MOONS, run),
        f"Six confidence maps near the data, with the decision boundary: {SIX_NAMES}.",
        "Confidence near the data, seed 0. The line is the decision boundary.",
    )
    tables = (board.summary("methods", SEEDS, columns), board.each_seed())
    return Findings(figure2_claims(board), tables, (drawing,), settings(run))


def figure3(run: Run) -> Findings:
    """Figure 3: the same maps, zoomed out."""
    board = scoreboard(MOONS, run.part(0, 0.95), SIX)
    caption = "Mean confidence on a circle of radius 100 around the data: mean and standard error over the seeds."
    drawing = Drawing(
        "far",
        maps(MOONS, run, zoom=ZOOM),
        f"Six confidence maps, zoomed out {ZOOM:g} times; a frame marks the area of figure 2.",
        f"Confidence, zoomed out {ZOOM:g} times, seed 0.",
    )
    with_noise = far_field_scores(MOONS, run.part(0.95, 1.0))
    tables = (board.summary("far", caption, {"far": "confidence"}), board.each_seed(), far_field_table(with_noise))
    claims = (*far_claims(board), uncertain_with_far_field(with_noise, 2))
    return Findings(claims, tables, (drawing,), settings(run))


def figure4(run: Run) -> Findings:
    """Figure 4: confidence against the distance to the nearest training point."""
    board = scoreboard(MOONS, run.part(0, 0.8), SIX)
    here = study(MOONS, run.size, 0, run.cache)
    at, _ = plots.grid(here.data.train.mean(axis=0), REACH, max(run.size.resolution, 60))
    delta = metrics.nearest_distance(at, here.data.train)
    bins = np.linspace(0, 0.85 * REACH, 26)  # the corners of the grid are left out: few directions reach them
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
    changes = {name: float(np.ptp(curves[name].mean[-8:])) for name in LAST_LAYER}
    drawing = Drawing(
        "distance",
        figure,
        "Confidence of six methods against the distance to the nearest training point: mean and standard deviation.",
        "Mean (line) and standard deviation (band) of confidence, seed 0.",
    )
    extra = Setting(
        "grid", f"{REACH:g} units around the data, 25 bins of the distance", "ours", "the paper says a large grid"
    )
    with_noise = far_field_scores(MOONS, run.part(0.8, 1.0))
    uncertain = uncertain_with_far_field(with_noise, 2)
    claims = (*far_claims(board), uncertain, _constant_far_away(changes), _at_zero(board))
    return Findings(claims, (table, far_field_table(with_noise)), (drawing,), (*settings(run), extra))


def figure6(run: Run) -> Findings:
    """Figure 6: six methods on four classes."""
    few = replace(run, size=replace(run.size, seeds=max(run.size.seeds // 2, 1)))
    board = scoreboard(BLOBS, few.part(0, 0.95), SIX)
    columns = {
        "accuracy": "accuracy",
        "nll": "NLL",
        "near": "confidence at training points",
        "far": "far-field confidence",
        "distance": "distance to long NUTS run",
    }
    alt = f"Six confidence maps on four clusters of points: {SIX_NAMES}."
    drawings = (
        Drawing("near", maps(BLOBS, few), alt, "Confidence near the data, seed 0."),
        Drawing("far", maps(BLOBS, few, zoom=ZOOM), alt, f"Confidence, zoomed out {ZOOM:g} times, seed 0."),
    )
    with_noise = far_field_scores(BLOBS, few.part(0.95, 1.0))
    tables = (board.summary("methods", SEEDS, columns), board.each_seed(), far_field_table(with_noise))
    claims = (*figure6_claims(board), uncertain_with_far_field(with_noise, 4))
    return Findings(claims, tables, drawings, _figure6_settings(few))


def _figure6_settings(run: Run) -> tuple[Setting, ...]:
    size = run.size
    return (
        Setting(
            "data",
            "make_blobs, 4 centres, sd 1.2, 400 training and 100 test points",
            "ours",
            "the paper says only scikit-learn",
        ),
        Setting("network", "2-50-50-50-4, ReLU, no bias in the last layer", "paper"),
        Setting("prior", "N(0, 2 I)", "ours", "not stated; the value of the binary experiment"),
        Setting("particles", f"J = {BLOBS.particles}, P = 200", "ours", "not stated; more particles than parameters"),
        Setting(
            "training",
            f"SGD {size.learning_rate:g}, momentum 0.9, weight decay 5e-4, {size.steps:,} steps",
            "ours",
            "as for figure 2",
        ),
        Setting("Algorithm 1", f"ds = {size.ds:g}", _source(size)),
        Setting("Algorithm 2", "ds = 0.1, K ds = 20", "paper"),
        Setting("seeds", f"{size.seeds}, each with its own data and network", "ours"),
    )


def figure2_claims(board: Scoreboard) -> tuple[Claim, ...]:
    """Judge the claims about confidence near the data."""
    return (
        _same_accuracy(board),
        _ensemble_accuracy(board),
        _most_confident(board),
        _laplace_less_confident(board),
        _agrees_with_hmc(board),
    )


def _same_accuracy(board: Scoreboard) -> Claim:
    points = 30
    gaps = {name: board.gap(name, "mle", "accuracy") for name in LAST_LAYER}
    worst = max(np.max(np.abs(board.values(n, "accuracy") - board.values("mle", "accuracy"))) for n in LAST_LAYER)
    return judged(
        "All Bayesian methods keep the accuracy of the MLE, 96.67 % (29 of 30).",
        f"The MLE has {board.mean('mle', 'accuracy')}. The others differ from it by "
        + ", ".join(f"{gap.mean:+.3f} ({TITLES[name]})" for name, gap in gaps.items())
        + f", and on no seed by more than {worst * points:.0f} of {points} test points.",
        holds=worst <= 1.01 / points,
        partly=all(abs(gap.mean) <= 1.01 / points for gap in gaps.values()),
        why="On at least one seed, a decision boundary moved across more than one of the 30 test points.",
    )


def _ensemble_accuracy(board: Scoreboard) -> Claim:
    gap = board.gap("deep-ensemble", "mle", "accuracy")
    return judged(
        "Deep ensembles improve the accuracy.",
        f"Accuracy of the deep ensemble minus that of the MLE: {gap}.",
        holds=gap.above(0),
        partly=gap.mean > 0,
        why="Thirty test points and a few seeds are too few to detect a difference of this size.",
    )


def _most_confident(board: Scoreboard) -> Claim:
    others = [name for name in SIX if name not in {"trotter", "mle"}]
    gaps = {name: board.gap("trotter", name, "near") for name in others}
    return judged(
        "Algorithm 2 is more confident close to training data than any other algorithm.",
        "Confidence of Algorithm 2 at the training points, minus that of "
        + ", ".join(f"{TITLES[name]}: {gap}" for name, gap in gaps.items())
        + ". The MLE is left out because it expresses no uncertainty.",
        holds=all(gap.above(0) for gap in gaps.values()),
        partly=any(gap.mean > 0 for gap in gaps.values()),
        why="Algorithm 2 agrees with HMC, so it cannot be much more confident than HMC.",
    )


def _laplace_less_confident(board: Scoreboard) -> Claim:
    gap = board.gap("trotter", "laplace-probit", "near")
    return judged(
        "Laplace assigns lower confidence on and near the training data than the new methods.",
        f"Confidence of Algorithm 2 minus that of Laplace, under the same prior: {gap}.",
        holds=gap.above(0),
        partly=gap.mean > 0,
        why="The mean has the claimed sign, but its interval includes 0.",
    )


def _agrees_with_hmc(board: Scoreboard) -> Claim:
    far = board.mean("trotter", "distance")
    noise = board.mean("hmc", "distance").mean
    others = f"HMC itself, because of its Monte Carlo noise, {noise:.4f}; " if noise else ""  # 0: the same run
    return judged(
        "The second-order sampler gives uncertainty similar to that of HMC.",
        f"Mean difference of probabilities from a long NUTS run: {far.mean:.4f} ({others}Laplace "
        f"{board.mean('laplace-probit', 'distance').mean:.4f}).",
        holds=far.mean < 0.005,
        partly=far.mean < 0.02,
        why="The splitting error of ds = 0.1.",
    )


def far_claims(board: Scoreboard) -> tuple[Claim, ...]:
    """Judge the claims about confidence far from the data."""
    mle, ensemble = board.mean("mle", "far"), board.mean("deep-ensemble", "far")
    gaps = {name: board.gap("mle", name, "far") for name in LAST_LAYER}
    levels = {name: board.mean(name, "far") for name in LAST_LAYER}
    return (
        judged(
            "MLE and deep ensemble are highly confident in the entire domain; the ensemble changes little.",
            f"Far-field confidence: {mle} (MLE) and {ensemble} (deep ensemble).",
            holds=mle.mean > HIGH and ensemble.mean > HIGH,
            partly=mle.mean > HIGH,
            why="Far from the data, networks with different random starts disagree in some directions, so the "
            "ensemble is less confident there. The effect is larger for networks that are trained less.",
        ),
        judged(
            "Last-layer Bayesian approximations are less confident than the MLE far from the data.",
            f"Far-field confidence: MLE {mle}, "
            + ", ".join(f"{TITLES[name]} {level}" for name, level in levels.items())
            + ".",
            holds=all(gap.above(0) for gap in gaps.values()),
            partly=all(gap.mean > 0 for gap in gaps.values()),
            why="The mean is lower, but the interval over the seeds includes 0.",
        ),
        judged(
            "They are uncertain there: the desirable confidence is 1/2.",
            f"The lowest mean far-field confidence is {min(level.mean for level in levels.values()):.3f}.",
            holds=all(level.mean < 0.75 for level in levels.values()),
            partly=all(level.mean < 0.9 for level in levels.values()),
            why="Along a ray, mean and standard deviation of the logit grow together, so confidence approaches a "
            "constant above 1/2. Training and prior variance determine that constant; see the experiment `beyond`.",
        ),
    )


def _constant_far_away(changes: dict[str, float]) -> Claim:
    return judged(
        "With distance, the confidence of last-layer methods converges to a constant.",
        "Over the outer third of the distances it changes by "
        + ", ".join(f"{change:.3f} ({TITLES[name]})" for name, change in changes.items())
        + ".",
        holds=max(changes.values()) < 0.02,
        partly=max(changes.values()) < 0.05,
        why="At these distances it still changes.",
    )


def _at_zero(board: Scoreboard) -> Claim:
    gaps = {name: board.gap(name, "laplace-probit", "near") for name in ("tamed-homotopy", "trotter")}
    return judged(
        "At delta = 0 the new methods are more confident than Laplace.",
        "Confidence at the training points: "
        + ", ".join(f"{TITLES[name]} minus Laplace {gap}" for name, gap in gaps.items())
        + ".",
        holds=all(gap.above(0) for gap in gaps.values()),
        partly=all(gap.mean > 0 for gap in gaps.values()),
        why="The mean has the claimed sign, but its interval includes 0.",
    )


def figure6_claims(board: Scoreboard) -> tuple[Claim, ...]:
    """Judge the claims about four classes."""
    points = 100
    worst = max(np.max(np.abs(board.values(n, "accuracy") - board.values("mle", "accuracy"))) for n in LAST_LAYER)
    falls = {name: board.gap("mle", name, "far") for name in LAST_LAYER}
    new = ("hmc", "tamed-homotopy", "trotter")
    leads = {
        name: min(board.gap(one, name, "near").mean for one in new) for name in ("laplace-probit", "deep-ensemble")
    }
    return (
        judged(
            "All Bayesian methods have an accuracy of 99 %, the same as the MLE.",
            f"The MLE has {board.mean('mle', 'accuracy')}. The others differ from it by at most {worst * points:.0f} "
            f"of {points} test points.",
            holds=worst <= 1.01 / points,
            partly=worst <= 3.01 / points,
            why="Where classes overlap, a small move of the boundary changes the class of a few test points.",
        ),
        judged(
            "HMC and both algorithms are more confident close to the data than any other method.",
            "Confidence at the training points, the lowest of the three minus that of "
            + ", ".join(f"{TITLES[name]}: {lead:+.4f}" for name, lead in leads.items())
            + f". Algorithm 2 has {board.mean('trotter', 'near')}, the MLE {board.mean('mle', 'near')}.",
            holds=all(lead > 0 for lead in leads.values()),
            partly=any(lead > 0 for lead in leads.values()),
            why="The members of a deep ensemble are MLEs and as confident at the training points as the MLE.",
        ),
        judged(
            "They are uncertain otherwise.",
            f"Far-field confidence: MLE {board.mean('mle', 'far')}, "
            + ", ".join(f"{TITLES[name]} {board.mean(name, 'far')}" for name in LAST_LAYER)
            + ".",
            holds=all(gap.above(0) or gap.mean > 0.1 for gap in falls.values()),
            partly=all(gap.mean > 0 for gap in falls.values()),
            why="It is lower than for the MLE, but its level depends on training and prior, as in figure 3.",
        ),
    )
