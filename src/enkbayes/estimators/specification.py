"""What the parameters of a classifier specify: likelihood, prior and sampler, and which of them the data choose.

Names such as "auto" and "equilibrium" become objects here and nowhere else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from enkbayes.core.arguments import check_count
from enkbayes.core.labels import class_counts
from enkbayes.core.likelihoods import Bernoulli, Categorical, Likelihood, Ordinal
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.inference.empirical_bayes import Tuning, parameter_groups, tune_prior, with_variances
from enkbayes.inference.likelihood_fit import fit_likelihood
from enkbayes.inference.prior_average import PriorAverage, fixed_width
from enkbayes.inference.priors import groups_to_choose, is_auto, is_average, weight_and_intercept_priors
from enkbayes.samplers import BY_NAME, Equilibrium, Sampler
from enkbayes.samplers.recorder import Recorder
from enkbayes.samplers.run import run
from enkbayes.samplers.start import as_sampler, count, default_sampler, mean_field_of
from enkbayes.storage.checkpoint import as_recorder

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Specification:
    """The parameters of an `EnsembleClassifier` that say how a problem is posed and fitted, under their own names.

    >>> from enkbayes import EnsembleClassifier
    >>> specification = Specification.of(EnsembleClassifier("mean-field", prior_precision=4.0).get_params())
    >>> problem = specification.problem(np.eye(2), np.asarray([0, 1]), [0, 1], None, Bernoulli())
    >>> specification.method, problem.prior.cov.tolist()
    (MeanField(tol=1e-06, max_steps=200, rank=None), [0.25, 0.25, 100.0])
    """

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
    likelihood: str | Likelihood

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """Return the specification among all parameters."""
        return cls(**{field.name: parameters[field.name] for field in fields(cls)})

    def draw_seed(self) -> int:
        """Return the seed of a fit; a RandomState gives another one each time."""
        return seed_of(self.random_state)

    @property
    def method(self) -> Sampler:
        """The sampler object, for "auto" that of few classes; what else a run needs is checked as well."""
        count(self.particles)
        check_count("sweeps", self.sweeps, least=0)
        if not isinstance(self.sampler, str):
            return as_sampler(self.sampler)
        if self.sampler == "auto":
            return Equilibrium()
        if self.sampler not in BY_NAME:
            names = ", ".join(["auto", *BY_NAME])
            raise ValueError(f"sampler is {self.sampler!r}; expected a sampler object or one of {names}")
        sampler: Sampler = BY_NAME[self.sampler]()
        return sampler

    def likelihood_of(
        self, y: Any, classes: Array, weights: Any, *, count: Callable[..., Array] = class_counts
    ) -> Likelihood:
        """Return the likelihood object; `count` counts rows by class."""
        if self.likelihood == "auto":
            return Bernoulli() if len(classes) == 2 else Categorical(len(classes))
        if self.likelihood == "ordinal":
            return Ordinal.from_labels(classes, classes, count(y, classes, weights))
        if not isinstance(self.likelihood, Likelihood):
            raise ValueError(f'likelihood is {self.likelihood!r}; expected "auto", "ordinal" or a likelihood object')
        if self.likelihood.n_classes is None:
            raise ValueError(f"likelihood is {self.likelihood}, whose targets are real numbers; expected classes")
        return self.likelihood

    def problem(
        self,
        X: Any,
        y: Array,
        classes: Any,
        weights: Any,
        likelihood: Likelihood,
        tuning: Tuning | PriorAverage | None = None,
        create: Callable[..., Problem] = Problem.create,
    ) -> Problem:
        """Return the problem with the prior that the parameters describe; a precision of "auto" is 1, or as chosen."""
        prior, intercept = weight_and_intercept_priors(
            X.shape[1],
            likelihood.outputs,
            precision=self.prior_precision,
            mean=self.prior_mean,
            intercept_precision=self.intercept_precision,
            fit_intercept=self.fit_intercept,
        )
        problem = create(X, y, prior, likelihood=likelihood, intercept=intercept, weights=weights, classes=classes)
        if isinstance(tuning, PriorAverage):
            problem = with_variances(problem, self.width_groups(problem), tuning.heaviest)
            if tuning.intercept is None:
                return problem
            alone = parameter_groups(problem.linear_logits("a prior"), weights=False, intercept=True)
            return with_variances(problem, alone, [tuning.intercept])
        return problem if tuning is None else with_variances(problem, self.groups(problem), tuning.variances)

    def width_groups(self, problem: Problem) -> Any:
        """Return the groups of parameters whose prior variances an average scales together."""
        return parameter_groups(problem.linear_logits("an average over the width of the prior"), self.prior_groups)

    def groups(self, problem: Problem) -> Any:
        """Return the groups of parameters whose prior variances the evidence chooses, None if there are none."""
        linear = problem.linear_logits("a prior chosen by evidence")
        return groups_to_choose(linear, self.prior_precision, self.intercept_precision, self.prior_groups)

    def with_intercept(self, average: PriorAverage, problem: Problem) -> PriorAverage:
        """Return the average with the variance of the intercept, if the evidence chose it."""
        if not (is_auto(self.intercept_precision) and self.fit_intercept):
            return average
        return replace(average, intercept=float(problem.prior.cov[-1]))

    def chosen(self, problem: Problem) -> tuple[Problem, Tuning | None]:
        """Return the problem with what the data choose, the cutpoints of "ordinal" and the prior of "auto", and how
        the prior was chosen; None without "auto".
        """
        groups = self.groups(problem)
        if is_average(self.prior_precision):  # a sensible width, until all are compared
            widths = self.width_groups(problem)
            problem = with_variances(problem, widths, fixed_width(problem, widths, "").heaviest)
        problem = self.with_fitted_cutpoints(problem)
        if groups is None:
            return problem, None
        problem, tuning = tune_prior(problem, groups)
        return self.with_fitted_cutpoints(problem), tuning  # under the chosen prior

    def with_fitted_cutpoints(self, problem: Problem) -> Problem:
        """Return the problem with the cutpoints of "ordinal" that maximise the evidence."""
        return fit_likelihood(problem) if self.likelihood == "ordinal" else problem

    def too_few_particles(self, problem: Problem) -> bool:
        """Return whether the particles stay in a subspace that the data did not choose."""
        return self.particles <= problem.dim and mean_field_of(self.method) is None

    def warn_of_few_particles(self, problem: Problem) -> None:
        """Warn if there are too few; the warning is about the caller of `fit`."""
        if self.too_few_particles(problem):
            warnings.warn(
                f"{self.particles} particles span {self.particles - 1} of {problem.dim} parameters, and the weights "
                'move only there; use more particles, fewer features, or sampler="equilibrium"',
                UserWarning,
                stacklevel=3,
            )

    def warn_of_unused_sampler(self) -> None:
        """Warn if a sampler was asked for and held-out rows have scaled point estimates instead."""
        if self.sampler != "equilibrium":
            warnings.warn(
                "the sampler was not used, because with so many rows and classes held-out rows scale point estimates; "
                "for the posterior of a sampler, pass a number as prior_precision",
                UserWarning,
                stacklevel=4,
            )

    def fit_with(
        self, sampler: Sampler, seed: int, theta: Array | None = None, checkpoint: Recorder | str | Path | None = None
    ) -> Callable[[Problem], Posterior]:
        """Return the function that fits a problem; the first run that it makes is the one that is recorded. Where
        "auto" stands for `Equilibrium()`, many classes take `default_sampler`.
        """
        recorders, chooses = [as_recorder(checkpoint)], self.sampler == "auto" and sampler == Equilibrium()

        def fit(problem: Problem) -> Posterior:
            return run(
                problem,
                default_sampler(problem) if chooses else sampler,
                particles=self.particles,
                seed=seed,
                theta=theta,
                progress=self.progress,
                recorder=recorders.pop() if recorders else None,
            )

        return fit


def seed_of(random_state: Any) -> int:
    """Return a seed: the number itself, or another one from a RandomState each time."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
