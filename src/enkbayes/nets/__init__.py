"""PyTorch: posteriors for the last layer or for the weights of a trained network. Everything that imports torch is
here.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError("enkbayes.nets needs PyTorch, which is not installed; run: pip install enkbayes[torch]") from None

from enkbayes.nets.head import BayesianHead
from enkbayes.nets.network import BayesianNetwork
from enkbayes.nets.ood_score import Strangeness
from enkbayes.nets.probes import Probes

__all__ = ["BayesianHead", "BayesianNetwork", "Probes", "Strangeness"]
