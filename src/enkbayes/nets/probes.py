"""Do the layers of a network agree? A linear classifier with a posterior reads the class at the inputs of every layer.

The inputs of layer l, averaged over positions and whitened by their second moments over the training rows, are the
features of a Bayesian logistic regression with the prior N(0, v I). On known rows the probes of deep layers repeat what
the network says and those of early layers are unsure; on strange rows they may be sure of different classes. With p_l
the predictions of the L probes and of the posterior itself,

    disagreement = H(mean_l p_l) - mean_l H(p_l),

the mutual information of the class and the place where it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.evaluation.baselines import Laplace
from enkbayes.evaluation.metrics import mutual_information
from enkbayes.nets.loaders import Place, Reader, device_of, shown
from enkbayes.nets.ood_score import Strangeness
from enkbayes.nets.rows import thinned

SPREAD = 10.0  # prior variance of the logits of a training row, on average
CURVATURE = Laplace(particles=2, tol=1e-3)  # predictions depend on the mode and its curvature alone


@dataclass(frozen=True, eq=False)
class Probes:
    """Posteriors of linear classifiers at the layers of a network. Made by `fit`.

    Examples
    --------
    >>> from enkbayes.nets import BayesianHead
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> x = torch.randn(80, 2)
    >>> loader = [(x, (x[:, 0] > 0).long())]
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> head = BayesianHead.fit(model, loader, progress=False)
    >>> probes = Probes.fit(Strangeness.fit(head, loader, progress=False), loader, progress=False)
    >>> probes.sample_proba(x).shape, probes.disagreement(x).shape
    ((3, 80, 2), (80,))
    """

    strangeness: Strangeness
    heads: tuple[Posterior, ...]

    @classmethod
    def fit(
        cls,
        strangeness: Strangeness,
        loader: Iterable[Any],
        *,
        rows: int = 2000,
        inputs: Place = None,
        labels: Place = None,
        seed: int = 0,
        progress: bool = True,
    ) -> Self:
        """Read the training data once and return a probe for every layer that `strangeness` watches.

        Parameters
        ----------
        strangeness : Strangeness
            Fitted to the same training data; it knows the layers and the second moments of their inputs.
        loader : iterable of batches
            The training data, as for `BayesianHead.fit`.
        rows : int
            Training rows at most that the probes are fitted to, a random choice of all.
        inputs, labels : str, int or function of a batch, optional
            As for `BayesianHead.fit`.
        seed : int
            Of that choice.
        progress : bool
            Show a progress bar.
        """
        if rows < 1:
            raise ValueError(f"rows is {rows}; expected at least one")
        reader = Reader(inputs, labels, device_of(strangeness))
        kept = thinned(map(reader, shown(loader, "Probes", enabled=progress)), rows, seed)
        seen = [strangeness.whitened(*args, **kwargs) for args, kwargs in kept.batches]
        y = np.concatenate(kept.labels)
        classes = np.arange(strangeness.posterior.likelihood.outputs or 2)
        layers = [torch.cat(parts).cpu().numpy() for parts in zip(*seen, strict=True)]
        problems = (Problem.create(a, y, SPREAD / a.shape[1], intercept=None, classes=classes) for a in layers)
        return cls(strangeness, tuple(CURVATURE.fit(problem) for problem in problems))

    def sample_proba(self, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        """Return the probabilities (L + 1, n, K) that the probes of the L layers and the posterior predict."""
        seen = self.strangeness.whitened(*args, **kwargs)
        with torch.no_grad():
            own = self.strangeness.posterior(*args, **kwargs).double().cpu().numpy()
        read = [head.predict_proba(a.cpu().numpy()) for head, a in zip(self.heads, seen, strict=True)]
        return np.stack([*(np.asarray(p) for p in read), own])

    def disagreement(self, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        """Return the disagreement (n,) of the layers, in nats."""
        return mutual_information(self.sample_proba(*args, **kwargs))
