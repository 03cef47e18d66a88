"""What users would take instead, behind one interface: each method takes a `Problem` and returns a predictor."""

from enkbayes.baselines.method import Ensemble, Method, Predictor

__all__ = ["Ensemble", "Method", "Predictor"]
