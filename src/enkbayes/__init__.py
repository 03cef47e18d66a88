"""enkbayes: give a trained classifier a posterior."""

from typing import TYPE_CHECKING, Any

from enkbayes._version import __version__

if TYPE_CHECKING:
    from enkbayes.core.ensemble import AffineEnsemble
    from enkbayes.core.gaussian import Gaussian
    from enkbayes.core.likelihoods import Bernoulli, Categorical, Likelihood, Normal, Ordinal
    from enkbayes.core.mixture import MixturePosterior
    from enkbayes.core.posterior import Info, Posterior
    from enkbayes.core.problem import Problem
    from enkbayes.core.uncertainty import Uncertainty
    from enkbayes.estimators.classifier import EnsembleClassifier
    from enkbayes.estimators.files import load, save
    from enkbayes.estimators.regressor import EnsembleRegressor
    from enkbayes.inference import (
        Advice,
        Evidence,
        acquire,
        advise,
        assess,
        fit_likelihood,
        log_evidence,
        polish,
        tune_prior,
    )
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
    from enkbayes.storage.checkpoint import CheckpointWriter

__all__ = [
    "Advice",
    "AffineEnsemble",
    "Bernoulli",
    "Categorical",
    "CheckpointWriter",
    "EnsembleClassifier",
    "EnsembleRegressor",
    "Equilibrium",
    "Evidence",
    "Gaussian",
    "Homotopy",
    "Info",
    "Likelihood",
    "MeanField",
    "MixturePosterior",
    "Normal",
    "Ordinal",
    "Posterior",
    "Problem",
    "State",
    "StochasticSampler",
    "TamedHomotopy",
    "TrotterSampler",
    "Uncertainty",
    "__version__",
    "acquire",
    "advise",
    "assess",
    "fit_likelihood",
    "iterate",
    "load",
    "log_evidence",
    "polish",
    "run",
    "save",
    "tune_prior",
]

_ON_FIRST_USE = {
    "AffineEnsemble": "enkbayes.core.ensemble",
    "Gaussian": "enkbayes.core.gaussian",
    **dict.fromkeys(("Bernoulli", "Categorical", "Likelihood", "Normal", "Ordinal"), "enkbayes.core.likelihoods"),
    **dict.fromkeys(("Info", "Posterior"), "enkbayes.core.posterior"),
    "Uncertainty": "enkbayes.core.uncertainty",
    "MixturePosterior": "enkbayes.core.mixture",
    "Problem": "enkbayes.core.problem",
    "CheckpointWriter": "enkbayes.storage.checkpoint",
    "EnsembleClassifier": "enkbayes.estimators.classifier",
    "EnsembleRegressor": "enkbayes.estimators.regressor",
    "load": "enkbayes.estimators.files",
    "save": "enkbayes.estimators.files",
    "iterate": "enkbayes.samplers.run",
    "run": "enkbayes.samplers.run",
    **dict.fromkeys(
        (
            "Advice",
            "Evidence",
            "acquire",
            "advise",
            "assess",
            "fit_likelihood",
            "log_evidence",
            "polish",
            "tune_prior",
        ),
        "enkbayes.inference",
    ),
    **dict.fromkeys(
        ("Equilibrium", "Homotopy", "MeanField", "State", "StochasticSampler", "TamedHomotopy", "TrotterSampler"),
        "enkbayes.samplers",
    ),
}
"""Where the names live. Their modules are loaded on first use, so that the import takes no time."""


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ON_FIRST_USE[name]), name)


def __dir__() -> list[str]:
    return __all__
