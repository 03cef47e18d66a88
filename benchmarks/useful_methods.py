"""The methods of usefulness.py: each says what it predicts for calibration, evaluation and strange rows, and its cost.

All posteriors of the last layer but the paper's recipe have the prior and the likelihood that our default chooses, so
that Laplace, HMC and ours differ in nothing else.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from useful_tasks import Data, Split, Task

from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.evaluation.baselines import HMC, Laplace
from enkbayes.evaluation.metrics import confidence, entropy, logit_variance, mutual_information
from enkbayes.inference.calibration import calibrate
from enkbayes.nets import BayesianHead, BayesianNetwork, Probes, Strangeness
from enkbayes.nets.layers import Layer, linear_layer
from enkbayes.nets.posterior_module import PosteriorModule
from enkbayes.nets.start import trained_weights
from enkbayes.samplers import Equilibrium
from enkbayes.samplers.run import run

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Said:
    """Probabilities (n, K) for rows, and scores (n,), larger for stranger, one of which is recommended."""

    proba: Vector
    scores: dict[str, Vector] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a method says, the score that it recommends, its seconds with all training, and a note."""

    calibration: Said
    evaluation: Said
    strange: dict[str, Said]
    seconds: float
    recommended: str = "confidence"
    note: str = ""


Say = Callable[[torch.Tensor], Said]


def plain(proba: Vector) -> Said:
    return Said(proba, {"confidence": -confidence(proba), "entropy": entropy(proba)})


def outcome(say: Say, split: Split, seconds: float, recommended: str = "confidence", note: str = "") -> Outcome:
    strange = {name: say(x) for name, x in split.strange.items()}
    return Outcome(say(split.calibration.x), say(split.evaluation.x), strange, seconds, recommended, note)


