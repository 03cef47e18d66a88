"""A Bayesian classification problem: rows, logits, likelihood and Gaussian prior. Constructors check their input, so
methods need not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation, empirical
from enkbayes.core.gaussian import Gaussian
from enkbayes.core.labels import ALL_ZERO, observation_weights
from enkbayes.core.likelihoods import Categorical, Likelihood
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.low_rank import LowRankGaussian
from enkbayes.core.moments import Moments
from enkbayes.core.nonlinear_logits import NonlinearLogits
from enkbayes.core.problem_arguments import (
    chunk_rows,
    has_classes,
    prior_for,
    shared_classes,
    survey_labels,
    targets_of,
    weights_of,
)
from enkbayes.engine import product, resources
from enkbayes.engine.arrays import Array, all_finite, anchor, as_double, floating, like, namespace, to_numpy
from enkbayes.engine.processes import gather, shared_errors
from enkbayes.engine.row_files import open_rows
from enkbayes.engine.rows import ArrayRows, Rows
from enkbayes.engine.sharded_rows import ShardedRows
from enkbayes.engine.streamed_rows import StreamedRows


@dataclass(frozen=True, eq=False)
class Problem:
    """The posterior pi(theta) ~ exp(-Psi(theta)) N(theta; m0, P0), with Psi the cross-entropy of the data.

    A problem is composed of rows (where the data are, and how sums over them are computed) and a model (how parameters
    become logits), a likelihood (what logits mean) and a prior. `create` makes it from rows in memory, `stream` from
    rows that do not fit into memory, `create_sharded` and `stream_sharded` from the rows of several processes,
    `nonlinear` from any function of the parameters.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((50, 3))
    >>> problem = Problem.create(features, features[:, 0] > 0, Gaussian.isotropic(3, 2.0))
    >>> problem.dim, problem.likelihood
    (3, Bernoulli())
    """

    rows: Rows
    model: LinearLogits | NonlinearLogits
    likelihood: Likelihood
    prior: Gaussian
    classes: np.ndarray[Any, Any] | None = None

    @classmethod
    def create(
        cls,
        features: Array,
        labels: Any,
        prior: Gaussian | float = 1.0,
        *,
        likelihood: Likelihood | None = None,
        intercept: Gaussian | float | None = None,
        weights: Any = None,
        classes: Any = None,
        chunk: int | None = None,
    ) -> Problem:
        """Check the data and return the problem.

        Parameters
        ----------
        features : array (N, D)
            Of any supported library, or a scipy sparse matrix; never copied. float32 is kept, integers become float64.
        labels : array-like (N,)
            Classes of any comparable kind (numbers, strings); real numbers for a likelihood without classes.
        prior : Gaussian or float
            Over the P weights: P = D for two classes, D * K for more, theta.reshape(D, K). A number is the variance of
            N(0, variance I).
        likelihood : Likelihood, optional
            Default: `Bernoulli` for two classes, `Categorical` for more.
        intercept : Gaussian or float, optional
            Adds a constant feature after the others, with this prior (a number: its variance). Default: none.
        weights : array-like (N,), optional
            How often each row counts.
        classes : array-like (K,), optional
            All classes, when the labels may not show every one of them. Ordered classes keep this order, others are
            sorted.
        chunk : int, optional
            Rows read at a time; default 4096 (fewer for many classes).
        """
        features = floating(features)
        if features.ndim != 2 or 0 in features.shape:
            raise ValueError(
                f"features have shape {tuple(features.shape)}; expected (N, D) with at least one row and one column"
            )
        if not all_finite(features):
            raise ValueError("features contain NaN or infinite values; impute or drop those rows first")
        reference = anchor(features)
        targets, known, likelihood = targets_of(labels, int(features.shape[0]), likelihood, classes, reference)
        outputs = likelihood.outputs
        size, width = (int(n) for n in features.shape)
        rows = ArrayRows(features, targets, weights_of(weights, size, reference), chunk_rows(chunk, outputs))
        gaussian = prior_for(prior, width * (outputs or 1), "D * K" if outputs else "D", reference)
        if intercept is not None:
            gaussian = gaussian.stack(prior_for(intercept, outputs or 1, "one for each logit", reference))
        return cls(rows, LinearLogits(width, outputs, intercept is not None), likelihood, gaussian, known)

    @classmethod
    def stream(
        cls,
        source: Iterable[Any] | str | Path,
        prior: Gaussian | float = 1.0,
        *,
        likelihood: Likelihood | None = None,
        intercept: Gaussian | float | None = None,
        classes: Any = None,
        chunk: int | None = None,
        target: str | None = None,
    ) -> Problem:
        """Return the problem of all rows of a source that is read chunk by chunk, once for every step.

        A source is anything that can be iterated repeatedly and yields (features (n, D), labels (n,)) or
        (features, labels, weights): a torch DataLoader, a list of arrays, `enkbayes.engine.NpyRows`, or a class of your
        own with `__iter__`. A path names an .npz file, whose arrays are X and `target` (default y), or a .parquet file
        with a column `target`. The source is read once to learn its size and classes and to check it. Its array
        library, dtype and device are those of the computation. Other arguments are those of `create`.

        >>> rng = np.random.default_rng(0)
        >>> chunks = [(x, x[:, 0] > 0) for x in rng.standard_normal((5, 20, 3))]
        >>> problem = Problem.stream(chunks)
        >>> problem.size, problem.dim
        (100, 3)
        """
        if isinstance(source, str | Path):
            source = open_rows(source, target)
        elif target is not None:
            raise ValueError(f"target={target!r} names the labels in a file; this source yields its own")
        if not isinstance(source, Iterable):
            raise ValueError(
                f"the source is a {type(source).__name__}; expected what can be iterated repeatedly, such as a "
                "list of (features, labels), a DataLoader, NpyRows, or the path of a file"
            )
        problem, positive = cls._streamed(source, prior, likelihood, intercept, classes, chunk)
        if not positive:
            raise ValueError(ALL_ZERO)
        return problem

    @classmethod
    def _streamed(
        cls,
        source: Iterable[Any],
        prior: Gaussian | float,
        likelihood: Likelihood | None = None,
        intercept: Gaussian | float | None = None,
        classes: Any = None,
        chunk: int | None = None,
    ) -> tuple[Problem, bool]:
        """Return the problem of a source, and whether any row has a positive weight."""
        size, known, first, label, positive = survey_labels(source, likelihood, classes)
        labels = [label, label] if known is None else [known[0], known[-1]]
        pair = namespace(first).concat([first[:1, :], first[:1, :]], axis=0)
        small = cls.create(pair, labels, prior, likelihood=likelihood, intercept=intercept, classes=known, chunk=chunk)
        reference, outputs = anchor(first), small.likelihood.outputs

        def targets(labels: Any) -> Array:
            return targets_of(labels, len(labels), small.likelihood, small.classes, reference)[0]

        width = int(first.shape[1])
        rows = StreamedRows(source, size, width, reference, targets, chunk_rows(chunk, outputs))
        return replace(small, rows=rows), positive

    @classmethod
    def create_sharded(
        cls,
        features: Array,
        labels: Any,
        prior: Gaussian | float = 1.0,
        *,
        likelihood: Likelihood | None = None,
        classes: Any = None,
        **settings: Any,
    ) -> Problem:
        """Return the problem of all processes' rows from the rows of this process, which may be none: features (0, D).

        Other parameters are those of `create`. Bad input on one process raises its error on all of them. Call
        `enkbayes.engine.connect()` first.
        """
        known, example = shared_classes(labels, classes) if has_classes(likelihood) else None, None
        if known is None:
            example = next((some[0] for some in gather(to_numpy(labels)[:1].tolist()) if some), 0.0)
        with shared_errors():
            problem, positive = _local(features, labels, prior, example, likelihood, known, **settings)
        return _checked(problem, positive)

    @classmethod
    def stream_sharded(
        cls,
        source: Iterable[Any] | None,
        prior: Gaussian | float = 1.0,
        *,
        likelihood: Likelihood | None = None,
        classes: Any = None,
        **settings: Any,
    ) -> Problem:
        """Return the problem of all processes' rows, each of which reads its own source; None for a process without
        one.

        Other parameters are those of `stream`. Without `classes` the sources are read once more.
        """
        labels: Any = []
        with shared_errors():
            if source is not None and classes is None and has_classes(likelihood):
                labels = np.unique(np.concatenate([np.unique(to_numpy(part[1])) for part in source]))
        known = shared_classes(labels, classes) if has_classes(likelihood) else None
        mine, positive, example = None, False, None
        with shared_errors():
            if source is not None:
                mine, positive = cls._streamed(source, prior, likelihood, classes=known, **settings)
                example = None if known is not None else float(_first_target(mine.rows))
        shapes = gather(None if mine is None else (mine.rows.width, str(mine.prior.mean.dtype), example))
        found = [shape for shape in shapes if shape is not None]
        with shared_errors():
            if not found:
                raise ValueError("no process has a source; expected at least one")
            if mine is None:
                width, dtype, example = found[0]
                empty = np.zeros((0, width), dtype=dtype.rpartition(".")[2])
                mine, positive = _local(empty, [], prior, example, likelihood, known, **settings)
        return _checked(mine, positive)

    @classmethod
    def nonlinear(
        cls,
        logits: Callable[[Array], Array],
        labels: Any,
        prior: Gaussian,
        jacobian: Callable[[Array, Array], Array] | None = None,
        *,
        likelihood: Likelihood | None = None,
        weights: Any = None,
        classes: Any = None,
        chunk: int | None = None,
    ) -> Problem:
        """Return a problem whose logits are any function of the parameters.

        Parameters
        ----------
        logits : callable
            theta (J, P) -> (N, J) for two classes, (N, J, K) for K.
        labels : array-like (N,)
            As in `create`.
        prior : Gaussian
            Over the P parameters; its array library, dtype and device are those of the whole computation.
        jacobian : callable, optional
            (theta (J, P), tangents (P, r)) -> directional derivatives (N, J, r) or (N, J, K, r). With it the moments
            are averaged Gauss-Newton ones; without it they are derivative-free, valid for logits that are nearly linear
            over the ensemble's spread (see `info.nonlinearity`).
        likelihood, weights, classes : optional
            As in `create`.
        chunk : int, optional
            Pairs of a row and a particle whose Jacobians are held at a time.

        Examples
        --------
        >>> x = np.linspace(-2, 2, 40)
        >>> logits = lambda theta: np.tanh(x[:, None] * theta[:, 0]) * theta[:, 1]
        >>> problem = Problem.nonlinear(logits, x > 0.1, Gaussian.isotropic(2))
        >>> problem.dim
        2
        """
        probe = logits(prior.mean[None, :])
        if probe.ndim not in (2, 3) or probe.shape[1] != 1:
            raise ValueError(f"logits of one particle have shape {tuple(probe.shape)}; expected (N, 1) or (N, 1, K)")
        size, outputs = int(probe.shape[0]), (int(probe.shape[2]) if probe.ndim == 3 else None)
        if likelihood is None and outputs is not None:
            likelihood = Categorical(outputs)
        targets, known, likelihood = targets_of(labels, size, likelihood, classes, prior.mean)
        if likelihood.outputs != outputs:
            expected = "(N, 1)" if likelihood.outputs is None else f"(N, 1, {likelihood.outputs})"
            raise ValueError(
                f"logits of one particle have shape {tuple(probe.shape)}; expected {expected} for {likelihood}"
            )
        xp = namespace(prior.mean)
        none = xp.zeros((size, 0), dtype=prior.mean.dtype, device=prior.mean.device)
        rows = ArrayRows(none, targets, weights_of(weights, size, prior.mean))
        model = NonlinearLogits(logits, jacobian, outputs, size, prior.dim, chunk_rows(chunk, outputs))
        return cls(rows, model, likelihood, prior, known)

    @property
    def size(self) -> int:
        """The number of rows N."""
        return self.rows.size

    @property
    def features(self) -> Any:
        """The features (N, D); a ValueError where rows are not in the memory of one process."""
        return self.rows.features

    @property
    def targets(self) -> Any:
        """The targets (N,); a ValueError where rows are not in the memory of one process."""
        return self.rows.targets

    @property
    def weights(self) -> Any:
        """The weights (N,), or None; a ValueError where rows are not in the memory of one process."""
        return self.rows.weights

    @property
    def counts(self) -> np.ndarray[Any, Any]:
        """How often each row counts (N,), in numpy's double precision: the weights, or ones."""
        return np.ones(self.size) if self.weights is None else as_double(self.weights)

    @property
    def dim(self) -> int:
        """The number of parameters P."""
        return self.model.dim

    @property
    def linear(self) -> LinearLogits | None:
        """The logits if they are linear in the parameters, otherwise None."""
        return self.model if isinstance(self.model, LinearLogits) else None

    @property
    def is_linear(self) -> bool:
        """Whether logits are linear in the parameters."""
        return self.linear is not None

    @property
    def alike(self) -> bool:
        """Whether the prior is diagonal, with the same variances for the weights of every output."""
        prior = self.prior
        if not prior.diagonal:
            return False
        by_output = namespace(prior.mean).reshape(prior.cov, (-1, self.likelihood.outputs or 1))
        return bool(namespace(prior.mean).all(by_output == by_output[:, :1]))

    def linear_logits(self, purpose: str) -> LinearLogits:
        """Return the linear logits, or raise a ValueError that says what needs them."""
        if self.linear is not None:
            return self.linear
        raise ValueError(f"{purpose} needs linear logits, and these are a function of the parameters")

    def moments(self, ensemble: AffineEnsemble | LowRankGaussian, expectation: Expectation = empirical) -> Moments:
        """Return the likelihood's part, summed over the rows: E[Psi], g = sum_n V_n' slope_n and S = sum_n V_n'
        curvature_n V_n, with V_n the logits of the basis for row n.
        """
        model: Any = self.model
        moments: Moments = model.moments(self.rows, ensemble, self.likelihood, expectation)
        return moments

    def prior_moments(self, ensemble: AffineEnsemble | LowRankGaussian) -> Moments:
        """Return the prior's part: g = basis' P0^{-1} (mean - m0), S = basis' P0^{-1} basis."""
        xp = namespace(ensemble.mean)
        shift, basis = self.prior.whiten(ensemble.mean - self.prior.mean), self.prior.whiten(ensemble.basis)
        loss = (xp.sum(shift**2) + xp.sum(basis**2)) / 2
        return Moments(loss, basis.mT @ shift, product(basis.mT, basis))

    def potential_moments(self, ensemble: AffineEnsemble, expectation: Expectation = empirical) -> Moments:
        """Return the moments of the whole potential: likelihood plus prior."""
        return self.moments(ensemble, expectation) + self.prior_moments(ensemble)

    def loss(self, theta: Array) -> Array:
        """Return Psi (J,) of the particles theta (J, P)."""
        return self.model.loss(self.rows, theta, self.likelihood)

    def loss_and_gradient(self, theta: Array) -> tuple[Array, Array]:
        """Return Psi (J,) and grad Psi (J, P) at the particles theta (J, P).

        >>> problem = Problem.create([[2.0]], [1], classes=[0, 1])
        >>> loss, gradient = problem.loss_and_gradient(np.asarray([[0.0]]))
        >>> round(float(loss[0]), 6), gradient.tolist()
        (0.693147, [[-1.0]])
        """
        return self.model.loss_and_gradient(self.rows, theta, self.likelihood)

    def with_prior(self, prior: Gaussian) -> Problem:
        """Return the same data with another prior over all P parameters, the intercept's included.

        >>> problem = Problem.create([[1.0], [-1.0]], [1, 0], intercept=100.0)
        >>> problem.with_prior(Gaussian.isotropic(2, 0.5)).prior.cov.tolist()
        [0.5, 0.5]
        """
        return replace(self, prior=prior_for(prior, self.dim, "all parameters, intercept included", self.prior.mean))

    def subset(self, rows: np.ndarray[Any, Any]) -> Problem:
        """Return the problem that has only some of the rows (integers), with the same prior."""
        self.linear_logits("a subset of the rows")
        return replace(self, rows=self.rows.subset(rows))

    def with_arrays(self, **arrays: Any) -> Problem:
        """Return the problem with other features (N, D), targets (N,), weights (N,) or chunk, for rows in memory.

        >>> problem = Problem.create([[1.0], [-1.0]], [1, 0])
        >>> problem.with_arrays(weights=np.asarray([2.0, 3.0])).weights.tolist()
        [2.0, 3.0]
        """
        now = {"features": self.features, "targets": self.targets, "weights": self.weights, "chunk": self.rows.chunk}
        return replace(self, rows=ArrayRows(**(now | arrays)))

    def in_double(self, *, dense: bool = False) -> Problem:
        """Return the problem in numpy's double precision; sparse features stay sparse unless `dense`."""
        features, weights, prior = self.features, self.weights, self.prior
        if dense and scipy.sparse.issparse(features):
            features = features.toarray()
        features = (features if scipy.sparse.issparse(features) else to_numpy(features)).astype(np.float64, copy=False)
        return replace(
            self.with_arrays(
                features=features,
                targets=self.likelihood.targets(to_numpy(self.targets), np.empty(0)),
                weights=None if weights is None else as_double(weights),
            ),
            prior=prior.to(np.empty(0)),
        )

    def shard(self) -> Problem:
        """Return the problem of all processes' rows from the problem of this one's, in memory or streamed; parameters,
        classes and dtypes of the processes must agree.
        """
        self.linear_logits("a problem of several processes")
        known = None if self.classes is None else tuple(np.asarray(self.classes).tolist())
        about = (self.dim, str(self.prior.mean.dtype).rpartition(".")[2], repr(self.likelihood), known)
        shards = gather((self.size, about))
        if len({kind for _, kind in shards}) > 1:
            kinds = [kind for _, kind in shards]
            raise ValueError(
                f"processes differ in parameters, dtype, likelihood or classes: {kinds}; expected the same"
            )
        sizes, target = [size for size, _ in shards], None
        if 0 in sizes:  # a process without rows needs some target in order to compute sums that are zero
            found = gather(_first_target(self.rows) if self.size else None)
            of_rows = [one for one in found if one is not None]
            if not of_rows:
                raise ValueError("no process has any rows; expected at least one")
            target = self.likelihood.targets(np.asarray(of_rows[:1]), self.prior.mean)
        return replace(self, rows=ShardedRows(self.rows, sum(sizes), target))

    @cached_property
    def coarse(self) -> Problem | None:
        """The same problem with cheaper and less accurate sums, or None where there are none."""
        rows = self.rows.coarse if self.is_linear else None
        return None if rows is None else replace(self, rows=rows)

    def head(self, rows: int) -> Problem:
        """Return the problem of the first rows of the first chunk."""
        chunk = next(iter(self.rows.chunks())).head(rows)
        return replace(self, rows=ArrayRows(chunk.features, chunk.targets, chunk.weights, self.rows.chunk))

    def resources(self) -> AbstractContextManager[None]:
        """Return a context in which the engine prepares for the products of a step."""
        return resources(self.dim)


