"""
Learning batch by batch while the world changes
===============================================

``partial_fit`` makes the posterior of one batch the prior of the next. After a drift the old batches contradict the new
ones. With ``forget="auto"`` the classifier notices, by the log loss of each batch before it is learned.
"""

import matplotlib.pyplot as plt
import numpy as np

from enkbayes import EnsembleClassifier

rng = np.random.default_rng(0)
batches, rows = 40, 50
X = rng.standard_normal((batches * rows, 5))
weights = np.where(np.arange(len(X))[:, None] < len(X) // 2, [2, -1, 1, 0, 0], [-1, 2, 0, 1, 0])
y = (X * weights).sum(axis=1) + rng.logistic(size=len(X)) > 0

# %%
# Two classifiers see the same batches; each batch is predicted before it is learned.

losses = {}
for name, forget in {"remembers everything": 1.0, 'forget="auto"': "auto"}.items():
    classifier, losses[name] = EnsembleClassifier(prior_precision=1.0, random_state=0), []
    for part in np.array_split(np.arange(len(X)), batches):
        if losses[name] or part[0]:
            proba = classifier.predict_proba(X[part])
            losses[name].append(-np.log(proba[np.arange(len(part)), y[part].astype(int)]).mean())
        classifier.partial_fit(X[part], y[part], classes=[False, True], forget=forget)

# %%
# The weights change after batch 20.

figure, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for (name, values), colour in zip(losses.items(), ("#d55e00", "#0072b2"), strict=True):
    ax.plot(range(2, batches + 1), values, label=name, color=colour)
ax.axvline(batches / 2 + 1, color="black", linestyle=":", linewidth=1)
ax.text(batches / 2 + 0.5, 1.5, "the world changes", ha="right")
ax.set(xlabel="batch", ylabel="log loss before learning it")
ax.legend(frameon=False)
plt.show()

after = {name: np.mean(values[batches // 2 + 2 :]) for name, values in losses.items()}
print("Mean log loss after the drift: " + ", ".join(f"{value:.2f} ({name})" for name, value in after.items()) + ".")
