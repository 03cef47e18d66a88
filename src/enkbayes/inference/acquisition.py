"""Which rows to label next: those whose labels tell most about the predictions for the whole pool.

A row that the particles disagree about need not be worth a label: an outlier has leverage, but its label says nothing
about other rows. What counts is how much the labels of the pool vary together. Let p_j(x) be the class probabilities
(K,) of particle j at row x, p their mean, and

    C(x, x') = mean_j (p_j(x) - p(x)) (p_j(x') - p(x'))'       covariance of the labels of two different rows
    V(x)     = diag(p(x)) - p(x) p(x)'                          covariance of the label of one row

A batch is built greedily. The next row maximises the sum over x' of |C(x, x')|^2, and its label, whatever it is, leaves
the covariances

    C(x, x') - C(x, s) V(s)^{-1} C(s, x')                       after row s, as in linear regression

so near-duplicates of a chosen row are no longer worth much. This is the expected information about predictions (EPIG,
Bickford Smith et al. 2023) to second order, except that uncertain labels count more: EPIG divides the squares by
V(x) and V(x'), which chooses rows for better probabilities but for fewer correct decisions.

Logits of far rows vary as if the model were linear out to any distance, which no data support. Each logit therefore
gets independent noise before covariances are taken: with v the variance of a row's logits over the particles and v0 its
median over the pool, noise of variance v0 max((v / v0)^{3/2} - 1, 0), which grows faster than the logits' own.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import scipy.sparse

from enkbayes.core.arguments import check_count, is_whole

Array = np.ndarray[Any, Any]

NUMBERS = 20_000_000  # probabilities of the candidates: 160 MB, and four times that for what is computed from them
SINGULAR = 1e-10  # eigenvalues of V below this share of the largest one are rounding errors: V has rank K - 1


class Sampled(Protocol):
    """A classifier, head or posterior whose particles predict class probabilities (J, n, K)."""

    def sample_proba(self, X: Any) -> Any:
        """Return the class probabilities that each particle predicts."""
        ...


def acquire(clf: Sampled, pool: Any, n: int, *, candidates: int | None = None, seed: int = 0) -> Array:
    """Return the indices (n,) of the rows of a pool that are most worth labelling, the best first.

    The labels of these rows tell most about the predictions for the pool. The rows form a batch: they are chosen
    together, before any of their labels is known.

    Parameters
    ----------
    clf : fitted EnsembleClassifier, BayesianHead or Posterior
        Anything with `sample_proba`.
    pool : array (N, D), DataFrame, sparse matrix or tensor
        The unlabelled rows.
    n : int
        Rows to choose.
    candidates : int, optional
        Choose among this many random rows of a larger pool, and look at the predictions of these alone. The default
        keeps at most 20 million probabilities in memory.
    seed : int
        Seed of that random choice.

    Examples
    --------
    >>> from enkbayes import EnsembleClassifier, acquire
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 2))
    >>> y = X[:, 0] + rng.standard_normal(300) > 0
    >>> clf = EnsembleClassifier(random_state=0).fit(X[:10], y[:10])
    >>> pool = np.vstack([X[10:], [[60.0, 60.0]]])  # the last row is far from all others
    >>> uncertain = clf.predict_uncertainty(pool).epistemic
    >>> bool(uncertain[-1] > np.quantile(uncertain, 0.95))
    True
    >>> 290 in acquire(clf, pool, 20)
    False
    """
    if not hasattr(clf, "sample_proba"):
        raise TypeError(f"clf is a {type(clf).__name__}; expected a fitted classifier with sample_proba")
    rows: Any = pool if hasattr(pool, "shape") and not isinstance(pool, memoryview) else np.asarray(pool)
    if scipy.sparse.issparse(rows):
        rows = rows.tocsr()  # some formats have no rows to take
    if len(rows.shape) < 2:
        raise ValueError(f"the pool has shape {tuple(rows.shape)}; expected rows of features, (N, D)")
    size = int(rows.shape[0])
    if not is_whole(n, 1) or n > size:
        raise ValueError(f"n is {n!r}; expected a whole number from 1 to {size:,}, the rows of the pool")
    particles, _, classes = _samples(clf, rows, np.arange(1)).shape
    fitting = max(NUMBERS // (particles * classes), n)
    most = fitting if candidates is None else candidates
    check_count("candidates", most)
    if most < n:
        raise ValueError(f"candidates is {most}; expected at least n = {n}")
    some = np.arange(size)
    if most < size:
        some = np.sort(np.random.default_rng(seed).permutation(size)[:most])
    return np.asarray(some[informative_rows(_samples(clf, rows, some), n)])


def informative_rows(sample_proba: Any, n: int, *, far_noise: float = 1.0) -> Array:
    """Return the indices (n,) of the rows of particle probabilities (J, N, K) that tell most about all rows.

    `far_noise` multiplies the variance of the noise in the logits of far rows; 0 uses the particles as they are.

    Three rows that the particles disagree about, the first two in the same way, and one that they agree about:

    >>> first = np.array([0.02, 0.98, 0.02, 0.98])
    >>> second = np.array([0.1, 0.1, 0.9, 0.9])
    >>> p = np.stack([first, first, second, np.full(4, 0.5)], axis=1)
    >>> informative_rows(np.stack([1 - p, p], axis=2), 2).tolist()
    [0, 2]
    """
    proba = _with_noise(np.asarray(sample_proba, dtype=np.float64), far_noise)
    particles, size, classes = proba.shape
    mean = proba.mean(axis=0)
    deviations = ((proba - mean) / np.sqrt(particles)).transpose(1, 2, 0).reshape(size * classes, particles)
    w, U = np.linalg.eigh(deviations.T @ deviations)
    C = deviations @ (U * np.sqrt(np.maximum(w, 0)))  # |C(x, x')|^2 summed over x' is the squared norm of the rows of x
    D = deviations.copy()  # D deviations' are the covariances that remain
    chosen: list[int] = []
    for _ in range(n):
        worth = np.sum(C**2, axis=1).reshape(size, classes).sum(axis=1)
        worth[chosen] = -1.0
        best = int(np.argmax(worth))
        chosen.append(best)
        own = slice(best * classes, (best + 1) * classes)
        noise = np.mean([np.diag(p) - np.outer(p, p) for p in proba[:, best]], axis=0)
        gain = D @ deviations[own].T @ np.linalg.pinv(noise + D[own] @ deviations[own].T, rcond=SINGULAR)
        D, C = D - gain @ D[own], C - gain @ C[own]
    return np.array(chosen)


def _with_noise(proba: Array, scale: float) -> Array:
    """Return the probabilities (J, N, K) with independent noise in the logits of far rows, averaged over the noise.

    E[softmax(z + noise of variance r)] is about softmax(z / sqrt(1 + pi r / 8)) for centred logits (MacKay 1992).
    """
    z = np.log(np.maximum(proba, np.finfo(np.float64).tiny))
    z -= z.mean(axis=2, keepdims=True)
    v = z.var(axis=0).sum(axis=1) / (1 - 1 / z.shape[2])  # for two classes z / 2 and -z / 2, half of the logit's
    typical = max(float(np.median(v)), float(np.finfo(np.float64).tiny))
    noise = scale * typical * np.maximum((v / typical) ** 1.5 - 1, 0)
    z /= np.sqrt(1 + np.pi / 8 * noise)[:, None]
    z -= z.max(axis=2, keepdims=True)
    np.exp(z, out=z)
    return np.asarray(z / z.sum(axis=2, keepdims=True))


def _samples(clf: Sampled, rows: Any, some: Array) -> Array:
    """Return the probabilities (J, n, K) of the particles for some rows of the pool."""
    taken = rows.iloc[some] if hasattr(rows, "iloc") else rows[some]
    found = np.asarray(clf.sample_proba(taken))
    if found.ndim != 3 or found.shape[1] != len(some) or found.shape[0] < 2 or found.shape[2] < 2:
        raise ValueError(
            f"sample_proba returned an array of shape {found.shape} for {len(some)} rows; "
            "expected (J, n, K) with at least two particles and two classes"
        )
    if not np.isfinite(found).all():
        raise ValueError("sample_proba returned values that are not finite; expected probabilities")
    return found
