"""Do the layers of a network agree? A linear classifier with a posterior reads the class at the inputs of every layer.

The inputs of layer l, averaged over positions and whitened by their second moments over the training rows, are the
features of a Bayesian logistic regression with the prior N(0, v I). On in-distribution rows, the probes of deep layers
predict what the network predicts and the probes of early layers are unsure. On out-of-distribution rows, probes may be
confident of different classes. With p_l the predictions of the L probes and of the posterior itself,

    disagreement = H(mean_l p_l) - mean_l H(p_l)

is the mutual information of the class and the layer at which it is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from enkbayes.core.arguments import check_count
from enkbayes.core.caller import warn
from enkbayes.core.posterior import Info, Posterior
from enkbayes.core.problem import Problem
from enkbayes.core.uncertainty import Uncertainty
from enkbayes.nets.loaders import Place, Reader, device_of, sample_rows, shown
from enkbayes.nets.ood_score import OODScore
from enkbayes.solvers.laplace import laplace_ensemble
from enkbayes.solvers.map_estimate import map_estimate


@dataclass(frozen=True, eq=False)
class Probes:
    """Posteriors of linear classifiers at the layers of a network. Create them with `fit`.

    Examples
    --------
    >>> from enkbayes.nets import BayesianHead
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(90, 3)
    >>> loader = [(x, x.argmax(dim=1))]
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> score = OODScore.fit(BayesianHead.fit(model, loader, progress=False), loader, progress=False)
    >>> probes = Probes.fit(score, loader, progress=False)
    >>> probes.sample_proba(x).shape, probes.disagreement(x).shape
    ((3, 90, 3), (90,))
    """

    score: OODScore
    heads: tuple[Posterior, ...]

    @classmethod
    def fit(
        cls,
        score: OODScore,
        loader: Iterable[Any],
        *,
        rows: int = 2000,
        spread: float = 10.0,
        inputs: Place = None,
        labels: Place = None,
        seed: int = 0,
        progress: bool = True,
    ) -> Self:
        """Read the training data once and return a probe for every layer of the score.

        Parameters
        ----------
        score : OODScore
            Fitted to the same training data. It provides the layers and the second moments of their inputs.
        loader : iterable of batches
            The training data, as for `BayesianHead.fit`.
        rows : int
            Maximum number of training rows for the probes; a larger set is sampled at random.
        spread : float
            Prior variance of a logit, averaged over the training rows.
        inputs, labels : str, int or function of a batch, optional
            As for `BayesianHead.fit`.
        seed : int
            Seed of the random sample of rows.
        progress : bool
            Show a progress bar.
        """
        check_count("rows", rows)
        reader = Reader(inputs, labels, device_of(score), score.posterior.body)
        kept = sample_rows(map(reader, shown(loader, "Probes", enabled=progress)), rows, seed)
        batches = [score.whitened(*args, **kwargs) for args, kwargs in kept.batches]
        y = np.concatenate(kept.labels)
        classes = np.arange(score.posterior.likelihood.n_classes or 2)
        features = [torch.cat(layer).cpu().numpy() for layer in zip(*batches, strict=True)]
        problems = (Problem.create(a, y, spread / a.shape[1], intercept=None, classes=classes) for a in features)
        return cls(score, tuple(_laplace_posterior(problem) for problem in problems))

    def sample_proba(self, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        """Return the probabilities (L + 1, n, K) that the probes of the L layers and the posterior predict."""
        with torch.no_grad():
            own = self.score.posterior(*args, **kwargs).cpu().double().numpy()
        features = self.score.whitened(*args, **kwargs)
        probes = [head.predict_proba(a.cpu().numpy()) for head, a in zip(self.heads, features, strict=True)]
        return np.stack([*(np.asarray(p) for p in probes), own])

    def disagreement(self, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        """Return the disagreement (n,) of the layers, in nats."""
        return np.asarray(Uncertainty.of_members(self.sample_proba(*args, **kwargs)).epistemic)


def _laplace_posterior(problem: Problem) -> Posterior:
    """Return the Laplace approximation; its predictions depend on the mode and the curvature there, not on draws."""
    found = map_estimate(problem, tol=1e-3)
    if not found.converged:
        from sklearn.exceptions import ConvergenceWarning

        warn(f"the MAP estimate of a probe did not converge: {found.message}", ConvergenceWarning)
    info = Info("Laplace", found.steps, found.converged, found.residual, found.message, 0.0, math.nan, math.nan)
    ensemble = laplace_ensemble(problem, found.theta, 2, 0)
    return Posterior(ensemble, problem.likelihood, problem.linear, problem.classes, True, info)
