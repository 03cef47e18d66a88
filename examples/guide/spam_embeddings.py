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
from default_features import mails, sentence_embeddings  # noqa: E402 (downloads both once)

texts, groups = mails()
some = np.random.default_rng(0).permutation(len(texts))[:1300]
X, y = sentence_embeddings([texts[i] for i in some]), groups[some]
X = X / X.std()
train, held_out, test = slice(300), slice(300, 800), slice(800, None)

classifier = EnsembleClassifier(random_state=0).fit(X[train], y[train])
threshold = classifier.reject_threshold(X[held_out], y[held_out], max_error=0.02)

# %%
# The threshold rests on 500 other mails.

proba = classifier.predict_proba(X[test])
confidence, wrong = proba.max(axis=1), classifier.classes_[proba.argmax(axis=1)] != y[test]
decided = confidence > threshold
kept = np.array([wrong.size, decided.sum()])  # without and with a threshold
errors = np.array([wrong.sum(), wrong[decided].sum()])
names = [f"every mail is decided:\n{errors[0]} wrong", f"doubtful mails stay in the inbox:\n{errors[1]} wrong"]
figure, ax = plt.subplots(figsize=(7, 2.3), layout="constrained")
ax.barh(names, kept - errors, color="#0072b2", label="right")
ax.barh(names, errors, left=kept - errors, color="#d55e00", label="wrong")
ax.barh(names, wrong.size - kept, left=kept, color="0.85", label="left in the inbox")
ax.set(xlabel="mails", xlim=(0, wrong.size))
ax.invert_yaxis()
ax.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
figure.savefig(ROOT / "docs/images/spam_embeddings.png", dpi=90)
said = (
    f"Of {len(wrong):,} new mails {decided.mean():.0%} are decided, with {wrong[decided].mean():.1%} errors; "
    f"without a threshold {wrong.mean():.1%} are wrong."
)
(ROOT / "docs/images/spam_embeddings.txt").write_text(said + "\n", encoding="utf-8")
print(said)
