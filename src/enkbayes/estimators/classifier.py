"""The scikit-learn facade: a classifier with a posterior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.labels import announced, distinct, encode, observation_weights
from enkbayes.core.likelihoods import Likelihood
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.core.problem_arguments import shared_classes, shared_counts
from enkbayes.core.uncertainty import Uncertainty
from enkbayes.engine.arrays import to_numpy
from enkbayes.engine.processes import first, shared_errors
from enkbayes.estimators.base import PosteriorEstimator
from enkbayes.estimators.class_weight import row_weights
from enkbayes.estimators.multi_label import (
    BinaryClassifiers,
    by_label,
    for_each,
    in_one_file,
    is_multi_hot,
    joint,
    kept,
    least_trusted,
    of_presence,
    side_by_side,
    stacked,
    summaries,
    the_first,
    thresholds,
    uncertainties,
)
from enkbayes.estimators.preprocessing import Preprocessing
from enkbayes.estimators.specification import Specification
from enkbayes.estimators.table import Table, is_frame
from enkbayes.estimators.validation import check_labels, warn_of_offsets
from enkbayes.inference.assessment import assess
from enkbayes.inference.calibration import calibrate
from enkbayes.inference.empirical_bayes import Tuning
from enkbayes.inference.evidence import Evidence
from enkbayes.inference.feature_far_field import (
    WIDEST,
    FeatureFarField,
    FeatureScore,
    can_choose,
    choose_for_features,
    held_out_confidence,
)
from enkbayes.inference.forgetting import Forgetting, checked_factor, remembered
from enkbayes.inference.held_out import Calibration, check_same_scale, pooled
from enkbayes.inference.polishing import polish
from enkbayes.inference.prior_average import PriorAverage, updated
from enkbayes.inference.priors import chosen_precision, is_auto, precision_of
from enkbayes.inference.rejection import HeldOutConfidence
from enkbayes.inference.summary import Contrasts, Summary, dummies, summarise, weights
from enkbayes.inference.trust import Trust
from enkbayes.samplers import FROM_PRIOR, MeanField, Sampler
from enkbayes.samplers.recorder import Recorder
from enkbayes.storage.fingerprint import fingerprint
from enkbayes.storage.model_file import Artefact, LabelArtefacts

Array = np.ndarray[Any, Any]
FARTHEST = 50.0
"""Standard deviations between a feature's mean and zero, beyond which a fit warns that does not centre the features. On
iris, shifted by 10, 100 and 1000, the log loss is then .11, .46 and 1.04 instead of .05.
"""


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Checked rows: features X, labels y and weights or None; held-out features and labels, or None where no rows are
    held out; and the fingerprint of all of them.
    """

    X: Any
    y: Any
    weights: Any
    held_out: tuple[Any, Any] | None
    fingerprint: str


def at_least_two(classes: Array) -> Array:
    """Return the classes, or raise a ValueError if there is only one."""
    if len(classes) < 2:
        raise ValueError(f"labels have only one class, {classes[0]}; expected two or more classes")
    return classes


