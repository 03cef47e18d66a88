"""Save and load: a fitted classifier or a posterior as one `.safetensors` file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.posterior import Posterior
from enkbayes.estimators.base import PosteriorEstimator
from enkbayes.estimators.classifier import EnsembleClassifier
from enkbayes.estimators.regressor import EnsembleRegressor
from enkbayes.storage.model_file import Artefact, LabelArtefacts, read, write


def save(
    model: PosteriorEstimator | Posterior | MixturePosterior,
    path: str | Path,
    *,
    preprocessing: Mapping[str, Any] | None = None,
) -> None:
    """Write a fitted estimator or a posterior to one `.safetensors` file, all or nothing.

    Parameters
    ----------
    model : EnsembleClassifier, EnsembleRegressor, Posterior or MixturePosterior
        Arrays of other libraries are stored from the CPU and come back as numpy.
    path : str or Path
        An existing file is replaced.
    preprocessing : dict, optional
        Anything that JSON can hold, stored with the model;
        `enkbayes.storage.model_file.read(path).preprocessing` returns it.

    Examples
    --------
    >>> import tempfile
    >>> import enkbayes as eb
    >>> from sklearn.datasets import load_iris
    >>> posterior = eb.run(eb.Problem.create(*load_iris(return_X_y=True)), particles=50)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     eb.save(posterior, f"{folder}/iris.safetensors")
    ...     eb.load(f"{folder}/iris.safetensors").theta.shape
    (50, 12)
    """
    if isinstance(model, PosteriorEstimator):
        model.save(path, preprocessing=preprocessing)
    elif isinstance(model, Posterior | MixturePosterior):
        write(Artefact(model, preprocessing=preprocessing), path)
    else:
        raise ValueError(
            f"cannot save a {type(model).__name__}, which has no particles that a file could hold; expected an "
            "EnsembleClassifier, an EnsembleRegressor or a Posterior"
        )


def load(path: str | Path, *, likelihood: type | None = None) -> Any:
    """Return the estimator or posterior that was saved; nothing in the file is executed.

    Parameters
    ----------
    path : str or Path
        A ValueError explains why a file is refused that is damaged, of another program, or of a newer format than this
        version knows.
    likelihood : class, optional
        The class of the likelihood, if it is not part of enkbayes. Its fields come from the file.

    Examples
    --------
    >>> import tempfile
    >>> import enkbayes as eb
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = eb.EnsembleClassifier(particles=50, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     clf.save(f"{folder}/iris.safetensors")
    ...     again = eb.load(f"{folder}/iris.safetensors")
    >>> bool((again.predict_proba(X) == clf.predict_proba(X)).all())
    True
    """
    artefact = read(path, likelihood)
    if isinstance(artefact, LabelArtefacts):
        return EnsembleClassifier.from_artefact(artefact)
    if artefact.estimator is None:
        return artefact.posterior
    kinds: dict[str, Any] = {"classifier": EnsembleClassifier, "regressor": EnsembleRegressor}
    return kinds[artefact.estimator["kind"]].from_artefact(artefact)
