"""Regenerate laplace_torch.npz: what laplace-torch says of the last layer of a network with two or three logits.

    python tests/golden/make_laplace.py          needs torch and laplace-torch (0.3), in an environment of their own

The head is a Linear layer at the MAP of this package's own problem, which laplace-torch takes as given. The file holds,
for each head, posterior covariance and probit predictive, in the order of our parameters: theta.reshape(D + 1, K), the
bias last. The problems are made by `head_problem`, which the test uses too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.preprocessing import StandardScaler

import enkbayes as eb
from enkbayes.solvers.map_estimate import map_estimate

FILE = Path(__file__).parent / "laplace_torch.npz"
HEADS = {"two_logits": (load_breast_cancer, 2), "three_logits": (load_wine, 3)}
WIDTH, PRECISION = 6, 0.5


def head_problem(name: str) -> eb.Problem:
    """A softmax head with a bias on a fixed random ReLU layer, prior N(0, I / PRECISION) on weights and bias."""
    load, K = HEADS[name]
    X, labels = load(return_X_y=True)
    inputs = StandardScaler().fit_transform(X)[:, :8]
    layer = np.random.default_rng(0).standard_normal((8, WIDTH)) / 2
    features = np.maximum(inputs @ layer, 0)
    variance = 1 / PRECISION
    likelihood = eb.Categorical(K)
    return eb.Problem.create(features, labels, variance, intercept=variance, likelihood=likelihood)


def laplace_torch(name: str) -> dict[str, np.ndarray]:
    """Return the covariance and the predictive of laplace-torch on the training inputs."""
    import torch
    from laplace import Laplace

    torch.set_default_dtype(torch.float64)
    problem = head_problem(name)
    K = HEADS[name][1]
    theta = map_estimate(problem).theta.reshape(WIDTH + 1, K)
    features = torch.as_tensor(problem.features)
    head = torch.nn.Linear(WIDTH, K)
    with torch.no_grad():
        head.weight.copy_(torch.as_tensor(theta[:-1].T))
        head.bias.copy_(torch.as_tensor(theta[-1]))
    data = torch.utils.data.TensorDataset(features, torch.as_tensor(problem.targets))
    model = torch.nn.Sequential(torch.nn.Identity(), head)
    la = Laplace(
        model, "classification", subset_of_weights="last_layer", hessian_structure="full", prior_precision=PRECISION
    )
    la.fit(torch.utils.data.DataLoader(data, batch_size=64))
    ours = np.concatenate([np.arange(K * WIDTH).reshape(K, WIDTH).T, K * WIDTH + np.arange(K)[None, :]]).reshape(-1)
    probit = la(features, pred_type="glm", link_approx="probit")
    return {
        "theta": theta.reshape(-1),
        "cov": la.posterior_covariance.numpy()[np.ix_(ours, ours)],
        "probit": probit.detach().numpy(),
    }


def main() -> None:
    golden = {f"{name}_{key}": value for name in HEADS for key, value in laplace_torch(name).items()}
    np.savez_compressed(FILE, **golden)


if __name__ == "__main__":
    main()
