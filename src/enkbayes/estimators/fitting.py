"""How a classifier puts its question: the problem that its parameters and data make, the prior, and the run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.inference.calibration import Calibration, calibrate
from enkbayes.inference.empirical_bayes import Tuning, tune_prior, with_variances
from enkbayes.inference.evidence import Evidence
from enkbayes.inference.polish import polish
from enkbayes.inference.priors import groups_to_choose, stated, weight_prior
from enkbayes.inference.trust import Trust
from enkbayes.samplers import BY_NAME, FROM_PRIOR, Sampler
from enkbayes.samplers.run import run
from enkbayes.solvers.map_estimate import map_estimate
from enkbayes.storage.checkpoints import Checkpoint

Array = np.ndarray[Any, Any]


class Fitting:
    """The part of `EnsembleClassifier` that its fits share."""

    sampler: str | Sampler
    particles: int
    prior_precision: Any
    prior_mean: Any
    fit_intercept: bool
    random_state: Any
    intercept_precision: Any
    progress: bool
    sweeps: int
    prior_groups: Any
    posterior_: Posterior
    classes_: Array
    n_iter_: int
    fingerprint_: str | None
    problem_: Problem
    tuning_: Tuning | None
    calibration_: Calibration | None = None
    _trust: Trust | None
    _evidence: Evidence | None

    def _sampler(self) -> Sampler:
        """Return the sampler object: the only place where a name is resolved."""
        if not isinstance(self.sampler, str):
            return self.sampler
        if self.sampler not in BY_NAME:
            raise ValueError(f"sampler is {self.sampler!r}; expected a sampler object or one of {', '.join(BY_NAME)}")
        sampler: Sampler = BY_NAME[self.sampler]()
        return sampler

    def tune(self, X: Any, y: Any, sample_weight: Any = None) -> Tuning | None:
        """Return how "auto" chooses the prior for these data; None when nothing is "auto"."""
        return self._tuned(self._problem(X, np.asarray(y), np.unique(y), sample_weight))[1]

    def problem_of(self, X: Any, y: Any, sample_weight: Any = None) -> Problem:
        """Return the problem that a `fit` to these very data was asked."""
        return self._problem(X, np.asarray(y), self.classes_, sample_weight, self.tuning_)

    def _problem(
        self,
        X: Any,
        y: Array,
        classes: Array,
        weights: Any,
        tuning: Tuning | None = None,
        create: Callable[..., Problem] = Problem.create,
    ) -> Problem:
        """Return the problem with the prior that the parameters describe; what is "auto" is 1, or what was chosen."""
        precision = stated(self.prior_precision, "prior_precision")
        intercept = stated(self.intercept_precision, "intercept_precision")
        if not intercept > 0:
            raise ValueError(f"intercept_precision is {intercept}; expected a positive number")
        outputs = None if len(classes) == 2 else len(classes)
        mean, constant = self._prior_mean(X.shape[1], outputs or 1)
        prior = weight_prior(X.shape[1], outputs, precision, mean)
        law = Gaussian(constant, 1 / intercept) if self.fit_intercept else None
        problem = create(X, y, prior, intercept=law, weights=weights, classes=classes)
        return problem if tuning is None else with_variances(problem, self._groups(problem), tuning.variances)

    def _prior_mean(self, dim: int, logits: int) -> tuple[Any, Array]:
        """Return the prior means of the weights and of the intercept, (K,) or (1,)."""
        mean = self.prior_mean
        if self.fit_intercept and np.shape(mean) in ((dim + 1,), (dim + 1, logits)):
            values = np.asarray(mean, dtype=np.float64)
            return values[:-1], np.broadcast_to(values[-1], (logits,))
        return mean, np.zeros(logits)

    def _calibrated(
        self, asked: tuple[Problem, Tuning | None], rows: tuple[Any, Array], classes: Array, seed: int
    ) -> tuple[Problem, Tuning | None]:
        """Return the problem that calibration rows choose: their own, under a prior around the trained weights."""
        train, tuning = asked
        theta = train.prior.mean if np.ndim(self.prior_mean) else map_estimate(train).theta
        problem, self.calibration_ = calibrate(self._problem(*rows, classes, None), theta, train, seed=seed)
        return problem, tuning

    def _groups(self, problem: Problem) -> Any:
        linear = problem.model.map  # type: ignore[union-attr]
        return groups_to_choose(linear, self.prior_precision, self.intercept_precision, self.prior_groups)

    def _tuned(self, problem: Problem) -> tuple[Problem, Tuning | None]:
        """Return the problem with the prior that "auto" chooses, if anything is, and how."""
        groups = self._groups(problem)
        return (problem, None) if groups is None else tune_prior(problem, groups)

    def _warn_of_few(self, problem: Problem, sampler: Sampler) -> None:
        """Warn of particles that cannot follow the data."""
        if self.particles <= problem.dim and not getattr(sampler, "informed", False):
            warnings.warn(
                f"{self.particles} particles span {self.particles - 1} of {problem.dim} parameters, and the weights "
                'move only there; use more particles, fewer features, or sampler="equilibrium"',
                UserWarning,
                stacklevel=3,
            )

    def _warm_theta(self, problem: Problem, sampler: Sampler) -> Array | None:
        """Return the particles of the fit before, if they fit this problem."""
        if isinstance(sampler, FROM_PRIOR):
            raise ValueError(f"{type(sampler).__name__} starts from the prior; use warm_start=False or Equilibrium()")
        before: Posterior | None = getattr(self, "posterior_", None)
        if before is None or not np.array_equal(self.classes_, np.asarray(problem.classes)):
            return None
        theta = before.theta
        return theta if theta.shape == (self.particles, problem.dim) else None

    def _learn(
        self,
        asked: tuple[Problem, Tuning | None],
        sampler: Sampler,
        data: str | None,
        *,
        seed: int | None = None,
        theta: Array | None = None,
        checkpoint: Checkpoint | str | Path | None = None,
    ) -> Self:
        """Run and polish; `data` is the fingerprint of the data."""
        problem, self.tuning_ = asked
        seed, shown = self._seed() if seed is None else seed, self.progress
        posterior = run(
            problem, sampler, particles=self.particles, seed=seed, theta=theta, progress=shown, checkpoint=checkpoint
        )
        self.problem_ = problem
        posterior = polish(problem, replace(posterior, state=None), self.sweeps, seed=seed, progress=shown)
        return self._remember(posterior, data)

    def _seed(self) -> int:
        seed = self.random_state
        return int(seed if isinstance(seed, int | np.integer) else check_random_state(seed).randint(2**31 - 1))

    def _remember(self, posterior: Posterior, data: str | None) -> Self:
        self.posterior_ = posterior
        self._trust = self._evidence = None
        self.classes_ = np.asarray(posterior.classes)
        self.n_iter_ = posterior.info.steps
        self.fingerprint_ = data
        return self