class EnsembleClassifier(ClassifierMixin, PosteriorEstimator):  # type: ignore[misc]
    """Bayesian logistic regression whose posterior is an ensemble: one logit for two classes, softmax for more.

    By default predictions are averaged over the width of the prior. prior_precision="auto" uses the one width of
    highest evidence, and a number exactly that prior. The default centres the features and, where their units differ,
    also averages over priors for standardised features, so that nothing needs to be scaled before. A prior of your own
    or "auto" has the same width for all weights: scale the features first (`StandardScaler` in a pipeline).

    Parameters
    ----------
    sampler : str or Sampler
        "auto", "equilibrium", "homotopy", "mean-field", "trotter", "tamed-homotopy", "stochastic", or a sampler object
        such as `Equilibrium(tol=1e-8)`. "auto" is "equilibrium", but for a softmax with 20 or more classes and more
        than 300 parameters `MeanField(rank=0)`, whose covariance is diagonal in a frame of features and classes.
    particles : int
        J, the size of the ensemble. "auto", "equilibrium" and "mean-field" work with any number; the other samplers
        need more particles than parameters (features x classes).
    prior_precision : "average", "auto", float, array (D,) or array (D, D)
        Inverse variance of the Gaussian prior of the weights. "average" averages the posterior over the width of the
        prior, weighted by evidence and by predictions for rows that were left out; "auto" uses the one number that
        maximises the evidence. (`partial_fit` chooses on the first batch; see `prior_precision_` and `tuning_`.) One
        number, one number for each feature, or the inverse covariance between features, is exactly that prior: with
        prior_mean=0 the most probable weights are those of `LogisticRegression(C=1 / prior_precision)`, up to the weak
        prior of the intercept.
    prior_mean : float, array (D,) or array (D, K)
        Mean of the prior of the weights. An array with one more row, (D + 1,) or (D + 1, K), also holds the mean of
        the intercept, in its last row.
    fit_intercept : bool
        Whether each logit has a constant term.
    random_state : int, RandomState or None
        Seed of the initial ensemble, of the noise of the stochastic sampler, and of `polish`.
    warm_start : bool
        Start `fit` from the previous fit when shape and classes agree, there are more particles than parameters, and
        the prior is not averaged over. A sampler that converges gives the same answer up to its tolerance, in fewer
        steps. Homotopies start from the prior and raise an error.
    intercept_precision : float or "auto"
        Inverse variance of the prior of the intercept. The default is weak (standard deviation 10), also when the
        prior of the weights is chosen: a single number hardly determines the width of its own prior.
    progress : bool
        Show a progress bar.
    sweeps : int
        Sweeps of `polish` after the fit. They move the particles from the fitted Gaussian to the exact posterior.
    prior_groups : array (D,), optional
        A label for each feature. With prior_precision="auto" each group of features gets its own precision; with
        "average" the evidence chooses their ratios.
    likelihood : "auto", "ordinal" or Likelihood
        How logits become class probabilities. "auto" is `Bernoulli` for two classes and `Categorical` for more.
        "ordinal" is for classes that have an order, the order of their sorted labels: an `Ordinal` likelihood with a
        single logit, whose cutpoints maximise the evidence (`partial_fit`: that of the first batch).
    far_field : "auto" or bool
        Whether `fit` adds noise to the logits that grows with the distance from the training data, so that confidence
        tends to 1/K far away (`enkbayes.inference.far_field`). The rows, each predicted without itself, choose how
        much; see `far_field_.choice`. "auto" adds it where held-out rows X_val calibrate trained weights, as the heads
        of networks do, unless the features are too many or the classes have an order.
    class_weight : dict, "balanced" or None
        How often each row of a class counts, besides its `sample_weight`; "balanced" gives all classes the same weight
        in sum. Probabilities are then those of data with these weights.

    Attributes
    ----------
    classes_ : array (K,)
        Of multi-hot labels their names: those of the columns of a data frame, otherwise their numbers.
    class_weight_ : array (K,) or None
        The weight of each class.
    estimators_ : list of EnsembleClassifier
        Only for multi-hot labels: the binary classifier of each. Attributes that describe one posterior are lists then,
        `trust_` is that of the worst label, and `evidence_` that of all together.
    posterior_ : Posterior or MixturePosterior
        The particles, the fitted Gaussian, and `posterior_.info` on the run. An average over the width of the prior is
        a mixture: `posterior_.components` with `posterior_.weights`.
    n_iter_ : int
        Steps of the last run.
    n_features_in_ : int
    feature_names_in_ : array (D,)
        Only if the columns of X had names.
    fingerprint_ : str
        sha256 of the training data; `partial_fit` chains it over the batches.
    problem_ : Problem
        Data (by reference) and prior of the last fit. Files and pickles do not contain it.
    evidence_ : Evidence
        The log evidence, its method and its error bar; `log_evidence_` is its value. Computed on first access and
        stored in files.
    prior_precision_, intercept_precision_ : float, or array (D,) and (D, D)
        The prior in use, as given or as chosen; of an average the geometric mean over its components.
    tuning_ : PriorAverage, Tuning or None
        How "average" or "auto" chose: variances, weights or evidence, and a sentence.
    calibration_ : Calibration or None
        How the held-out rows chose prior and temperature: the candidates with their scores, and a sentence.
    far_field_ : FeatureFarField or None
        The extent of the training data; its `choice` says how the noise of far-field variance was chosen.
    coef_, intercept_ : array (1, D) and (1,), or (K, D) and (K,)
        The posterior mean of weights and intercepts.
    trust_ : Trust
        How far to trust the posterior: a verdict, what to do, and the figures behind them. Computed on first access and
        stored in files.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from enkbayes import EnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = EnsembleClassifier(random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape, clf.sample_proba(X[:2]).shape
    ((2, 3), (200, 2, 3))
    >>> uncertainty = clf.predict_uncertainty(X)
    >>> bool(np.allclose(uncertainty.total, uncertainty.aleatoric + uncertainty.epistemic))
    True
    """

    posterior_: Posterior | MixturePosterior
    classes_: Array
    n_iter_: int
    tuning_: Tuning | PriorAverage | None
    calibration_: Calibration | None
    class_weight_: Array | None
    estimators_: list[Self]
    _confidences: HeldOutConfidence | None
    _trust: Trust | None
    _forgetting: Forgetting | None = None
    _preprocessing: Preprocessing | None = None
    _held_out_prior: Gaussian | None = None

    def __init__(
        self,
        sampler: str | Sampler = "auto",
        *,
        particles: int = 200,
        prior_precision: Any = "average",
        prior_mean: Any = 0.0,
        fit_intercept: bool = True,
        random_state: Any = None,
        warm_start: bool = False,
        intercept_precision: Any = 0.01,
        progress: bool = False,
        sweeps: int = 0,
        prior_groups: Any = None,
        likelihood: str | Likelihood = "auto",
        far_field: bool | str = "auto",
        class_weight: Any = None,
    ) -> None:
        self.sampler = sampler
        self.particles = particles
        self.prior_precision = prior_precision
        self.prior_mean = prior_mean
        self.fit_intercept = fit_intercept
        self.random_state = random_state
        self.warm_start = warm_start
        self.intercept_precision = intercept_precision
        self.progress = progress
        self.sweeps = sweeps
        self.prior_groups = prior_groups
        self.likelihood = likelihood
        self.far_field = far_field
        self.class_weight = class_weight

    # -- learning -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        checkpoint: Recorder | str | Path | None = None,
    ) -> Self:
        """Fit to features X (N, D), dense or sparse, and labels y (N,); discards earlier fits.

        Parameters
        ----------
        X : array (N, D)
            Features.
        y : array (N,), or array (N, K) of zeros and ones
            Labels. With K columns a row may have any number of K labels; `predict` and `predict_proba` then have a
            column for each label, (n, K), as scikit-learn's neural networks have.
        sample_weight : array (N,), optional
            How often each row counts.
        X_val, y_val : array (n, D), array (n,), optional
            Held-out rows, none of them among the training rows. If prior_mean is an array, weights that were trained
            elsewhere on X and y, the answer is the posterior of the held-out rows under a prior around these weights;
            it predicts such rows no worse than temperature scaling, see `enkbayes.inference.calibration`. Otherwise
            nothing has seen any of the rows, and the held-out rows are fitted with the others: folds of all rows tell
            what a part of them would, with less noise. In a pipeline they need the same preprocessing:
            `Pipeline(..., transform_input=["X_val"])`.
        checkpoint : path or CheckpointWriter, optional
            A file that stores the run, so that the same call resumes it after an interruption; of an average it is the
            run of the heaviest component, which comes first. Resuming needs a number as random_state.
        """
        if not is_multi_hot(y):
            return self._fit(X, y, sample_weight, X_val, y_val, checkpoint=checkpoint)
        if checkpoint is not None:
            raise ValueError("a checkpoint holds one run, but each label has a run of its own; fit without checkpoint=")
        labels = BinaryClassifiers.like(self, y)
        for part, own, held_out, both in labels.with_labels(y, y_val):
            part._fit(X, own, sample_weight, X_val, held_out, classes=both)  # noqa: SLF001
        return labels.kept_in(self)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        X_val: Any,
        y_val: Any,
        *,
        classes: Array | None = None,
        checkpoint: Recorder | str | Path | None = None,
    ) -> Self:
        """Fit to labels y (N,) of one kind each; `classes` are those of y, and others that it may lack."""
        rows = self._checked_rows(X, y, sample_weight, X_val, y_val)
        known = at_least_two(distinct(rows.y) if classes is None else classes)
        asked = self._specification
        seed, sampler = asked.draw_seed(), asked.method
        problem, self.class_weight_ = asked.posed(rows.X, rows.y, known, rows.weights)
        if not asked.centres(problem):
            warn_of_offsets(rows.X, self, FARTHEST)
        asked.warn_of_few_particles(problem)
        fit = asked.fit_with(sampler, seed, self._previous_particles(problem, sampler), checkpoint)
        self._forgetting = None
        if rows.held_out is None:
            found = asked.fitted(*asked.chosen(problem), fit, recorded=checkpoint is not None)
            return self._keep_fit(*found, rows.fingerprint)
        weights = row_weights(self.class_weight_, rows.held_out[1], known, None)
        held_out = asked.problem(*rows.held_out, known, weights, problem.likelihood)
        problem, chosen = calibrate(held_out, problem.prior.mean, problem, seed=seed)
        problem = asked.with_fitted_cutpoints(problem)
        return self._keep_fit(
            problem, fit(problem), None, rows.fingerprint, calibration=chosen, held_out_prior=problem.prior
        )

    def _checked_rows(self, X: Any, y: Any, sample_weight: Any, X_val: Any, y_val: Any) -> TrainingRows:
        """Return the rows of a fit. Held-out rows are apart if they calibrate trained weights, and otherwise among the
        others.
        """
        X, y = self._validated(X, y)
        check_labels(y)
        self._preprocessing = None  # of a file; these features are used as they are
        if sample_weight is not None:
            observation_weights(sample_weight, len(y))  # raises an error for weights that are not one number per row
        if (X_val is None) != (y_val is None):
            raise ValueError("held-out rows need features and labels; expected both X_val and y_val, or neither")
        data = fingerprint(X, y, sample_weight)
        if X_val is None:
            return TrainingRows(X, y, sample_weight, None, data)
        X_val, y_val = self._validated(X_val, y_val, reset=False)
        check_same_scale(X, X_val)
        data = fingerprint(X_val, y_val, None, data)
        if np.ndim(self.prior_mean) > 0:
            return TrainingRows(X, y, sample_weight, (X_val, y_val), data)
        return TrainingRows(*pooled(X, y, sample_weight, X_val, y_val), None, data)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, *, forget: Any = 1.0) -> Self:
        """Learn from one more batch by sequential Bayes: the posterior N(mean, cov) is the prior of the next batch.

        For data that drift, every earlier batch counts `forget` times as much with each batch that follows it: 1
        forgets nothing, 0 everything but the prior. "auto" chooses the factor before it learns a batch, by the log loss
        of its predictions for it; `forgetting_` says which, and what each factor would have gained.

        The first call (before any `fit`) announces all classes, including those that only later batches contain;
        without `classes` they are those of its y. The Gaussian between two batches is an approximation. With rows in
        random order, ten batches differ from one fit by less than .01 in mean predicted probability on data such as
        breast cancer, wine and digits (about .01 on iris, with its 15 rows a batch); batches sorted by class can
        differ by .1 and more (`benchmarks/sequential.py` prints the table).

        Under an average over the width of the prior every component learns from the batch, and the weights of those
        that predicted it better grow: each batch counts as many rows as it has.

        With particles <= P parameters every sampler but "equilibrium" gives a singular covariance, which cannot serve
        as a prior; `MeanField` then makes the update.
        """
        begins, factor = not hasattr(self, "posterior_"), checked_factor(forget)
        parts = getattr(self, "estimators_", [])
        if is_multi_hot(y) or parts:
            labels = BinaryClassifiers.like(self, y) if begins else BinaryClassifiers(parts or [self], self.classes_)
            for part, own, _, both in labels.with_labels(y):
                part.partial_fit(X, own, both, sample_weight, forget=forget)
            return labels.kept_in(self)
        X = X if begins else self._features(X)
        X, y = self._validated(X, y, dtype=np.float64, reset=begins)
        check_labels(y)
        known, asked = announced(y, classes, None if begins else self.classes_), self._specification
        if begins:
            problem, self.class_weight_ = asked.posed(X, y, known, sample_weight, batch=True)
            if not asked.centres(problem):
                warn_of_offsets(X, self, FARTHEST)
        else:
            problem = self._problem_like_the_fit(X, y, sample_weight)
        sampler, seed = asked.method, asked.draw_seed()
        fit = asked.fit_with(MeanField() if asked.too_few_particles(problem) else sampler, seed)
        if begins:
            self._forgetting = None
            return self._keep_fit(*asked.fitted(*asked.chosen(problem), fit), fingerprint(X, y, sample_weight, ""))
        last, self._forgetting = remembered(problem, self.posterior_, factor, self._forgetting)
        posterior: Posterior | MixturePosterior
        tuning = self.tuning_
        if isinstance(last, MixturePosterior):
            posterior, tuning = updated(problem, last, fit, self.tuning_)
        else:
            last = replace(last, ensemble=last.fitted.to(problem.prior.mean), before=None)
            problem = problem.with_prior(last.distribution)
            posterior = fit(problem)
        data = fingerprint(X, y, sample_weight, self.fingerprint_ or "")
        return self._keep_fit(
            problem, posterior, tuning, data, calibration=self.calibration_, held_out_prior=self._held_out_prior
        )

    def fit_shard(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        classes: Any = None,
        tuning: Tuning | PriorAverage | None = None,
        checkpoint: Recorder | str | Path | None = None,
    ) -> Self:
        """Fit to the rows of all processes; X (n, D) and y (n,) are the rows of this one, and n may be 0.

        Every process gets the same classifier. The processes must have been joined by `enkbayes.engine.connect`.
        `classes` are all classes; the default is those of all y. An "auto" or "average" prior is chosen from all
        rows in one process: pass what `tune` returned there as `tuning`; without it "average" becomes a single width,
        and a warning says so. No process has all rows, so there is no `fingerprint_`.
        """
        with shared_errors():
            X, y = self._validated(X, y, ensure_min_samples=0)
            self._preprocessing = None
            if tuning is None and (is_auto(self.prior_precision) or is_auto(self.intercept_precision)):
                raise ValueError('an "auto" prior is chosen from all rows; pass tuning=clf.tune(X, y), or a number')
        known, asked = at_least_two(np.unique(shared_classes(y, classes))), self._specification
        sampler = asked.method
        problem, self.class_weight_ = asked.posed(
            X, y, known, sample_weight, count=shared_counts, tuning=tuning, create=Problem.create_sharded
        )
        asked.warn_of_few_particles(problem)
        fit = asked.fit_with(sampler, first(asked.draw_seed()), None, checkpoint)
        return self._keep_fit(*asked.fitted(asked.with_fitted_cutpoints(problem), tuning, fit), None)

    @by_label(kept)
    def polish(self, sweeps: int = 20) -> Self:
        """Move every particle to the exact posterior of the last fit, `sweeps` times; see `enkbayes.inference.polish`.

        >>> import enkbayes as eb
        >>> from sklearn.datasets import load_iris
        >>> clf = eb.EnsembleClassifier(random_state=0).fit(*load_iris(return_X_y=True))
        >>> clf.polish(5).posterior_.info.sweeps
        5
        """
        self._fitted_problem("polish", "polish before saving")
        self.posterior_ = self._polished(self.posterior_, sweeps)
        self._trust = None
        return self

    # -- predictions --------------------------------------------------------------------------------------------------

    @by_label(side_by_side)
    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row, (n,)."""
        best = np.argmax(self.predict_proba(X), axis=1)
        return np.asarray(self.classes_[best])

    @by_label(of_presence)
    def predict_proba(self, X: Any) -> Array:
        """Return class probabilities (n, K), averaged over the posterior; the columns follow `classes_`."""
        features = self._features(X)
        posterior, noise = self._with_noise(features)
        return np.asarray(posterior.predict_proba(features, noise=noise))

    @by_label(of_presence)
    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of `predict_proba`, (n, K)."""
        proba = self.predict_proba(X)
        return np.asarray(np.log(np.maximum(proba, np.finfo(proba.dtype).tiny)))

    @by_label(side_by_side)
    def decision_function(self, X: Any) -> Array:
        """Return scores whose largest decides `predict`: the log odds of the averaged probability (n,) for two classes,
        the logarithms of the probabilities minus their average (n, K) for more.
        """
        scores = self.predict_log_proba(X)
        if scores.shape[1] == 2:
            return np.asarray(scores[:, 1] - scores[:, 0])
        return np.asarray(scores - scores.mean(axis=1, keepdims=True))

    @by_label(of_presence)
    def sample_proba(self, X: Any) -> Array:
        """Return the class probabilities that each particle predicts, (J, n, K)."""
        features = self._features(X)
        posterior, noise = self._with_noise(features)
        return np.asarray(posterior.sample_proba(features, noise=noise))

    @by_label(uncertainties)
    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty in nats, and confidence, (n,) each."""
        features = self._features(X)
        posterior, noise = self._with_noise(features)
        return posterior.predict_uncertainty(features, noise=noise)

    # -- the weights --------------------------------------------------------------------------------------------------

    @property
    @by_label(stacked)
    def coef_(self) -> Array:
        """The posterior mean of the weights: (1, D) for a single logit, (K, D) for softmax."""
        check_is_fitted(self)
        return weights(self.posterior_)[0]

    @property
    @by_label(stacked)
    def intercept_(self) -> Array:
        """The posterior mean of the intercepts, (1,) or (K,)."""
        check_is_fitted(self)
        return weights(self.posterior_)[1]

    @by_label(summaries)
    def summary(
        self, level: float = 0.95, *, original_units: bool = False, categories: Sequence[str] | None = None
    ) -> Summary:
        """Return the table of coefficients: name, mean, standard deviation, credible interval, and the probability of
        the sign. See `enkbayes.inference.summary` for categories and for three or more classes.

        The model of a command standardises columns of numbers, and its coefficients are per standard deviation; with
        `original_units` they are per unit of the column, and the intercept belongs to a row of zeros. It also knows
        which features are categories. For other models `categories=["town"]` says so: the features town_Bern,
        town_Oslo ... of `pandas.get_dummies` or `OneHotEncoder` become contrasts with the first of them.

        >>> import enkbayes as eb
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True, as_frame=True)
        >>> clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit((X - X.mean()) / X.std(), y)
        >>> row = clf.summary(level=0.9).rows[0]
        >>> row.name, row.low < row.mean < row.high
        ('mean radius', True)
        """
        check_is_fitted(self)
        prepared, linear = self._preprocessing, self.posterior_.map
        names, known = self._names(), [] if prepared is None else prepared.categories
        if categories is not None:
            rows = self.problem_.features if hasattr(self, "problem_") else None
            known = dummies(names, categories, rows)
        contrasts = Contrasts.of(names, intercept=linear is not None and linear.intercept, categories=known)
        if original_units and prepared is not None:
            contrasts = contrasts.in_units_of(*prepared.scaling)
        return summarise(self.posterior_, contrasts, level)

    @by_label(for_each, split="y")
    def to_arviz(
        self, X: Any = None, y: Any = None, sample_weight: Any = None, *, draws: int | None = None, seed: int = 0
    ) -> Any:
        """Return draws of the coefficients for ArviZ, with their names, the log likelihood of every row of the fit and
        the observed classes, so that `arviz.loo`, `arviz.compare` and plots work; see `Posterior.to_arviz`.

        A classifier from a file or a pickle needs the rows of its fit for that, X (N, D) and y (N,); without them
        there are the coefficients alone. Of multi-hot labels it is a list, one for each label.
        """
        check_is_fitted(self)
        problem = getattr(self, "problem_", None)
        if X is not None:
            problem = self.problem_of(self._features(X), y, sample_weight)
        return self.posterior_.to_arviz(self._names(), problem=problem, draws=draws, seed=seed)

    # -- how far to trust it ------------------------------------------------------------------------------------------

    @property
    @by_label(least_trusted)
    def trust_(self) -> Trust:
        """How far to trust the posterior. Computed on first access; `save` stores it."""
        check_is_fitted(self)
        if self._trust is None:
            problem = self._fitted_problem("trust_", "call assess(X, y)")
            self._trust = assess(problem, self.posterior_, predictions=True)
        return self._trust

    @by_label(least_trusted, split="y")
    def assess(self, X: Any, y: Any, sample_weight: Any = None) -> Trust:
        """Return how far to trust the posterior, from the data of its `fit`: for a classifier from a file or a pickle.

        >>> import enkbayes as eb
        >>> from sklearn.datasets import load_wine
        >>> from sklearn.preprocessing import scale
        >>> X, y = load_wine(return_X_y=True)
        >>> clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(scale(X), y)
        >>> clf.assess(scale(X), y).verdict, clf.trust_.verdict
        ('usable', 'usable')
        """
        return assess(self.problem_of(self._features(X), y, sample_weight), self.posterior_, predictions=True)

    @property
    @by_label(joint)
    def evidence_(self) -> Evidence:
        """The log evidence of the last fit, with its method and error bar; of multi-hot labels that of all together."""
        return super().evidence_

    # -- how the prior was chosen -------------------------------------------------------------------------------------

    @property
    @by_label(for_each)
    def prior_precision_(self) -> Any:
        """The precision of the prior of the weights: as given, or chosen (a number; an array (D,) with groups). Of an
        average it is the geometric mean over the components, and `posterior_.priors` are all of them. Where held-out
        rows chose the prior around trained weights it is that prior's, over all P weights.
        """
        check_is_fitted(self)
        if self._held_out_prior is not None:
            outputs = self.posterior_.likelihood.outputs or 1
            return precision_of(self._held_out_prior, slice(self.n_features_in_ * outputs))
        chosen = None if self.tuning_ is None else self.tuning_.precisions
        return chosen_precision(self.prior_precision, chosen, self.prior_groups, self.n_features_in_)

    @property
    @by_label(for_each)
    def intercept_precision_(self) -> float:
        """The precision of the prior of the intercept: as given, or chosen."""
        check_is_fitted(self)
        if is_auto(self.intercept_precision) and self.tuning_ is not None:
            own = self.tuning_.intercept if isinstance(self.tuning_, PriorAverage) else 1 / self.tuning_.precisions[-1]
            return float(1 / own) if own is not None else 1.0
        return float(self.intercept_precision)

    def tune(self, X: Any, y: Any, sample_weight: Any = None) -> Tuning | PriorAverage | None:
        """Return how "average" or "auto" chooses the prior for these data; None for a prior of your own."""
        asked = self._specification
        return asked.tuned(asked.posed(X, np.asarray(y), distinct(y), sample_weight)[0])

    @property
    @by_label(for_each)
    def forgetting_(self) -> Forgetting:
        """The forgetting factor of the last `partial_fit`, and what "auto" knows of it: the gain of every factor."""
        check_is_fitted(self)
        return Forgetting() if self._forgetting is None else self._forgetting

    def problem_of(self, X: Any, y: Any, sample_weight: Any = None) -> Problem:
        """Return the problem of a `fit` to these data, with the prior and the likelihood that were chosen then."""
        if hasattr(self, "estimators_"):
            raise ValueError("each label has a problem of its own; use clf.estimators_[k].problem_of")
        return self._problem_like_the_fit(X, np.asarray(y), sample_weight)

    # -- unusual rows and doubtful predictions ------------------------------------------------------------------------

    @by_label(the_first)
    def ood_score(self, X: Any) -> Array:
        """Return how unlike the training rows each row is, (n,): about standard normal for rows like them, larger for
        others. It adds the distance of the features, of which there may be 2048, to the classes of the training rows
        and a share of the entropy of the prediction; see `enkbayes.inference.class_distance`.

        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> clf = EnsembleClassifier(random_state=0).fit(X, y)
        >>> bool(clf.ood_score(3 * X).min() > clf.ood_score(X).mean() + 2)
        True
        """
        features = self._features(X)
        found = self._extent("ood_score")
        if found.unusual is None:  # of a file of an earlier version
            return found.score(features)
        return found.unusual(features, np.asarray(self.posterior_.predict_proba(features)))

    @by_label(thresholds, split="y_val")
    def reject_threshold(
        self, X_val: Any = None, y_val: Any = None, *, max_error: float = 0.05, confidence: float = 0.95
    ) -> Any:
        """Return the confidence above which predictions are wrong at most `max_error` of the time, with this
        confidence; see `enkbayes.inference.rejection`. For multi-hot labels there is a threshold for each label, (K,).

        X_val, y_val are held-out rows, on which the guarantee rests. Without them, the training rows count, each
        predicted without itself.

        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.preprocessing import scale
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> X = scale(X)
        >>> clf = EnsembleClassifier(random_state=0).fit(X[:300], y[:300])
        >>> threshold = clf.reject_threshold(X[300:], y[300:], max_error=0.05)
        >>> bool((clf.predict_proba(X).max(axis=1) > threshold).mean() > 0.8)
        True
        """
        if X_val is None:
            return self._held_out_confidence().threshold(max_error, confidence)
        proba = self.predict_proba(X_val)
        numbers = encode(y_val, len(proba), self.classes_)[0]
        return HeldOutConfidence.of(proba, numbers).threshold(max_error, confidence)

    @by_label(kept)
    def remember(self) -> Self:
        """Compute what `ood_score` and `reject_threshold` need of the training rows, so that files and pickles have it.

        More than 2048 features are too many for the score; rows that other processes hold are not available.
        """
        problem = self._fitted_problem("remember", "call it before saving")
        if problem.linear_logits("the score").features <= WIDEST:
            self._extent("ood_score")
        self._held_out_confidence()
        return self

    # -- files --------------------------------------------------------------------------------------------------------

    @by_label(in_one_file)
    def to_artefact(self, preprocessing: Mapping[str, Any] | None = None) -> Artefact | LabelArtefacts:
        """Return what a file of the fitted classifier holds."""
        prior = self._held_out_prior
        chosen = {} if prior is None else {"prior_mean": to_numpy(prior.mean), "prior_cov": to_numpy(prior.cov)}
        estimator = self._described(chosen=chosen)
        if self.class_weight_ is not None:
            chosen["class_weight"] = self.class_weight_
            estimator["parameters"]["class_weight"] = "balanced" if self.class_weight == "balanced" else "given"
        if preprocessing is None and self._preprocessing is not None:
            preprocessing = self._preprocessing.to_json()
        found = {
            "trust": self._trust,
            "evidence": self._evidence,
            "tuning": self.tuning_,
            "far_field": self.far_field_,
            "held_out": self._confidences,
        }
        return Artefact(self.posterior_, estimator, preprocessing, self.fingerprint_, **found)  # type: ignore[arg-type]

    @classmethod
    def from_artefact(cls, artefact: Artefact | LabelArtefacts) -> Self:
        """Return the fitted classifier of a file."""
        if isinstance(artefact, LabelArtefacts):
            parts = [cls.from_artefact(part) for part in artefact.parts]
            return BinaryClassifiers(parts, artefact.names).kept_in(cls(**parts[0].get_params(deep=False)))
        if artefact.estimator is None or artefact.posterior.map is None or artefact.posterior.classes is None:
            raise ValueError(
                "the file holds no classifier, but a regressor or a posterior alone; enkbayes.load(path) reads it"
            )
        parameters, chosen = dict(artefact.estimator["parameters"]), artefact.estimator.get("chosen", {})
        if parameters.get("class_weight") == "given":
            pairs = zip(artefact.posterior.classes.tolist(), chosen["class_weight"].tolist(), strict=True)
            parameters["class_weight"] = dict(pairs)
        clf = cls(**cls._known(parameters))
        clf._take_features(artefact.posterior.map.features, artefact.estimator["feature_names"])
        clf.class_weight_ = chosen.get("class_weight")
        clf.tuning_, clf.calibration_ = artefact.tuning, None
        if "prior_mean" in chosen:
            clf._held_out_prior = Gaussian(chosen["prior_mean"], chosen["prior_cov"])
        clf._keep(artefact.posterior, artefact.fingerprint)
        clf._trust, clf._evidence = artefact.trust, artefact.evidence
        clf.far_field_, clf._confidences = artefact.far_field, artefact.held_out
        if Preprocessing.described_by(artefact.preprocessing):
            clf._preprocessing = Preprocessing.from_json(dict(artefact.preprocessing or {}))
            clf._preprocessing.check_size(clf.n_features_in_)
        return clf

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self.likelihood == "auto"
        tags.classifier_tags.poor_score = self.likelihood == "ordinal"  # on classes that have no order
        return tags

    # -- what a fit needs and keeps -----------------------------------------------------------------------------------

    def _previous_particles(self, problem: Problem, sampler: Sampler) -> Array | None:
        """Return particles of the previous fit's Gaussian for a warm start, if shape and classes agree. There must be
        more of them than parameters, because they would stay in the few directions that they span.
        """
        if not self.warm_start:
            return None
        if isinstance(sampler, FROM_PRIOR):
            raise ValueError(f"{type(sampler).__name__} starts from the prior; use warm_start=False or Equilibrium()")
        before: Posterior | MixturePosterior | None = getattr(self, "posterior_", None)
        if not isinstance(before, Posterior) or not np.array_equal(self.classes_, np.asarray(problem.classes)):
            return None
        shape = (self.particles, problem.dim)
        return before.fitted.theta if before.fitted.theta.shape == shape and self.particles > problem.dim else None

    def _keep_fit(
        self,
        problem: Problem,
        posterior: Posterior | MixturePosterior,
        tuning: Tuning | PriorAverage | None,
        data: str | None,
        *,
        calibration: Calibration | None = None,
        held_out_prior: Gaussian | None = None,
    ) -> Self:
        """Polish a fit and keep it; `data` is the fingerprint of the training data. Where held-out rows calibrated
        trained weights, `calibration` says how, and `held_out_prior` is the prior that they chose.
        """
        self.problem_ = problem
        self._keep(self._polished(posterior, self.sweeps), data)
        if self._wants_far_field(problem, calibrated=held_out_prior is not None):
            chosen = choose_for_features(problem, self.posterior_)
            self.far_field_ = replace(chosen, unusual=FeatureScore.of(problem, self.posterior_))
        self.tuning_, self.calibration_, self._held_out_prior = tuning, calibration, held_out_prior
        return self

    def _keep(self, posterior: Posterior | MixturePosterior, data: str | None) -> None:
        if hasattr(self, "estimators_"):  # of an earlier fit to multi-hot labels
            del self.estimators_
        self.posterior_ = posterior
        self._trust = self._evidence = self._confidences = self.far_field_ = None
        self.classes_ = np.asarray(posterior.classes)
        self.n_iter_ = posterior.info.steps
        self.fingerprint_ = data

    def _wants_far_field(self, problem: Problem, *, calibrated: bool) -> bool:
        if not isinstance(self.far_field, str):
            return bool(self.far_field)
        if self.far_field != "auto":
            raise ValueError(f'far_field is {self.far_field!r}; expected True, False or "auto"')
        return calibrated and can_choose(problem)

    def _polished(self, posterior: Posterior | MixturePosterior, sweeps: int) -> Posterior | MixturePosterior:
        seed = self._specification.draw_seed()
        return polish(self.problem_, posterior, sweeps, seed=seed, progress=self.progress)

    @property
    def _specification(self) -> Specification:
        return Specification.of(self.get_params(deep=False))

    def _problem_like_the_fit(self, X: Any, y: Any, sample_weight: Any) -> Problem:
        """Return the problem of some rows with the likelihood and the prior of the fit."""
        weights = row_weights(self.class_weight_, y, self.classes_, sample_weight)
        problem = self._specification.problem(X, y, self.classes_, weights, self.posterior_.likelihood, self.tuning_)
        return problem if self._held_out_prior is None else problem.with_prior(self._held_out_prior)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _features(self, X: Any) -> Any:
        """Return features (n, D); a data frame for a model of the command holds the columns of its training file."""
        if self._preprocessing is not None and is_frame(X):
            X = self._preprocessing.transform(Table.from_frame(X))
        return super()._features(X)

    def _names(self) -> list[str]:
        """Return the names of the features (D,)."""
        if self._preprocessing is not None:
            return list(self._preprocessing.features)
        default = [f"x{i}" for i in range(self.n_features_in_)]
        return [str(name) for name in getattr(self, "feature_names_in_", default)]

    def _with_noise(self, features: Any) -> tuple[Posterior | MixturePosterior, Array | None]:
        """Return the posterior of the logits, and the variance (n,) of their noise or None."""
        if not self.far_field or self.far_field_ is None or self.far_field_.choice is None:
            return self.posterior_, None
        return self.posterior_.tempered(self.far_field_.choice.scale), self.far_field_.noise(features)

    def _extent(self, purpose: str) -> FeatureFarField:
        """Return how unlike the training rows features are. Computed on first use; `save` stores it."""
        if self.far_field_ is None:
            problem = self._fitted_problem(purpose, f"call {purpose} before saving")
            found = FeatureFarField.of(problem.in_double().features)[0]
            self.far_field_ = replace(found, unusual=FeatureScore.of(problem, self.posterior_))
        return self.far_field_

    def _held_out_confidence(self) -> HeldOutConfidence:
        """Return the confidences of the training rows, each predicted without itself; `save` stores them."""
        check_is_fitted(self)
        if self._confidences is None:
            problem = self._fitted_problem("reject_threshold", "call reject_threshold before saving, or pass X_val")
            self._confidences = held_out_confidence(
                problem, self.posterior_, self.far_field_ if self.far_field else None
            )
        return self._confidences
