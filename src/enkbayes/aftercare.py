"""What a fitted classifier offers after its fit: how far to trust it, and polish to the exact posterior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from enkbayes.polish import polish
from enkbayes.posterior import Posterior
from enkbayes.problem import Problem
from enkbayes.trust import Trust, assess


class Aftercare:
    """The part of `EnsembleClassifier` that looks back at its last fit, `problem_` and `posterior_`."""

    posterior_: Posterior
    problem_: Problem
    classes_: np.ndarray[Any, Any]
    progress: bool
    _trust: Trust | None
    _problem: Callable[..., Problem]
    _features: Callable[[Any], Any]
    _seed: Callable[[], int]

    @property
    def trust_(self) -> Trust:
        """How far to trust the posterior; found when first asked for, and kept by `save`."""
        check_is_fitted(self)
        if self._trust is None:
            self._trust = assess(self._asked("trust_ weighs the posterior"), self.posterior_)
        return self._trust

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
        problem = self._problem(self._features(X), np.asarray(y), self.classes_, sample_weight)
        return assess(problem, self.posterior_)

    def polish(self, sweeps: int = 20) -> Self:
        """Move every particle to the exact posterior of the last fit, `sweeps` times; see `enkbayes.polish`.

        >>> import enkbayes as eb
        >>> from sklearn.datasets import load_iris
        >>> clf = eb.EnsembleClassifier(random_state=0).fit(*load_iris(return_X_y=True))
        >>> clf.polish(5).posterior_.info.sweeps
        5
        """
        problem = self._asked("polish moves the particles")
        self.posterior_ = polish(problem, self.posterior_, sweeps, seed=self._seed(), progress=self.progress)
        self._trust = None
        return self

    def _asked(self, purpose: str) -> Problem:
        """Return the problem of the last fit, which a file or pickle does not bring along."""
        check_is_fitted(self)
        if not hasattr(self, "problem_"):
            raise AttributeError(
                f"{purpose} by the data of the fit, which files and pickles leave out; call assess(X, y), or fit again"
            )
        return self.problem_
