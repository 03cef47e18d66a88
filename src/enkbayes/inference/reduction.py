"""What the data can see: the exact reduction of a problem with fewer data than parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.linear_map import LinearMap
from enkbayes.core.logits import LinearLogits
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, epsilon, namespace

Lift = Callable[[Gaussian], Gaussian]


def reduce_to_data(problem: Problem) -> tuple[Problem, Lift]:
    """Return the problem in the r = rank(features) directions that the data see, and the map back to all P parameters.

    With the whitened parameters u, theta = L0 u, and the left singular vectors U (P, r) of L0' Phi, the likelihood
    depends on U'u only. So the posterior is exactly (posterior of U'u, with prior N(U' u0, I), u0 = L0^{-1} m0) x
    (prior on the complement):

        m = m0 + L0 U (m_r - U' u0),    P = L0 (U P_r U' + I - U U') L0'.

    One-logit likelihoods with linear logits.

    Examples
    --------
    >>> import enkbayes as eb
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> problem = Problem.create(rng.standard_normal((5, 40)), [0, 1, 1, 0, 1], 2.0)
    >>> reduced, lift = reduce_to_data(problem)
    >>> reduced.dim
    5
    >>> posterior = eb.run(reduced, eb.MeanField())
    >>> lift(Gaussian(posterior.mean, posterior.cov)).dim
    40
    """
    if not isinstance(problem.model, LinearLogits) or problem.likelihood.outputs is not None:
        raise ValueError(
            f"the reduction to the data's directions needs linear logits, one for each datum; got {problem.likelihood}"
        )
    prior, linear = problem.prior, problem.model.map
    xp = namespace(prior.mean)
    root = prior.dense_root
    whitened = linear.project(problem.model.features, root)  # (N, P), rows L0' phi_n
    _, s, vt = xp.linalg.svd(whitened, full_matrices=False)
    floor = epsilon(prior.mean) * max(whitened.shape) * float(s[0])
    rank = max(1, int(xp.sum(xp.astype(s > floor, xp.int64))))
    U = vt[:rank, :].mT
    model = LinearLogits(whitened @ U, LinearMap(rank, None, intercept=False), problem.model.chunk)
    centre = U.mT @ xp.linalg.solve(root, prior.mean)
    reduced = replace(problem, model=model, prior=Gaussian(centre, 1.0))

    def lift(law: Gaussian) -> Gaussian:
        inner = U @ (law.dense_cov @ U.mT) + xp.eye(prior.dim, dtype=U.dtype, device=U.device) - U @ U.mT
        cov: Array = root @ inner @ root.mT
        return Gaussian(prior.mean + root @ (U @ (law.mean - centre)), (cov + cov.mT) / 2)

    return reduced, lift
