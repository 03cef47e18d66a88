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

_HOMES = {
    "core.ensemble": "AffineEnsemble",
    "core.gaussian": "Gaussian",
    "core.likelihoods": "Bernoulli Categorical Likelihood Normal Ordinal",
    "core.mixture": "MixturePosterior",
    "core.posterior": "Info Posterior",
    "core.problem": "Problem",
    "core.uncertainty": "Uncertainty",
    "estimators.classifier": "EnsembleClassifier",
    "estimators.files": "load save",
    "estimators.regressor": "EnsembleRegressor",
    "inference": "Advice Evidence acquire advise assess fit_likelihood log_evidence polish tune_prior",
    "samplers": "Equilibrium Homotopy MeanField State StochasticSampler TamedHomotopy TrotterSampler",
    "samplers.run": "iterate run",
    "storage.checkpoint": "CheckpointWriter",
}
"""Modules and the public names in them. A module is loaded when one of its names is first used, so that
`import enkbayes` takes no time."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            from importlib import import_module

            return getattr(import_module(f"enkbayes.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
