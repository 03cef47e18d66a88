"""enkbayes: give a trained classifier a posterior."""

from typing import TYPE_CHECKING, Any

from enkbayes.advice import Advice, advise
from enkbayes.ensemble import AffineEnsemble
from enkbayes.evidence import Evidence, log_evidence
from enkbayes.gaussian import Gaussian
from enkbayes.informed import reduce_to_data
from enkbayes.likelihoods import Bernoulli, Categorical, Normal
from enkbayes.polish import polish
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

if TYPE_CHECKING:
    from enkbayes.artefacts import load, save
    from enkbayes.empirical_bayes import tune_prior
    from enkbayes.estimators import EnsembleClassifier

__version__ = "0.1.0"

_LAZY = {
    "EnsembleClassifier": "enkbayes.estimators",
    "load": "enkbayes.artefacts",
    "save": "enkbayes.artefacts",
    "tune_prior": "enkbayes.empirical_bayes",
}
"""Names whose modules import scikit-learn or safetensors: loaded at first use, so that the import stays light."""

__all__ = [
    "Advice",
    "AffineEnsemble",
    "Bernoulli",
    "Categorical",
    "EnsembleClassifier",
    "Equilibrium",
    "Evidence",
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
    "advise",
    "iterate",
    "load",
    "log_evidence",
    "polish",
    "reduce_to_data",
    "run",
    "save",
    "tune_prior",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
