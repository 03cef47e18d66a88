"""Measure classifiers with many classes against scikit-learn: processor time, memory, log loss, calibration.

    python benchmarks/many_classes.py                       # all cases; writes the results and the page
    python benchmarks/many_classes.py --case "15,000 x 384 x 150"
    python benchmarks/many_classes.py --page                # the page alone, from the results

Each case runs in a process of its own, so that its peak memory can be measured, with one BLAS thread. A ratio is the
median over repetitions of processor times measured one after the other, because other programs may share the machine.

Data with many classes that a clean machine can get are few, so most are made here. "clusters" are like the embeddings
of a network: class means with a decaying spectrum, some of them close to each other, heavy-tailed deviations whose size
depends on the class, rows of unit length, and a few wrong labels. No Gaussian prior of the weights is right for them.
In "softmax" the labels come from a softmax whose weights are drawn from the prior. Digits are real. Constants were
chosen on clusters with seed 0; these have other seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from environment import environment
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import enkbayes as eb
from enkbayes.evaluation.metrics import ece
from enkbayes.inference.prior_average import average_posterior
from enkbayes.samplers.start import default_sampler

RESULTS = Path(__file__).parent / "results" / "many_classes.json"
PAGE = Path(__file__).parent.parent / "docs" / "results" / "many_classes.md"
TEST = 4_000
STRENGTHS = (0.01, 0.1, 1.0, 10.0)
CASES = {  # kind, rows, features, classes, repetitions, whether the fixed prior is fitted
    "15,000 x 384 x 150": ("clusters", 15_000, 384, 150, 1, True),
    "1,000 x 16 x 26": ("clusters", 1_000, 16, 26, 5, True),
    "3,000 x 64 x 40": ("clusters", 3_000, 64, 40, 3, False),
    "600 x 128 x 30": ("clusters", 600, 128, 30, 5, False),
    "softmax, 1,000 x 16 x 26": ("softmax", 1_000, 16, 26, 5, False),
    "digits, 600 x 64 x 10": ("digits", 600, 64, 10, 5, False),
}


def clusters(N: int, D: int, K: int, rng: np.random.Generator):
    """Return features (N, D) like those of a network, and labels."""
    decay = np.arange(1, D + 1) ** -0.5
    means = rng.standard_normal((K, D)) * decay
    for k in range(0, K, 5):
        means[k] = 0.75 * means[(k + 1) % K] + 0.4 * means[k]
    labels, degrees = rng.integers(0, K, N), 4
    tails = np.sqrt(degrees / rng.chisquare(degrees, N))[:, None]
    sizes = np.exp(0.4 * rng.standard_normal((K, 1)))
    mixing = 0.7 * np.eye(D) + 0.7 * rng.standard_normal((D, D)) / np.sqrt(D)
    features = means[labels] + 0.8 * sizes[labels] * tails * ((rng.standard_normal((N, D)) * decay) @ mixing)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    wrong = rng.random(N) < 0.005
    return features, np.where(wrong, (labels + rng.integers(1, 6, N)) % K, labels)


def softmax(N: int, D: int, K: int, rng: np.random.Generator, width: float = 30.0):
    """Return features (N, D) and labels of a softmax whose weights come from a Gaussian prior."""
    decay = np.arange(1, D + 1) ** -0.5
    features = rng.standard_normal((N, D)) * decay
    weights = rng.standard_normal((D, K)) * np.sqrt(width / np.sum(decay**2))
    return features, np.argmax(features @ weights + rng.gumbel(size=(N, K)), axis=1)


def data(kind: str, N: int, D: int, K: int, seed: int):
    """Return training features and labels, and new ones; features are standardised."""
    rng = np.random.default_rng(seed)
    if kind == "digits":
        features, labels = load_digits(return_X_y=True)
        order = rng.permutation(len(labels))
        features, labels = features[order], labels[order]
    else:
        features, labels = (clusters if kind == "clusters" else softmax)(N + TEST, D, K, rng)
    scaler = StandardScaler().fit(features[:N])
    return scaler.transform(features[:N]), labels[:N], scaler.transform(features[N:]), labels[N:]


def loss(log_p, labels) -> float:
    """Return the log loss."""
    return float(-np.mean(log_p[np.arange(len(labels)), labels]))


def scores(p, labels) -> dict[str, float]:
    """Return log loss, calibration error and accuracy of probabilities (n, K)."""
    return {
        "nll": loss(np.log(np.maximum(p, 1e-12)), labels),
        "ece": float(ece(p, labels)),
        "accuracy": float(np.mean(p.argmax(axis=1) == labels)),
    }


def seconds(function):
    """Return the processor time of a call, and what it returns."""
    started = time.process_time()
    found = function()
    return time.process_time() - started, found


def no_run(problem: eb.Problem) -> eb.Posterior:
    """Stand for a run of a sampler, which the default needs for none of these problems."""
    raise AssertionError("the default should fit this without a sampler")


def measure(name: str, seed: int = 100) -> dict[str, object]:
    """Return the figures of one case."""
    warnings.simplefilter("ignore")
    kind, N, D, K, repetitions, fixed = CASES[name]
    X, y, new, truth = data(kind, N, D, K, seed)
    K, half = int(y.max()) + 1, len(truth) // 2
    problem = eb.Problem.create(X, y, 10.0, intercept=100.0, classes=np.arange(K))
    groups = np.repeat([0] * D + [-1], K)
    point_times, ours_times = [], []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    for _ in range(repetitions):
        used, (posterior, _) = seconds(lambda: average_posterior(problem, groups, no_run, short=True))
        ours_times.append(used)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        used, point = seconds(lambda: LogisticRegression(C=10.0, max_iter=1_000).fit(X, y))
        point_times.append(used)
    predicting, p = seconds(lambda: posterior.predict_proba(new[half:]))
    trust_seconds = seconds(lambda: eb.assess(problem, posterior))[0]
    logits = {C: LogisticRegression(C=C, max_iter=1_000).fit(X, y).decision_function(new) for C in STRENGTHS}
    logits[10.0] = point.decision_function(new)
    scaled = {C: temperature(z[:half], truth[:half]) for C, z in logits.items()}
    best = min(STRENGTHS, key=lambda C: scaled[C][1])
    tempered = np.exp(log_softmax(scaled[best][0] * logits[best][half:], axis=1))
    result = {
        "kind": kind,
        "rows, features, classes": [N, D, K],
        "seconds of LogisticRegression(C=10)": float(np.median(point_times)),
        "ratio of the average": float(np.median(np.asarray(ours_times) / point_times)),
        "repetitions": repetitions,
        "GB before": before,
        "GB peak of the average": peak,
        "seconds of predictions a thousand rows": 1000 * predicting / (len(truth) - half),
        "seconds of trust": trust_seconds,
        "average": scores(p, truth[half:]),
        "LogisticRegression(C=10)": scores(np.exp(log_softmax(logits[10.0][half:], axis=1)), truth[half:]),
        "LogisticRegression, C and temperature from extra rows": {"C": best} | scores(tempered, truth[half:]),
        "message": posterior.message,
    }
    if fixed:
        variance = 10.0 / X.shape[1]
        prior = eb.Problem.create(X, y, variance, intercept=100.0, classes=np.arange(K))
        used, fitted = seconds(lambda: eb.run(prior, default_sampler(prior)))
        same, _ = seconds(lambda: LogisticRegression(C=variance, max_iter=1_000).fit(X, y))
        result["fixed prior"] = scores(fitted.predict_proba(new[half : half + 500]), truth[half : half + 500]) | {
            "ratio": used / same,
            "steps": fitted.info.steps,
            "converged": fitted.info.converged,
        }
    return result


def temperature(logits, labels) -> tuple[float, float]:
    """Return the factor of the logits that these rows choose, and their log loss."""
    found = minimize_scalar(lambda u: loss(log_softmax(np.exp(u) * logits, axis=1), labels), bounds=(-3, 3))
    return float(np.exp(found.x)), float(found.fun)


def page(results: dict[str, object]) -> str:
    """Return the page, made of the results."""
    cases = results["cases"]
    times = [case["ratio of the average"] for case in cases.values()]
    better = sum(case["average"]["nll"] < case["LogisticRegression(C=10)"]["nll"] for case in cases.values())
    lines = [
        "# Many classes",
        "",
        f"**The default takes {min(times):.0f} to {max(times):.0f} times as long as one `LogisticRegression(C=10)`,",
        f"and has the lower log loss in {better} of {len(cases)} cases.**",
        "",
        "## Against scikit-learn",
        "",
        "Times are ratios of processor time to `LogisticRegression(C=10)` in the same run. NLL is the log loss of new",
        "rows and ECE the calibration error. The last columns are `LogisticRegression` with C and temperature chosen",
        "on 2,000 extra rows (digits: 598), which the average does not see. All data but the digits are made, see the",
        "script: in the clusters rows of all classes differ in the same directions, which suits the second shape.",
        "",
        "| rows x features x classes | time | GB | NLL | ECE | C=10: NLL | extra rows: NLL | ECE |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, case in cases.items():
        ours, plain = case["average"], case["LogisticRegression(C=10)"]
        extra = case["LogisticRegression, C and temperature from extra rows"]
        lines.append(
            f"| {name} | {case['ratio of the average']:.1f} | {case['GB peak of the average']:.2f} | {ours['nll']:.4f} "
            f"| {ours['ece']:.4f} | {plain['nll']:.4f} | {extra['nll']:.4f} | {extra['ece']:.4f} |"
        )
    lines += [
        "",
        "The logit scale comes from fits to four fifths of the rows. With few rows it is known less well than from",
        "extra rows.",
        "",
        "## What the default is",
        "",
        "With more than 12 classes, or more than 500 parameters (K - 1 times the features, or rows where those",
        "are fewer), the default is an average of scaled point estimates with a few widths of the prior",
        "(`enkbayes.inference.many_classes`). Rows that a fold leaves out give each prior a logit scale, a spread and",
        "a weight: one fold beyond 5,000 rows, five below. The spread is 0 where the point estimate predicts better,",
        "as it does on most data with many classes: there the Gaussian prior of the weights is wrong. Then all",
        "particles of a prior are equal, and epistemic uncertainty is how the priors disagree. Smaller problems get a",
        "posterior ([the prior](../understand/priors.md)).",
        "",
        "Every width comes with two shapes of the prior: the one that was given, and N(0, v S^-1), where S is the",
        "covariance of the rows within their classes, shrunk by the rule of Ledoit and Wolf. The second gives small",
        "weights to directions in which rows of one class differ much, as linear discriminant analysis does. A search",
        "that stops early in the eigenbasis of the features acts like such a prior, but only by accident.",
        "",
        "The most probable weights come from L-BFGS in the eigenbasis of the features, with the curvature of each",
        "class in its first matrix. The fits of all folds move together, so that one product of matrices serves all.",
        "Memory is that of the features, the parameters and the particles.",
        "",
        "## One fixed width, and full posteriors",
        "",
        "With a number for `prior_precision` the posterior is that of exactly this prior. From 20 classes and 300",
        "parameters on it is that of `MeanField(rank=0)`, whose covariance is diagonal in a frame of features and",
        "classes. The table has its time, as a ratio to `LogisticRegression` with the same prior. `Equilibrium()` and",
        "`MeanField()` with directions cost far more: a step averages the softmax over the Gaussian of all weights.",
        "`polish` and the other samplers work for any number of classes, at the cost of a pass over the rows a",
        "particle and sweep.",
        "",
        "| rows x features x classes | time | steps | NLL |",
        "|---|---|---|---|",
    ]
    for name, case in cases.items():
        if fixed := case.get("fixed prior"):
            lines.append(f"| {name} | {fixed['ratio']:.0f} | {fixed['steps']} | {fixed['nll']:.4f} |")
    trust = max(case["seconds of trust"] for case in cases.values())
    lines += [
        "",
        f"`assess` of the averages above takes at most {trust:.1f} seconds of processor time.",
        "",
        "`python benchmarks/many_classes.py` writes this page from `benchmarks/results/many_classes.json`.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=[*CASES], action="append")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    parser.add_argument("--inside", action="store_true", help="run in this process and print the result")
    arguments = parser.parse_args()
    names = arguments.case or [*CASES]
    if arguments.inside:
        print(json.dumps(measure(names[0])))
        return
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": {}}
    for name in [] if arguments.page else names:
        command = [sys.executable, __file__, "--inside", "--case", name]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        document["environment"], document["cases"][name] = environment(), json.loads(found.splitlines()[-1])
        print(name, json.dumps(document["cases"][name], indent=1), flush=True)
        document["cases"] = {case: document["cases"][case] for case in CASES if case in document["cases"]}
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    PAGE.write_text(page(document), encoding="utf-8")


if __name__ == "__main__":
    main()
