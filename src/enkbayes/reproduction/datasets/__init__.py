"""The data sets of the paper, and the small networks that compute their features."""

from enkbayes.reproduction.datasets.plane import (
    Plane,
    last_layer_features,
    one_thread,
    plane_network,
    require_torch,
    sgd,
    tensor,
    train_network,
)

__all__ = [
    "Plane",
    "last_layer_features",
    "one_thread",
    "plane_network",
    "require_torch",
    "sgd",
    "tensor",
    "train_network",
]
