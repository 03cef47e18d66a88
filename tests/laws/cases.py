"""Every sampler and every likelihood, for the laws that hold for all of them. A new one is one line here."""

import numpy as np

import enkbayes as eb
from laws.own_likelihood import Poisson

SAMPLERS = {
    "tamed homotopy": eb.TamedHomotopy(ds=0.01),
    "tamed homotopy, diagonal": eb.TamedHomotopy(ds=0.005, diagonal=True),
    "trotter": eb.TrotterSampler(ds=0.1, max_steps=25),
    "stochastic": eb.StochasticSampler(ds=0.05, max_steps=15),
    "homotopy": eb.Homotopy(steps=5),
    "homotopy, first order": eb.Homotopy(steps=5, midpoint=False),
    "homotopy, mini-batches": eb.Homotopy(steps=3, batch=10),
    "equilibrium": eb.Equilibrium(tol=1e-9),
    "equilibrium, fixed tau": eb.Equilibrium(tau=0.5, tol=1e-9, max_steps=300),
    "equilibrium, mini-batches": eb.Equilibrium(batch=10, max_steps=30, tol=10.0),
    "mean field": eb.MeanField(tol=1e-9),
}

LIKELIHOODS = {
    "bernoulli": eb.Bernoulli(),
    "categorical": eb.Categorical(3),
    "normal": eb.Normal(0.5),
    "ordinal": eb.Ordinal((-0.7, 0.8)),
}

ALL = LIKELIHOODS | {"poisson": Poisson()}
"""The likelihoods of the package, and one from outside."""

PAIRS = [
    (sampler, likelihood)
    for sampler in SAMPLERS
    for likelihood in LIKELIHOODS
    if not ("diagonal" in sampler and likelihood == "categorical")
]


def raw_data(likelihood, N=40, D=3, seed=0):
    """Features (N, D) and labels for a likelihood: classes, real numbers or counts."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((N, D))
    signal = features @ np.linspace(1, -0.5, D) + 0.7 * rng.standard_normal(N)
    if likelihood == "normal":
        return features, signal
    if likelihood == "poisson":
        return features, rng.poisson(np.exp(signal / 2))
    return features, np.digitize(signal, [0.0] if likelihood == "bernoulli" else [-0.5, 0.5])


def full_prior(likelihood, D=3, seed=1):
    """A Gaussian with a mean and a full covariance."""
    P = D * (ALL[likelihood].outputs or 1)
    rng = np.random.default_rng(seed)
    root = 0.4 * rng.standard_normal((P, P)) + np.eye(P)
    return eb.Gaussian(0.3 * rng.standard_normal(P), root @ root.T)


def make(likelihood, features, labels, prior, **options):
    """A problem of this likelihood."""
    return eb.Problem.create(features, labels, prior, likelihood=ALL[likelihood], **options)


def final(problem, sampler, **options):
    """The particles and the number of steps at the end of a run, converged or not."""
    *_, last = eb.iterate(problem, sampler, **options)
    return last.ensemble.theta, last.steps
