"""Data sets of the paper, and the networks that make their features. torch is imported when a network is trained."""

from enkbayes.datasets.moons import (
    Moons,
    last_layer_features,
    one_thread,
    require_torch,
    tensor,
    train_network,
)

__all__ = ["Moons", "last_layer_features", "one_thread", "require_torch", "tensor", "train_network"]