def _local(
    features: Array,
    labels: Any,
    prior: Any,
    example: Any,
    likelihood: Likelihood | None,
    classes: Any,
    *,
    weights: Any = None,
    **settings: Any,
) -> tuple[Problem, bool]:
    """Return this process's problem, and whether any of its rows has a positive weight. A process without rows makes
    the problem of one row, with the label `example` or the first class, and takes the row away.
    """
    if len(labels):
        problem = Problem.create(features, labels, prior, likelihood=likelihood, classes=classes, **settings)
        if weights is None:
            return problem, True
        values = observation_weights(weights, problem.size, positive=False)  # other processes may have positive ones
        return problem.with_arrays(weights=like(values, anchor(floating(features)))), bool(np.any(values > 0))
    row = np.zeros((1, features.shape[1]), dtype=to_numpy(features).dtype)
    label = [example] if classes is None else [classes[0]]
    one = Problem.create(like(row, features), label, prior, likelihood=likelihood, classes=classes, **settings)
    return one.subset(np.zeros(0, dtype=np.int64)), False


def _checked(problem: Problem, positive: bool) -> Problem:
    """Return the problem of all processes' rows, at least one of which must have a positive weight."""
    if not any(gather(positive)):
        raise ValueError(ALL_ZERO)
    return problem.shard()


def _first_target(rows: Rows) -> Any:
    """Return the target of the first row."""
    return to_numpy(next(iter(rows.chunks())).targets)[0]
