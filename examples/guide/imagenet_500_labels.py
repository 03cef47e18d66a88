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
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from enkbayes import EnsembleClassifier
from enkbayes.reproduction.datasets.cifar import dogs_and_cats, load_cifar10

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from default_features import image_features  # noqa: E402 (downloads the network once)

data = dogs_and_cats(load_cifar10()[0])
some = np.random.default_rng(0).permutation(len(data))[:1500]
pictures, y = data.images[some], np.array(["dog", "cat"])[data.labels[some]]
X = image_features(pictures)

# %%
# 500 pictures have labels; 1,000 are new.

model = make_pipeline(StandardScaler(), EnsembleClassifier(random_state=0)).fit(X[:500], y[:500])
proba, said, shown, truth = model.predict_proba(X[500:]), model.predict(X[500:]), pictures[500:], y[500:]
order = np.argsort(-proba.max(axis=1))  # the surest first
right = (said == truth)[order]

# %%
# The surest pictures, the most doubtful ones, and how often each kind is wrong.

figure = plt.figure(figsize=(8.5, 2.8), layout="constrained")
images, curve = figure.subfigures(1, 2, width_ratios=[2, 1])
for ax, row in zip(images.subplots(2, 6).flat, [*order[:6], *order[-6:]], strict=True):
    ax.imshow(shown[row], interpolation="nearest")
    ax.set_axis_off()
    ax.set_title(f"{said[row]}, {100 * proba[row].max():.0f} %", fontsize=9, pad=2)
images.suptitle("above the surest pictures, below the most doubtful", fontsize=10)
ax = curve.subplots()
share = np.arange(1, len(right) + 1) / len(right)
ax.plot(100 * share, 100 * np.cumsum(~right) / np.arange(1, len(right) + 1), color="#0072b2", linewidth=2)
ax.set(xlabel="pictures decided, surest first (%)", ylabel="errors among them (%)", xlim=(0, 100), ylim=(0, None))
figure.savefig(ROOT / "docs/images/imagenet_500_labels.png", dpi=90)
quarter = len(right) // 4
text = (
    f"It is wrong for {1 - right.mean():.1%} of all new pictures, for {1 - right[:quarter].mean():.1%} of the surest "
    f"quarter, and for {1 - right[-quarter:].mean():.1%} of the most doubtful quarter."
)
(ROOT / "docs/images/imagenet_500_labels.txt").write_text(text + "\n", encoding="utf-8")
print(text)
