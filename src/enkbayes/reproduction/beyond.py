"""Beyond the paper: exact-flow samplers, the conditions of low far-field confidence, a posterior over all layers."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.evaluation import metrics, plots
from enkbayes.inference.empirical_bayes import tune_prior
from enkbayes.reproduction.datasets import one_thread, tensor
from enkbayes.reproduction.findings import Claim, Drawing, Estimate, Findings, Setting, Table, judged
from enkbayes.reproduction.methods import MOONS, OURS, SIX, TITLES, Study, study
from enkbayes.reproduction.scores import circle, scoreboard
from enkbayes.reproduction.sizes import Run
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run as run_sampler

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Vector = np.ndarray[Any, Any]
VARIANCES = (1.0, 2.0, 20.0)
RANK = 20


def beyond(run: Run) -> Findings:
    """Measure the exact-flow samplers, far-field confidence under several priors, and a posterior over all layers."""
    board = scoreboard(MOONS, run.part(0, 0.5), (*SIX, *OURS))
    columns = {
        "steps": "steps",
        "ratio": "time / HMC",
        "distance": "distance to long NUTS run",
        "far": "far-field confidence",
    }
    flows = board.summary(
        "flows", "Every method on the network of figure 2: mean and standard error over the seeds.", columns
    )
    table, claims, curve = _conditions(run.part(0.5, 0.9))
    whole, network = _whole_network(run.part(0.9, 1.0))
    distances = {name: board.mean(name, "distance").mean for name in (*OURS, "trotter", "tamed-homotopy")}
    exact = judged(
        "Not in the paper: the exact-flow samplers are closer to NUTS than the paper's algorithms, in fewer steps.",
        "Distance to a long NUTS run: "
        + ", ".join(f"{TITLES[name]} {value:.4f}" for name, value in distances.items())
        + f". Equilibrium takes {board.mean('equilibrium', 'steps').mean:.0f} steps, Algorithm 2 takes 200.",
        holds=distances["equilibrium"] < distances["trotter"] and distances["homotopy"] <= distances["tamed-homotopy"],
        partly=distances["equilibrium"] < distances["trotter"],
    )
    settings = (
        Setting("networks", f"trained for {', '.join(f'{n:,}' for n in run.size.lengths)} steps", "ours"),
        Setting("prior", "N(0, v I) with v = 1, 2, 20 and the v with the highest evidence", "ours"),
        Setting("whole network", f"BayesianNetwork, {RANK} informed directions, prior N(trained weights, 2 I)", "ours"),
        Setting("seeds", f"{run.size.seeds}", "ours"),
    )
    return Findings((exact, *claims, network), (flows, table, whole, board.each_seed()), (curve,), settings)


def far_and_near(here: Study, predict: Any) -> tuple[float, float, float]:
    """Return the mean confidence on the far circle and at the training points, and the test accuracy."""
    data = here.data
    far, near = (float(np.mean(metrics.confidence(predict(at)))) for at in (circle(data.train), data.train))
    return far, near, metrics.accuracy(predict(data.test), data.test_labels)


def _conditions(run: Run) -> tuple[Table, tuple[Claim, ...], Drawing]:
    """Measure far-field confidence for each training length and prior variance."""
    priors: tuple[Any, ...] = ("MLE", *VARIANCES, "auto")
    found: dict[tuple[int, Any], list[tuple[float, float, float]]] = {}
    chosen: dict[int, list[float]] = {}
    for i, length in enumerate(run.size.lengths):
        for seed in range(run.size.seeds):
            share = (i + seed / run.size.seeds) / len(run.size.lengths)
            run.progress(share, f"{length:,} steps of training, seed {seed}")
            here = study(MOONS, replace(run.size, steps=length), seed, run.cache)
            for prior in priors:
                predict, variance = _under(here, prior)
                found.setdefault((length, prior), []).append(far_and_near(here, predict))
                if prior == "auto":
                    chosen.setdefault(length, []).append(variance)
    rows = tuple(
        (f"{length:,}", _named(prior), *(str(Estimate.of([each[k] for each in values])) for k in range(3)))
        for (length, prior), values in found.items()
    )
    columns = ("training steps", "prior variance", "far-field confidence", "confidence at training points", "accuracy")
    table = Table("conditions", "MeanField: mean and standard error over the seeds.", columns, rows)
    return table, _condition_claims(found, chosen, run), _condition_curve(found, run)


def _under(here: Study, prior: Any) -> tuple[Any, float]:
    if prior == "MLE":
        return here.fit("mle").predict, float("nan")
    problem = here.problem(2.0 if prior == "auto" else prior)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = tune_prior(problem)[0] if prior == "auto" else problem
        posterior = run_sampler(problem, MeanField(), particles=100)
    variance = float(np.asarray(problem.prior.cov).ravel()[0])
    return lambda points: np.asarray(posterior.predict_proba(here.features(points))), variance


def _named(prior: Any) -> str:
    return prior if isinstance(prior, str) else f"{prior:g}"


def _condition_claims(
    found: dict[tuple[int, Any], list[tuple[float, float, float]]], chosen: dict[int, list[float]], run: Run
) -> tuple[Claim, ...]:
    def far(length: int, prior: Any) -> Vector:
        return np.asarray([each[0] for each in found[length, prior]])

    short, long = run.size.lengths[0], run.size.lengths[-1]
    drop = {length: Estimate.of(far(length, "MLE") - far(length, 2.0)) for length in (short, long)}
    wide = Estimate.of(far(short, 2.0) - far(short, 20.0))
    return (
        judged(
            "Not in the paper: the drop of far-field confidence depends on how long the network was trained.",
            f"With prior variance 2, confidence drops by {drop[short]} after {short:,} training steps and by "
            f"{drop[long]} after {long:,}.",
            holds=Estimate.of((far(short, "MLE") - far(short, 2.0)) - (far(long, "MLE") - far(long, 2.0))).above(0),
            partly=drop[short].mean > drop[long].mean,
        ),
        judged(
            "Not in the paper: the drop of far-field confidence depends on the prior variance.",
            f"After {short:,} training steps, a variance of 20 lowers confidence by {wide} more than a variance of 2. "
            f"The median of the variance with the highest evidence is {np.median(chosen[short]):.3g} after {short:,} "
            f"steps and {np.median(chosen[long]):.3g} after {long:,}.",
            holds=wide.above(0),
            partly=wide.mean > 0,
        ),
    )


def _condition_curve(found: dict[tuple[int, Any], list[tuple[float, float, float]]], run: Run) -> Drawing:
    figure: Figure = plots.require_matplotlib().Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.subplots()
    styles = {"MLE": ("mle", "o"), 1.0: ("laplace", "v"), 2.0: ("equilibrium", "s"), 20.0: ("mean-field", "^")}
    for prior, (name, marker) in {**styles, "auto": ("hmc", "D")}.items():
        each = [Estimate.of([v[0] for v in found[length, prior]]) for length in run.size.lengths]
        label = "MLE" if prior == "MLE" else f"prior variance {_named(prior)}"
        y, error = [e.mean for e in each], [0.0 if np.isnan(e.error) else e.error for e in each]
        ax.errorbar(run.size.lengths, y, error, marker=marker, color=plots.colour(name), capsize=3, label=label)
    ax.set(xlabel="training steps", ylabel="far-field confidence", xscale="log")
    ax.set_xticks(run.size.lengths, labels=[f"{length:,}" for length in run.size.lengths])
    ax.set_xticks([], minor=True)
    ax.legend(frameon=False, fontsize=9)
    alt = "Far-field confidence against training steps for the MLE and four prior variances."
    return Drawing("conditions", figure, alt, "Mean and standard error over the seeds.")


def _whole_network(run: Run) -> tuple[Table, Claim]:
    """Compare the last-layer posterior with the posterior over all layers."""
    from enkbayes.nets import BayesianNetwork

    found: dict[str, list[tuple[float, float, float]]] = {"MLE": [], "last layer": [], "whole network": []}
    for seed in range(run.size.seeds):
        run.progress(seed / run.size.seeds, f"whole network, seed {seed}")
        here = study(MOONS, run.size, seed, run.cache)
        batches = [(tensor(here.data.train), tensor(here.data.train_labels).long())]
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = BayesianNetwork.fit(
                here.network, batches, rank=RANK, prior_precision=0.5, particles=100, seed=seed, progress=False
            )
            found["MLE"].append(far_and_near(here, here.fit("mle").predict))
            found["last layer"].append(far_and_near(here, here.fit("equilibrium").predict))
            found["whole network"].append(
                far_and_near(here, lambda x, w=whole: np.asarray(w(tensor(x)).detach().double()))
            )
    rows = tuple(
        (name, *(str(Estimate.of([v[k] for v in values])) for k in range(3))) for name, values in found.items()
    )
    columns = ("posterior", "far-field confidence", "confidence at training points", "accuracy")
    table = Table("layers", "Mean and standard error over the seeds.", columns, rows)
    falls = [a[0] - b[0] for a, b in zip(found["MLE"], found["whole network"], strict=True)]
    right = Estimate.of([b[2] - a[2] for a, b in zip(found["MLE"], found["whole network"], strict=True)])
    gap = Estimate.of([a[0] - b[0] for a, b in zip(found["last layer"], found["whole network"], strict=True)])
    claim = judged(
        "The methods can be extended to several layers or the entire network.",
        f"Far-field confidence is {Estimate.of([v[0] for v in found['whole network']])} with a posterior over all "
        f"layers and {Estimate.of([v[0] for v in found['last layer']])} with one over the last layer (difference {gap})"
        f". Accuracy differs from that of the MLE by {right}.",
        holds=all(lower > 0 for lower in falls) and right.mean > -1.01 / 30,
        partly=min(falls) > 0 or right.mean > -1.01 / 30,
        why="The prior of all layers is as wide as that of the last layer, and a prior so wide moves the boundary.",
    )
    return table, claim