@torch.no_grad()
def batched(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Vector:
    return torch.cat([function(part) for part in x.split(250)]).double().numpy()


def logits(network: torch.nn.Module, x: torch.Tensor) -> Vector:
    z = batched(network, x)
    return np.concatenate([-z / 2, z / 2], axis=1) if z.shape[1] == 1 else z


def best_scale(log_proba: Vector, labels: Vector) -> float:
    """Return 1 / T of temperature scaling."""

    def loss(log_scale: float) -> float:
        return -log_softmax(np.exp(log_scale) * log_proba, axis=1)[np.arange(len(labels)), labels].mean()

    return float(np.exp(minimize_scalar(loss, bounds=(-5, 5), method="bounded").x))


def network(split: Split, _: Task, __: int) -> Outcome:
    return outcome(lambda x: plain(softmax(logits(split.networks[0], x), axis=1)), split, split.seconds[0])


def temperature(split: Split, _: Task, __: int) -> Outcome:
    scale = best_scale(logits(split.networks[0], split.calibration.x), split.calibration.y)
    return outcome(lambda x: plain(softmax(scale * logits(split.networks[0], x), axis=1)), split, split.seconds[0])


def ensemble(split: Split, _: Task, __: int) -> Outcome:
    def say(x: torch.Tensor) -> Said:
        each = np.stack([softmax(logits(member, x), axis=1) for member in split.networks])
        said = plain(each.mean(axis=0))
        said.scores["mutual information"] = mutual_information(each)
        return said

    return outcome(say, split, sum(split.seconds))


@lru_cache(maxsize=1)
def seen_features(network: torch.nn.Module, train: Data) -> tuple[Vector, float]:
    """Return the features of training rows, which all halvings of a seed share, and the seconds that they took."""
    begun, body = time.process_time(), BayesianHead.empty(network).body
    found = batched(lambda part: body(part).reshape(len(part), -1), train.x)
    return found, time.process_time() - begun


class LastLayer:
    """The problem of the last layer that our default chooses, found once for a split, and the features of rows."""

    kept: tuple[Split | None, Any] = (None, None)

    def __init__(self, split: Split, seed: int) -> None:
        train, reading = seen_features(split.networks[0], split.train)
        begun = time.process_time()
        self.body = BayesianHead.empty(split.networks[0]).body
        name = [n for n, m in split.networks[0].named_modules() if isinstance(m, torch.nn.Linear)][-1]
        layer = Layer.of(linear_layer(split.networks[0], name))
        self.classes = np.arange(max(layer.outputs, 2))
        self.intercept = layer.bias is not None
        self.seen, self.labels = train, split.train.y
        self.train = self.problem(self.seen, self.labels)
        held_out = self.problem(self.features(split.calibration.x), split.calibration.y)
        self.chosen, self.report = calibrate(held_out, trained_weights(layer), self.train, seed=seed)
        self.seconds = reading + time.process_time() - begun

    @classmethod
    def of(cls, split: Split, seed: int) -> LastLayer:
        if cls.kept[0] is not split:
            cls.kept = (split, cls(split, seed))
        return cls.kept[1]

    def features(self, x: torch.Tensor) -> Vector:
        return batched(lambda part: self.body(part).reshape(len(part), -1), x)

    def problem(self, features: Vector, labels: Vector, prior: float = 1.0) -> Problem:
        intercept = prior if self.intercept else None
        return Problem.create(features, labels, prior, intercept=intercept, classes=self.classes)

    def outcome(self, fit: Callable[[], Posterior], split: Split, *, chosen: bool = True) -> Outcome:
        begun = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = fit()
        seconds = time.process_time() - begun + (self.seconds if chosen else 0.0)

        def say(x: torch.Tensor) -> Said:
            features = self.features(x)
            said = plain(np.asarray(posterior.predict_proba(features)))
            if posterior.gaussian:
                said.scores["mutual information"] = np.asarray(posterior.predict_uncertainty(features).epistemic)
            return said

        return outcome(say, split, split.seconds[0] + seconds, note=self.report.message if chosen else "")


def laplace(split: Split, _: Task, seed: int) -> Outcome:
    last = LastLayer.of(split, seed)
    return last.outcome(lambda: Laplace().fit(last.chosen, seed=seed), split)


def hmc(split: Split, _: Task, seed: int) -> Outcome:
    last = LastLayer.of(split, seed)
    return last.outcome(lambda: HMC(samples=400, chains=1, warmup=300).fit(last.chosen, seed=seed), split)


def paper(split: Split, _: Task, seed: int) -> Outcome:
    """The prior N(0, 2 I) and all training rows at full weight, to a hundredth of a posterior standard deviation."""
    last = LastLayer.of(split, seed)
    sampler = Equilibrium(tol=1e-2, max_steps=40)
    problem = last.problem(last.seen, last.labels, 2.0)
    return last.outcome(lambda: run(problem, sampler, seed=seed), split, chosen=False)


def default(split: Split, _: Task, seed: int) -> Outcome:
    """What BayesianHead.fit(model, loader, calibration=) does, on features that are read once for all methods."""
    last = LastLayer.of(split, seed)
    return last.outcome(lambda: run(last.chosen, seed=seed), split)


def whole_network(split: Split, task: Task, seed: int, layers: Any = "all") -> Outcome:
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = BayesianNetwork.fit(
            split.networks[0],
            split.train.loader(),
            calibration=split.calibration.loader(),
            layers=layers,
            rank=task.rank,
            rows=task.rows,
            particles=2 * task.rank + 4,
            jacobian=False,
            seed=seed,
            progress=False,
        )
        strangeness = Strangeness.fit(
            posterior, split.train.loader(), calibration=split.calibration.loader(), progress=False
        )
    seconds = split.seconds[0] + time.process_time() - begun
    probes = Probes.fit(strangeness, split.train.loader(), progress=False)  # for the table of scores, not for the cost
    note = posterior.calibration.message if posterior.calibration else ""
    return outcome(lambda x: _strange(posterior, probes, x), split, seconds, "strangeness", note)


def last_block(split: Split, task: Task, seed: int) -> Outcome:
    names = [name for name, _ in split.networks[0].named_children()]
    layers = ["blocks.3", "head"] if "blocks" in names else names[-2:]
    return whole_network(split, task, seed, [name for name in layers if name in dict(_with_parameters(split))])


def _with_parameters(split: Split) -> list[tuple[str, Any]]:
    return [(n, m) for n, m in split.networks[0].named_modules() if any(True for _ in m.parameters())]


@torch.no_grad()
def _strange(posterior: PosteriorModule, probes: Probes, x: torch.Tensor) -> Said:
    strangeness = probes.strangeness
    each = np.concatenate([posterior.sample_proba(part).double().numpy() for part in x.split(250)], axis=1)
    said = plain(each.mean(axis=0))
    leverage = np.log(batched(strangeness.leverage, x))
    both = strangeness.score(torch.as_tensor(leverage.mean(axis=1)), torch.as_tensor(said.scores["entropy"]))
    return Said(
        said.proba,
        said.scores
        | {
            "mutual information": mutual_information(each),
            "variance of logits": logit_variance(each),
            "disagreement of layers": np.concatenate([probes.disagreement(part) for part in x.split(250)]),
            "leverage, last layer": leverage[:, -1],
            "leverage, all layers": leverage.mean(axis=1),
            "strangeness": both.numpy(),
        },
    )


METHODS: dict[str, Callable[[Split, Task, int], Outcome]] = {
    "trained network": network,
    "temperature": temperature,
    "paper's recipe": paper,
    "Laplace, our prior": laplace,
    "HMC, our prior": hmc,
    "our default": default,
    "our last block": last_block,
    "our whole network": whole_network,
    "five networks": ensemble,
}
