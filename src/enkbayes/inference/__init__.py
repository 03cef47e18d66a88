"""What can be asked of a posterior: evidence, trust, polish, the choice of the prior, calibration, the number of
particles.
"""

from enkbayes.inference.acquisition import acquire
from enkbayes.inference.advice import Advice, advise
from enkbayes.inference.assessment import assess
from enkbayes.inference.calibration import calibrate, uncalibrated
from enkbayes.inference.empirical_bayes import Tuning, tune_prior
from enkbayes.inference.evidence import (
    Evidence,
    elbo,
    importance_sampling,
    log_evidence,
    path_sampling,
)
from enkbayes.inference.held_out import Calibration
from enkbayes.inference.leave_one_out import leave_one_out_losses, leave_one_out_proba
from enkbayes.inference.likelihood_fit import fit_likelihood
from enkbayes.inference.polishing import polish
from enkbayes.inference.priors import weight_prior
from enkbayes.inference.propagation import Propagation, propagate
from enkbayes.inference.temperature import temperature_scale
from enkbayes.inference.trust import Trust

__all__ = [
    "Advice",
    "Calibration",
    "Evidence",
    "Propagation",
    "Trust",
    "Tuning",
    "acquire",
    "advise",
    "assess",
    "calibrate",
    "elbo",
    "fit_likelihood",
    "importance_sampling",
    "leave_one_out_losses",
    "leave_one_out_proba",
    "log_evidence",
    "path_sampling",
    "polish",
    "propagate",
    "temperature_scale",
    "tune_prior",
    "uncalibrated",
    "weight_prior",
]
