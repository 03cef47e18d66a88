"""The methods of defaults.py: each gets the training rows of a split and gives class probabilities of its test rows.

Ours are `EnsembleClassifier` with its default prior, with `prior_precision="auto"` and with 1. The others are point
estimates of scikit-learn, plain and recalibrated by cross-fitting (`CalibratedClassifierCV(ensemble=False)`), Laplace's
approximation, Gaussian processes, and NUTS for the hierarchical model that our default approximates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
from default_sets import Split
from sklearn.calibration import CalibratedClassifierCV
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

import enkbayes as eb
from enkbayes.evaluation.baselines.hmc import double_precision
from enkbayes.evaluation.baselines.laplace import Laplace

FOLDS = 5  # of recalibration; fewer if a class has fewer training rows
STEPS = 1_000  # of L-BFGS at most, so that scikit-learn's estimates converge
SCALE, SCALE_SOFTMAX = 4.0, 16.0  # of the half-Cauchy prior of the standard deviation of a logit, for NUTS: our default
LARGEST_WORK = 1e8  # sizes above are left out: cross-validation alone takes minutes
INTERCEPT = 10.0  # standard deviation of the prior of the intercept, for NUTS


@dataclass(frozen=True)
class Method:
    """A function of a split and a seed, and on what it is run.

    repeats : splits at most
    rows, work : training rows, and rows x columns x logits, at most
    late : after all other methods, because it takes minutes
    """

    proba: Callable[[Split, int], Any]
    repeats: int = 10
    rows: float = np.inf
    work: float = np.inf
    late: bool = False


def ours(split: Split, seed: int, **settings: Any) -> Any:
    return eb.EnsembleClassifier(random_state=seed, **settings).fit(split.X, split.y).predict_proba(split.X_test)


def point(split: Split, seed: int) -> Any:
    return LogisticRegression(max_iter=STEPS).fit(split.X, split.y).predict_proba(split.X_test)


def cross_validated(split: Split, seed: int) -> Any:
    return _cross_validated(split).predict_proba(split.X_test)


@lru_cache(maxsize=1)
def _cross_validated(split: Split) -> Any:
    """Return the estimate that all methods with "CV" in their names share, and the first of them is charged for."""
    return LogisticRegressionCV(
        scoring="neg_log_loss", max_iter=STEPS, l1_ratios=(0.0,), use_legacy_attributes=False
    ).fit(split.X, split.y)


def recalibrated(split: Split, seed: int, *, method: str, choose: bool) -> Any:
    """Recalibrate `LogisticRegression` with C = 1, or with the C that cross-validation chooses from all rows."""
    C = float(_cross_validated(split).C_) if choose else 1.0
    folds = min(FOLDS, int(np.bincount(split.y).min()))
    base = LogisticRegression(C=C, max_iter=STEPS)
    return (
        CalibratedClassifierCV(base, method=method, cv=folds, ensemble=False)
        .fit(split.X, split.y)
        .predict_proba(split.X_test)
    )


def laplace(split: Split, seed: int) -> Any:
    """Return the exact Gaussian predictive of Laplace's approximation, with the prior of `prior_precision=1`."""
    ones = np.ones((len(split.y), 1))
    D, K = split.X.shape[1] + 1, _outputs(split)
    variances = np.repeat(np.r_[np.ones(D - 1), INTERCEPT**2], K)
    prior = eb.Gaussian(np.zeros(D * K), variances)
    fitted = Laplace().fit(eb.Problem.create(np.hstack([split.X, ones]), split.y, prior), seed=seed)
    return np.asarray(fitted.predict_proba(np.hstack([split.X_test, np.ones((len(split.y_test), 1))])))


def gaussian_process(split: Split, seed: int) -> Any:
    kernel = ConstantKernel() * RBF(np.sqrt(split.X.shape[1]), (1e-1, 1e4))
    return GaussianProcessClassifier(kernel, random_state=seed).fit(split.X, split.y).predict_proba(split.X_test)


