"""Where the features lie and in which units they are compared: what the default prior is isotropic in.

A prior N(0, v I) of the weights means something else for features in metres than for the same in millimetres, and an
intercept whose prior holds at x = 0 means nothing where all rows lie far from 0. So the default centres the features
and, where their spreads differ, also divides them by their standard deviations:

    x' = (x - centre) / scale,        w = w' / scale,        b = b' - centre' w.

Fits are made in these coordinates, in which the prior is isotropic. The weights of the result are those of the features
as they were given: the map between both is linear, so that ensembles, low-rank complements and priors are mapped
exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.low_rank import Complement
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, as_double, identity, like, namespace, row_slices, to_numpy
from enkbayes.engine.rows import ArrayRows
from enkbayes.inference.empirical_bayes import FIXED

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
MOST = 1000  # parameters: beyond, priors that relate weights and intercept have no fast fits
ROWS = 8192  # in work at a time
CENTRED = 1e-6  # standard deviations between mean and zero, up to which features count as centred
ALIKE = 3.0  # ratio of a standard deviation and their median, either way, up to which units hardly matter
MIXED = 30.0  # ratio of the largest standard deviation and their median beyond which features have units of many kinds


@dataclass(frozen=True, eq=False)
class FeatureFrame:
    """Coordinates of features: centre (D,) and scale (D,), see above.

    >>> problem = Problem.create([[3.0], [5.0]], [0, 1], intercept=100.0)
    >>> frame = FeatureFrame(np.asarray([4.0]), np.asarray([2.0]))
    >>> frame.inside(problem).features.tolist()
    [[-0.5], [0.5]]
    >>> frame.prior(Gaussian(np.zeros(2), np.asarray([4.0, 100.0]))).dense_cov.tolist()
    [[1.0, -4.0], [-4.0, 116.0]]
    """

    centre: Numbers
    scale: Numbers

    @property
    def standardised(self) -> bool:
        """Whether features are divided by their standard deviations."""
        return bool(np.any(self.scale != 1))

    @classmethod
    def of(cls, prior: Gaussian) -> FeatureFrame | None:
        """Return the coordinates in which a prior with a centre is centred at 0, and all weights have equal variances;
        None for other priors.
        """
        if prior.centre is None:
            return None
        centre, cov = as_double(prior.centre), as_double(prior.cov)
        variances = (cov if cov.ndim == 1 else np.diagonal(cov)).reshape(len(centre) + 1, -1)[:-1, 0]
        return cls(centre, np.sqrt(variances[0] / variances))

    def inside(self, problem: Problem) -> Problem:
        """Return the problem with the features in these coordinates, and the weights' prior variances 1."""
        prior, outputs = problem.prior, problem.likelihood.outputs or 1
        cov = as_double(prior.cov).copy()
        cov[: len(self.centre) * outputs] = 1.0
        return self._posed(problem, Gaussian(prior.mean, like(cov, prior.mean)))

    def _posed(self, problem: Problem, prior: Gaussian) -> Problem:
        """Return the problem with the features in these coordinates, and a prior of their weights."""
        x = problem.features
        x = x.toarray() if scipy.sparse.issparse(x) else x
        double = x - self.centre if isinstance(x, np.ndarray) else x - like(self.centre, x)  # numpy's in double
        return problem.with_arrays(features=like(double / like(self.scale, double), x)).with_prior(prior)

    def fitted(self, problem: Problem, fit: Callable[[Problem], Posterior]) -> Posterior:
        """Return what `fit` finds in these coordinates for a problem whose prior has this centre."""
        prior, outputs = problem.prior, problem.likelihood.outputs or 1
        units, cov = np.repeat(np.append(self.scale, 1.0), outputs), as_double(prior.cov)
        cov = cov * units**2 if cov.ndim == 1 else cov * units[:, None] * units
        inner = Gaussian(self._inwards(prior.mean[:, None])[:, 0], like(cov, prior.mean))
        return self.outside(fit(self._posed(problem, inner)))

    def outside(self, posterior: Posterior) -> Posterior:
        """Return a posterior of the weights of these features as one of the features as they were given."""
        before = None if posterior.before is None else self.ensemble(posterior.before)
        return replace(posterior, ensemble=self.ensemble(posterior.ensemble), before=before, state=None)

    def mixture(self, mixture: MixturePosterior) -> MixturePosterior:
        """Return the same of a mixture, and of its priors."""
        components = tuple(map(self.outside, mixture.components))
        return replace(mixture, components=components, priors=tuple(map(self.prior, mixture.priors)))

    def prior(self, prior: Gaussian) -> Gaussian:
        """Return a Gaussian of these weights as one of the weights of the given features."""
        outputs = prior.dim // (len(self.centre) + 1)
        units, cov = np.repeat(np.append(self.scale, 1.0), outputs), as_double(prior.cov)
        cov = cov / units**2 if cov.ndim == 1 else cov / units[:, None] / units
        return Gaussian(self._outwards(prior.mean[:, None])[:, 0], like(cov, prior.mean), self.centre)

    def ensemble(self, ensemble: AffineEnsemble, *, inwards: bool = False) -> AffineEnsemble:
        """Return an ensemble of these weights as one of the weights of the given features, or the other way round."""
        turn: Callable[[Array], Array] = self._inwards if inwards else self._outwards
        complement = ensemble.complement
        return replace(
            ensemble,
            mean=turn(ensemble.mean[:, None])[:, 0],
            basis=turn(ensemble.basis),
            complement=None if complement is None else _turned(complement, turn),
        )

    def _outwards(self, columns: Array) -> Array:
        """Return columns (P, r) of parameters of the given features, from those of these."""
        xp, (weights, intercept) = namespace(columns), self._split(columns)
        weights = weights / like(self.scale, columns)[:, None]
        return xp.reshape(xp.concat([weights, intercept - self._at_centre(weights)], axis=0), columns.shape)

    def _inwards(self, columns: Array) -> Array:
        """The inverse of `_outwards`."""
        xp, (weights, intercept) = namespace(columns), self._split(columns)
        intercept = intercept + self._at_centre(weights)
        return xp.reshape(xp.concat([weights * like(self.scale, columns)[:, None], intercept], axis=0), columns.shape)

    def _split(self, columns: Array) -> tuple[Array, Array]:
        """Return weights (D, K r) and intercepts (1, K r) of columns (P, r)."""
        rows = namespace(columns).reshape(columns, (len(self.centre) + 1, -1))
        return rows[:-1, :], rows[-1:, :]

    def _at_centre(self, weights: Array) -> Array:
        return (like(self.centre, weights) @ weights)[None, :]


