"""Temperature scaling (Guo et al. 2017): the logits of the MAP divided by one number, chosen on held-out rows."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import to_numpy
from enkbayes.evaluation.baselines.method import fitted
from enkbayes.inference.temperature import temperature_scale
from enkbayes.solvers.map_estimate import map_estimate

HOTTEST = 100.0  # T between 1 / HOTTEST and HOTTEST


@dataclass(frozen=True)
class TemperatureReport:
    """The temperature T and the number of held-out rows; found in `posterior.state`.

    >>> features = np.random.default_rng(0).standard_normal((200, 2))
    >>> labels = features[:, 0] + np.random.default_rng(1).logistic(size=200) > 0
    >>> report = Temperature().fit(Problem.create(features, labels)).state
    >>> 0.2 < report.temperature < 5
    True
    """

    temperature: float
    held_out: int


@dataclass(frozen=True)
class Temperature:
    """theta_MAP / T: theta_MAP is fitted to some of the rows, and T minimises the cross-entropy of the others.

    The held-out cross-entropy is convex in 1/T. If all held-out rows are classified correctly, it has no minimum; then
    T = 1, and `info.message` says so. The estimate is not refitted with the held-out rows, because T would not be valid
    for the new estimate.

    Parameters
    ----------
    held_out : float
        Share of each class that is held out; at least one row of each class remains for the fit.
    tol, max_steps
        As in `MAP`.

    Examples
    --------
    >>> features = np.random.default_rng(0).standard_normal((200, 2))
    >>> noise = np.random.default_rng(1).logistic(size=200)
    >>> problem = Problem.create(features, features[:, 0] + noise > 0, prior=0.1)
    >>> Temperature().fit(problem).state.held_out
    40
    """

    held_out: float = 0.2
    tol: float = 1e-8
    max_steps: int = 1000
    name: str = "temperature"

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out is {self.held_out!r}; expected a share between 0 and 1")

    def fit(self, problem: Problem, *, seed: int = 0, progress: bool = False) -> Posterior:
        """Return the scaled point estimate as a posterior with one particle."""
        started = time.perf_counter()
        if not problem.is_linear or problem.classes is None:
            raise ValueError("temperature scaling requires linear logits and classes; use MAP() for this problem")
        kept, held = stratified_split(to_numpy(problem.targets), self.held_out, seed)
        estimate = map_estimate(problem.subset(kept), tol=self.tol, max_steps=self.max_steps)
        scale = temperature_scale(problem.subset(held), estimate.theta, sharpening=math.inf, hottest=HOTTEST)
        temperature, outcome = 1 / scale, estimate.outcome
        if scale > HOTTEST**0.99:
            temperature = 1.0
            outcome["message"] = (
                f"all {len(held)} held-out rows are classified correctly, so no temperature is best; T is 1"
            )
        ensemble, report = AffineEnsemble.point(estimate.theta / temperature), TemperatureReport(temperature, len(held))
        return fitted(problem, ensemble, self, started, report=report, **outcome)


def stratified_split(
    targets: np.ndarray[Any, Any], share: float, seed: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the numbers of the fitted and of the held-out rows: `share` of each class, rounded, but never all of it.

    >>> kept, held = stratified_split(np.asarray([0, 0, 0, 0, 1, 1, 2]), 0.5, seed=0)
    >>> len(kept), len(held)
    (4, 3)
    """
    rng = np.random.default_rng((seed, 4))
    held = []
    for label in np.unique(targets):
        rows = rng.permutation(np.flatnonzero(targets == label))
        held.append(rows[: min(round(share * len(rows)), len(rows) - 1)])
    out = np.sort(np.concatenate(held))
    if not len(out):
        raise ValueError(
            f"a share of {share} of {len(targets)} rows leaves no row to hold out; raise held_out or use MAP()"
        )
    return np.setdiff1d(np.arange(len(targets)), out), out