def nuts(split: Split, seed: int, warmup: int = 500, draws: int = 1_000) -> Any:
    """Return the predictive of NUTS under a half-Cauchy prior of the standard deviation of a typical row's logit."""
    import jax

    with double_precision():
        K = _outputs(split)
        chain = _chain(split.X.shape, K, warmup, draws)
        X, test = (jax.numpy.asarray(x) / np.sqrt(np.mean(np.sum(split.X**2, axis=1))) for x in (split.X, split.X_test))
        chain.run(jax.random.PRNGKey(seed), X, jax.numpy.asarray(split.y))
        found = chain.get_samples()
        theta = found["scale"][:, None, None] * found["direction"]
        z = jax.numpy.einsum("nd,jdk->jnk", test, theta) + found["intercept"][:, None, :]
        z = jax.numpy.concatenate([jax.numpy.zeros_like(z), z], axis=2) if K == 1 else z
        return np.asarray(jax.nn.softmax(z, axis=2).mean(axis=0))


@cache
def _chain(shape: tuple[int, int], outputs: int, warmup: int, draws: int) -> Any:
    """Return the sampler for data of a shape: using it again saves its compilation, which takes longest."""
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(partial(_model, outputs=outputs), target_accept_prob=0.9)
    return MCMC(kernel, num_warmup=warmup, num_samples=draws, progress_bar=False)


def _model(X: Any, y: Any, outputs: int) -> None:
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    scale = numpyro.sample("scale", dist.HalfCauchy(SCALE if outputs == 1 else SCALE_SOFTMAX))
    direction = numpyro.sample("direction", dist.Normal().expand((X.shape[1], outputs)).to_event(2))
    intercept = numpyro.sample("intercept", dist.Normal(0, INTERCEPT).expand((outputs,)).to_event(1))
    z = scale * (X @ direction) + intercept
    z = jnp.concatenate([jnp.zeros_like(z), z], axis=1) if outputs == 1 else z
    numpyro.sample("y", dist.Categorical(logits=z), obs=y)


def _outputs(split: Split) -> int:
    """Return the number of logits of a row."""
    classes = int(split.y.max()) + 1
    return 1 if classes == 2 else classes


OURS, REFERENCE, SCALED = "our default", "LogisticRegressionCV", "LogisticRegressionCV, temperature"
NUTS_NAME = "NUTS, half-Cauchy scale"
PEERS: dict[str, Method] = {
    "LogisticRegression": Method(point),
    REFERENCE: Method(cross_validated),
    "LogisticRegression, temperature": Method(partial(recalibrated, method="temperature", choose=False)),
    SCALED: Method(partial(recalibrated, method="temperature", choose=True)),
    "LogisticRegressionCV, sigmoid": Method(partial(recalibrated, method="sigmoid", choose=True), repeats=2),
    "LogisticRegressionCV, isotonic": Method(partial(recalibrated, method="isotonic", choose=True), repeats=2),
    "Laplace": Method(laplace, repeats=2, work=2e5),
    "Gaussian process": Method(gaussian_process, repeats=1, rows=200),
    NUTS_NAME: Method(nuts, repeats=1, rows=200, work=5e3, late=True),
}
METHODS: dict[str, Method] = {
    OURS: Method(ours),
    'ours, prior_precision="auto"': Method(partial(ours, prior_precision="auto"), repeats=1, work=2e4),
    "ours, prior_precision=1": Method(partial(ours, prior_precision=1.0), repeats=2, work=2e5),
    **PEERS,
}


def fewest_repeats(work: int) -> int:
    """Return the number of splits for rows x columns x (1, or classes squared): fewer where a fit is expensive."""
    limits = ((1e5, 10), (1e6, 5), (1e7, 3), (LARGEST_WORK, 2))
    return next((repeats for most, repeats in limits if work <= most), 0)
