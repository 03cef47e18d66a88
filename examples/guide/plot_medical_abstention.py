"""
A medical table, and when to ask a person
=========================================

A classifier of tumours should say "I do not know" instead of being wrong. Held-out rows choose the confidence below
which it abstains, with a guarantee: among the rows that it decides, at most 4 % are wrong, with 90 % confidence. That
is nearly the strictest promise that 200 held-out rows allow; in fact hardly any decision is wrong.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from enkbayes import EnsembleClassifier

X, y = load_breast_cancer(return_X_y=True)
X_train, X_rest, y_train, y_rest = train_test_split(X, y, train_size=100, random_state=0)
X_val, X_test, y_val, y_test = train_test_split(X_rest, y_rest, train_size=200, random_state=0)

model = EnsembleClassifier(random_state=0).fit(X_train, y_train)

# %%
# The threshold rests on the 200 held-out rows, which the classifier was not fitted to.

threshold = model.reject_threshold(X_val, y_val, max_error=0.04, confidence=0.9)

proba = model.predict_proba(X_test)
confidence, wrong = proba.max(axis=1), model.predict(X_test) != y_test
decided = confidence > threshold

# %%
# Sorted by confidence, the errors are among the last rows, which are left to a person.

order = np.argsort(-confidence)
share = np.arange(1, len(order) + 1) / len(order)
figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
limit = 100 * decided.mean()
ax.axvspan(0, limit, color="#0072b2", alpha=0.12)
ax.plot(100 * share, 100 * np.cumsum(wrong[order]) / np.arange(1, len(order) + 1), color="#0072b2", linewidth=2)
ax.axhline(4, color="#d55e00", linestyle="--")
ax.text(2, 4.1, "errors that were allowed", color="#d55e00")
ax.text(limit / 2, 2, f"the classifier decides:\n{wrong[decided].sum()} errors", ha="center", va="center")
ax.text((limit + 98) / 2, 3, "a person\ndecides", ha="center", va="center")
ax.set(xlabel="patients, most confident first (%)", ylabel="errors so far (%)", xlim=(0, 100), ylim=(-0.1, 4.8))
plt.show()

print(
    f"Of {len(y_test)} patients the classifier decides {decided.mean():.0%} and is wrong for {wrong[decided].sum()}; "
    f"without abstaining it is wrong for {wrong.sum()}."
)
