"""laplace-torch on a linear head, run in the peers' environment: reads arrays from a file and writes probabilities.

    .venv-peers/bin/python benchmarks/pretrained_peers.py GIVEN.npz ANSWER.npz

The Hessian is Kronecker-factored and the prior precision maximises the marginal likelihood, both as the package's own
examples have it; predictions are by the probit approximation, its default.
"""

import logging
import sys
import warnings

import numpy as np
import torch
from laplace import Laplace
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)


def main(given, answer):
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # some rows are predicted as NaN otherwise
    torch.manual_seed(0)
    with np.load(given) as arrays:
        W, b = arrays["W"], arrays["b"]
        if len(W) == 1:  # one logit of two classes
            W, b = np.concatenate([-W, W]) / 2, np.concatenate([-b, b]) / 2
        head = torch.nn.Linear(W.shape[1], W.shape[0])
        with torch.no_grad():
            head.weight.copy_(torch.as_tensor(W))
            head.bias.copy_(torch.as_tensor(b))
        rows = TensorDataset(torch.as_tensor(arrays["X"]).double(), torch.as_tensor(arrays["y"]))
        model = torch.nn.Sequential(torch.nn.Identity(), head)
        found = Laplace(model, "classification", subset_of_weights="last_layer", hessian_structure="kron")
        found.fit(DataLoader(rows, batch_size=250))
        found.optimize_prior_precision(method="marglik")
        proba = {}
        for name in (name for name in arrays if name.startswith("predict/")):
            batches = torch.as_tensor(arrays[name]).double().split(250)
            parts = [found(x, link_approx="probit").detach().numpy() for x in batches]
            proba[name.removeprefix("predict/")] = np.concatenate(parts)
    np.savez(answer, **proba)


if __name__ == "__main__":
    main(*sys.argv[1:])
