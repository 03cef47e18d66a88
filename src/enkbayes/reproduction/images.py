"""Figure 7: an image network, the two classes it knows and classes it has never seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.evaluation import metrics, plots
from enkbayes.reproduction.findings import Claim, Drawing, Findings, Setting, Table, judged
from enkbayes.reproduction.image_methods import BAYES, HORIZON, Seen, predictions
from enkbayes.reproduction.networks import ImageTask, cifar_task, digits_task
from enkbayes.reproduction.sizes import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Vector = np.ndarray[Any, Any]
SHOWN = ("MLE", "Deep ensemble", "Laplace", "Algorithm 2", "Equilibrium")


def figure7(run: Run) -> Findings:
    """Train, fit, predict and compare."""
    run.tell(0.0, "images")
    task = cifar_task(run.data_dir) if run.size.images else digits_task()
    found = predictions(task, run)
    rows = tuple(_row(name, each, task, found["HMC"]) for name, each in found.items())
    caption = (
        f"{task.name}: {len(task.train):,} training, {len(task.test):,} test and {len(task.others):,} other images."
    )
    table = Table("methods", caption, COLUMNS, rows)
    words = "Histograms of confidence on test images and on images of other classes: " + ", ".join(SHOWN) + "."
    drawing = Drawing(
        "confidence", _histograms(found), words, "Blue: test images of the two classes; red: images of other classes."
    )
    notes = tuple(f"{name}: {each.note}" for name, each in found.items() if each.note)
    if not run.size.images:
        stand_in = "Stand-in: handwritten threes and fives of 8 x 8 pixels instead of dogs and cats of CIFAR-10."
        notes = (stand_in, *notes)
    return Findings(_claims(task, found), (table,), (drawing,), _settings(run), notes)


COLUMNS = (
    "method",
    "training accuracy",
    "test accuracy",
    "NLL",
    "ECE",
    "confidence, test",
    "confidence, others",
    "OOD AUROC",
    "distance to HMC",
    "steps",
    "time over HMC's",
)


def _row(name: str, each: Seen, task: ImageTask, hmc: Seen) -> tuple[Any, ...]:
    scores = metrics.score(each.test, task.test.labels)
    return (
        name,
        metrics.accuracy(each.train, task.train.labels),
        scores.accuracy,
        scores.nll,
        scores.ece,
        float(np.mean(metrics.confidence(each.test))),
        float(np.mean(metrics.confidence(each.others))),
        metrics.ood_score(each.test, each.others).auroc,
        float(np.mean(np.abs(each.test - hmc.test))) if name in BAYES else None,
        each.steps,
        each.seconds / hmc.seconds if name in BAYES else None,
    )


def _histograms(found: dict[str, Seen]) -> Figure:
    figure: Figure = plots.require_matplotlib().Figure(figsize=(9.0, 10.0), layout="constrained")
    for ax, name in zip(figure.subplots(len(SHOWN), 1, sharex=True), SHOWN, strict=True):
        plots.ood_histogram(ax, found[name].test, found[name].others)
        ax.set_title(name, fontsize=11, loc="left")
        ax.legend(frameon=False, fontsize=8, loc="upper left")
        ax.label_outer()
    return figure


def _claims(task: ImageTask, found: dict[str, Seen]) -> tuple[Claim, ...]:
    right = {
        name: (metrics.accuracy(each.train, task.train.labels), metrics.accuracy(each.test, task.test.labels))
        for name, each in found.items()
    }
    inside = {name: float(np.mean(metrics.confidence(each.test))) for name, each in found.items()}
    outside = {name: float(np.mean(metrics.confidence(each.others))) for name, each in found.items()}
    overconfident = judged(
        "The MLE is overconfident on images of other classes.",
        f"Its mean confidence is {outside['MLE']:.3f} there, where either answer is wrong, and {inside['MLE']:.3f} on "
        f"the test images, where it is right in {right['MLE'][1]:.3f} of the cases.",
        holds=outside["MLE"] > 0.75,
        partly=outside["MLE"] > 0.6,
    )
    return _same_accuracy(right), overconfident, _less_confident(inside, outside), _like_hmc(found)


def _same_accuracy(right: dict[str, tuple[float, float]]) -> Claim:
    mle, split = right["MLE"], right["Algorithm 2"]
    apart = max(abs(right[name][1] - mle[1]) for name in BAYES)
    return judged(
        "All Bayesian methods have the MLE's accuracy of 98.01 %.",
        f"Training accuracy {100 * mle[0]:.2f} % (MLE) and {100 * split[0]:.2f} % (Algorithm 2); test accuracy "
        f"{100 * mle[1]:.2f} % and {100 * split[1]:.2f} %; the Bayesian methods differ from the MLE by at most "
        f"{100 * apart:.2f} points on the test images.",
        holds=apart <= 0.005 and abs(mle[1] - 0.9801) < 0.01,
        partly=apart <= 0.005,
        why="98.01 % is no multiple of 1/2000 and so no accuracy on the 2,000 test images, but it is 9,801 of the "
        "10,000 training images: probably a training accuracy.",
    )


def _less_confident(inside: dict[str, float], outside: dict[str, float]) -> Claim:
    lower = {name: outside["MLE"] - outside[name] for name in BAYES}
    return judged(
        "Last-layer Bayesian approximations are less confident on images of other classes.",
        "Mean confidence there lower than the MLE's by "
        + ", ".join(f"{gap:+.4f} ({name})" for name, gap in lower.items())
        + "; on the test images "
        + ", ".join(f"{inside[name]:.4f} ({name})" for name in ("MLE", "Laplace", "Algorithm 2"))
        + ".",
        holds=all(gap > 0.01 for gap in lower.values()),
        partly=any(gap > 0 for gap in lower.values()),
        why="The posterior is fitted to the features of the training images, which the network separates almost "
        "perfectly; with so many data it is narrow, and its mean may be further out than the weights that weight decay "
        "held back.",
    )


def _like_hmc(found: dict[str, Seen]) -> Claim:
    hmc, split, exact = found["HMC"], found["Algorithm 2"], found["Equilibrium"]
    near = float(np.mean(np.abs(split.test - hmc.test)))
    return judged(
        "The sampler agrees with HMC and needs less time.",
        f"Mean difference of probabilities {near:.4f} on the test images; {split.steps} steps of Algorithm 2 take "
        f"{split.seconds / hmc.seconds:.2f} of HMC's time, {exact.steps} steps of Equilibrium "
        f"{exact.seconds / hmc.seconds:.3f}.",
        holds=near < 0.005 and split.seconds < hmc.seconds,
        partly=near < 0.01,
        why="Each of its steps is cheap, but thousands of them are not.",
    )


def _settings(run: Run) -> tuple[Setting, ...]:
    size = run.size
    whole = size.images
    data = "CIFAR-10, dog 0, cat 1; other eight classes of the test set" if whole else "digits 3 and 5 of scikit-learn"
    return (
        Setting("data", data, "paper" if whole else "ours"),
        Setting("network", "ResNet10, 256 features, one logit without bias", "paper", "widths 16-64-128-256 are ours"),
        Setting(
            "training",
            f"SGD 0.1 with a cosine, momentum 0.9, weight decay 5e-4, {size.epochs} epochs, images mirrored and moved",
            "ours",
            "said: regularised; as much as a CPU can do",
        ),
        Setting("prior", "N(0, 2 I)", "ours", "unsaid here; the value of the toy experiment"),
        Setting("Algorithm 2", f"J = {size.image_particles}, ds = {HORIZON / size.image_steps:g}, K ds = 23", "paper"),
        Setting(
            "deep ensemble",
            f"M = {size.image_members}, no adversarial examples; the first network is the MLE",
            "ours",
            "M = 5 there; a network takes 20 minutes on two cores, adversarial examples twice that",
        ),
        Setting("HMC", f"NUTS, {size.hmc[0]} draws of {size.hmc[1]} chains", "ours", "said: 5000 draws, 15 chains"),
        Setting("Algorithm 1", "left out; Homotopy, its exact-flow version, stands for it", "ours", "10,000 steps"),
    )
