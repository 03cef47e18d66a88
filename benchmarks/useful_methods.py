"""The methods of usefulness.py: their predictions for calibration, evaluation and OOD rows, and their cost.

All posteriors of the last layer except the paper's recipe have the prior and the likelihood that our default chooses,
so Laplace, HMC and our default differ in nothing else.
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
from useful_tasks import BATCH, Data, Split, Task

from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.evaluation.baselines import HMC, Laplace
from enkbayes.evaluation.metrics import confidence, entropy, logit_variance, mutual_information
from enkbayes.inference.calibration import calibrate
from enkbayes.nets import BayesianHead, BayesianNetwork, OODScore, Probes
from enkbayes.nets.layers import Layer, linear_layer, linear_names
from enkbayes.nets.posterior_module import PosteriorModule
from enkbayes.samplers import Equilibrium
from enkbayes.samplers.run import run

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Probabilities (n, K) of rows, and OOD scores (n,) by name, larger for rows unlike the training data."""

    proba: Vector
    scores: dict[str, Vector] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The predictions of a method, the score that it recommends, its seconds with all training, and a note."""

    calibration: Prediction
    evaluation: Prediction
    ood: dict[str, Prediction]
    seconds: float
    recommended: str = "confidence"
    note: str = ""


Predict = Callable[[torch.Tensor], Prediction]


def plain(proba: Vector) -> Prediction:
    return Prediction(proba, {"confidence": -confidence(proba), "entropy": entropy(proba)})


def outcome(predict: Predict, split: Split, seconds: float, recommended: str = "confidence", note: str = "") -> Outcome:
    ood = {name: predict(x) for name, x in split.ood.items()}
    return Outcome(predict(split.calibration.x), predict(split.evaluation.x), ood, seconds, recommended, note)


@torch.no_grad()
def batched(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Vector:
    return torch.cat([function(chunk) for chunk in x.split(BATCH)]).double().numpy()


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
    def predict(x: torch.Tensor) -> Prediction:
        each = np.stack([softmax(logits(member, x), axis=1) for member in split.networks])
        found = plain(each.mean(axis=0))
        found.scores["mutual information"] = mutual_information(each)
        return found

    return outcome(predict, split, sum(split.seconds))


@lru_cache(maxsize=1)
def training_features(network: torch.nn.Module, train: Data) -> tuple[Vector, float]:
    """Return the features of the training rows, which all splits of a seed share, and the seconds that they took."""
    begun, body = time.process_time(), BayesianHead.empty(network).body
    found = batched(lambda chunk: body(chunk).reshape(len(chunk), -1), train.x)
    return found, time.process_time() - begun


def last_layer(network: torch.nn.Module) -> Layer:
    return Layer.of(linear_layer(network, linear_names(network)[-1]))


class LastLayer:
    """The problem of the last layer that our default chooses for a split, and the features of rows."""

    def __init__(self, split: Split, seed: int) -> None:
        features, reading = training_features(split.networks[0], split.train)
        begun = time.process_time()
        self.body = BayesianHead.empty(split.networks[0]).body
        layer = last_layer(split.networks[0])
        self.classes, self.intercept = np.arange(layer.classes), layer.bias is not None
        self.rows = features, split.train.y
        self.train = self.problem(*self.rows)
        held_out = self.problem(self.features(split.calibration.x), split.calibration.y)
        self.chosen, self.report = calibrate(held_out, layer.theta, self.train, seed=seed)
        self.seconds = reading + time.process_time() - begun

    @classmethod
    @lru_cache(maxsize=1)  # all methods of a split share it
    def of(cls, split: Split, seed: int) -> LastLayer:
        return cls(split, seed)

    def features(self, x: torch.Tensor) -> Vector:
        return batched(lambda chunk: self.body(chunk).reshape(len(chunk), -1), x)

    def problem(self, features: Vector, labels: Vector, prior: float = 1.0) -> Problem:
        intercept = prior if self.intercept else None
        return Problem.create(features, labels, prior, intercept=intercept, classes=self.classes)

    def outcome(self, fit: Callable[[], Posterior], split: Split, *, chosen: bool = True) -> Outcome:
        begun = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = fit()
        seconds = time.process_time() - begun + (self.seconds if chosen else 0.0)

        def predict(x: torch.Tensor) -> Prediction:
            features = self.features(x)
            found = plain(np.asarray(posterior.predict_proba(features)))
            if posterior.gaussian:
                found.scores["mutual information"] = np.asarray(posterior.predict_uncertainty(features).epistemic)
            return found

        return outcome(predict, split, split.seconds[0] + seconds, note=self.report.message if chosen else "")


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
    problem = last.problem(*last.rows, 2.0)
    return last.outcome(lambda: run(problem, sampler, seed=seed), split, chosen=False)


def default(split: Split, _: Task, seed: int) -> Outcome:
    """BayesianHead.fit(model, loader, calibration=), on features that are computed once for all methods."""
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
        score = OODScore.fit(posterior, split.train.loader(), calibration=split.calibration.loader(), progress=False)
    seconds = split.seconds[0] + time.process_time() - begun
    probes = Probes.fit(score, split.train.loader(), progress=False)  # for the table of scores, not part of the cost
    note = posterior.calibration.message if posterior.calibration else ""
    return outcome(lambda x: _with_scores(posterior, probes, x), split, seconds, "OOD score", note)


def last_block(split: Split, task: Task, seed: int) -> Outcome:
    names = [name for name, _ in split.networks[0].named_children()]
    layers = ["blocks.3", "head"] if "blocks" in names else names[-2:]
    return whole_network(split, task, seed, [name for name in layers if name in dict(_with_parameters(split))])


def _with_parameters(split: Split) -> list[tuple[str, Any]]:
    return [(n, m) for n, m in split.networks[0].named_modules() if any(True for _ in m.parameters())]


def layer_scores(posterior: PosteriorModule, probes: Probes, x: torch.Tensor) -> dict[str, Any]:
    """Return the probabilities (J, n, K) of the particles, their scores (n,), and log leverages (n, layers)."""
    each = np.concatenate([posterior.sample_proba(chunk).double().numpy() for chunk in x.split(BATCH)], axis=1)
    return {
        "proba": each,
        "leverage": np.log(batched(probes.score.leverage, x)),
        "scores": {
            "mutual information": mutual_information(each),
            "variance of logits": logit_variance(each),
            "disagreement of layers": np.concatenate([probes.disagreement(chunk) for chunk in x.split(BATCH)]),
        },
    }


@torch.no_grad()
def _with_scores(posterior: PosteriorModule, probes: Probes, x: torch.Tensor) -> Prediction:
    found = layer_scores(posterior, probes, x)
    leverage, prediction = found["leverage"], plain(found["proba"].mean(axis=0))
    both = probes.score.score(torch.as_tensor(leverage.mean(axis=1)), torch.as_tensor(prediction.scores["entropy"]))
    leverages = {"leverage, last layer": leverage[:, -1], "leverage, all layers": leverage.mean(axis=1)}
    return Prediction(prediction.proba, prediction.scores | found["scores"] | leverages | {"OOD score": both.numpy()})


Method = Callable[[Split, Task, int], Outcome]
METHODS: dict[str, Method] = {
    "trained network": network,
    "temperature scaling": temperature,
    "paper's recipe": paper,
    "Laplace, our prior": laplace,
    "HMC, our prior": hmc,
    "our default": default,
    "our last block": last_block,
    "our whole network": whole_network,
    "five networks": ensemble,
}
