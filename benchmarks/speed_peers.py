"""The other libraries of benchmarks/speed.py, run in their own environment (`make bench` creates .venv-peers).

The program reads one JSON request per line, {"do": name, "data": file, ...}, and answers with one JSON object per line.
It times only the fit, not loading, compilation, or training the head that laplace-torch starts from.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings

import numpy as np

warnings.simplefilter("ignore")


def laplace_torch(features, labels, prior, batch, threads):
    """Return the seconds of a last-layer Laplace fit with the full Hessian, two logits and no bias."""
    import torch
    from laplace import Laplace
    from sklearn.linear_model import LogisticRegression
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    D = features.shape[1]
    point = LogisticRegression(C=prior, fit_intercept=False, max_iter=1000).fit(features, labels)
    head = torch.nn.Linear(D, 2, bias=False)
    with torch.no_grad():
        half = torch.as_tensor(point.coef_[0], dtype=torch.float32) / 2
        head.weight.copy_(torch.stack([-half, half]))
    model = torch.nn.Sequential(torch.nn.Identity(), head)
    x, y = torch.as_tensor(features, dtype=torch.float32), torch.as_tensor(labels)
    loader = DataLoader(TensorDataset(x, y), batch_size=batch or len(y))
    approximation = Laplace(
        model, "classification", subset_of_weights="last_layer", hessian_structure="full", prior_precision=1 / prior
    )
    started = time.perf_counter()
    approximation.fit(loader)
    return {"seconds": time.perf_counter() - started}


def logistic_regression(features, labels, prior, threads):
    """Return the seconds of scikit-learn's point estimate."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    with threadpool_limits(threads):
        started = time.perf_counter()
        fitted = LogisticRegression(C=prior, fit_intercept=False, max_iter=1000).fit(features, labels)
        return {"seconds": time.perf_counter() - started, "iterations": int(fitted.n_iter_[0])}


def nuts(features, labels, prior, *, warmup, draws, chains, method, whitened, test):
    """Return the seconds after compilation and, for the rows `test`, mean probabilities and variances of the logits.

    `whitened` samples in coordinates that are whitened by the curvature at the MAP estimate.
    """
    import jax

    jax.config.update("jax_enable_x64", bool(whitened))
    import jax.numpy as jnp
    import numpyro
    from numpyro.infer import MCMC, NUTS

    D = features.shape[1]
    centre, root = np.zeros(D), np.sqrt(prior) * np.eye(D)
    if whitened:
        centre, root = _laplace(features, labels, prior)
    x, y = jnp.asarray(features @ root), jnp.asarray(labels, dtype=jnp.asarray(0.0).dtype)
    at_centre, shift, scale = jnp.asarray(features @ centre), jnp.asarray(centre), jnp.asarray(root)

    def potential(u):
        z = at_centre + x @ u
        theta = shift + scale @ u
        return jnp.sum(jnp.logaddexp(z, 0.0) - y * z) + jnp.sum(theta**2) / (2 * prior)

    start = jnp.zeros((chains, D)) if chains > 1 else jnp.zeros(D)
    numpyro.enable_x64(bool(whitened))

    def mcmc():
        kernel = NUTS(potential_fn=potential)
        return MCMC(
            kernel, num_warmup=warmup, num_samples=draws, num_chains=chains, chain_method=method, progress_bar=False
        )

    runner = mcmc()
    if not whitened:
        runner.run(jax.random.PRNGKey(1), init_params=start)  # compiles
    started = time.perf_counter()
    runner.run(jax.random.PRNGKey(0), init_params=start)
    u = np.asarray(runner.get_samples(), dtype=np.float64)
    seconds = time.perf_counter() - started
    logits = np.asarray(test) @ (centre[:, None] + root @ u.T)
    return {
        "seconds": seconds,
        "draws": len(u),
        "proba": (0.5 + 0.5 * np.tanh(logits / 2)).mean(axis=1).tolist(),
        "logit variance": logits.var(axis=1).tolist(),
    }


def _laplace(features, labels, prior):
    theta = np.zeros(features.shape[1])
    for _ in range(50):
        p = 0.5 + 0.5 * np.tanh(features @ theta / 2)
        gradient = features.T @ (p - labels) + theta / prior
        H = features.T @ ((p * (1 - p))[:, None] * features) + np.eye(len(theta)) / prior
        step = np.linalg.solve(H, gradient)
        theta = theta - step
        if gradient @ step < 1e-16:
            break
    return theta, np.linalg.inv(np.linalg.cholesky(H)).T


def versions():
    """Return the versions of the libraries."""
    from importlib import metadata

    return {name: metadata.version(name) for name in ("laplace-torch", "torch", "scikit-learn", "numpyro", "jax")}


def main() -> None:
    logging.disable(logging.WARNING)
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        if what == "versions":
            answer = versions()
        else:
            with np.load(request.pop("data")) as file:
                features, labels, test = file["features"], file["labels"], file["test"]
            prior = request.pop("prior")
            if what == "nuts":
                answer = nuts(features, labels, prior, test=test, **request)
            else:
                answer = {"laplace": laplace_torch, "lbfgs": logistic_regression}[what](
                    features, labels, prior, **request
                )
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
