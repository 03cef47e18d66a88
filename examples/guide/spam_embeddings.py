"""
Spam, by the embeddings of sentences
====================================

all-MiniLM-L6-v2 turns a mail into 384 numbers. With 300 labelled mails, the classifier decides what it is sure of and
leaves the rest in the inbox. This example downloads mails and network once (90 MB), so the site shows what
``make gallery`` has drawn.

.. image:: /images/spam_embeddings.png

.. literalinclude:: /images/spam_embeddings.txt
   :language: none
"""

# sphinx_gallery_thumbnail_path = 'images/spam_embeddings.png'

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from enkbayes import EnsembleClassifier

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import default_sets  # noqa: E402 (downloads mails and network, computes the embeddings once, and keeps them)

X, y = default_sets.load("spam_assassin")
X = X.to_numpy(dtype=float) if hasattr(X, "to_numpy") else np.asarray(X, dtype=float)
X = X / X.std()
order = np.random.default_rng(0).permutation(len(y))
train, held_out, test = order[:300], order[300:800], order[800:]

classifier = EnsembleClassifier(random_state=0).fit(X[train], y[train])
threshold = classifier.reject_threshold(X[held_out], y[held_out], max_error=0.02)

# %%
# The threshold rests on 500 other mails.

proba = classifier.predict_proba(X[test])
confidence, wrong = proba.max(axis=1), classifier.classes_[proba.argmax(axis=1)] != y[test]
decided = confidence > threshold
figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
edges = np.linspace(0.5, 1, 26)
ax.hist(confidence[~wrong], edges, color="#0072b2", alpha=0.7, label="right")
ax.hist(confidence[wrong], edges, color="#d55e00", label="wrong")
ax.axvline(threshold, color="black", linestyle="--", linewidth=1, label="threshold for 2 % errors")
ax.set(xlabel="confidence", ylabel="mails", yscale="log", xlim=(0.5, 1))
ax.legend(frameon=False)
figure.savefig(ROOT / "docs/images/spam_embeddings.png", dpi=90)
said = (
    f"Of {len(test):,} new mails {decided.mean():.0%} are decided, with {wrong[decided].mean():.1%} errors; "
    f"without a threshold {wrong.mean():.1%} are wrong."
)
(ROOT / "docs/images/spam_embeddings.txt").write_text(said + "\n", encoding="utf-8")
print(said)
