"""The samplers, one algorithm a file."""

from enkbayes.samplers.equilibrium import Equilibrium
from enkbayes.samplers.homotopy import Homotopy
from enkbayes.samplers.meanfield import MeanField
from enkbayes.samplers.state import Sampler, State
from enkbayes.samplers.stochastic import StochasticSampler
from enkbayes.samplers.tamed import TamedHomotopy
from enkbayes.samplers.trotter import TrotterSampler

__all__ = [
    "Equilibrium",
    "Homotopy",
    "MeanField",
    "Sampler",
    "State",
    "StochasticSampler",
    "TamedHomotopy",
    "TrotterSampler",
]
