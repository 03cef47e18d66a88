"""The scikit-learn facade of linear regression: a regressor with an exact posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from scipy.special import ndtri
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.labels import real_targets
from enkbayes.core.likelihoods import Normal
from enkbayes.core.numerics import in_range
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.core.uncertainty import Uncertainty
from enkbayes.estimators.base import PosteriorEstimator
from enkbayes.estimators.specification import seed_of
from enkbayes.estimators.validation import warn_of_offsets
from enkbayes.inference.feature_far_field import choose_for_features
from enkbayes.inference.linear_regression import WIDE, regression_scales
from enkbayes.inference.priors import AUTO, is_auto, weight_prior
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run
from enkbayes.storage.fingerprint import fingerprint
from enkbayes.storage.model_file import Artefact

Array = np.ndarray[Any, Any]
FARTHEST = 1000.0
"""Standard deviations between a feature's mean and zero, beyond which a fit warns. On the diabetes data, scaled and
shifted by 100 and 1000, the mean squared error grows by 2 % and 3 %.
"""


class EnsembleRegressor(RegressorMixin, PosteriorEstimator):  # type: ignore[misc]
    """Bayesian linear regression. Its posterior is a Gaussian, which the fit finds exactly.

    Scale the features first (`StandardScaler` in a pipeline), because the prior has the same width for each of them.
    Targets need no scaling.

    Parameters
    ----------
    prior_precision : float, array (D,), array (D, D) or "auto"
        Inverse variance of the Gaussian prior of the weights, in units of target per feature. "auto" chooses one
        number, together with the noise, by evidence; see `prior_precision_`.
    noise_variance : float or "auto"
        Variance of a target around its prediction. "auto" chooses it by evidence; see `noise_variance_`.
    prior_mean : float or array (D,)
        Mean of the prior of the weights. "auto" needs 0.
    fit_intercept : bool
        Whether there is a constant term. Its prior is centred at the mean target and is ten times as wide as the
        targets spread.
    particles : int
        J, the number of samples of the posterior. Predictions do not depend on it.
    random_state : int, RandomState or None
        Seed of the samples.
    progress : bool
        Show a progress bar.
    far_field : bool
        Whether a prediction gets more variance the further its row is from the training rows
        (`enkbayes.inference.far_field`). The rows, each predicted without itself, choose how much; see
        `far_field_.choice`.

    Attributes
    ----------
    posterior_ : Posterior
        The Gaussian and its samples.
    noise_variance_, prior_precision_ : float
        As given, or as chosen by evidence.
    coef_ : array (D,)
        Posterior mean of the weights.
    intercept_ : float
        Posterior mean of the constant term.
    problem_ : Problem
        Data (by reference) and prior of the last fit. Files and pickles do not contain it.
    far_field_ : FeatureFarField or None
        The extent of the training rows, and how the variance of `far_field=True` was chosen.
    n_features_in_ : int
    feature_names_in_ : array (D,)
        Only if the columns of X had names.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from enkbayes import EnsembleRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = EnsembleRegressor(random_state=0).fit(scale(X), y)
    >>> mean, std = model.predict(scale(X)[:2], return_std=True)
    >>> mean.shape, bool((std > model.noise_variance_**0.5).all())
    ((2,), True)
    """

    posterior_: Posterior
    noise_variance_: float
    prior_precision_: Any

    def __init__(
        self,
        *,
        prior_precision: Any = AUTO,
        noise_variance: Any = AUTO,
        prior_mean: Any = 0.0,
        fit_intercept: bool = True,
        particles: int = 200,
        random_state: Any = None,
        progress: bool = False,
        far_field: bool = False,
    ) -> None:
        self.prior_precision = prior_precision
        self.noise_variance = noise_variance
        self.prior_mean = prior_mean
        self.fit_intercept = fit_intercept
        self.particles = particles
        self.random_state = random_state
        self.progress = progress
        self.far_field = far_field

    @in_range("the regression")
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to features X (N, D), dense or sparse, and targets y (N,); `sample_weight` (N,) says how often each row
        counts. Discards earlier fits.
        """
        X, y = self._validated(X, y, y_numeric=True)
        warn_of_offsets(X, self, FARTHEST)
        targets = real_targets(y, X.shape[0], "normal").astype(np.float64)
        problem = self._problem(X, targets, sample_weight)
        self._keep(problem, fingerprint(X, y, sample_weight))
        return self

    @in_range("the regression")
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from one more batch; the posterior so far is the prior, which is exact for a given noise.

        The first batch chooses "auto" settings, and later ones keep them.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(X, y, sample_weight)
        X, y = self._validated(X, y, dtype=np.float64, y_numeric=True, reset=False)
        prior, likelihood = self.posterior_.distribution, self.posterior_.likelihood
        intercept = 1.0 if prior.dim > self.n_features_in_ else None  # as the variance of the weights, it is replaced
        problem = Problem.create(X, y, likelihood=likelihood, intercept=intercept, weights=sample_weight)
        problem = problem.with_prior(prior)
        self._keep(problem, fingerprint(X, y, sample_weight, self.fingerprint_ or ""))
        return self

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """Return the expected targets (n,); with `return_std` also their standard deviations (n,), noise included."""
        features = self._features(X)
        mean = np.asarray(self.posterior_.predict_proba(features))[:, 0]
        return (mean, np.sqrt(self.predict_uncertainty(X).total)) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.95) -> Array:
        """Return lower and upper ends (n, 2) of the central intervals that hold a new target with probability `level`.

        >>> X = np.linspace(-1, 1, 50)[:, None]
        >>> model = EnsembleRegressor(noise_variance=0.01).fit(X, 2 * X[:, 0])
        >>> low, high = model.predict_interval([[0.5]])[0]
        >>> bool(low < 1.0 < high)
        True
        """
        if not 0 < level < 1:
            raise ValueError(f"level is {level!r}; expected a probability between 0 and 1")
        mean, std = self.predict(X, return_std=True)
        reach = float(ndtri(0.5 + level / 2)) * std
        return np.stack([mean - reach, mean + reach], axis=1)

    def sample_predictions(self, X: Any) -> Array:
        """Return the expected targets that each of the J samples of the weights predicts, (J, n)."""
        features = self._features(X)
        return np.asarray(self.posterior_.sample_proba(features))[:, :, 0]

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Return the variance of a new target, (n,) each: aleatoric is the noise, epistemic the variance of its mean,
        and total their sum. With far-field variance, `far_field` is its part of the epistemic one.
        """
        features = self._features(X)
        noise = None if self.far_field_ is None else self.far_field_.noise(features)
        return self.posterior_.predict_uncertainty(features, noise=noise)

    @property
    def coef_(self) -> Array:
        """Posterior mean of the weights (D,)."""
        check_is_fitted(self)
        return np.asarray(self.posterior_.fitted.mean[: self.n_features_in_])

    @property
    def intercept_(self) -> float:
        """Posterior mean of the constant term; 0 without one."""
        check_is_fitted(self)
        mean = self.posterior_.fitted.mean
        return float(mean[-1]) if len(mean) > self.n_features_in_ else 0.0

    def to_artefact(self, preprocessing: Mapping[str, Any] | None = None) -> Artefact:
        """Return what a file of the fitted regressor holds."""
        estimator = self._described(kind="regressor", chosen={"prior_precision": self.prior_precision_})
        found = Artefact(self.posterior_, estimator, preprocessing, self.fingerprint_, evidence=self._evidence)
        return replace(found, far_field=self.far_field_)

    @classmethod
    def from_artefact(cls, artefact: Artefact) -> Self:
        """Return the fitted regressor of a file."""
        stored, posterior = artefact.estimator, artefact.posterior
        single = isinstance(posterior, Posterior) and isinstance(posterior.likelihood, Normal)
        if stored is None or posterior.map is None or not single:
            raise ValueError("the file does not hold a regressor with a normal likelihood")
        model = cls(**cls._known(stored["parameters"]))
        model._take_features(posterior.map.features, stored["feature_names"])
        model.posterior_, model._evidence = posterior, artefact.evidence  # type: ignore[assignment]
        model.noise_variance_ = posterior.likelihood.variance  # type: ignore[attr-defined]
        model.prior_precision_ = stored["chosen"]["prior_precision"]
        model.fingerprint_, model.far_field_ = artefact.fingerprint, artefact.far_field
        return model

    def _problem(self, X: Any, y: Array, sample_weight: Any) -> Problem:
        """Return the problem of all rows, with noise and prior as given or as chosen."""
        given = None if is_auto(self.noise_variance) else _positive("noise_variance", self.noise_variance)
        auto = is_auto(self.prior_precision)
        if auto and np.any(np.asarray(self.prior_mean) != 0):
            raise ValueError('prior_precision="auto" chooses a prior around 0; give a number with prior_mean')
        intercept = 1.0 if self.fit_intercept else None
        rows = Problem.create(X, y, likelihood=Normal(), intercept=intercept, weights=sample_weight)
        weights, seen = None, rows
        if not auto:  # seen from the prior, weights have mean 0 and variance 1
            weights = weight_prior(X.shape[1], None, self.prior_precision, self.prior_mean)
            seen = rows.with_arrays(features=X @ weights.dense_root, targets=y - X @ weights.mean)
        scales = regression_scales(seen, noise=given, prior=None if auto else 1.0)
        self.noise_variance_ = scales.noise
        self.prior_precision_ = 1 / scales.prior if auto else self.prior_precision
        prior = Gaussian.isotropic(X.shape[1], scales.prior) if weights is None else weights
        if self.fit_intercept:
            prior = prior.stack(Gaussian(np.asarray([scales.target_mean]), WIDE * scales.target_variance))
        return replace(rows.with_prior(prior), likelihood=Normal(scales.noise))

    def _keep(self, problem: Problem, data: str) -> None:
        seed = seed_of(self.random_state)
        found = run(problem, MeanField(), particles=self.particles, seed=seed, progress=self.progress)
        self.posterior_, self.problem_ = replace(found, state=None), problem
        self.fingerprint_, self._evidence = data, None
        self.far_field_ = choose_for_features(problem, self.posterior_) if self.far_field else None


def _positive(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not (np.isfinite(number) and number > 0):
        raise ValueError(f'{name} is {value!r}; expected a positive number, or "auto"')
    return number
