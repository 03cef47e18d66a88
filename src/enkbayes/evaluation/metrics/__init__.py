"""Scores of predicted probabilities. proba is (n, K), or (n,) with the probability of class 1; targets (n,) are class
numbers. Arrays of any library are accepted.
"""

from enkbayes.evaluation.metrics.calibration import Reliability, ece, reliability
from enkbayes.evaluation.metrics.distance import DistanceCurve, confidence_by_distance, nearest_distance
from enkbayes.evaluation.metrics.ood import OodScores, ood_score, ood_separation
from enkbayes.evaluation.metrics.proper import BrierParts, Scores, accuracy, brier, brier_decomposition, nll, score
from enkbayes.evaluation.metrics.reference import PredictiveDistance, predictive_distance
from enkbayes.evaluation.metrics.uncertainty import confidence, entropy, logit_variance, mutual_information

__all__ = [
    "BrierParts",
    "DistanceCurve",
    "OodScores",
    "PredictiveDistance",
    "Reliability",
    "Scores",
    "accuracy",
    "brier",
    "brier_decomposition",
    "confidence",
    "confidence_by_distance",
    "ece",
    "entropy",
    "logit_variance",
    "mutual_information",
    "nearest_distance",
    "nll",
    "ood_score",
    "ood_separation",
    "predictive_distance",
    "reliability",
    "score",
]
