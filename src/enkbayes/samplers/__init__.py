"""The samplers, one algorithm per file."""

from enkbayes.samplers.equilibrium import Equilibrium
from enkbayes.samplers.homotopy import Homotopy
from enkbayes.samplers.mean_field import MeanField
from enkbayes.samplers.state import Sampler, State
from enkbayes.samplers.stochastic import StochasticSampler
from enkbayes.samplers.tamed import TamedHomotopy
from enkbayes.samplers.trotter import TrotterSampler

BY_NAME = {
    "equilibrium": Equilibrium,
    "homotopy": Homotopy,
    "mean-field": MeanField,
    "trotter": TrotterSampler,
    "tamed-homotopy": TamedHomotopy,
    "stochastic": StochasticSampler,
}
"""The names that estimators and the command line accept, each for a sampler with its default settings."""

FROM_PRIOR = (Homotopy, TamedHomotopy)
"""Samplers that carry the prior to the posterior: starting them elsewhere would count the data twice."""

__all__ = [
    "BY_NAME",
    "FROM_PRIOR",
    "Equilibrium",
    "Homotopy",
    "MeanField",
    "Sampler",
    "State",
    "StochasticSampler",
    "TamedHomotopy",
    "TrotterSampler",
]
