"""What the parameters of a classifier specify: likelihood, prior and sampler, and which of them the data choose.

Names such as "auto" and "equilibrium" become objects here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from enkbayes.core.arguments import check_count
from enkbayes.core.caller import warn
from enkbayes.core.labels import class_counts
from enkbayes.core.likelihoods import Bernoulli, Categorical, Likelihood, Ordinal
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.estimators.class_weight import class_weights, row_weights
from enkbayes.inference.empirical_bayes import Tuning, feature_groups, parameter_groups, tune_prior, with_variances
from enkbayes.inference.feature_frame import frames_of
from enkbayes.inference.likelihood_fit import fit_likelihood
from enkbayes.inference.prior_average import PriorAverage, average_posterior, fixed_width, weigh
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
    class_weight: Any

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """Return the specification among all parameters."""
        return cls(**{field.name: parameters[field.name] for field in fields(cls)})

    def draw_seed(self) -> int:
        """Return the seed of a fit; a RandomState gives another one each time."""
        return seed_of(self.random_state)

    @property
    def method(self) -> Sampler:
        """The sampler object, checked, as are the numbers of particles and sweeps; for "auto" it is `Equilibrium()`."""
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
        feature_groups(X.shape[1], self.prior_groups)  # checks them, also where the prior is given
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
            if tuning.intercept is not None:
                alone = parameter_groups(problem.linear_logits("a prior"), weights=False, intercept=True)
                problem = with_variances(problem, alone, [tuning.intercept])
            return problem.with_prior(tuning.prior(tuning.heaviest, problem, self.width_groups(problem)))
        return problem if tuning is None else with_variances(problem, self.groups(problem), tuning.variances)

    def posed(
        self,
        X: Any,
        y: Array,
        classes: Array,
        sample_weight: Any = None,
        *,
        batch: bool = False,
        count: Callable[..., Array] = class_counts,
        tuning: Tuning | PriorAverage | None = None,
        create: Callable[..., Problem] = Problem.create,
    ) -> tuple[Problem, Array | None]:
        """Return the problem of labelled rows, and the weight of each class (K,), None where all are 1.

        Of a `batch` the rows of other batches are not known, so that their classes cannot be balanced; `count` counts
        rows by class.
        """
        own = class_weights(self.class_weight, classes, None if batch else count(y, classes, sample_weight))
        weights = row_weights(own, y, classes, sample_weight)
        likelihood = self.likelihood_of(y, classes, weights, count=count)
        return self.problem(X, y, classes, weights, likelihood, tuning, create), own

    def width_groups(self, problem: Problem) -> Any:
        """Return the groups of parameters whose prior variances an average scales together."""
        return parameter_groups(problem.linear_logits("an average over the width of the prior"), self.prior_groups)

    def centres(self, problem: Problem) -> bool:
        """Return whether the prior is averaged over and refers to centred features."""
        return is_average(self.prior_precision) and frames_of(problem, self.width_groups(problem))[0] is not None

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
            average = fixed_width(problem, widths, "")
            problem = problem.with_prior(average.prior(average.heaviest, problem, widths))
        problem = self.with_fitted_cutpoints(problem)
        if groups is None:
            return problem, None
        problem, tuning = tune_prior(problem, groups)
        return self.with_fitted_cutpoints(problem), tuning  # under the chosen prior

    def fitted(
        self,
        problem: Problem,
        tuning: Tuning | PriorAverage | None,
        fit: Callable[[Problem], Posterior],
        *,
        recorded: bool = False,
    ) -> tuple[Problem, Posterior | MixturePosterior, Tuning | PriorAverage | None]:
        """Return a problem with the prior in use, its posterior, and how the prior was chosen: an average, if one was
        asked for, or else the one fit. An average in `tuning`, found before, is used as it is. Runs that are not
        recorded, of a sampler that was not asked for, may be short ones.
        """
        if not is_average(self.prior_precision):
            return problem, fit(problem), tuning
        known = tuning if isinstance(tuning, PriorAverage) else None
        groups, seed = self.width_groups(problem), self.draw_seed()
        short = self.sampler == "auto" and not recorded
        mixture, average = average_posterior(
            problem, groups, fit, tuning=known, particles=self.particles, seed=seed, short=short
        )
        if mixture.held_out and not any(each.sharper for each in average.components):
            self.warn_of_unused_sampler()
        problem = problem.with_prior(average.prior(average.heaviest, problem, groups))
        return problem, mixture, self.with_intercept(average, problem)

    def tuned(self, problem: Problem) -> Tuning | PriorAverage | None:
        """Return how the data choose the prior, None for one that was given."""
        problem, tuning = self.chosen(problem)
        if not is_average(self.prior_precision):
            return tuning
        return self.with_intercept(weigh(problem, self.width_groups(problem)), problem)

    def with_fitted_cutpoints(self, problem: Problem) -> Problem:
        """Return the problem with the cutpoints of "ordinal" that maximise the evidence."""
        return fit_likelihood(problem) if self.likelihood == "ordinal" else problem

    def too_few_particles(self, problem: Problem) -> bool:
        """Return whether the particles stay in a subspace that the data did not choose."""
        return self.particles <= problem.dim and mean_field_of(self.method) is None

    def warn_of_few_particles(self, problem: Problem) -> None:
        """Warn if there are too few."""
        if self.too_few_particles(problem):
            warn(
                f"{self.particles} particles span {self.particles - 1} of {problem.dim} parameters, and the weights "
                'move only there; use more particles, fewer features, or sampler="equilibrium"'
            )

    def warn_of_unused_sampler(self) -> None:
        """Warn if a sampler was asked for and held-out rows have scaled point estimates instead."""
        if self.sampler not in ("auto", "equilibrium"):
            warn(
                "the sampler was not used, because with so many rows and classes held-out rows scale point estimates; "
                "for the posterior of a sampler, pass a number as prior_precision"
            )

    def fit_with(
        self, sampler: Sampler, seed: int, theta: Array | None = None, checkpoint: Recorder | str | Path | None = None
    ) -> Callable[[Problem], Posterior]:
        """Return the function that fits a problem; the first run that it makes is the one that is recorded. Where
        "auto" stands for `Equilibrium()`, many classes take `default_sampler`.
        """
        recorders, chooses = [as_recorder(checkpoint)], self.sampler == "auto" and sampler == Equilibrium()

        def fit(problem: Problem) -> Posterior:
            found = run(
                problem,
                default_sampler(problem) if chooses else sampler,
                particles=self.particles,
                seed=seed,
                theta=theta,
                progress=self.progress,
                recorder=recorders.pop() if recorders else None,
            )
            return replace(found, state=None)  # nothing of the run is kept

        return fit


def seed_of(random_state: Any) -> int:
    """Return a seed: the number itself, or another one from a RandomState each time."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
