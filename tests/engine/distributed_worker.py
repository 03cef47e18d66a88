"""One process of several; started by test_distributed.py. Arguments: cases, number, count, folder."""

import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from torch import distributed as processes

import enkbayes as eb
from enkbayes.engine import ProcessLost

SAMPLERS = {
    "binary": eb.Equilibrium(),
    "softmax": eb.Equilibrium(tol=1e-4),
    "mean field": eb.MeanField(),
    "structured": eb.MeanField(rank=3, tol=1e-3),
    "paper": eb.TrotterSampler(ds=0.1, max_steps=50),
    "homotopy": eb.Homotopy(steps=5),
    "empty": eb.Equilibrium(),
    "empty structured": eb.MeanField(rank=3, tol=1e-3),
    "torch": eb.Equilibrium(),
    "few": eb.Equilibrium(),
}


def data(case):
    rng = np.random.default_rng(7)
    features = rng.standard_normal((200, 6))
    score = features @ rng.standard_normal(6)
    labels = np.digitize(score, [-1.0, 1.0]) if case == "softmax" else (score > 0).astype(int)
    return features, np.where(rng.random(200) < 0.1, 0, labels), rng.uniform(0.5, 2, 200)


def fit(case, create, rows=slice(None)):
    """Return the posterior of some of the rows, or with `Problem.create_sharded` of all of them."""
    features, labels, weights = (x[rows] for x in data(case))
    x = torch.as_tensor(features) if case == "torch" else features
    problem = create(x, labels, 2.0, intercept=10.0, weights=weights, chunk=50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eb.run(problem, SAMPLERS[case], particles=5 if case == "few" else 40, seed=3)


def rows(case, number, count):
    """Return the rows of a process: uneven, and none at all for the last one in the cases "empty"."""
    cuts = {2: [0, 37, 200], 3: [0, 37, 150, 200]}[count]
    if case.startswith("empty"):
        cuts = [0, *([200] * count)] if count == 2 else [0, 110, 200, 200]
    return slice(cuts[number], cuts[number + 1])


def grades(part=slice(None)):
    """Return a classifier of ordered classes, of which the first rows have only two, and how it is fitted."""
    features, _, weights = data("binary")
    order = np.argsort(features[:, 0])
    labels = np.digitize(features[:, 0] + 0.3 * features[:, 1], [-1.0, 0.0, 1.0])
    return eb.EnsembleClassifier(prior_precision=1.0, likelihood="ordinal", random_state=0), *(
        x[order][part] for x in (features, labels, weights)
    )


def ordered(number, folder):
    """Fit a classifier of ordered classes to the rows of both processes."""
    clf, features, labels, weights = grades(rows("binary", number, 2))
    clf.fit_shard(features, labels, weights)
    cutpoints = clf.posterior_.likelihood.cutpoints
    np.savez(folder / f"ordered-{number}.npz", theta=clf.posterior_.theta, cutpoints=cutpoints, classes=clf.classes_)


def lost(number, folder):
    """The other process ends; this one says so."""
    if number == 1:
        os._exit(1)
    try:
        fit("binary", eb.Problem.create_sharded, rows("binary", number, 2))
    except ProcessLost as error:
        (folder / "lost.txt").write_text(str(error))
    os._exit(0)


def bad(number, folder):
    """One process has bad data; both say which."""
    features, labels, _ = (x[rows("binary", number, 2)] for x in data("binary"))
    if number == 1:
        features[3, 2] = np.nan
    try:
        eb.Problem.create_sharded(features, labels)
    except ValueError as error:
        (folder / f"bad-{number}.txt").write_text(str(error))


def main(cases, number, count, folder):
    meet = f"file://{folder}/meet-{count}-{cases[0].replace(' ', '-')}"
    wait = timedelta(seconds=50)
    processes.init_process_group("gloo", init_method=meet, rank=number, world_size=count, timeout=wait)
    for case in cases:
        if case in {"lost", "bad", "ordered"}:
            {"lost": lost, "bad": bad, "ordered": ordered}[case](number, folder)
            continue
        posterior = fit(case, eb.Problem.create_sharded, rows(case, number, count))
        found = {"theta": posterior.theta, "mean": posterior.mean, "steps": posterior.info.steps}
        np.savez(folder / f"{case}-{count}-{number}.npz", **{name: np.asarray(x) for name, x in found.items()})
    processes.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
