"""The methods of the paper on 2-D data: each is fitted to the last layer of the same network."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.low_rank import LowRankGaussian
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.evaluation.baselines import HMC, DeepEnsemble, Ensemble, LaplaceProbit, Method
from enkbayes.reproduction.datasets import Plane, one_thread, plane_network, sgd, tensor, train_network
from enkbayes.reproduction.sizes import Size
from enkbayes.samplers import Equilibrium, Homotopy, MeanField, TamedHomotopy, TrotterSampler

Vector = np.ndarray[Any, Any]
Predict = Callable[[Vector], Vector]
"""A function from points (n, 2) to class probabilities (n, K)."""

PRIOR_VARIANCE = 2.0
DS, HORIZON = 0.1, 20.0  # of Algorithm 2: step size, and final time K ds

TITLES = {
    "mle": "MLE",
    "deep-ensemble": "Deep ensemble",
    "laplace-probit": "Laplace",
    "hmc": "HMC",
    "tamed-homotopy": "Algorithm 1",
    "trotter": "Algorithm 2",
    "homotopy": "Homotopy",
    "equilibrium": "Equilibrium",
    "mean-field": "MeanField",
    "far-field": "Algorithm 2 with far-field variance",
}
"""The display name of every method, by the name that decides its colour."""

SIX = tuple(TITLES)[:6]
"""The methods in the figures of the paper."""

LAST_LAYER = SIX[2:]
"""Those of the six that compute a posterior over the last layer."""

OURS = tuple(TITLES)[6:9]
"""The exact-flow versions, which the paper does not have."""

FAR_FIELD = "far-field"
"""Algorithm 2 with noise in the logits that 300 held-out points choose, which the paper does not have either."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted method: predictions, steps (of training for networks, transitions for HMC), seconds and warnings."""

    name: str
    predict: Predict
    steps: int
    seconds: float
    warning: str = ""
    posterior: Posterior | None = None


@dataclass(frozen=True)
class Kind:
    """A 2-D data set with the network and the ensemble size that go with it."""

    name: str
    data: Callable[[int], Plane]
    held_out: Callable[[int], tuple[Vector, Vector]]
    hidden: tuple[int, ...]
    particles: int


MOONS = Kind("moons", Plane.moons, Plane.held_out_moons, (20, 20, 50), particles=200)
BLOBS = Kind("blobs", Plane.blobs, Plane.held_out_blobs, (50, 50, 50), particles=300)


