"""
A likelihood of your own
========================

Counts of bikes by the hour need a Poisson likelihood, which the package does not have. It is one class with four
functions of a row's logit; samplers, evidence, trust and files work with it as with any other.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import gammaln

import enkbayes as eb


@dataclass(frozen=True)
class Poisson(eb.Likelihood):
    """Counts 0, 1, 2, ... with the rate exp(z)."""

    def loss(self, logits, targets):
        """Minus the logarithm of the probability."""
        return np.exp(logits) - targets[:, None] * logits + gammaln(targets[:, None] + 1)

    def slope(self, logits, targets):
        """Its first derivative."""
        return np.exp(logits) - targets[:, None]

    def curvature(self, logits, targets):
        """Its second derivative."""
        return np.exp(logits)

    def mean(self, logits):
        """The expected count, as a last axis."""
        return np.exp(logits)[..., None]

    def noise_variance(self, logits):
        """The variance of a count, for the aleatoric part of the uncertainty."""
        return np.exp(logits)


# %%
# Waves of the day as features; few counts at night.

rng = np.random.default_rng(0)
hour = rng.uniform(0, 24, 60)
hour = hour[(hour < 1) | (hour > 5)]


def waves(hour):
    """Return sines and cosines of the day and its harmonics."""
    angle = 2 * np.pi * hour[:, None] * np.arange(1, 4) / 24
    return np.hstack([np.ones((len(hour), 1)), np.sin(angle), np.cos(angle)])


rate = lambda hour: np.exp(1.5 - 1.5 * np.cos(2 * np.pi * (hour - 2) / 24) + 0.6 * np.cos(4 * np.pi * (hour - 8) / 24))  # noqa: E731
counts = rng.poisson(rate(hour))
problem = eb.Problem.create(waves(hour), counts, prior=1.0, likelihood=Poisson())
posterior = eb.run(problem, particles=200, seed=0)
print(eb.assess(problem, posterior).sentence)

# %%
# The band of the rate is widest at night, where nobody counted.

grid = np.linspace(0, 24, 200)
rates = posterior.sample_proba(waves(grid))[..., 0]
figure, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
ax.fill_between(grid, *np.quantile(rates, [0.05, 0.95], axis=0), alpha=0.3, color="#0072b2", label="rate, 90 % band")
ax.plot(grid, rates.mean(axis=0), color="#0072b2")
ax.plot(grid, rate(grid), "k--", label="truth")
ax.scatter(hour, counts, s=14, color="#d55e00", label="counts", zorder=3)
ax.set(xlabel="hour of the day", ylabel="bikes", xlim=(0, 24), xticks=range(0, 25, 6))
ax.legend(frameon=False)
plt.show()

night, noon = (np.ptp(np.quantile(rates[:, np.argmin(abs(grid - at))], [0.05, 0.95])) for at in (3, 12))
relative = [width / rates[:, np.argmin(abs(grid - at))].mean() for width, at in ((night, 3), (noon, 12))]
print(f"Relative to the rate, the interval at 3 o'clock is {relative[0] / relative[1]:.1f} times as wide as at noon.")
