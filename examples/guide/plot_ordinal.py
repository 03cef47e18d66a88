"""
An outcome with an order
========================

The progression of a disease in five grades: a softmax ignores that grade 4 lies between 3 and 5. The ordinal likelihood
has one logit and ordered cutpoints, so it needs fewer parameters and gives sensible neighbours.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale

from enkbayes import EnsembleClassifier

X, progression = load_diabetes(return_X_y=True)
X = scale(X)
grade = 1 + np.digitize(progression, np.quantile(progression, [0.2, 0.4, 0.6, 0.8]))
X_train, X_test, y_train, y_test = train_test_split(X, grade, train_size=150, random_state=0)

# %%
# The same rows, the same prior, two likelihoods.

fitted = {
    "softmax": EnsembleClassifier(prior_precision=5.0, random_state=0).fit(X_train, y_train),
    "ordinal": EnsembleClassifier(likelihood="ordinal", prior_precision=5.0, random_state=0).fit(X_train, y_train),
}
proba = {name: classifier.predict_proba(X_test) for name, classifier in fitted.items()}
loss = {name: -np.log(p[np.arange(len(y_test)), y_test - 1]).mean() for name, p in proba.items()}

# %%
# Patients from left to right by the expected grade of the ordinal model.

order = np.argsort(proba["ordinal"] @ np.arange(1, 6))
figure, axes = plt.subplots(2, 1, figsize=(7, 4.4), layout="constrained", sharex=True)
for ax, (name, p) in zip(axes, proba.items(), strict=True):
    ax.stackplot(np.arange(len(order)), p[order].T, colors=plt.get_cmap("Blues")(np.linspace(0.15, 0.95, 5)))
    ax.set(title=f"{name}: log loss {loss[name]:.2f}", ylabel="probability", xlim=(0, len(order) - 1), ylim=(0, 1))
axes[1].set_xlabel("patients; light to dark: grades 1 to 5")
plt.show()

parameters = {name: classifier.posterior_.map.dim for name, classifier in fitted.items()}
print(
    f"The ordinal model has {parameters['ordinal']} weights and a log loss of {loss['ordinal']:.2f} nats, "
    f"the softmax {parameters['softmax']} and {loss['softmax']:.2f}."
)
