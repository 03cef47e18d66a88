"""
A simulator without derivatives, and yes-or-no outcomes
=======================================================

A drug is absorbed and eliminated at unknown rates. Of each patient we only know whether the drug worked. The logit is
whatever a simulator returns: ``Problem.nonlinear`` needs its values, and no derivatives.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit

import enkbayes as eb

rng = np.random.default_rng(0)
dose, time = rng.uniform(0.5, 4, 200), rng.uniform(0.5, 8, 200)


def concentration(theta, dose, time, steps=40):
    """Return the concentrations (N, J): Euler steps through gut and blood, with rates exp(theta), (J, 2)."""
    absorbed, eliminated = np.exp(theta[:, 0]), np.exp(theta[:, 1])
    gut, blood = np.repeat(dose[:, None], len(theta), axis=1), np.zeros((len(dose), len(theta)))
    dt = time[:, None] / steps
    for _ in range(steps):
        flow = absorbed * gut
        gut, blood = gut - dt * flow, blood + dt * (flow - eliminated * blood)
    return blood


truth = np.log([[0.9, 0.25]])
effect = lambda theta: 4 * (concentration(theta, dose, time) - 0.8)  # noqa: E731
works = rng.random(200) < expit(effect(truth)[:, 0])

# %%
# The prior knows the rates to within a factor of about three.

problem = eb.Problem.nonlinear(effect, works, eb.Gaussian(np.log([0.5, 0.5]), 0.5 * np.eye(2)))
posterior = eb.run(problem, eb.Equilibrium(), particles=300, seed=0)
print(f"{posterior.info.steps} steps, converged: {posterior.info.converged}")

# %%
# The particles in the plane of the two rates, and what they predict for a new patient.

figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.4), layout="constrained")
prior = problem.prior.sample(300, rng=rng)
axes[0].scatter(*np.exp(prior).T, s=6, color="0.7", label="prior")
axes[0].scatter(*np.exp(posterior.theta).T, s=6, color="#0072b2", label="posterior")
axes[0].scatter(*np.exp(truth[0]), marker="x", s=60, color="black", label="truth")
axes[0].set(xlabel="absorption rate", ylabel="elimination rate", xscale="log", yscale="log")
axes[0].legend(frameon=False, fontsize=8)
hours = np.linspace(0.05, 12, 60)
curves = expit(4 * (concentration(posterior.theta, np.full(60, 2.0), hours) - 0.8))
axes[1].fill_between(hours, *np.quantile(curves, [0.05, 0.95], axis=1), alpha=0.3, color="#0072b2")
axes[1].plot(hours, curves.mean(axis=1), color="#0072b2", label="posterior, 90 %")
axes[1].plot(hours, expit(4 * (concentration(truth, np.full(60, 2.0), hours) - 0.8)), "k--", label="truth")
axes[1].set(xlabel="hours after a dose of 2", ylabel="probability that it works", ylim=(0, 1))
axes[1].legend(frameon=False, fontsize=8)
plt.show()

mean, sd = np.exp(posterior.mean), np.sqrt(np.diag(posterior.cov))
print(
    f"Absorption {mean[0]:.2f} (truth 0.90) and elimination {mean[1]:.2f} (0.25), each within {100 * sd.max():.0f} %."
)
