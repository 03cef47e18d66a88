"""enkbayes: give a trained classifier a posterior."""

from typing import TYPE_CHECKING, Any

from enkbayes._version import __version__
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Bernoulli, Categorical, Normal
from enkbayes.core.posterior import Info, Posterior, Uncertainty
from enkbayes.core.problem import Problem
from enkbayes.inference.advice import Advice, advise
from enkbayes.inference.evidence import Evidence, log_evidence
from enkbayes.inference.polish import polish
from enkbayes.inference.reduction import reduce_to_data
from enkbayes.samplers import (
    Equilibrium,
    Homotopy,
    MeanField,
    State,
    StochasticSampler,
    TamedHomotopy,
    TrotterSampler,
)
from enkbayes.samplers.run import iterate, run

if TYPE_CHECKING:
    from enkbayes.estimators.artefacts import load, save
    from enkbayes.estimators.classifier import EnsembleClassifier
    from enkbayes.inference.empirical_bayes import tune_prior

_LAZY = {
    "EnsembleClassifier": "enkbayes.estimators.classifier",
    "load": "enkbayes.estimators.artefacts",
    "save": "enkbayes.estimators.artefacts",
    "tune_prior": "enkbayes.inference.empirical_bayes",
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
    "__version__",
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
