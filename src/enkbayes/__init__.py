"""enkbayes: give a trained classifier a posterior."""

from enkbayes.ensemble import AffineEnsemble
from enkbayes.gaussian import Gaussian
from enkbayes.informed import reduce_to_data
from enkbayes.likelihoods import Bernoulli, Categorical, Normal
from enkbayes.posterior import Info, Posterior, Uncertainty
from enkbayes.problem import Problem
from enkbayes.run import iterate, run
from enkbayes.samplers import (
    Equilibrium,
    Homotopy,
    MeanField,
    State,
    StochasticSampler,
    TamedHomotopy,
    TrotterSampler,
)

__version__ = "0.1.0"

__all__ = [
    "AffineEnsemble",
    "Bernoulli",
    "Categorical",
    "Equilibrium",
    "Gaussian",
    "Homotopy",
    "Info",
    "MeanField",
    "Normal",
    "Posterior",
    "Problem",
    "State",
    "StochasticSampler",
    "TamedHomotopy",
    "TrotterSampler",
    "Uncertainty",
    "iterate",
    "reduce_to_data",
    "run",
]
