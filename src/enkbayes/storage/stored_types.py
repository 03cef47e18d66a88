"""The dataclasses that files may hold, by the names they have there.

A name is the file's own: moving or renaming a class does not change it, and no file depends on a module path. To store
a new dataclass, add one line to `TYPES`. A checkpoint with a control that is not here resumes from its ensemble.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.likelihoods import Bernoulli, Categorical, Normal, Ordinal
from enkbayes.core.likelihoods.probit import ProbitBernoulli, ProbitCategorical
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.low_rank import Complement, Frame
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.moments import Moments
from enkbayes.core.posterior import Info, Posterior
from enkbayes.engine.arrays import to_numpy
from enkbayes.inference.class_distance import ClassDistance, ClassScore
from enkbayes.inference.empirical_bayes import Tuning
from enkbayes.inference.evidence import Evidence
from enkbayes.inference.far_field import Extent, FarFieldChoice
from enkbayes.inference.feature_far_field import FeatureFarField, FeatureScore
from enkbayes.inference.held_out import Calibration, Candidate, Score
from enkbayes.inference.prediction_verdict import PredictionVerdict
from enkbayes.inference.prior_average import Component, PriorAverage
from enkbayes.inference.rejection import HeldOutConfidence
from enkbayes.inference.trust import Trust
from enkbayes.inference.views import ViewsChoice
from enkbayes.samplers import BY_NAME, State
from enkbayes.solvers import low_rank_mean_field, low_rank_sums, natural, newton, step_control

TYPES: dict[str, type] = {
    "Bernoulli": Bernoulli,
    "Categorical": Categorical,
    "Normal": Normal,
    "Ordinal": Ordinal,
    "ProbitBernoulli": ProbitBernoulli,
    "ProbitCategorical": ProbitCategorical,
    **{kind.__name__: kind for kind in BY_NAME.values()},  # the samplers
    "LowRankSolver": low_rank_mean_field.LowRankSolver,
    "AffineEnsemble": AffineEnsemble,
    "Complement": Complement,
    "Frame": Frame,
    "LinearLogits": LinearLogits,
    "Info": Info,
    "Gaussian": Gaussian,
    "Posterior": Posterior,
    "MixturePosterior": MixturePosterior,
    "Trust": Trust,
    "PredictionVerdict": PredictionVerdict,
    "Evidence": Evidence,
    "Tuning": Tuning,
    "PriorAverage": PriorAverage,
    "PriorComponent": Component,
    "FeatureFarField": FeatureFarField,
    "Extent": Extent,
    "FarFieldChoice": FarFieldChoice,
    "FeatureScore": FeatureScore,
    "ClassScore": ClassScore,
    "ClassDistance": ClassDistance,
    "HeldOutConfidence": HeldOutConfidence,
    "Calibration": Calibration,
    "Candidate": Candidate,
    "Score": Score,
    "ViewsChoice": ViewsChoice,
    # the state of a run, and the controls of its samplers
    "State": State,
    "Moments": Moments,
    "Natural": natural.Natural,
    "Point": step_control.Point,
    "Track": step_control.Track,
    "Newton": newton.Newton,
    "LowRankPrecision": low_rank_sums.LowRankPrecision,
    "LowRankMove": low_rank_mean_field.Move,
    "LowRankPoint": low_rank_mean_field.Point,
}


LARGEST = 1e150  # of a number in an ensemble: products of two of them are finite


def check_ensemble(ensemble: Any, parameters: int | None = None, linear: LinearLogits | None = None) -> None:
    """Raise a ValueError unless the arrays of an ensemble from a file fit each other, and the number of parameters."""
    complement = ensemble.complement
    arrays = {name: getattr(ensemble, name) for name in ("mean", "basis", "points")}
    if complement is not None:
        frame = {"left": complement.frame.left, "right": complement.frame.right}
        arrays |= frame | {"variance": complement.variance, "tightening": complement.tightening}
    if not all(hasattr(x, "shape") and hasattr(x, "dtype") for x in arrays.values()):
        raise ValueError("an ensemble without arrays; expected mean, basis and points")
    mean, basis, points = ensemble.mean, ensemble.basis, ensemble.points
    shapes = f"mean {tuple(mean.shape)}, basis {tuple(basis.shape)}, points {tuple(points.shape)}"
    if (mean.ndim, basis.ndim, points.ndim) != (1, 2, 2):
        raise ValueError(f"{shapes}; expected (P,), (P, r), (J, r)")
    P = mean.shape[0] if parameters is None else parameters
    if (mean.shape[0], basis.shape[0]) != (P, P) or points.shape[1] != basis.shape[1] or not points.shape[0] or not P:
        raise ValueError(f"{shapes}; expected ({P},), ({P}, r), (J, r) with J >= 1")
    for name, x in arrays.items():
        if float(np.max(np.abs(to_numpy(x)), initial=0.0)) > LARGEST:
            raise ValueError(f"the tensor {name} has numbers above {LARGEST:g}; expected smaller ones")
    if len({x.dtype for x in arrays.values()}) > 1:
        found = ", ".join(str(x.dtype) for x in arrays.values())
        raise ValueError(f"dtypes {found}; expected the same for all")
    if complement is not None:
        _check_complement(complement, P, basis.shape[1], linear)


def _check_complement(complement: Any, parameters: int, rank: int, linear: LinearLogits | None) -> None:
    left, right, frame = complement.frame.left, complement.frame.right, complement.frame
    D, K = left.shape[0] if left.ndim else 0, right.shape[0] if right.ndim else 0
    fits = left.shape in ((D,), (D, D)) and right.shape == (K, K) and parameters == D * K
    if linear is not None:
        fits = fits and (linear.outputs or 1) == K and linear.intercept == frame.intercept
    if not fits or complement.variance.shape != (parameters,) or complement.tightening.shape != (rank,):
        raise ValueError("the tensors of the complement do not fit the parameters and the basis")
    if complement.seed < 0 or any(np.any(to_numpy(x) <= 0) for x in (complement.variance, complement.tightening)):
        raise ValueError("the complement has a negative seed, or a variance that is not positive")
