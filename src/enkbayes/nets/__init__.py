"""PyTorch: posteriors for the last layer or for all weights of a trained network, and a score of out-of-distribution
inputs. No other subpackage imports torch.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError("enkbayes.nets needs PyTorch; install it with: pip install 'enkbayes[torch]'") from None

from enkbayes.nets.head import BayesianHead
from enkbayes.nets.multi_label import MultiLabel
from enkbayes.nets.network import BayesianNetwork
from enkbayes.nets.ood_score import OODScore
from enkbayes.nets.probes import Probes

__all__ = ["BayesianHead", "BayesianNetwork", "MultiLabel", "OODScore", "Probes"]
