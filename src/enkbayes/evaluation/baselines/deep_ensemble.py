"""Deep ensembles (Lakshminarayanan, Pritzel and Blundell 2017): M networks that differ in their random start and in the
order of the data, trained on clean and adversarial inputs; their predictions are averaged.

The adversarial input of a row is

    x* = x + eps sign(d loss / dx),    eps = 1 % of the range of each feature.

The gradient is taken with respect to the input, and eps is a fixed positive number. (The paper prints the gradient with
respect to the weights, and a random eps that is negative half of the time, which would lower the loss instead.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from enkbayes.core.arguments import check_count
from enkbayes.core.likelihoods import Bernoulli, Categorical
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, dense_numpy, to_numpy

if TYPE_CHECKING:
    from enkbayes.nets.network_ensemble import NetworkEnsemble


@dataclass(frozen=True)
class DeepEnsemble:
    """M networks, trained independently.

    Parameters
    ----------
    members : int
        M, the number of networks.
    hidden : tuple of int
        Widths of the hidden layers (ReLU) of the networks that `fit` makes; `fit_network` takes any network.
    steps : int
        Optimiser steps of each network, over as many epochs as they need.
    batch_size : int
        Rows in a step, for arrays; a loader has its own batch size.
    learning_rate : float
        Initial learning rate of Adam; it falls to zero along a cosine.
    adversarial : float
        eps as a fraction of the range of each feature; 0 trains on clean data alone.
    vectorise : bool, optional
        Whether all networks take a step at once (`torch.func.vmap`). Default: if they have no buffers and no
        dropout, and the data are an array. Five networks 2-20-20-50-1 then take 2.5 times less
        processor time than one by one; networks of width 512 take the same time (2 cores, torch 2.13).

    Examples
    --------
    >>> problem = Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> ensemble = DeepEnsemble(members=3, steps=20).fit(problem)
    >>> ensemble.sample_proba(np.asarray([[0.0], [1.0]])).shape
    (3, 2, 2)
    """

    needs: ClassVar[tuple[str, ...]] = ("torch",)

    members: int = 5
    hidden: tuple[int, ...] = (50,)
    steps: int = 1000
    batch_size: int = 64
    learning_rate: float = 0.01
    adversarial: float = 0.01
    vectorise: bool | None = None
    name: str = "deep-ensemble"

    def __post_init__(self) -> None:
        for name in ("members", "steps", "batch_size"):
            check_count(name, getattr(self, name))
        if not 0 <= self.adversarial < math.inf:
            raise ValueError(f"adversarial is {self.adversarial}; expected a fraction of the input range, such as 0.01")

    def fit(self, problem: Problem, *, seed: int = 0, progress: bool = False) -> NetworkEnsemble:
        """Train networks on the features of a problem with linear logits.

        The prior of the problem's weights, which must be N(0, variance I), becomes the prior of all weights of the
        networks (weight decay 1 / variance). The prior of the intercept becomes the prior of their biases.
        """
        if not problem.is_linear or not isinstance(problem.likelihood, Bernoulli | Categorical):
            raise ValueError(
                f"a deep ensemble needs features and classes; got {type(problem.model).__name__} with"
                f" {problem.likelihood}; use fit_network instead"
            )
        precision, bias_precision = _precisions(problem)
        features = problem.features
        X = dense_numpy(features)
        from enkbayes.nets.training.deep_ensemble import small_network

        return self.fit_network(
            lambda: small_network(X.shape[1], self.hidden, problem.likelihood.outputs or 1),
            X,
            to_numpy(problem.targets).astype(np.int64),
            weights=None if problem.weights is None else to_numpy(problem.weights),
            classes=np.arange(problem.likelihood.n_classes),
            prior_precision=precision,
            bias_precision=bias_precision,
            seed=seed,
            progress=progress,
        )

    def fit_network(
        self,
        make_model: Callable[[], Any],
        X: Any,
        y: Any = None,
        *,
        weights: Any = None,
        classes: Any = None,
        prior_precision: float = 0.0,
        bias_precision: float = 0.0,
        optimiser: Callable[[Any], Any] | None = None,
        checkpoint: str | Path | None = None,
        seed: int = 0,
        progress: bool = False,
    ) -> NetworkEnsemble:
        """Train M networks of any architecture and return the ensemble.

        Parameters
        ----------
        make_model : callable
            () -> an untrained nn.Module that returns logits (n,), (n, 1) or (n, K). It is called M times, with a
            different torch seed each time; training uses its dtype and device.
        X : array (N, ...) or loader
            Inputs of any array library, or an iterable of batches (x, y) that can be read repeatedly. A DataLoader
            with shuffle=True gives each network a different order.
        y : array-like (N,), optional
            Classes, when X is an array.
        weights : array-like (N,), optional
            How often each row counts, when X is an array.
        classes : array-like (K,), optional
            All classes, if some may be missing from the labels.
        prior_precision, bias_precision : float
            The loss is the average of clean and adversarial cross-entropy, summed over the data, plus
            prior_precision / 2 times the squares of all weights (parameters with two or more axes) and bias_precision
            / 2 times the squares of the others. Each row thus counts once, as in the other methods.
        optimiser : callable, optional
            parameters -> torch optimiser with a constant learning rate, instead of Adam with a falling one. If all
            networks take a step at once, it must work elementwise, as SGD and Adam do.
        checkpoint : path, optional
            A folder for finished networks. A call with the same data and settings trains only those that are missing.
        seed : int
            Seed of the random starts and orders.
        progress : bool
            Show a progress bar on standard error.

        Examples
        --------
        >>> from torch import nn
        >>> X = np.random.default_rng(0).standard_normal((60, 2))
        >>> make_model = lambda: nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> ensemble = DeepEnsemble(steps=10).fit_network(make_model, X, np.arange(60) % 3)
        >>> ensemble.predict_proba(X).shape, ensemble.predict_uncertainty(X).epistemic.shape
        ((60, 3), (60,))
        """
        from enkbayes.nets.training.data import training_data
        from enkbayes.nets.training.deep_ensemble import Recipe, preserved_random_state, train_members

        recipe = Recipe(
            members=self.members,
            steps=self.steps,
            learning_rate=self.learning_rate,
            adversarial=self.adversarial,
            vectorise=self.vectorise,
            prior_precision=prior_precision,
            bias_precision=bias_precision,
            optimiser=optimiser,
            seed=seed,
            label=repr(replace(self, members=1, vectorise=None)),  # neither changes what a member becomes
        )
        with preserved_random_state():
            data = training_data(X, y, weights, classes, self.batch_size)
            return train_members(make_model, data, recipe, checkpoint=checkpoint, progress=progress)


def _precisions(problem: Problem) -> tuple[float, float]:
    """Return the prior precision of the weights and of the intercept, which must each be one number."""
    model, prior = problem.linear, problem.prior
    if model is None:
        raise ValueError("the prior of weights and intercept is known for linear logits only")
    variance = to_numpy(prior.cov)
    if not prior.diagonal and np.array_equal(variance, np.diag(np.diag(variance))):
        variance = np.diag(variance)
    weights = model.features * (model.outputs or 1)
    parts = [part for part in (variance[:weights], variance[weights:]) if len(part)]
    mean: Array = to_numpy(prior.mean)
    if variance.ndim != 1 or np.any(mean != 0) or any(not np.allclose(part, part[0]) for part in parts):
        raise ValueError(
            "the prior is not N(0, variance I), and the weights of a deep ensemble are not those of a linear model; "
            "give all weights the same prior variance and mean 0"
        )
    return float(1 / parts[0][0]), float(1 / parts[-1][0])
