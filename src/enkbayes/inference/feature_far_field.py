"""Far-field variance, out-of-distribution score and held-out confidences of a linear classifier, from its own rows,
each predicted without itself.

The leverage is that of the features, and that of a training row is computed without the row: with the share w of its
leverage that it has contributed itself, it is leverage / (1 - w).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from enkbayes.core.likelihoods import Normal
from enkbayes.core.logit_noise import takes_noise
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import as_double, entropy, row_slices, take_rows, to_numpy
from enkbayes.inference.class_distance import ClassScore, with_entropy
from enkbayes.inference.cross_validation import logits_without, proba_without
from enkbayes.inference.far_field import Extent, FarFieldChoice, choose, second_moment
from enkbayes.inference.rejection import HeldOutConfidence

Vector = np.ndarray[Any, Any]
WIDEST = 2048  # features up to which the D x D second moments are affordable in time and in files


@dataclass(frozen=True, eq=False)
class FeatureScore:
    """The out-of-distribution score of rows, from their distance to the classes of the training rows and the entropy of
    their predictions; `entropies` are those of training rows predicted without themselves, sorted.
    """

    distance: ClassScore
    entropies: Vector

    @classmethod
    def of(
        cls, problem: Problem, posterior: Posterior | MixturePosterior, *, most: int = 5000, wide: int = 300
    ) -> FeatureScore:
        """Return the score for the rows of a fitted problem, a random sample of at most `most` of them.

        Rows in a fifth of the sample, predicted by the other four, set the scale of the distances. Each fifth does in
        turn, unless there are more than `wide` features, where that takes long. No more rows than features are few: see
        `enkbayes.inference.class_distance`.
        """
        double = problem.in_double()
        random = np.random.default_rng(12)
        rows = np.sort(random.permutation(double.size)[:most])
        X, y = as_double(take_rows(double.features, rows)), to_numpy(double.targets)[rows]
        fold, few = random.permutation(len(rows)) % 5, len(rows) <= X.shape[1]
        distances = []
        for k in range(5 if X.shape[1] <= wide and len(rows) >= 5 else 1):
            out = fold == k if len(rows) >= 5 else np.ones(len(rows), dtype=bool)
            others = ~out if len(rows) >= 5 else out
            distances.append(ClassScore.fit([X[others]], y[others], few=few).distances([X[out]]))
        distance = ClassScore.fit([X], y, few=few).scaled(np.concatenate(distances, axis=1))
        _, mean, root = logits_without(double, posterior)
        proba = to_numpy(posterior.likelihood.predictive(mean, V=root))
        return cls(distance, np.sort(entropy(proba)))

    def __call__(self, features: Any, proba: Vector) -> Vector:
        """Return the scores (n,) of features (n, D) for which probabilities (n, K) are predicted."""
        chunks = row_slices(features.shape[0], 4096)
        parts = [self.distance([as_double(features[rows, :])]) for rows in chunks]
        found = np.concatenate(parts) if parts else np.zeros(0)
        return np.asarray(with_entropy(found, normal_rank(entropy(to_numpy(proba)), self.entropies)))


def normal_rank(values: Vector, reference: Vector) -> Vector:
    """Return the normal quantiles (n,) of the ranks of values (n,) among sorted reference values (m,).

    >>> normal_rank(np.asarray([4.0]), np.arange(9.0)).tolist()
    [0.0]
    """
    below, up_to = (np.searchsorted(reference, values, side=side) for side in ("left", "right"))
    return np.asarray(ndtri(((below + up_to) / 2 + 0.5) / (len(reference) + 1)))


@dataclass(frozen=True, eq=False)
class FeatureFarField:
    """How unlike the training rows features are, and, if chosen, how much noise that means for the logits."""

    extent: Extent
    choice: FarFieldChoice | None = None
    unusual: FeatureScore | None = None

    @classmethod
    def of(
        cls, features: Any, *, classes: int = 2, ridge: float = 1e-6, gentle: bool = False
    ) -> tuple[FeatureFarField, Vector]:
        """Return the extent of features (N, D) of so many classes, and their leave-one-out scores (N,); `gentle` is for
        real targets.

        >>> found, score = FeatureFarField.of(np.random.default_rng(0).standard_normal((200, 3)))
        >>> bool(found.score(np.full((1, 3), 9.0))[0] > score.max())
        True
        """
        N, D = features.shape
        if D > WIDEST:
            raise ValueError(f"the score of unusual rows needs at most {WIDEST} features; got {D}")
        chunks = [slice(0, N)] if N <= 4096 else list(row_slices(N, 4096))
        sums = sum(second_moment(as_double(features[rows, :])) * (min(rows.stop, N) - rows.start) for rows in chunks)
        extent = Extent.of_moments([sums / N], ridge)
        raw = np.exp(np.concatenate([extent.leverage([as_double(features[rows, :])]) for rows in chunks]))
        own = np.minimum(raw * (D + 1) / N, 1 - 1e-9)  # nearly 1 for every row if there are more features than rows
        leverage = np.log(raw / (1 - own))
        extent = extent.calibrated((), leverage=leverage, classes=classes, gentle=gentle)
        return cls(extent), (leverage - extent.scale[0]) / extent.scale[1]

    def check(self, features: int | None) -> None:
        """Raise a ValueError unless what was read from a file belongs to so many features."""
        self.extent.check()
        sizes = [F.shape[0] - 1 for F in self.extent.factors]
        if sizes != [features]:
            raise ValueError(f"the far-field variance is that of {sizes} features; expected [{features}]")

    def score(self, features: Any) -> Vector:
        """Return the scores (n,) of features (n, D): about standard normal for rows like the training rows."""
        parts = [self.extent.score([as_double(features[rows, :])]) for rows in row_slices(features.shape[0], 4096)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def noise(self, features: Any) -> Vector:
        """Return the variance (n,) of the noise in the logits; zero if none was chosen."""
        if self.choice is None:
            return np.zeros(features.shape[0])
        return np.asarray(self.extent.variance(self.score(features), self.choice.strength, self.choice.reach))


def can_choose(problem: Problem) -> bool:
    """Return whether the rows of a problem can choose far-field variance.

    >>> import enkbayes as eb
    >>> can_choose(eb.Problem.create([[0.0], [1.0]], [0, 1]))
    True
    """
    return takes_noise(problem.likelihood) and problem.linear_logits("far-field variance").features <= WIDEST


def choose_for_features(problem: Problem, posterior: Posterior | MixturePosterior) -> FeatureFarField:
    """Return the far-field variance that the rows of a fitted problem choose, each predicted without itself.

    >>> import enkbayes as eb
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 3))
    >>> problem = eb.Problem.create(X, X[:, 0] + rng.logistic(size=300) > 0)
    >>> bool(choose_for_features(problem, eb.run(problem)).noise(np.full((1, 3), 50.0))[0] > 1e3)
    True
    """
    if not isinstance(posterior.likelihood, Normal) and not takes_noise(posterior.likelihood):
        raise ValueError(f"far-field variance needs classes without an order; the likelihood is {posterior.likelihood}")
    double = problem.in_double()
    likelihood = posterior.likelihood
    found, score = FeatureFarField.of(
        double.features, classes=likelihood.n_classes or 2, gentle=isinstance(likelihood, Normal)
    )
    rows, mean, root = logits_without(double, posterior)
    weights = None if double.weights is None else to_numpy(double.weights)[rows]
    labels = to_numpy(double.targets)[rows]
    return FeatureFarField(found.extent, choose(posterior.likelihood, mean, root, labels, score[rows], weights=weights))


def held_out_confidence(
    problem: Problem, posterior: Posterior | MixturePosterior, far_field: FeatureFarField | None
) -> HeldOutConfidence:
    """Return the confidence of the rows of a fitted problem, each predicted without itself, and whether it was right.

    Folds predict them as the posterior predicts new rows. Where folds take too long, leave-one-out from the fit does if
    the rows are many for what they inform, otherwise a fit to four fifths of the rows predicts the rest.

    >>> import enkbayes as eb
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 3))
    >>> problem = eb.Problem.create(X, X[:, 0] + rng.logistic(size=300) > 0)
    >>> found = held_out_confidence(problem, eb.run(problem), None)
    >>> found.confidence.shape, bool(found.correct.mean() > 0.6)
    ((300,), True)
    """
    double = problem.in_double()
    choice, noise = (None, None) if far_field is None else (far_field.choice, None)
    if far_field is not None and choice is not None:
        score = FeatureFarField.of(double.features)[1]
        noise = far_field.extent.variance(score, choice.strength, choice.reach)
    scale = 1.0 if choice is None else choice.scale
    rows, proba = proba_without(double, posterior, scale=scale, noise=noise)
    return HeldOutConfidence.of(proba, to_numpy(double.targets)[rows])
