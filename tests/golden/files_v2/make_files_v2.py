"""Write model files of format 2 with the source tree that still wrote them: PYTHONPATH=OLD/src python make_files_v2.py.

The test reads them with the present version. They differ in how the average over the width of the prior was stored.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.preprocessing import scale

import enkbayes as eb

FOLDER = Path(__file__).parent


def cases():
    """Name, features and labels of each file."""
    X, y = load_breast_cancer(return_X_y=True)
    yield "posterior", scale(X[:, :4]), y
    yield "sharper", scale(X)[:60], y[:60]
    X, y = load_iris(return_X_y=True)
    yield "softmax", scale(X), y
    yield "labels", scale(X), np.stack([y == 0, y >= 1], axis=1).astype(int)


def main():
    found = {}
    for name, X, y in cases():
        clf = eb.EnsembleClassifier(random_state=0, particles=12).fit(X, y)
        clf.save(FOLDER / f"{name}.safetensors")
        found[name] = clf.predict_proba(X[:5])
    np.savez_compressed(FOLDER / "expected.npz", **found)


if __name__ == "__main__":
    main()
