"""The scikit-learn facade: a classifier with a posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from enkbayes.core.distributed import classes_of, create
from enkbayes.core.labels import announced
from enkbayes.core.posterior import Uncertainty
from enkbayes.engine.processes import first, told
from enkbayes.estimators.aftercare import Aftercare
from enkbayes.estimators.fitting import Array, Fitting
from enkbayes.inference.empirical_bayes import Tuning
from enkbayes.inference.priors import is_auto
from enkbayes.samplers import MeanField, Sampler
from enkbayes.storage.checkpoints import Checkpoint
from enkbayes.storage.fingerprint import fingerprint
from enkbayes.storage.header import Artefact
from enkbayes.storage.model_files import write

FLOATS = (np.float64, np.float32)


class EnsembleClassifier(Fitting, Aftercare, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Bayesian logistic regression: one logit for two classes, softmax for more, with an ensemble for the posterior.

    Scale the features first (`StandardScaler` in a pipeline): the prior has the same width for each of them.

    Parameters
    ----------
    sampler : str or Sampler
        "equilibrium", "homotopy", "mean-field", "trotter", "tamed-homotopy", "stochastic", or a sampler object such as
        `Equilibrium(tol=1e-8)`.
    particles : int
        J, the size of the ensemble. With "equilibrium" and "mean-field" any number will do; the other samplers need
        more particles than parameters (features x classes).
    prior_precision : float, array (D,), array (D, D) or "auto"
        Inverse variance of the weights' Gaussian prior: one number, one for each feature, or the inverse covariance
        between features. With prior_mean=0 the most probable weights are those of `LogisticRegression(C=1 /
        prior_precision)`, up to the intercept's weak prior. "auto" chooses the number under which the data are most
        probable (`partial_fit`: on the first batch); `prior_precision_` tells which, `tuning_` how.
    prior_mean : float, array (D,) or array (D, K)
        Mean of the weights' prior. With a row more, (D + 1,) or (D + 1, K), the last one is the intercept's.
    fit_intercept : bool
        Whether each logit has a constant term.
    random_state : int, RandomState or None
        Of the initial ensemble, and of the noise of the stochastic sampler.
    warm_start : bool
        Start `fit` from the particles of the fit before when shape and classes agree. The answer of a sampler that
        converges is the same up to its tolerance, and comes in fewer steps. Homotopies start from the prior and refuse.
    intercept_precision : float or "auto"
        Inverse variance of the intercept's own prior, weak by default (standard deviation 10), also when that of the
        weights is chosen: from a single number its prior's width can hardly be learnt, and nothing is gained.
    progress : bool
        Show a progress bar.
    sweeps : int
        Sweeps of `polish` after the fit: they move the particles from the fitted Gaussian to the exact posterior.
    prior_groups : array (D,), optional
        Labels of features; with prior_precision="auto" each group of them gets a precision of its own.

    Attributes
    ----------
    classes_ : array (K,)
    posterior_ : Posterior
        The particles and everything known about them; `posterior_.info` tells how the run went.
    n_iter_ : int
        Steps of the last run.
    n_features_in_ : int
    feature_names_in_ : array (D,)
        Only when X had text column names.
    fingerprint_ : str
        sha256 of the training data; `partial_fit` chains it over the batches.
    problem_ : Problem
        What the last fit was asked: data and prior, by reference. Files and pickles leave it out.
    evidence_ : Evidence
        The log evidence, its method and error bar; `log_evidence_` is its value. Found when asked for; files keep it.
    prior_precision_, intercept_precision_ : float, or array (D,) and (D, D)
        The prior in use, as given or as chosen.
    tuning_ : Tuning or None
        How "auto" chose: variances, evidence, whether the search settled, and a sentence.
    calibration_ : Calibration or None
        How calibration rows chose prior and temperature: the candidates with their scores, and a sentence.
    trust_ : Trust
        How far to trust the posterior: a verdict, what to do, and the figures behind them. Files keep it.

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

    def __init__(
        self,
        sampler: str | Sampler = "equilibrium",
        *,
        particles: int = 200,
        prior_precision: Any = 1.0,
        prior_mean: Any = 0.0,
        fit_intercept: bool = True,
        random_state: Any = None,
        warm_start: bool = False,
        intercept_precision: Any = 0.01,
        progress: bool = False,
        sweeps: int = 0,
        prior_groups: Any = None,
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

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        calibration: tuple[Any, Any] | None = None,
        checkpoint: Checkpoint | str | Path | None = None,
    ) -> EnsembleClassifier:
        """Fit to features X (N, D), dense or sparse, and labels y (N,); forgets earlier fits.

        sample_weight (N,) says how often each row counts. checkpoint is a file that keeps the run, see
        `enkbayes.samplers.run`; to go on from it random_state must be a number.

        calibration is (X, y) of rows that are not among the training rows. Then the posterior is theirs, around the
        trained weights, and predicts no worse than temperature scaling on such rows; see
        `enkbayes.inference.calibration`. The trained weights are prior_mean if it is an array, and otherwise the most
        probable ones given the training rows.
        """
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS)
        check_classification_targets(y)
        classes = np.unique(y)
        if len(classes) < 2:
            raise ValueError(f"labels have only one class, {classes[0]}; expected two or more classes")
        problem, sampler = self._problem(X, y, classes, sample_weight), self._sampler()
        self._warn_of_few(problem, sampler)
        theta = self._warm_theta(problem, sampler) if self.warm_start else None
        data = fingerprint(X, y, sample_weight)
        asked, seed = self._tuned(problem), None
        self.calibration_ = None
        if calibration is not None:
            seed = self._seed()
            rows = validate_data(self, *calibration, accept_sparse="csr", dtype=FLOATS, reset=False)
            asked, data = self._calibrated(asked, rows, classes, seed), fingerprint(rows[0], rows[1], None, data)
        return self._learn(asked, sampler, data, seed=seed, theta=theta, checkpoint=checkpoint)

    def fit_shard(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        classes: Any = None,
        tuning: Tuning | None = None,
        checkpoint: Checkpoint | str | Path | None = None,
    ) -> EnsembleClassifier:
        """Fit to the rows of all processes, of which X (n, D) and y (n,) are this one's; all get the same classifier.

        For programs that `distributed.connect` has joined; n may be 0. classes are all classes, by default those of all
        y. An "auto" prior is chosen from all rows in one process: `tuning` is what `tune` found there. Nobody has all
        rows, so there is no `fingerprint_`.
        """
        with told():
            X, y = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS, ensure_min_samples=0)
            if tuning is None and (is_auto(self.prior_precision) or is_auto(self.intercept_precision)):
                raise ValueError('an "auto" prior is chosen from all rows; pass tuning=clf.tune(X, y), or a number')
        known = classes_of(y, classes)
        if len(known) < 2:
            raise ValueError(f"labels have only one class, {known[0]}; expected two or more classes")
        problem = self._problem(X, y, known, sample_weight, tuning, create)
        sampler = self._sampler()
        self._warn_of_few(problem, sampler)
        return self._learn((problem, tuning), sampler, None, seed=first(self._seed()), checkpoint=checkpoint)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> EnsembleClassifier:
        """Learn from one more batch: sequential Bayes, with today's posterior N(mean, cov) as tomorrow's prior.

        The first call (before any `fit`) announces all classes, also those that later batches bring; without `classes`
        they are those of its y. The Gaussian between two batches is an approximation: with rows in random order ten
        batches differ from one fit by less than .01 in mean predicted probability on data such as breast cancer, wine
        and digits (about .01 on iris, with its 15 rows a batch), but batches sorted by class can differ by .1 and more
        (`benchmarks/sequential.py` prints the table).

        With particles <= P parameters a sampler other than "equilibrium" has a singular covariance, which is no prior;
        the update is then made by `MeanField`.
        """
        begins = not hasattr(self, "posterior_")
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, reset=begins)
        check_classification_targets(y)
        known = announced(y, classes, None if begins else self.classes_)
        problem, before = self._problem(X, y, known, sample_weight), ""
        tuning = None if begins else self.tuning_
        if begins:
            problem, tuning = self._tuned(problem)
        else:
            ensemble = self.posterior_.ensemble.to(problem.prior.mean)
            problem, before = (
                problem.with_prior(replace(self.posterior_, ensemble=ensemble).distribution),
                self.fingerprint_ or "",
            )
        sampler = self._sampler()
        if self.particles <= problem.dim and not getattr(sampler, "informed", False):
            sampler = MeanField()
        return self._learn((problem, tuning), sampler, fingerprint(X, y, sample_weight, before))

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row, (n,)."""
        best = np.argmax(self.predict_proba(X), axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Array:
        """Return class probabilities (n, K), averaged over the posterior; the columns follow `classes_`."""
        features = self._features(X)
        return np.asarray(self.posterior_.predict_proba(features))

    def sample_proba(self, X: Any) -> Array:
        """Return the class probabilities that each particle predicts, (J, n, K)."""
        features = self._features(X)
        return np.asarray(self.posterior_.sample_proba(features))

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty in nats, and confidence, (n,) each."""
        features = self._features(X)
        return self.posterior_.predict_uncertainty(features)

    def save(self, path: str | Path, *, preprocessing: Mapping[str, Any] | None = None) -> None:
        """Write the fitted classifier to one `.safetensors` file; `enkbayes.load` reads it.

        preprocessing is any JSON-able dict to keep beside the model;
        `enkbayes.storage.model_files.read(path).preprocessing`.
        """
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        estimator = {
            "parameters": self.get_params(deep=False),
            "feature_names": None if names is None else names.tolist(),
        }
        found = {"trust": self._trust, "evidence": self._evidence, "tuning": self.tuning_}
        write(Artefact(self.posterior_, estimator, preprocessing, self.fingerprint_, **found), path)  # type: ignore[arg-type]

    @classmethod
    def from_artefact(cls, artefact: Artefact) -> EnsembleClassifier:
        """Return the fitted classifier that a file holds."""
        if artefact.estimator is None or artefact.posterior.map is None or artefact.posterior.classes is None:
            raise ValueError("the file holds a posterior without an estimator; use load(path)")
        parameters = artefact.estimator["parameters"]
        unknown = parameters.keys() - cls().get_params().keys()
        if unknown:
            raise ValueError(f"the file has unknown parameters {sorted(unknown)}; upgrade enkbayes to open it")
        clf = cls(**parameters)
        clf.n_features_in_ = artefact.posterior.map.features
        if artefact.estimator["feature_names"] is not None:
            clf.feature_names_in_ = np.asarray(artefact.estimator["feature_names"], dtype=object)
        clf.tuning_ = artefact.tuning
        clf._remember(artefact.posterior, artefact.fingerprint)
        clf._trust, clf._evidence = artefact.trust, artefact.evidence
        return clf

    def __getstate__(self) -> dict[str, Any]:
        """Leave the training data out of pickles."""
        return {name: value for name, value in super().__getstate__().items() if name != "problem_"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _features(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, accept_sparse="csr", dtype=FLOATS, reset=False)
