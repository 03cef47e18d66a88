"""Figure 6: several classes in the plane."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enkbayes.reproduction.figures import ZOOM, maps
from enkbayes.reproduction.findings import Claim, Drawing, Findings, Setting, judged
from enkbayes.reproduction.methods import BLOBS, LAST_LAYER, SIX, TITLES
from enkbayes.reproduction.scores import Scoreboard, scoreboard
from enkbayes.reproduction.sizes import Run


def figure6(run: Run) -> Findings:
    """Six methods on four classes."""
    few = replace(run, size=replace(run.size, seeds=max(run.size.seeds // 2, 1)))
    board = scoreboard(BLOBS, few.part(0, 0.95), SIX)
    columns = {
        "accuracy": "accuracy",
        "nll": "NLL",
        "near": "confidence at training points",
        "far": "far-field confidence",
        "distance": "distance to long NUTS",
    }
    summary = board.summary("methods", "Mean and standard error over the seeds.", columns)
    words = "Six maps of confidence on four clouds of points: " + ", ".join(TITLES[name] for name in SIX) + "."
    drawings = (
        Drawing("near", maps(BLOBS, few), words, "Confidence near the data, seed 0."),
        Drawing("far", maps(BLOBS, few, zoom=ZOOM), words, f"The same, zoomed out {ZOOM:g} times."),
    )
    return Findings(_claims(board), (summary, board.each_seed()), drawings, _settings(few))


def _claims(board: Scoreboard) -> tuple[Claim, ...]:
    rows = 100
    worst = max(np.max(np.abs(board.values(n, "accuracy") - board.values("mle", "accuracy"))) for n in LAST_LAYER)
    falls = {name: board.gap("mle", name, "far") for name in LAST_LAYER}
    new = ("hmc", "tamed-homotopy", "trotter")
    others = {
        name: min(board.gap(one, name, "near").mean for one in new) for name in ("laplace-probit", "deep-ensemble")
    }
    return (
        judged(
            "All Bayesian methods have an accuracy of 99 %, the same as the MLE.",
            f"MLE {board.mean('mle', 'accuracy')}; others differ by at most {worst * rows:.0f} of {rows} test points.",
            holds=worst <= 1.01 / rows,
            partly=worst <= 3.01 / rows,
            why="Where classes overlap, a boundary that moves a little passes a few test points.",
        ),
        judged(
            "HMC and both algorithms are more confident close to the data than any other method.",
            "The least of the three minus "
            + ", ".join(f"{TITLES[name]}: {gap:+.4f}" for name, gap in others.items())
            + f"; confidence at the training points {board.mean('trotter', 'near')} (Algorithm 2), MLE "
            f"{board.mean('mle', 'near')}.",
            holds=all(gap > 0 for gap in others.values()),
            partly=any(gap > 0 for gap in others.values()),
            why="The members of a deep ensemble are MLEs, each as sure of the training points as the MLE is.",
        ),
        judged(
            "They are uncertain otherwise.",
            f"Far-field confidence: MLE {board.mean('mle', 'far')}, "
            + ", ".join(f"{TITLES[name]} {board.mean(name, 'far')}" for name in LAST_LAYER)
            + ".",
            holds=all(gap.above(0) or gap.mean > 0.1 for gap in falls.values()),
            partly=all(gap.mean > 0 for gap in falls.values()),
            why="Lower than the MLE's, but the level depends on training and prior, as in figure 3.",
        ),
    )


def _settings(run: Run) -> tuple[Setting, ...]:
    whole = run.size.name == "paper"
    return (
        Setting(
            "data", "make_blobs, 4 centres, sd 1.2, 400 training and 100 test points", "ours", "said: scikit-learn"
        ),
        Setting("network", "2-50-50-50-4, ReLU, no bias in the last layer", "paper"),
        Setting("prior", "N(0, 2 I)", "ours", "unsaid here; the value of the binary experiment"),
        Setting("particles", f"J = {BLOBS.particles}, P = 200", "ours", "unsaid here; more than parameters"),
        Setting(
            "training",
            f"SGD {run.size.learning_rate:g}, momentum 0.9, {run.size.steps:,} steps",
            "ours",
            "as in figure 2",
        ),
        Setting("Algorithm 1", f"ds = {run.size.ds:g}", "paper" if whole else "ours"),
        Setting("Algorithm 2", "ds = 0.1, K ds = 20", "paper"),
        Setting("seeds", f"{run.size.seeds}, each with its own data and network", "ours"),
    )
