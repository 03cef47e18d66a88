"""
Which rows to label next
========================

Labels cost money. ``eb.acquire`` chooses the rows of a pool whose labels tell most about the predictions for the whole
pool. This is one small experiment; the page on acquisition compares it with other rules on several data sets.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.preprocessing import scale

import enkbayes as eb

X, labels = load_digits(return_X_y=True)
keep = np.isin(labels, (3, 5, 8))  # three digits that look alike
X, y = scale(X[keep][:, X[keep].std(axis=0) > 0]), labels[keep]
rng = np.random.default_rng(1)
order = rng.permutation(len(y))
pool, test = order[:300], order[300:]


def accuracies(choose, rounds=5, batch=6):
    """Return the test accuracy after each round; `choose` returns positions among the rows without a label."""
    chosen = [int(np.flatnonzero(y[pool] == digit)[i]) for digit in (3, 5, 8) for i in range(2)]
    found = []
    for _ in range(rounds):
        classifier = eb.EnsembleClassifier(prior_precision=10.0, random_state=0)
        classifier.fit(X[pool[chosen]], y[pool[chosen]])
        found.append((classifier.predict(X[test]) == y[test]).mean())
        rest = np.setdiff1d(np.arange(len(pool)), chosen)
        chosen += list(rest[choose(classifier, X[pool[rest]], batch)])
    return np.array(found)


# %%
# Random rows are repeated three times, to show how much depends on luck.

ours = accuracies(eb.acquire)
luck = np.stack([accuracies(lambda _, rows, n: rng.choice(len(rows), n, replace=False)) for _ in range(3)])

# %%
# The band shows the best and the worst of the random choices.

sizes = 6 + 6 * np.arange(len(ours))
figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
ax.fill_between(sizes, luck.min(axis=0), luck.max(axis=0), color="#d55e00", alpha=0.2)
ax.plot(sizes, luck.mean(axis=0), color="#d55e00", label="random rows: mean, best and worst of 3")
ax.plot(sizes, ours, color="#0072b2", marker="o", label="eb.acquire")
ax.set(xlabel="labelled rows", ylabel="accuracy on other rows")
ax.legend(frameon=False, loc="lower right")
plt.show()

print(f"With {sizes[3]} labels: accuracy {ours[3]:.2f} by eb.acquire, {luck[:, 3].mean():.2f} by random rows.")
