"""A table of coefficients: mean, standard deviation, credible interval and probability of direction of each.

Coefficients are linear functions of the parameters. Where features are the categories of one column, which add up to
one, only differences between categories are determined by the data: the table has the contrasts with the first
category, whose coefficient is part of the intercept. Of K classes, only differences are determined too: the table has
the contrasts with the average class, which add up to zero. Both are computed from the joint posterior.

An average that held-out rows have scaled (`many_classes.py`) is not a posterior: its coefficients are point estimates,
or have a spread that predicts well. They have a mean, and neither a standard deviation nor an interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.sparse
from scipy.special import ndtr, ndtri

from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.posterior import Posterior
from enkbayes.engine.arrays import to_numpy

Vector = np.ndarray[Any, Any]
NO_POSTERIOR = (
    "Held-out rows chose the scale and the spread of these coefficients, so they have no credible intervals; for a "
    "posterior, fit with a number as the precision of the prior."
)
HALVINGS = 80  # of the interval that holds a quantile of a mixture: its error is below 1e-20 of the width


@dataclass(frozen=True)
class Coefficient:
    """A row of the table.

    name : the feature, or "column: category - first category"
    output : the class, for three or more classes; otherwise ""
    sd, low, high, direction : NaN where there is no posterior
    direction : the probability that the coefficient has the sign of its median, from .5 to 1
    """

    name: str
    output: str
    mean: float
    sd: float
    low: float
    high: float
    direction: float


@dataclass(frozen=True)
class Summary:
    """Coefficients with credible intervals of a level; `print` shows a table.

    >>> print(Summary((Coefficient("age", "", 1.0, 0.5, 0.02, 1.98, 0.977),), 0.95))
    coefficient  mean   sd  2.5 %  97.5 %  P(direction)
    age             1  0.5   0.02    1.98         0.977
    """

    rows: tuple[Coefficient, ...]
    level: float = 0.95

    @property
    def note(self) -> str:
        """What to know of the table, or ""."""
        return NO_POSTERIOR if any(math.isnan(row.sd) for row in self.rows) else ""

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of the columns."""
        tail = 50 * (1 - self.level)
        classes = ("class",) if any(row.output for row in self.rows) else ()
        return ("coefficient", *classes, "mean", "sd", f"{tail:g} %", f"{100 - tail:g} %", "P(direction)")

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The rows as text."""
        found, outputs = [], any(row.output for row in self.rows)
        for row in self.rows:
            numbers = (row.mean, row.sd, row.low, row.high)
            classes = (row.output,) if outputs else ()
            cells = [*(f"{x:.4g}" for x in numbers), f"{row.direction:.3f}"]
            found.append((row.name, *classes, *("-" if cell == "nan" else cell for cell in cells)))
        return found

    def to_pandas(self) -> Any:
        """Return a DataFrame, if pandas is installed."""
        try:
            import pandas
        except ImportError:
            raise ImportError("a data frame needs pandas; install it with: pip install pandas") from None
        return pandas.DataFrame([asdict(row) for row in self.rows])

    def __str__(self) -> str:
        lines = [self.heads, *self.cells]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.heads))]
        text = len(self.heads) - 5  # columns of text, on the left
        shown = [
            "  ".join(
                cell.ljust(width) if i < text else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*shown, *([self.note] if self.note else [])])


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Named linear functions of the weights of one logit: a sparse `matrix` (m, D) or, with an intercept, (m, D + 1).

    >>> Contrasts.of(["age", "town=Bern", "town=Oslo"], intercept=True, categories=[("town", (1, 2))]).names
    ('age', 'town: Oslo - Bern', 'intercept')
    >>> Contrasts.of(["town=", "town=Bern"], intercept=True, categories=[("town", (0, 1))]).names
    ('town: (missing) - Bern', 'intercept')
    """

    names: tuple[str, ...]
    matrix: Any

    @classmethod
    def of(
        cls, features: Sequence[str], *, intercept: bool, categories: Sequence[tuple[str, tuple[int, ...]]] = ()
    ) -> Contrasts:
        """Return one function for each feature that is not a category, the contrasts of each column of categories,
        given by its name and the numbers of its features, with the first that is not missing, and the intercept.
        """
        size = len(features) + intercept
        column_of = {i: (column, members) for column, members in categories if intercept for i in members}
        label = {i: features[i][len(column) + 1 :] for i, (column, _) in column_of.items()}  # empty where it is missing
        first = {column: next((i for i in members if label.get(i)), members[0]) for column, members in categories}
        names: list[str] = []
        rows: list[dict[int, float]] = []  # of the matrix: what is not zero
        for i, name in enumerate(features):
            if i not in column_of:
                names.append(name)
                rows.append({i: 1.0})
                continue
            column = column_of[i][0]
            base = first[column]
            if i != base:
                names.append(f"{column}: {label[i] or '(missing)'} - {label[base] or '(missing)'}")
                rows.append({i: 1.0, base: -1.0})
        if intercept:
            names.append("intercept")
            rows.append({size - 1: 1.0} | dict.fromkeys(first.values(), 1.0))
        entries = np.asarray([(i, k, x) for i, row in enumerate(rows) for k, x in row.items()]).reshape(-1, 3)
        places = tuple(entries[:, :2].astype(int).T)
        return cls(tuple(names), scipy.sparse.csr_array((entries[:, 2], places), shape=(len(names), size)))

    def in_units_of(self, centres: Vector, scales: Vector) -> Contrasts:
        """Return the same functions of the weights of x, for weights of features (x - centre) / scale, (D,) each.

        >>> own = Contrasts.of(["age"], intercept=True).in_units_of(np.asarray([40.0]), np.asarray([10.0]))
        >>> own.matrix @ [2.0, 1.0]  # 2 (x - 40) / 10 + 1 = x / 5 - 7
        array([ 0.2, -7. ])
        """
        shares = scipy.sparse.diags_array(1 / scales)
        if self.matrix.shape[1] == len(scales):
            return Contrasts(self.names, self.matrix @ shares)
        base = np.asarray([[1.0]])  # of a row of zeros
        units = scipy.sparse.block_array([[shares, None], [-(centres / scales)[None, :], base]])
        return Contrasts(self.names, (self.matrix @ units).tocsr())


