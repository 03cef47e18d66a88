"""The uncertainty of predictions, split into an aleatoric and an epistemic part."""

from __future__ import annotations

from dataclasses import dataclass

from enkbayes.engine.arrays import Array, entropy, namespace


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Predictive uncertainty of each row: total = aleatoric + epistemic, averaged over the particles.

    For classes these are entropies in nats: aleatoric is the average entropy of the particles' predictions, epistemic
    their disagreement, and confidence the largest probability of `predict_proba`. For real targets they are variances,
    in squared units of the target: aleatoric is the average variance of the noise, epistemic the variance of the
    particles' predictions; confidence is NaN.

    `far_field` is the share of `epistemic` that comes from noise in the logits, which grows with the distance from the
    training data (`enkbayes.inference.far_field`); None where there is no such noise.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> near, far = eb.run(problem).predict_uncertainty([[1.0], [100.0]]).epistemic
    >>> bool(far > near)
    True
    """

    total: Array
    aleatoric: Array
    epistemic: Array
    confidence: Array
    far_field: Array | None = None

    @classmethod
    def of_members(cls, proba: Array) -> Uncertainty:
        """Return the uncertainty of predictions (J, n, K) that are averaged with equal weights.

        >>> import numpy as np
        >>> Uncertainty.of_members(np.asarray([[[1.0, 0.0]], [[0.0, 1.0]]])).epistemic.round(4).tolist()
        [0.6931]
        """
        xp = namespace(proba)
        average, aleatoric = xp.mean(proba, axis=0), xp.mean(entropy(proba), axis=0)
        # not negative but for round-off
        epistemic = xp.maximum(entropy(average) - aleatoric, xp.zeros_like(aleatoric))
        return cls(aleatoric + epistemic, aleatoric, epistemic, xp.max(average, axis=-1))
