"""Save and load: a fitted classifier or a posterior as one `.safetensors` file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enkbayes.core.posterior import Posterior
from enkbayes.estimators.classifier import EnsembleClassifier
from enkbayes.storage.header import Artefact
from enkbayes.storage.model_files import read, write


def save(
    model: EnsembleClassifier | Posterior, path: str | Path, *, preprocessing: Mapping[str, Any] | None = None
) -> None:
    """Write a fitted classifier or a posterior to one `.safetensors` file, in one piece.

    Parameters
    ----------
    model : EnsembleClassifier or Posterior
        Arrays of other libraries are stored from the CPU and come back as numpy.
    path : str or Path
        A file there is replaced.
    preprocessing : dict, optional
        Anything that JSON can hold, stored beside the model;
        `enkbayes.storage.model_files.read(path).preprocessing` gives it back.

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
    if isinstance(model, EnsembleClassifier):
        model.save(path, preprocessing=preprocessing)
    elif isinstance(model, Posterior):
        write(Artefact(model, preprocessing=preprocessing), path)
    else:
        raise ValueError(f"cannot save a {type(model).__name__}; expected an EnsembleClassifier or a Posterior")


def load(path: str | Path) -> Any:
    """Return the classifier or posterior that was saved; nothing in the file is executed.

    A file that is damaged, foreign, or of a newer format than this version knows is refused with a ValueError.

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
    artefact = read(path)
    return artefact.posterior if artefact.estimator is None else EnsembleClassifier.from_artefact(artefact)