def dummies(names: Sequence[str], columns: Sequence[str], features: Any = None) -> list[tuple[str, tuple[int, ...]]]:
    """Return columns of categories, each with the numbers of its features among names (D,), which are those of
    `pandas.get_dummies` and of `OneHotEncoder`: the column, "_" or "=", and the category. Raise a ValueError if there
    are fewer than two, or if features (N, D) have a row in which they do not add up to one.

    >>> dummies(["age", "town_Bern", "town_Oslo"], ["town"])
    [('town', (1, 2))]
    """
    found = []
    for column in columns:
        members = tuple(i for i, name in enumerate(names) if name.startswith((f"{column}_", f"{column}=")))
        if len(members) < 2:
            raise ValueError(f"{len(members)} features have names such as {column}_...; expected two or more")
        if features is not None and not np.allclose(np.asarray(features[:, list(members)].sum(axis=1)), 1.0):
            raise ValueError(
                f"the features of the categories {column!r} do not add up to one in every row; expected a feature for "
                "each category, neither dropped nor scaled"
            )
        found.append((column, members))
    return found


def summarise(posterior: Posterior | MixturePosterior, contrasts: Contrasts, level: float = 0.95) -> Summary:
    """Return the table of the coefficients of a posterior with linear logits.

    Parameters
    ----------
    posterior : Posterior or MixturePosterior
        Fitted Gaussians are integrated in closed form; polished particles are counted.
    contrasts : Contrasts
        What a row is, for each logit.
    level : float
        Probability of the credible intervals, which leave out as much on the left as on the right.

    Examples
    --------
    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((200, 2))
    >>> posterior = eb.run(eb.Problem.create(features, features[:, 0] > 0))
    >>> [row.name for row in summarise(posterior, Contrasts.of(["a", "b"], intercept=False)).rows]
    ['a', 'b']
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}; expected a probability between 0 and 1, such as 0.95")
    if posterior.map is None:
        raise ValueError("the posterior has nonlinear logits, and no coefficients; expected linear logits")
    K = posterior.map.outputs or 1
    centred = np.eye(1) if K == 1 else np.eye(K) - 1 / K
    names = [(name, output) for name in contrasts.names for output in _outputs(posterior, K)]
    tails = np.asarray([(1 - level) / 2, (1 + level) / 2])
    if posterior.gaussian:
        mean, sd, bounds, above = _of_gaussians(posterior, contrasts.matrix, centred, tails)
    else:
        functions = scipy.sparse.kron(contrasts.matrix, centred, format="csr")  # theta is (D, K), classes side by side
        values = (functions @ to_numpy(posterior.theta).T).T
        mean, sd, bounds = values.mean(axis=0), values.std(axis=0), np.quantile(values, tails, axis=0)
        above = np.mean(values > 0, axis=0)
    if posterior.held_out:
        sd, bounds, above = (np.full_like(x, math.nan) for x in (sd, bounds, above))
    direction = np.maximum(above, 1 - above)
    return Summary(
        tuple(
            Coefficient(*name, *(float(x) for x in numbers))
            for name, *numbers in zip(names, mean, sd, bounds[0], bounds[1], direction, strict=True)
        ),
        level,
    )


def weights(posterior: Posterior | MixturePosterior) -> tuple[Vector, Vector]:
    """Return the mean of the weights (K, D) and of the intercepts (K,), K = 1 for a single logit."""
    if posterior.map is None:
        raise ValueError("the posterior has nonlinear logits, and no weights; expected linear logits")
    K, D = posterior.map.outputs or 1, posterior.map.features
    matrix = to_numpy(posterior.mean).reshape(-1, K).T
    return matrix[:, :D].copy(), matrix[:, D].copy() if posterior.map.intercept else np.zeros(K, dtype=matrix.dtype)


def _outputs(posterior: Posterior | MixturePosterior, K: int) -> list[str]:
    if K == 1:
        return [""]
    return [str(name) for name in range(K)] if posterior.classes is None else [str(name) for name in posterior.classes]


def _of_gaussians(
    posterior: Posterior | MixturePosterior, rows: Any, outputs: Vector, tails: Vector
) -> tuple[Vector, Vector, Vector, Vector]:
    """Return mean, standard deviation, quantiles (2, m) and probability of a positive value, of the linear functions
    kron(rows, outputs) of a mixture of Gaussians.
    """
    share = np.asarray(posterior.weights)[:, None]
    parts = [part.fitted.gaussian.to(np.zeros(0)) for part in posterior.components]
    functions = scipy.sparse.kron(rows, outputs, format="csr")
    means = np.stack([functions @ part.mean for part in parts])
    sds = np.sqrt(np.maximum([part.variances_of(rows, outputs) for part in parts], 0.0))
    mean = np.sum(share * means, axis=0)
    sd = np.sqrt(np.sum(share * (sds**2 + (means - mean) ** 2), axis=0))
    above = np.sum(share * _above(means, sds), axis=0)
    if len(parts) == 1:
        return mean, sd, means + ndtri(tails)[:, None] * sds, above
    bounds = np.stack([_quantile(share, means, sds, tail) for tail in tails])
    return mean, sd, bounds, above


def _above(mean: Vector, sd: Vector, x: Vector | float = 0.0) -> Vector:
    """Return the probability that N(mean, sd^2) exceeds x; a Gaussian without spread exceeds what is below its mean."""
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (mean - x) / sd
    return np.asarray(ndtr(np.where(np.isnan(z), 0.0, z)))


def _quantile(share: Vector, means: Vector, sds: Vector, tail: float) -> Vector:
    """Return the quantile (m,) of mixtures of Gaussians (k, m), by bisection."""
    reach = max(abs(float(ndtri(tail))), 1.0) + math.sqrt(len(means))
    low, high = np.min(means - reach * sds, axis=0), np.max(means + reach * sds, axis=0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = 1 - np.sum(share * _above(means, sds, middle), axis=0) < tail
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2)
