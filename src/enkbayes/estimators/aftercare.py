"""What a classifier offers after its fit: how far to trust it, its evidence, and polish to the exact posterior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.inference.empirical_bayes import Tuning
from enkbayes.inference.evidence import Evidence, log_evidence
from enkbayes.inference.polish import polish
from enkbayes.inference.priors import chosen_precision, is_auto
from enkbayes.inference.trust import Trust, assess


class Aftercare:
    """The part of `EnsembleClassifier` that looks back at its last fit, `problem_` and `posterior_`."""

    posterior_: Posterior
    problem_: Problem
    classes_: np.ndarray[Any, Any]
    n_features_in_: int
    tuning_: Tuning | None
    prior_precision: Any
    prior_groups: Any
    intercept_precision: Any
    progress: bool
    _trust: Trust | None
    _evidence: Evidence | None
    _problem: Callable[..., Problem]
    _features: Callable[[Any], Any]
    _seed: Callable[[], int]

    @property
    def trust_(self) -> Trust:
        """How far to trust the posterior; found when first asked for, and kept by `save`."""
        check_is_fitted(self)
        if self._trust is None:
            self._trust = assess(self._asked("trust_ weighs the posterior", "call assess(X, y)"), self.posterior_)
        return self._trust

    @property
    def evidence_(self) -> Evidence:
        """The log evidence of the last fit, with its method and error bar; found when first asked for, kept by `save`.

        After `partial_fit` it is that of the last batch, given the batches before.
        """
        check_is_fitted(self)
        if self._evidence is None:
            problem = self._asked("evidence_ weighs the prior", "ask for it before saving")
            self._evidence = log_evidence(problem, self.posterior_)
        return self._evidence

    @property
    def log_evidence_(self) -> float:
        """The value of `evidence_`: how probable the data were under the prior. Differences compare models."""
        return self.evidence_.value

    @property
    def prior_precision_(self) -> Any:
        """The precision of the weights' prior in use: as given, or chosen (a number; an array (D,) with groups)."""
        check_is_fitted(self)
        chosen = None if self.tuning_ is None else self.tuning_.precisions
        return chosen_precision(self.prior_precision, chosen, self.prior_groups, self.n_features_in_)

    @property
    def intercept_precision_(self) -> float:
        """The precision of the intercept's prior in use: as given, or chosen."""
        check_is_fitted(self)
        chosen = is_auto(self.intercept_precision) and self.tuning_ is not None
        return float(self.tuning_.precisions[-1] if chosen else self.intercept_precision)  # type: ignore[union-attr]

    def assess(self, X: Any, y: Any, sample_weight: Any = None) -> Trust:
        """Return how far to trust the posterior of a `fit` to these very data: a verdict, what to do, and figures.

        >>> import enkbayes as eb
        >>> from sklearn.datasets import load_wine
        >>> from sklearn.preprocessing import scale
        >>> X, y = load_wine(return_X_y=True)
        >>> clf = eb.EnsembleClassifier(random_state=0).fit(scale(X), y)
        >>> clf.assess(scale(X), y).verdict, clf.trust_.verdict
        ('usable', 'usable')
        """
        problem = self._problem(self._features(X), np.asarray(y), self.classes_, sample_weight, self.tuning_)
        return assess(problem, self.posterior_)

    def polish(self, sweeps: int = 20) -> Self:
        """Move every particle to the exact posterior of the last fit, `sweeps` times; see `enkbayes.inference.polish`.

        >>> import enkbayes as eb
        >>> from sklearn.datasets import load_iris
        >>> clf = eb.EnsembleClassifier(random_state=0).fit(*load_iris(return_X_y=True))
        >>> clf.polish(5).posterior_.info.sweeps
        5
        """
        problem = self._asked("polish moves the particles", "polish before saving")
        self.posterior_ = polish(problem, self.posterior_, sweeps, seed=self._seed(), progress=self.progress)
        self._trust = None
        return self

    def _asked(self, purpose: str, remedy: str) -> Problem:
        """Return the problem of the last fit, which a file or pickle does not bring along."""
        check_is_fitted(self)
        if not hasattr(self, "problem_"):
            raise AttributeError(
                f"{purpose} by the data of the fit, which files and pickles leave out; {remedy}, or fit again"
            )
        return self.problem_