def in_its_frame(problem: Problem, fit: Callable[[Problem], Posterior]) -> Posterior:
    """Return the fit of a problem, in the coordinates in which its prior is centred at 0 if the rows are in memory."""
    frame = FeatureFrame.of(problem.prior) if isinstance(problem.rows, ArrayRows) else None
    return fit(problem) if frame is None else frame.fitted(problem, fit)


def _turned(complement: Complement, turn: Callable[[Array], Array]) -> Complement:
    """Return a complement whose frame is turned: its left factor has a column of feature weights for each direction."""
    left = complement.frame.left
    matrix = left if left.ndim == 2 else identity(left.shape[0], left) * left[None, :]
    return replace(complement, frame=replace(complement.frame, left=turn(matrix)))


def frames_of(problem: Problem, groups: Numbers) -> tuple[FeatureFrame | None, ...]:
    """Return the coordinates in which an isotropic prior is worth trying: the features as given, but centred; also
    standardised, if their spreads differ; only standardised, if some are so much wider than others that the units have
    little in common. None stands for the features as they are, where they are centred already, or where centring is not
    possible: without an intercept, with several groups of features or a prior mean, with rows that are not in memory,
    or with more than `MOST` parameters.

    >>> problem = Problem.create([[3.0, 1.0], [5.0, 15.0]], [0, 1], intercept=100.0)
    >>> [frame.scale.tolist() for frame in frames_of(problem, np.asarray([0, 0, -1]))]
    [[1.0, 1.0], [1.0, 7.0]]
    """
    linear = problem.linear_logits("an average over the width of the prior")
    prior, weights = problem.prior, linear.features * (linear.outputs or 1)
    plain = linear.intercept and np.all(groups[:weights] == 0) and np.all(groups[weights:] == FIXED)
    if not plain or problem.dim > MOST or not isinstance(problem.rows, ArrayRows) or np.any(to_numpy(prior.mean)):
        return (None,)
    centre, spread = _location(problem)
    varies = spread > 0
    if not varies.any() or not np.all(np.isfinite(centre) & np.isfinite(spread)):
        return (None,)
    scale = np.where(varies, spread, np.sqrt(np.mean(spread[varies] ** 2)))
    middle = np.median(scale[varies])
    alike = scale.max() <= ALIKE * middle <= ALIKE**2 * scale.min()
    if alike and np.all(np.abs(centre) <= CENTRED * scale):
        return (None,)
    given, standard = FeatureFrame(centre, np.ones_like(scale)), FeatureFrame(centre, scale)
    if alike:
        return (given,)
    return (standard,) if scale.max() > MIXED * middle else (given, standard)


def _location(problem: Problem) -> tuple[Numbers, Numbers]:
    """Return mean and standard deviation (D,) of the features; the latter is 0 for those that do not vary."""
    share = problem.counts / problem.counts.sum()
    slices = list(row_slices(problem.size, ROWS))
    first = as_double(problem.features[int(np.argmax(share)) :, :][:1, :])[0]  # so that large means lose no digits

    def shifted(some: slice, by: Numbers) -> Numbers:
        block = as_double(problem.features[some, :]) - by
        block[share[some] == 0] = 0.0
        return block

    with np.errstate(over="ignore", invalid="ignore"):
        centre = first + sum(share[some] @ shifted(some, first) for some in slices)
        spread = np.sqrt(sum(share[some] @ shifted(some, centre) ** 2 for some in slices))
        varies = np.any([np.any(shifted(some, first) != 0, axis=0) for some in slices], axis=0)
    return centre, np.where(varies, spread, 0.0)
