"""Compare what the default could be for three and more classes, on development sets: posteriors, or point estimates.

    python benchmarks/softmax_choices.py           # measures what is not in the results yet, and prints the comparison
    python benchmarks/softmax_choices.py --table   # the comparison alone

For every set of `default_sets.DEVELOPMENT` with three or more classes, with few rows and many, the log loss of test
rows and the processor time of `LogisticRegressionCV`, of the average over posteriors whatever the size, and of that
over scaled point estimates (`WidthAverage`). The comparison shows the mean ratio of log losses to
`LogisticRegressionCV`, and the ratio of times, if problems up to a number of parameters get posteriors and the others
point estimates: `WidthGrid.most_softmax`. The second table does the same for `decisive` of `SEVERAL_LOGITS`, the nats
from which a sharper average replaces a posterior.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from default_methods import cross_validated
from default_sets import split
from environment import environment
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

import enkbayes as eb
from enkbayes.inference.many_classes import WidthAverage
from enkbayes.inference.prior_average import SEVERAL_LOGITS, average_posterior

RESULT = Path(__file__).parent / "results" / "softmax_choices.json"
SIZES = {
    "iris": (50, 100), "penguins": (50, 229), "wine": (50, 118), "scat": (50, 73), "DNA": (50, 200),
    "Vowel": (55, 200), "Soybean": (90, 200), "income": (45, 200),
}  # fmt: skip
SPLITS = 2
LARGEST = 600  # parameters, beyond which posteriors are not measured: they take minutes
DECISIVE = (1.0, 2.0, 4.0, float("inf"))
MOST = (0, 45, 100, 200, 400, 500, 600)


def problem_of(data):
    """Return the problem that the classifier poses, and the groups of its parameters."""
    K = int(data.y.max()) + 1
    groups = np.repeat([0] * data.X.shape[1] + [-1], K)
    return eb.Problem.create(data.X, data.y, 1.0, intercept=100.0, classes=np.arange(K)), groups


def loss(proba, labels) -> float:
    """Return the log loss."""
    return float(-np.mean(np.log(np.maximum(proba[np.arange(len(labels)), labels], 1e-12))))


def seconds(function):
    """Return the processor time of a call, and what it returns."""
    begun = time.process_time()
    found = function()
    return time.process_time() - begun, found


def measure(name: str, n: int, repeat: int) -> dict[str, object]:
    """Return the figures of a split."""
    data = split(name, n, repeat)
    K = int(data.y.max()) + 1
    problem, groups = problem_of(data)
    count = (K - 1) * min(data.X.shape[1] + 1, n + 1)
    found = {"set": name, "n": n, "repeat": repeat, "features": data.X.shape[1], "classes": K, "parameters": count}

    def fit(_: eb.Problem):
        raise AssertionError("fits are short ones")

    used, proba = seconds(lambda: cross_validated(data, repeat))
    found["LogisticRegressionCV"] = {"nll": loss(proba, data.y_test), "seconds": used}
    used, _ = seconds(lambda: LogisticRegression(max_iter=1000).fit(data.X, data.y))
    found["LogisticRegression"] = {"seconds": used}
    used, mixture = seconds(lambda: WidthAverage().posterior(problem))
    found["point estimates"] = {"nll": loss(mixture.predict_proba(data.X_test), data.y_test), "seconds": used}
    for decisive in DECISIVE if count <= LARGEST else ():
        grid = replace(SEVERAL_LOGITS, most_softmax=LARGEST, decisive=decisive)
        used, (mixture, _) = seconds(lambda grid=grid: average_posterior(problem, groups, fit, short=True, grid=grid))
        figures = {"nll": loss(mixture.predict_proba(data.X_test), data.y_test), "seconds": used}
        found[f"posteriors, {decisive:g} nats"] = figures | {"held out": mixture.held_out}
    return found


def table(cases: list[dict[str, object]]) -> str:
    """Return the comparison."""
    chosen = f"posteriors, {SEVERAL_LOGITS.decisive:g} nats"
    lines = [f"{len(cases)} splits; ratios to LogisticRegressionCV: log loss (geometric mean), time (median)"]
    for most in MOST:
        picks = [case[chosen if case["parameters"] <= most else "point estimates"] for case in cases]
        lines.append(f"posteriors up to {most:4} parameters: {_compared(cases, picks)}")
    both = [case for case in cases if chosen in case]
    for decisive in DECISIVE:
        picks = [case[f"posteriors, {decisive:g} nats"] for case in both]
        held_out = np.mean([pick["held out"] for pick in picks])
        lines.append(f"sharper from {decisive:3g} nats: {_compared(both, picks)}, scaled by folds {held_out:.0%}")
    return "\n".join(lines)


def _compared(cases, picks) -> str:
    base = [case["LogisticRegressionCV"] for case in cases]
    ratios = np.asarray([pick["nll"] / point["nll"] for pick, point in zip(picks, base, strict=True)])
    worst = max(pick["nll"] - point["nll"] for pick, point in zip(picks, base, strict=True))
    times = np.median([pick["seconds"] / point["seconds"] for pick, point in zip(picks, base, strict=True)])
    return (
        f"{np.exp(np.mean(np.log(ratios))):.3f}, better {np.mean(ratios < 1):.0%}, worst {worst:+.3f}, time {times:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="print the comparison alone")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    document = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {"cases": []}
    done = {(case["set"], case["n"], case["repeat"]) for case in document["cases"]}
    wanted = [(name, n, repeat) for repeat in range(SPLITS) for name, sizes in SIZES.items() for n in sizes]
    with threadpool_limits(1):
        for key in [] if arguments.table else wanted:
            if key in done:
                continue
            document["cases"].append(measure(*key))
            document["environment"] = environment()
            RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            print(json.dumps(document["cases"][-1]), flush=True)
    print(table(document["cases"]))


if __name__ == "__main__":
    main()
