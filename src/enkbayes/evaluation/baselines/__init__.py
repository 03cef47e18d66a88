"""Other methods, behind one interface: each takes a `Problem` and returns a predictor."""

from collections.abc import Callable
from functools import partial

from enkbayes.evaluation.baselines.aldi import ALDI
from enkbayes.evaluation.baselines.deep_ensemble import DeepEnsemble
from enkbayes.evaluation.baselines.hmc import HMC, HMCReport
from enkbayes.evaluation.baselines.laplace import Laplace, LaplaceProbit
from enkbayes.evaluation.baselines.map import MAP, MLE
from enkbayes.evaluation.baselines.method import Ensemble, Method, Predictor
from enkbayes.evaluation.baselines.particle_flow import ParticleFlow
from enkbayes.evaluation.baselines.svgd import SVGD
from enkbayes.evaluation.baselines.temperature import Temperature, TemperatureReport
from enkbayes.samplers import BY_NAME as SAMPLERS

BY_NAME: dict[str, Callable[[], Method]] = {
    "mle": MLE,
    "map": MAP,
    "temperature": Temperature,
    "laplace": Laplace,
    "laplace-probit": LaplaceProbit,
    "deep-ensemble": DeepEnsemble,
    "hmc": HMC,
    "aldi": partial(Ensemble, "aldi", ALDI()),
    "eks": partial(Ensemble, "eks", ALDI(correction=False)),
    "particle-flow": partial(Ensemble, "particle-flow", ParticleFlow()),
    "svgd": partial(Ensemble, "svgd", SVGD()),
    **{name: partial(Ensemble, name, sampler()) for name, sampler in SAMPLERS.items()},
}
"""Every method with its default settings, by its name in tables, legends and on the command line."""

__all__ = [
    "ALDI",
    "BY_NAME",
    "HMC",
    "MAP",
    "MLE",
    "SVGD",
    "DeepEnsemble",
    "Ensemble",
    "HMCReport",
    "Laplace",
    "LaplaceProbit",
    "Method",
    "ParticleFlow",
    "Predictor",
    "Temperature",
    "TemperatureReport",
]
