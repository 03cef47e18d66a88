"""Which rule weighs the widths of the default prior? Rules side by side on development data with two classes.

    python benchmarks/default_rules.py             # resumes; results/default_rules.json and a table
    python benchmarks/default_rules.py --compare   # only the table and the JSON, from what has been stored

For every task the fits of all widths to all rows and without each fold are stored ($ENKBAYES_DATA or
~/.cache/enkbayes, folder rules): probabilities of the classes of left-out rows and of test rows, under the posterior of
each width and under sharper Gaussians. A rule is a `WidthGrid`; it chooses weights from the former and is judged by the
latter. Tasks are the sets of DEVELOPMENT with two classes, one class against the others of the other sets, and
families of drawn data.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from default_methods import cross_validated
from default_sets import DEVELOPMENT, Split, load, sizes, split
from environment import environment
from scipy.special import expit
from threadpoolctl import threadpool_limits

import enkbayes as eb
from enkbayes.inference.prior_average import Component, PriorAverage, SearchedPriors, WidthGrid, mixture_of
from enkbayes.inference.warm_fits import short_fits
from enkbayes.reproduction.datasets.downloads import cache_folder

RESULT = Path(__file__).parent / "results" / "default_rules.json"
MOST = 2_500  # training rows
REPEATS = ((100, 5), (300, 3), (MOST, 1))  # splits up to so many rows
ONE_CLASS = {
    "DNA": (0, 2),
    "Vowel": (0, 5),
    "iris": (1,),
    "wine": (1, 2),
    "penguins": (0, 1),
    "scat": (0,),
    "income": (0,),
}
FAMILIES = (
    "sparse",
    "sparse strong",
    "shift",
    "shift easy",
    "shift hard",
    "clusters",
    "one-hot",
    "one-hot rare",
    "noise",
)
KINDS = tuple(
    (share, around_mode, inside)
    for inside in (True, False)
    for share, around_mode in ((1.0, False), (0.3, False), (0.1, False), (0.1, True), (0.0001, True))
    if share < 1 or inside
)
WIDTHS = tuple(float(x) for x in 10.0 ** np.arange(-2.5, 4.1, 0.5))
EVERY = WidthGrid(widths=WIDTHS, start=10.0, hopeless=np.inf, sharp=KINDS)

CHOSEN = WidthGrid()
WIDER = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
NARROWER = tuple(x / 10**0.5 for x in CHOSEN.widths)
RULES: dict[str, WidthGrid] = {
    "chosen": CHOSEN,
    "before: widths .03 to 3,000, one sharper, c = 3": replace(
        CHOSEN, widths=NARROWER, share=0.1, ordinary=1e-9, sharp=((0.1, False, False),), decisive=2.0, relative=0.2
    ),
    "posteriors alone": replace(CHOSEN, sharp=()),
    "widths .03 to 3,000": replace(CHOSEN, widths=NARROWER),
    "all widths": replace(CHOSEN, widths=WIDTHS),
    "widths .01 to 10,000": replace(CHOSEN, widths=(0.01, *WIDER)),
    "widths .01 to 10,000, share = .5": replace(CHOSEN, widths=(0.01, *WIDER), share=0.5),
    "widths .01 to 10,000, c = 10": replace(CHOSEN, widths=(0.01, *WIDER), pseudo_rows=10.0),
    "widths .01 to 10,000, c = 1": replace(CHOSEN, widths=(0.01, *WIDER), pseudo_rows=1.0),
    "widths .01 to 10,000, scale = 2": replace(CHOSEN, widths=(0.01, *WIDER), scale=2.0),
    "widths .01 to 10,000, sharper: .3 of it": replace(CHOSEN, widths=(0.01, *WIDER), sharper=0.3),
    "c = 3 for all rows": replace(CHOSEN, ordinary=1e-9),
    "ordinary = .43": replace(CHOSEN, ordinary=0.43),
    "ordinary = 1.4": replace(CHOSEN, ordinary=1.44),
    "c = 1": replace(CHOSEN, pseudo_rows=1.0),
    "c = 10": replace(CHOSEN, pseudo_rows=10.0),
    "share = .1": replace(CHOSEN, share=0.1),
    "scale = 2": replace(CHOSEN, scale=2.0),
    "scale = 16": replace(CHOSEN, scale=16.0),
    "sharper without a condition": replace(CHOSEN, decisive=-np.inf),
    "sharper from 2 nats or a fifth": replace(CHOSEN, decisive=2.0, relative=0.2),
    "sharper with the prior outside": replace(CHOSEN, sharp=((0.3, False, False), (0.1, True, False))),
    "sharper: 1, .3": replace(CHOSEN, sharp=((1.0, False, True), (0.3, False, True))),
    "sharper: .3, .1 at the mode": replace(CHOSEN, sharp=((0.3, False, True), (0.1, True, True))),
    "sharper: 1, .3, point estimate": replace(
        CHOSEN, sharp=((1.0, False, True), (0.3, False, True), (0.0001, True, True))
    ),
    "sharper: 1, .3, .1, .1 at the mode": replace(
        CHOSEN, sharp=((1.0, False, True), (0.3, False, True), (0.1, False, True), (0.1, True, True))
    ),
    "sharper: .3 of the Dirichlet prior": replace(CHOSEN, sharper=0.3),
}


def drawn(family: str, n: int, repeat: int, test: int = 2_000) -> Split:
    """Return rows of a family, standardised by the training rows."""
    rng = np.random.default_rng((FAMILIES.index(family), n, repeat))
    size = n + test
    if family.startswith("sparse"):
        D, few, weight = (100, 3, 4.0) if "strong" in family else (300, 6, 1.5)
        X = rng.standard_normal((size, D))
        y = rng.random(size) < expit(weight * X[:, :few].sum(axis=1))
    elif family.startswith("shift"):  # embeddings: a falling spectrum, and two means
        distance = {"shift": 3.0, "shift easy": 5.0, "shift hard": 1.8}[family]
        y, sd = rng.random(size) < 0.4, np.arange(1, 385) ** -0.5
        u = rng.standard_normal(384) * sd**0.5
        turned = np.linalg.qr(rng.standard_normal((384, 384)))[0]
        apart = (y - 0.5)[:, None] * u * distance / np.sqrt(np.sum((u / sd) ** 2))
        X = (rng.standard_normal((size, 384)) * sd + apart) @ turned
    elif family == "clusters":  # six of them in a subspace of 200 features, two per cent of the labels wrong
        centre, member = 2 * rng.standard_normal((6, 8)), rng.integers(0, 6, size)
        inside = centre[member] + 0.7 * rng.standard_normal((size, 8))
        X = inside @ rng.standard_normal((8, 200)) / np.sqrt(8) + 0.7 * rng.standard_normal((size, 200))
        y = (member < 3) ^ (rng.random(size) < 0.02)
    elif family.startswith("one-hot"):
        rare = "rare" in family
        columns, levels, few = (15, 12, 4) if rare else (12, 6, 12)
        codes = (
            np.minimum(rng.geometric(0.35, (size, columns)) - 1, 11) if rare else rng.integers(0, 6, (size, columns))
        )
        effect = rng.standard_normal((columns, levels)) * (1.5 if rare else 0.8) * (np.arange(columns) < few)[:, None]
        y = rng.random(size) < expit(sum(effect[j, codes[:, j]] for j in range(columns)))
        X = np.hstack([np.eye(levels)[codes[:, j]] for j in range(columns)])
    else:
        X = rng.standard_normal((size, 40))
        y = rng.random(size) < expit(0.5 * X[:, 0] - 1)
    y = y.astype(int)
    y[:4] = 0, 0, 1, 1
    mean, sd = X[:n].mean(axis=0), X[:n].std(axis=0)
    X = (X[:, sd > 0] - mean[sd > 0]) / sd[sd > 0]
    return Split(X[:n], y[:n], X[n:], y[n:])


def tasks() -> Iterator[tuple[str, int, int]]:
    """Yield names, training rows and splits, the first split of everything first."""
    for repeat in range(REPEATS[0][1]):
        for name in DEVELOPMENT:
            binary = int(load(name)[1].max()) == 1
            for n in sizes(name):
                if n <= MOST and repeat < next(count for most, count in REPEATS if n <= most):
                    for which in [name] if binary else [f"{name}:{k}" for k in ONE_CLASS.get(name, ())]:
                        yield which, n, repeat
        for family in FAMILIES:
            yield from ((family, n, repeat) for n in (50, 200) if repeat < next(c for most, c in REPEATS if n <= most))


def rows_of(task: str, n: int, repeat: int) -> Split:
    """Return training and test rows of a task."""
    if task in FAMILIES:
        return drawn(task, n, repeat)
    name, _, one = task.partition(":")
    data = split(name, n, repeat)
    return replace(data, y=(data.y == int(one)) * 1, y_test=(data.y_test == int(one)) * 1) if one else data


def stored(path: Path, task: str, n: int, repeat: int) -> None:
    """Fit all widths and store what they, and LogisticRegressionCV, say of the classes of left-out and test rows."""
    data = rows_of(task, n, repeat)
    reference = cross_validated(data, 0)[np.arange(len(data.y_test)), data.y_test]
    problem = eb.Problem.create(data.X, data.y, 1.0, intercept=100.0, classes=[0, 1])
    groups = np.append(np.zeros(data.X.shape[1], dtype=int), -1)
    (search,) = SearchedPriors.of(problem, groups, EVERY).searches  # the features are standardised
    found = search.compared()
    count, kinds = len(found.widths), search.grid.kinds
    share = 1 / (count * len(kinds))
    parts = tuple(Component(w, (w / search.unit,), share, share, False, *k) for w in found.widths for k in kinds)
    short = partial(short_fits, groups=groups, fit=lambda p: eb.run(p, eb.MeanField()), particles=2, seed=0)
    mixture = mixture_of(problem, groups, PriorAverage(parts, n, ""), eb.run, short)
    proba = [c.predict_proba(data.X_test)[np.arange(len(data.y_test)), data.y_test] for c in mixture.components]
    path.parent.mkdir(parents=True, exist_ok=True)
    table = np.stack(proba, axis=1).reshape(-1, count, len(kinds)).astype(np.float32)
    held = np.asarray(found.proba).astype(np.float32)
    np.savez_compressed(path, logs=found.logs, counts=found.counts, held=held, test=table, reference=reference)


def log_loss(found: Any, rule: WidthGrid) -> float:
    """Return the log loss of test rows under the weights that a rule chooses."""
    chosen = np.argmin(np.abs(np.log(WIDTHS) - np.log(np.asarray(rule.widths))[:, None]), axis=1)
    wide = found["held"].shape[2] == len(EVERY.kinds)
    if not wide:  # as many rows as features: nothing is outside their space
        rule = replace(rule, sharp=tuple(dict.fromkeys((s, mode, False) for s, mode, _ in rule.sharp if s < 1)))
    stored_kinds = EVERY.kinds if wide else tuple(dict.fromkeys((s, m, False) for s, m, _ in EVERY.kinds))
    kinds = [stored_kinds.index(kind) for kind in rule.kinds]
    sd = np.sqrt(np.asarray(rule.widths))
    density = np.log(sd / (1 + (sd / rule.scale) ** 2))
    held, test = (found[part].astype(np.float64)[:, chosen][:, :, kinds] for part in ("held", "test"))
    weights = rule.weights(found["logs"][chosen], density, held, found["counts"])
    return float(-np.log(np.maximum((test * weights).sum(axis=(1, 2)), 1e-12)).mean())


def compared(folder: Path) -> dict[str, Any]:
    """Return the figures of every rule, over pairs of a task and a number of rows, and the log losses of each pair."""
    losses: dict[tuple[str, int], list[list[float]]] = {}
    for path in sorted(folder.glob("*.npz")):
        task, n, _ = path.stem.rsplit("-", 2)
        found = np.load(path)
        found = {key: found[key] for key in found.files}
        reference = float(-np.log(np.maximum(found["reference"], 1e-12)).mean())
        row = [reference, *(log_loss(found, rule) for rule in RULES.values())]
        losses.setdefault((task, int(n)), []).append(row)
    means = {key: np.mean(rows, axis=0) for key, rows in losses.items()}
    table = np.stack(list(means.values()))
    keys = list(means)
    figures = {}
    for i, name in enumerate(RULES, start=1):
        gap = table[:, i] - table[:, 0]
        real = np.asarray([not key[0].startswith(tuple(f.replace(" ", "_") for f in FAMILIES)) for key in keys])
        figures[name] = {
            "ratio": round(float(np.exp(np.mean(np.log(table[:, i] / table[:, 0])))), 4),
            "wins": round(float(np.mean(gap < 0)), 3),
            "worst": round(float(gap.max()), 4),
            "at": list(map(str, keys[int(gap.argmax())])),
            "ratio of real data": round(float(np.exp(np.mean(np.log((table[:, i] / table[:, 0])[real])))), 4),
            "wins of real data": round(float(np.mean(gap[real] < 0)), 3),
            "worst of real data": round(float(gap[real].max()), 4),
            "sum of losses": round(float(np.maximum(gap, 0).sum()), 4),
        }
    pairs = {f"{t}, {n}": [len(losses[t, n]), *np.round(row[:3], 5).tolist()] for (t, n), row in means.items()}
    return {"environment": environment(), "rules": figures, "splits, LogisticRegressionCV, chosen, before": pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of processor time")
    parser.add_argument("--rows", type=int, default=MOST, help="training rows at most")
    options = parser.parse_args()
    folder = cache_folder() / "rules"
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task, n, repeat in () if options.compare else tasks():
            path = folder / f"{task.replace(' ', '_')}-{n}-{repeat}.npz"
            if not path.exists() and n <= options.rows and time.process_time() < options.seconds:
                stored(path, task, n, repeat)
    found = compared(folder)
    RESULT.write_text(json.dumps(found) + "\n", encoding="utf-8")
    for name, figures in found["rules"].items():
        print(f"{name:48}", *(f"{key} {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
