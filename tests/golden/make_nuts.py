"""Regenerate the golden files: long NUTS runs (NumPyro) on real data from scikit-learn.

    python tests/golden/make_nuts.py          needs the extra `hmc`; some minutes

Each file holds posterior means and standard deviations, predictive probabilities on all rows, and the quality of the
run (R-hat, effective sample size, divergences). The data are made by `real_problem`, which the test uses too. For the
problems of `SAMPLED`, which are small and far from Gaussian, it holds some of the draws as well.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.preprocessing import StandardScaler

import enkbayes as eb
from oracles.problems import method_problem

FOLDER = Path(__file__).parent
DATA = {"breast_cancer": (load_breast_cancer, 1.0), "wine": (load_wine, 1.0)}
SAMPLED = ("T6", "iris_wide")
CHAINS, WARMUP, DRAWS, KEPT = 4, 2000, 10000, 2000


def real_problem(name: str) -> eb.Problem:
    """Standardised features, prior N(0, I) on the weights (iris_wide: N(0, 100 I)), N(0, 10 I) on the intercepts."""
    if name == "T6":
        return method_problem(name)
    load, variance = {**DATA, "iris_wide": (load_iris, 100.0)}[name]
    features, labels = load(return_X_y=True)
    return eb.Problem.create(StandardScaler().fit_transform(features), labels, variance, intercept=10.0)


def sample(problem: eb.Problem) -> dict[str, np.ndarray]:
    """Return moments and predictive probabilities of a long NUTS run on exactly this problem."""
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64()
    features = np.asarray(problem.features)
    if problem.model.intercept:
        features = np.hstack([features, np.ones((problem.size, 1))])
    K = problem.likelihood.outputs
    labels = np.asarray(problem.targets)
    scale = np.sqrt(problem.prior.cov)

    def model():
        theta = numpyro.sample("theta", dist.Normal(0.0, scale).to_event(1))
        if K is None:
            numpyro.sample("d", dist.Bernoulli(logits=features @ theta), obs=labels)
        else:
            numpyro.sample("d", dist.Categorical(logits=features @ theta.reshape(-1, K)), obs=labels)

    mcmc = MCMC(
        NUTS(model),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.PRNGKey(0), extra_fields=("diverging",))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["theta"])
    theta = draws.reshape(-1, draws.shape[-1])
    proba = np.zeros((problem.size, K or 2))
    for part in np.array_split(theta, 100):
        logits = problem.model.particle_logits(problem.features, part)
        proba += problem.likelihood.mean(logits).sum(axis=1)
    return {
        "draws": theta,
        "mean": theta.mean(axis=0),
        "sd": theta.std(axis=0),
        "proba": proba / len(theta),
        "r_hat": np.max(split_gelman_rubin(draws)),
        "ess": np.min(effective_sample_size(draws)),
        "diverging": np.sum(np.asarray(mcmc.get_extra_fields()["diverging"])),
    }


def main() -> None:
    for name in sys.argv[1:] or (*DATA, *SAMPLED):
        golden = sample(real_problem(name))
        draws = golden.pop("draws")
        if name in SAMPLED:
            golden["draws"] = draws[:: len(draws) // KEPT].astype(np.float32)
        np.savez_compressed(FOLDER / f"nuts_{name}.npz", **golden)
        quality = ", ".join(f"{key} {float(golden[key]):.4g}" for key in ("r_hat", "ess", "diverging"))
        sys.stdout.write(f"{name}: {quality}\n")


if __name__ == "__main__":
    main()
