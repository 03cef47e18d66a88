"""Small data and networks for the tests of heads."""

import numpy as np
import torch
from sklearn.datasets import load_digits, load_iris
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from enkbayes.nets import BayesianHead


def iris(dtype=torch.float32, classes=3):
    X, y = load_iris(return_X_y=True)
    X, y = X[y < classes], y[y < classes]
    X = (X - X.mean(0)) / X.std(0) + np.random.default_rng(0).standard_normal(X.shape) * 0.5
    return torch.as_tensor(X, dtype=dtype), torch.as_tensor(y)


def digits(size=150, classes=4):
    X, y = load_digits(return_X_y=True)
    keep = np.flatnonzero(y < classes)[:size]
    return torch.as_tensor(X[keep] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.as_tensor(y[keep])


def mlp(outputs, *, bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs, bias=bias)).to(dtype)


def loader(*tensors, batch_size=40):
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size)


def fit(model, data, **options):
    return BayesianHead.fit(model, data, **{"progress": False, "particles": 40, **options})
