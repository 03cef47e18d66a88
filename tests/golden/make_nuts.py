"""Regenerate the golden files: long NUTS runs (NumPyro) on real data from scikit-learn.

    python tests/golden/make_nuts.py          needs the extra `hmc`; some minutes

Each file holds posterior means and standard deviations, predictive probabilities on all rows, and the quality of the
run (R-hat, effective sample size, divergences). The data are made by `real_problem`, which the test uses too. For the
problems of `SAMPLED`, which are small and far from Gaussian, it holds some of the draws as well. `diabetes` is ordinal:
the progression of the disease in five levels of equal size, with the cutpoints that `fit_likelihood` finds, rounded;
`diabetes_joint` samples the distances between cutpoints as well, with a flat prior of their logarithms.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.preprocessing import StandardScaler

import enkbayes as eb
from oracles.problems import method_problem

FOLDER = Path(__file__).parent
CUTPOINTS = (-2.12, -0.66, 0.6, 2.12)
DATA = {"breast_cancer": (load_breast_cancer, 1.0), "wine": (load_wine, 1.0), "diabetes": (load_diabetes, 1.0)}
SAMPLED = ("T6", "iris_wide")
JOINT = "diabetes_joint"
CHAINS, WARMUP, DRAWS, KEPT = 4, 2000, 10000, 2000


def real_problem(name: str) -> eb.Problem:
    """Standardised features, prior N(0, I) on the weights (iris_wide: N(0, 100 I)), N(0, 10 I) on the intercepts."""
    if name == "T6":
        return method_problem(name)
    load, variance = {**DATA, "iris_wide": (load_iris, 100.0)}[name]
    features, labels = load(return_X_y=True)
    features, likelihood = StandardScaler().fit_transform(features), None
    if name == "diabetes":
        labels, likelihood = np.digitize(labels, np.quantile(labels, [0.2, 0.4, 0.6, 0.8])), eb.Ordinal(CUTPOINTS)
    return eb.Problem.create(features, labels, variance, intercept=10.0, likelihood=likelihood)


def sample(problem: eb.Problem, *, joint: bool = False) -> dict[str, np.ndarray]:
    """Return moments and predictive probabilities of a long NUTS run on exactly this problem; `joint`: with the
    parameters of its likelihood.
    """
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64()
    features = np.asarray(problem.features)
    if problem.model.intercept:
        features = np.hstack([features, np.ones((problem.size, 1))])
    K, ordinal = problem.likelihood.outputs, isinstance(problem.likelihood, eb.Ordinal)
    labels = np.asarray(problem.targets)
    scale = np.sqrt(problem.prior.cov)

    def model():
        theta = numpyro.sample("theta", dist.Normal(0.0, scale).to_event(1))
        if ordinal:
            logs = np.log(np.diff(problem.likelihood.cutpoints))
            if joint:
                logs = numpyro.sample("parameters", dist.Normal(np.zeros(len(logs)), 10.0).to_event(1))
            c = jax.numpy.concatenate([jax.numpy.zeros(1), jax.numpy.cumsum(jax.numpy.exp(logs))])
            c = c - c.mean() + np.mean(problem.likelihood.cutpoints)
            numpyro.sample("d", dist.OrderedLogistic(features @ theta, c), obs=labels.astype(int))
        elif K is None:
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
    found = mcmc.get_samples(group_by_chain=True)
    draws = np.asarray(found["theta"])
    theta = draws.reshape(-1, draws.shape[-1])
    if joint:
        return {**_joint(problem, theta, np.asarray(found["parameters"])), **_quality(mcmc, draws)}
    proba = np.zeros((problem.size, problem.likelihood.n_classes))
    for part in np.array_split(theta, 100):
        logits = problem.model.particle_logits(problem.features, part)
        proba += problem.likelihood.mean(logits).sum(axis=1)
    return {
        "draws": theta,
        "mean": theta.mean(axis=0),
        "sd": theta.std(axis=0),
        "proba": proba / len(theta),
        **_quality(mcmc, draws),
    }


def _joint(problem: eb.Problem, theta: np.ndarray, parameters: np.ndarray) -> dict[str, np.ndarray]:
    """Return moments and predictive probabilities for draws of theta and of the parameters of the likelihood."""
    parameters = parameters.reshape(len(theta), -1)
    proba, thinned = np.zeros((problem.size, problem.likelihood.n_classes)), slice(None, None, 10)
    for one, own in zip(theta[thinned], parameters[thinned], strict=True):
        logits = problem.model.particle_logits(problem.features, one[None])
        proba += problem.likelihood.with_parameters(own).mean(logits)[:, 0]
    return {
        "mean": theta.mean(axis=0),
        "sd": theta.std(axis=0),
        "proba": proba / len(theta[thinned]),
        "parameters": parameters.mean(axis=0),
        "parameters_sd": parameters.std(axis=0),
    }


def _quality(mcmc, draws: np.ndarray) -> dict[str, np.ndarray]:
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    return {
        "r_hat": np.max(split_gelman_rubin(draws)),
        "ess": np.min(effective_sample_size(draws)),
        "diverging": np.sum(np.asarray(mcmc.get_extra_fields()["diverging"])),
    }


def main() -> None:
    for name in sys.argv[1:] or (*DATA, *SAMPLED, JOINT):
        golden = sample(real_problem(name.removesuffix("_joint")), joint=name == JOINT)
        draws = golden.pop("draws", None)
        if name in SAMPLED:
            golden["draws"] = draws[:: len(draws) // KEPT].astype(np.float32)
        np.savez_compressed(FOLDER / f"nuts_{name}.npz", **golden)
        quality = ", ".join(f"{key} {float(golden[key]):.4g}" for key in ("r_hat", "ess", "diverging"))
        sys.stdout.write(f"{name}: {quality}\n")


if __name__ == "__main__":
    main()
