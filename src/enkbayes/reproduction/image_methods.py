"""Every method on images: networks that are trained, and posteriors for the last layer of the first of them.

What a method says is kept in a file, so that a run that was stopped goes on with the methods that are missing.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes.core.problem import Problem
from enkbayes.evaluation.baselines import HMC, Ensemble, LaplaceProbit, Method
from enkbayes.reproduction.methods import PRIOR_VARIANCE, timed_fit
from enkbayes.reproduction.networks import ImageTask, image_network, seen
from enkbayes.reproduction.sizes import Run
from enkbayes.samplers import Equilibrium, Homotopy, TrotterSampler
from enkbayes.storage.files import replacing
from enkbayes.storage.fingerprint import fingerprint

Vector = np.ndarray[Any, Any]
HORIZON = 23.0

BAYES = ("Laplace", "Algorithm 2", "Equilibrium", "Homotopy", "HMC")
"""The methods that give the last layer a posterior."""


@dataclass(frozen=True, eq=False)
class Seen:
    """Predictions of one method, the probability of class 1 (n,), on training, test and other images; its steps and
    seconds, and what it warned of.
    """

    proba: tuple[Vector, ...]
    steps: int
    seconds: float
    note: str = ""

    @property
    def train(self) -> Vector:
        """Those of the training images."""
        return self.proba[0]

    @property
    def test(self) -> Vector:
        """Those of the test images."""
        return self.proba[1]

    @property
    def others(self) -> Vector:
        """Those of images of other classes."""
        return self.proba[2]


def predictions(task: ImageTask, run: Run) -> dict[str, Seen]:
    """Return what every method says; the MLE is the first network of the ensemble."""
    count, epochs = run.size.image_members, run.size.epochs
    share = 0.7 / count
    features, first = _network(task, run.part(0.02, 0.02 + share), 0)
    problem = Problem.create(features[0], task.train.labels, PRIOR_VARIANCE)
    posteriors = {}
    for i, (name, method) in enumerate(_methods(run).items()):
        run.tell(0.02 + share + 0.26 * i / len(BAYES), name)
        posteriors[name] = _fitted(name, problem, method, features, run)
    members = [first]
    for member in range(1, count):
        begin = 0.28 + share * member
        members.append(_network(task, run.part(begin, begin + share), member)[1])
    together = tuple(np.mean(parts, axis=0) for parts in zip(*members, strict=True))
    networks = {"MLE": Seen(first, epochs, math.nan), "Deep ensemble": Seen(together, count * epochs, math.nan)}
    return networks | posteriors


def _network(task: ImageTask, run: Run, member: int) -> tuple[list[Vector], tuple[Vector, ...]]:
    """Return features and probabilities of training, test and other images by one network."""
    words = f"network {member + 1} of {run.size.image_members}"

    def progress(epoch: int, loss: float) -> None:
        run.tell(epoch / run.size.epochs, f"{words}, epoch {epoch} of {run.size.epochs}, loss {loss:.3f}")

    run.tell(0.0, words)
    model = image_network(task, epochs=run.size.epochs, seed=member, progress=progress)
    parts = [seen(model, part) for part in (task.train, task.test, task.others)]
    return [features for features, _ in parts], tuple(proba for _, proba in parts)


def _methods(run: Run) -> dict[str, Method]:
    size = run.size
    splitting = TrotterSampler(ds=HORIZON / size.image_steps, max_steps=size.image_steps, tol=1e-300)
    samples, chains = size.hmc
    methods: tuple[Method, ...] = (
        LaplaceProbit(),
        Ensemble("trotter", splitting, size.image_particles),
        Ensemble("equilibrium", Equilibrium(), size.image_particles),
        Ensemble("homotopy", Homotopy(), size.image_particles),
        HMC(samples=samples, chains=chains, warmup=samples),
    )
    return dict(zip(BAYES, methods, strict=True))


def _fitted(name: str, problem: Problem, method: Method, features: list[Vector], run: Run) -> Seen:
    """Return what a method says, from its file if there is one for the same features and settings."""
    key = hashlib.sha256(f"{method!r} {fingerprint(features[0], problem.targets)}".encode()).hexdigest()
    file = run.keep / f"figure7-{name.lower().replace(' ', '-')}.npz"
    kept = _kept(file, key)
    if kept is not None:
        return kept
    posterior, seconds, note = timed_fit(method, problem, seed=0)
    proba = tuple(np.asarray(posterior.predict_proba(f))[:, 1] for f in features)
    found = Seen(proba, posterior.info.steps, seconds, note)
    _keep(file, key, found)
    return found


def _keep(file: Path, key: str, found: Seen) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    about = np.asarray([key, str(found.steps), repr(found.seconds), found.note])
    with replacing(file) as draft, draft.open("wb") as out:
        np.savez(out, about, *found.proba)


def _kept(file: Path, key: str) -> Seen | None:
    try:
        with np.load(file, allow_pickle=False) as found:
            about, *proba = (found[name] for name in found.files)
    except (OSError, ValueError, EOFError):
        return None
    if str(about[0]) != key:
        return None
    return Seen(tuple(proba), int(about[1]), float(about[2]), str(about[3]))
