"""
A pretrained ImageNet network and 500 labels
============================================

EfficientNet-Lite0, trained on ImageNet, turns a picture into 1,280 numbers. With 500 labelled pictures of cats and
dogs, a posterior over weights of these numbers says which pictures it cannot tell. This example downloads pictures and
network once (140 MB), so the site shows what ``make gallery`` has drawn.

.. image:: /images/imagenet_500_labels.png

.. literalinclude:: /images/imagenet_500_labels.txt
   :language: none
"""

# sphinx_gallery_thumbnail_path = 'images/imagenet_500_labels.png'

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from enkbayes import EnsembleClassifier

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import default_sets  # noqa: E402 (downloads data and network, computes the features once, and keeps them)

X, y = default_sets.load("cats_dogs")
X = X.to_numpy(dtype=float) if hasattr(X, "to_numpy") else np.asarray(X, dtype=float)
order = np.random.default_rng(0).permutation(len(y))
train, test = order[:500], order[500:2500]

# %%
# Both see the same 500 labels.

fitted = {
    "EnsembleClassifier": make_pipeline(StandardScaler(), EnsembleClassifier(random_state=0)),
    "LogisticRegressionCV": make_pipeline(
        StandardScaler(), LogisticRegressionCV(scoring="neg_log_loss", max_iter=2000)
    ),
}
figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
said = []
for (name, model), colour in zip(fitted.items(), ("#0072b2", "#d55e00"), strict=True):
    proba = model.fit(X[train], y[train]).predict_proba(X[test])
    right = model.classes_[proba.argmax(axis=1)] == y[test]
    sure = np.argsort(-proba.max(axis=1))
    loss = -np.log(proba[np.arange(len(test)), np.searchsorted(model.classes_, y[test])]).mean()
    errors = np.cumsum(~right[sure]) / np.arange(1, len(test) + 1)
    ax.plot(100 * np.arange(1, len(test) + 1) / len(test), 100 * errors, color=colour, label=name)
    surer = errors[len(test) // 2]
    said.append(f"{name}: accuracy {right.mean():.3f}, log loss {loss:.3f}, errors among the surer half {surer:.1%}")
ax.set(
    xlabel="pictures decided, most confident first (%)", ylabel="errors among them (%)", xlim=(0, 100), ylim=(0, None)
)
ax.legend(frameon=False)
figure.savefig(ROOT / "docs/images/imagenet_500_labels.png", dpi=90)
(ROOT / "docs/images/imagenet_500_labels.txt").write_text("\n".join(said) + "\n", encoding="utf-8")
print("\n".join(said))
