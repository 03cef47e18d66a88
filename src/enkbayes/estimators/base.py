"""What the estimators share: the checks of scikit-learn, the evidence, files, and what notebooks show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from enkbayes.core.problem import Problem
from enkbayes.estimators.validation import check_flags, validated
from enkbayes.inference.evidence import Evidence, log_evidence
from enkbayes.inference.feature_far_field import FeatureFarField
from enkbayes.storage.model_file import Artefact, LabelArtefacts, write

FLOATS = (np.float64, np.float32)


class PosteriorEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of an estimator with a posterior: `posterior_`, and `problem_`, the data that it was fitted to."""

    posterior_: Any
    problem_: Problem
    fingerprint_: str | None
    far_field_: FeatureFarField | None
    n_features_in_: int
    _evidence: Evidence | None
    _showing = False

    @property
    def evidence_(self) -> Evidence:
        """The log evidence of the last fit, with its method and error bar. Computed on first access; `save` stores it.

        After `partial_fit` it is the evidence of the last batch, given the batches before.
        """
        check_is_fitted(self)
        if self._evidence is None:
            problem = self._fitted_problem("evidence_", "access it before saving")
            self._evidence = log_evidence(problem, self.posterior_)
        return self._evidence

    @property
    def log_evidence_(self) -> float:
        """The value of `evidence_`: how probable the data were under the prior. Differences compare models."""
        return self.evidence_.value

    def save(self, path: str | Path, *, preprocessing: Mapping[str, Any] | None = None) -> None:
        """Write the fitted estimator to one `.safetensors` file; `enkbayes.load` reads it.

        preprocessing is any dict of JSON values to store with the model;
        `enkbayes.storage.model_file.read(path).preprocessing` returns it.
        """
        check_is_fitted(self)
        write(self.to_artefact(preprocessing), path)

    def to_artefact(self, preprocessing: Mapping[str, Any] | None = None) -> Artefact | LabelArtefacts:
        """Return what a file of the fitted estimator holds."""
        raise NotImplementedError

    def _described(self, **more: Any) -> dict[str, Any]:
        """Return parameters and feature names for a file."""
        names = getattr(self, "feature_names_in_", None)
        known = {"parameters": self.get_params(deep=False), "feature_names": None if names is None else names.tolist()}
        return known | more

    @classmethod
    def _known(cls, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parameters in a file, or raise a ValueError if this version lacks some of them."""
        unknown = parameters.keys() - cls().get_params().keys()
        if unknown:
            raise ValueError(f"the file has unknown parameters {sorted(unknown)}; upgrade enkbayes to open it")
        return parameters

    def _take_features(self, count: int, names: Any) -> None:
        """Take the number of features from a file, and their names if they have any."""
        self.n_features_in_ = count
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)

    def _validated(self, *data: Any, dtype: Any = FLOATS, **settings: Any) -> Any:
        """Return rows as scikit-learn's `validate_data` does; see `validation.py` for what it adds. Rows of a fit come
        with a check of its switches.
        """
        if settings.get("reset", True):
            check_flags(self.get_params(deep=False))
        return validated(self, *data, accept_sparse="csr", dtype=dtype, **settings)

    def _features(self, X: Any) -> Any:
        """Return features (n, D) like those of the fit."""
        check_is_fitted(self)
        return self._validated(X, reset=False)

    def _fitted_problem(self, purpose: str, remedy: str) -> Problem:
        """Return the problem of the last fit, which files and pickles do not contain."""
        check_is_fitted(self)
        if self._showing or not hasattr(self, "problem_"):
            raise AttributeError(
                f"{purpose} needs the data of the fit, which files and pickles leave out; {remedy}, or fit again"
            )
        return self.problem_

    def __getstate__(self) -> dict[str, Any]:
        """Leave the training data out of pickles."""
        return {name: value for name, value in super().__getstate__().items() if name != "problem_"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        """Return what notebooks show of a fitted estimator, without computing anything for it."""
        shown = [self, *getattr(self, "estimators_", [])]
        for estimator in shown:
            vars(estimator)["_showing"] = True
        try:
            return super()._get_fitted_attr_html(doc_link)
        finally:
            for estimator in shown:
                del vars(estimator)["_showing"]
