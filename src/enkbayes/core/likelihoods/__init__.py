"""The likelihoods: how logits become predictions, and the gradient and curvature that an ensemble of logits has. Each
is one file with one class.
"""

from enkbayes.core.likelihoods.base import Likelihood
from enkbayes.core.likelihoods.bernoulli import Bernoulli
from enkbayes.core.likelihoods.categorical import Categorical
from enkbayes.core.likelihoods.normal import Normal
from enkbayes.core.likelihoods.ordinal import Ordinal

__all__ = ["Bernoulli", "Categorical", "Likelihood", "Normal", "Ordinal"]