class Study:
    """One data set, its trained network, and the methods fitted to its last layer; all are computed on first use."""

    def __init__(self, kind: Kind, size: Size, seed: int, cache: Path | None = None) -> None:
        self.kind, self.size, self.seed, self.cache = kind, size, seed, cache
        self._fits: dict[str, Fitted] = {}

    @cached_property
    def data(self) -> Plane:
        """The points."""
        return self.kind.data(self.seed)

    @cached_property
    def network(self) -> Any:
        """The trained network. Its last layer has no bias, so that each logit has D = 50 parameters."""
        with one_thread():
            return train_network(
                self.data,
                self.seed,
                self.size.steps,
                hidden=self.kind.hidden,
                bias=False,
                learning_rate=self.size.learning_rate,
            )

    def features(self, points: Vector) -> Vector:
        """Return the inputs (n, 50) of the last layer."""
        return np.asarray(self.network[:-1](tensor(points)).detach().double())

    def problem(self, variance: float = PRIOR_VARIANCE) -> Problem:
        """Return the logistic regression of the last layer."""
        return Problem.create(self.features(self.data.train), self.data.train_labels, variance)

    def fit(self, name: str) -> Fitted:
        """Return a fitted method; "reference" is a long NUTS run. Each method is fitted once."""
        if name == "reference" and self.size.reference == self.size.hmc:
            name = "hmc"
        if name not in self._fits:
            self._fits[name] = self._fit(name)
        return self._fits[name]

    def last_layer(self, name: str, method: Method, seed: int | None = None) -> Fitted:
        """Fit any method to the last layer, with the seed of the study unless another is given."""
        posterior, seconds, words = timed_fit(method, self.problem(), self.seed if seed is None else seed)

        def predict(points: Vector) -> Vector:
            return np.asarray(posterior.predict_proba(self.features(points)))

        return Fitted(name, predict, posterior.info.steps, seconds, words, posterior)

    def _fit(self, name: str) -> Fitted:
        if name == "mle":
            return self._mle()
        if name == "deep-ensemble":
            return self._deep_ensemble()
        if name == FAR_FIELD:
            return self._far_field()
        return self.last_layer(name, self._method(name))

    def _method(self, name: str) -> Method:
        samples, chains = self.size.hmc
        long_samples, long_chains = self.size.reference
        particles = self.kind.particles
        methods: dict[str, Method] = {
            "laplace-probit": LaplaceProbit(),
            "hmc": HMC(samples=samples, chains=chains, warmup=samples),
            "reference": HMC(samples=long_samples, chains=long_chains, warmup=long_samples // 2),
            "tamed-homotopy": Ensemble(name, TamedHomotopy(ds=self.size.ds), particles),
            "trotter": Ensemble(name, algorithm_2(), particles),
            "homotopy": Ensemble(name, Homotopy(), particles),
            "equilibrium": Ensemble(name, Equilibrium(), particles),
            "mean-field": Ensemble(name, MeanField(), particles),
        }
        return methods[name]

    def _mle(self) -> Fitted:
        started = time.perf_counter()
        network = self.network

        def predict(points: Vector) -> Vector:
            logits = np.asarray(network(tensor(points)).detach().double())
            if logits.shape[1] == 1:
                logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
            return np.asarray(softmax(logits, axis=1))

        return Fitted("mle", predict, self.size.steps, time.perf_counter() - started)

    def _deep_ensemble(self) -> Fitted:
        data, outputs = self.data, 1 if self.data.classes == 2 else self.data.classes
        method = DeepEnsemble(members=self.size.members, steps=self.size.member_steps, batch_size=len(data.train))
        started = time.perf_counter()
        seeds = iter(range(1000 * (self.seed + 1), 1000 * (self.seed + 2)))
        with one_thread():
            ensemble = method.fit_network(
                lambda: plane_network(self.kind.hidden, outputs, next(seeds), bias=False),
                data.train.astype(np.float32),
                data.train_labels,
                optimiser=partial(sgd, learning_rate=self.size.learning_rate),
                checkpoint=None if self.cache is None else self.cache / f"ensemble-{self.kind.name}-{self.seed}",
                seed=self.seed,
            )

        def predict(points: Vector) -> Vector:
            return np.asarray(ensemble.predict_proba(points.astype(np.float32)), dtype=np.float64)

        return Fitted("deep-ensemble", predict, method.members * method.steps, time.perf_counter() - started)

    def _far_field(self) -> Fitted:
        """Return the posterior of Algorithm 2 with far-field variance that held-out points choose."""
        from enkbayes.nets.far_field import add_far_field

        plain, (points, labels) = self.fit("trotter"), self.kind.held_out(self.seed)
        if plain.posterior is None:
            raise ValueError("Algorithm 2 returned no posterior")
        started = time.perf_counter()
        with one_thread():
            posterior, noise, _ = add_far_field(
                plain.posterior, self.network[:-1], tensor(self.data.train), (tensor(points), labels)
            )

        def predict(points: Vector) -> Vector:
            variance = np.asarray(noise(tensor(points)).double())
            return np.asarray(posterior.predict_proba(self.features(points), noise=variance))

        return Fitted(FAR_FIELD, predict, plain.steps, plain.seconds + time.perf_counter() - started, "", posterior)


def timed_fit(method: Method, problem: Problem, seed: int) -> tuple[Any, float, str]:
    """Return the fitted method, the seconds it took, and its warnings."""
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = method.fit(problem, seed=seed)
    words = " ".join(dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught))
    return fitted, time.perf_counter() - started, words


@lru_cache(maxsize=32)
def study(kind: Kind, size: Size, seed: int, cache: Path | None = None) -> Study:
    """Return the study of a data set. Experiments that use the same one share its fits; the networks of deep ensembles
    are stored in the folder `cache`.
    """
    return Study(kind, size, seed, cache)


def algorithm_2(ds: float = DS, horizon: float = HORIZON) -> TrotterSampler:
    """Return Algorithm 2 as the paper runs it: up to a fixed time, without its stopping rule."""
    return TrotterSampler(ds=ds, max_steps=round(horizon / ds), tol=1e-300)


def gaussian_predict(study: Study, weights: Gaussian) -> Predict:
    """Return the exact predictions under a Gaussian distribution of the last layer's weights."""
    problem = study.problem()
    gaussian = LowRankGaussian(weights.mean, weights.dense_root)
    linear = problem.linear_logits("the exact prediction")

    def predict(points: Vector) -> Vector:
        mean_logits, V = linear.gaussian_logits(study.features(points), gaussian)
        return np.asarray(problem.likelihood.predictive(mean_logits, V=V))

    return predict
